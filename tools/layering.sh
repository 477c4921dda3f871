#!/bin/bash
# Layering: who may include whom, and who may call the linear ops. Prints each breach as file:line: text, and exits 1 on any.
#
#   tools/layering.sh [ROOT]     ROOT has include/ and src/ (default: this repository)
#
# Vendor headers stay in one place, so that every part but one builds without that vendor; public headers include none.
# The parts know only what their row below allows, so that each can be read, tested and replaced alone.

cd "${1:-$(dirname "$0")/..}" || exit 2
if [ ! -d src ] || [ ! -d include ]; then
  echo "layering: found no src/ and include/ in $PWD" >&2
  exit 2
fi

grep -rnE --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' \
  '^[[:space:]]*#[[:space:]]*include|[.>]linear_(forward|backward_input|backward_weight)\(' src include |
  sort -t: -k1,1 -k2,2n |
  awk '
    function breach(why) { print place ": " text "  -- " why; count++ }

    # The folder of a path ("" for none), and a path without "." and "x/..".
    function folder(path) { return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : "" }
    function clean(path) {
      while (sub(/(^|\/)\.\//, "/", path)) {}
      while (sub(/[^\/]+\/\.\.\//, "", path)) {}
      return path
    }
    function is_file(path,    line, ok) { if (path !~ /\.(h|cuh)$/) return 0; ok = (getline line < path) >= 0; if (ok) close(path); return ok }

    # Where an include leads: "src/...", "include/...", or the name itself when it is no file of ours.
    function target_of(name,    here) {
      here = clean(folder(file) "/" name)
      if (is_file(here)) return here
      if (is_file("src/" name)) return clean("src/" name)
      if (is_file("include/" name)) return clean("include/" name)
      # Not written yet: a name of ours all the same.
      if (name ~ /^blipft\//) return "include/" name
      if (name ~ /^(run|config|memory|trace|ops|cpu|cuda|comm|models|store|strategies|optimizers|data|io)\//) return "src/" name
      return name
    }

    function vendor(name, pattern, allowed, where) {
      if (target !~ /^(src|include)\// && name ~ pattern && file !~ allowed) breach("only " where " may include it")
    }

    # A part may include public headers of this list, its own folder, and the named private headers.
    function only(part, public, private,    name) {
      if (file !~ "^src/" part "/" || target !~ /^(src|include)\//) return
      if (target ~ "^src/" part "/") return
      name = target
      if (sub(/^include\/blipft\//, "", name)) { if (name !~ "^(" public ")\\.h$") breach(part "/ may not include it") }
      else if (sub(/^src\//, "", name)) { if (name !~ "^(" private ")\\.(h|cuh)$") breach(part "/ may not include it") }
    }
    function never(part, pattern) {
      if (file ~ "^src/" part "/" && target ~ pattern) breach(part "/ may not include it")
    }

    {
      split($0, parts, ":")
      file = parts[1]; place = parts[1] ":" parts[2]
      text = substr($0, length(place) + 2)
      gsub(/^[[:space:]]+|[[:space:]]+$/, "", text)
      if (text !~ /^#/) {
        if (file ~ /^src\/models\// && file !~ /^src\/models\/blocks\/linear_[a-z_]*\.cpp$/)
          breach("models multiply through LinearLayer; only src/models/blocks/linear_*.cpp may call it")
        next
      }
      if (!match(text, /[<"][^>"]+[>"]/)) next
      name = substr(text, RSTART + 1, RLENGTH - 2)
      target = target_of(name)

      nvidia = "^(cuda|cublas|cudnn|cupti|cufft|curand|cusparse|cusolver|nvml|nvtx|nvToolsExt|nvrtc|device_launch|" \
               "cooperative_groups|driver_types|vector_types|mma\\.h|sm_|cub/|thrust/|cute/|cutlass/)"
      vendor(name, nvidia, "^src/(cuda/|comm/(nccl|peer_)[^/]*$)",
             "src/cuda/, src/comm/nccl.cpp and src/comm/peer_*")
      vendor(name, "^nccl", "^src/comm/nccl\\.cpp$", "src/comm/nccl.cpp")
      vendor(name, "^(mpi|mpi-ext)\\.h$", "^src/comm/", "src/comm/")
      vendor(name, "^(hdf5|hdf5_hl|H5[A-Za-z]*)\\.h$", "^src/(io|trace)/", "src/io/ and src/trace/")
      vendor(name, "^yaml-cpp/", "^src/config/[a-z_]*\\.cpp$", "src/config/*.cpp")
      vendor(name, "^sentencepiece_[a-z_]*\\.h$", "^src/data/", "src/data/")
      vendor(name, "^(cblas|openblas.*|jpeglib|png|nlohmann/.*)(\\.h|\\.hpp)$", "^src/", "src/")
      if (file ~ /^include\// && target !~ /^include\// && name ~ /[.\/]/ &&
          name !~ /^(cuda|cublas|cudnn|nccl|mpi|hdf5|yaml-cpp|cblas|jpeglib|png|sentencepiece|nlohmann)/)
        breach("a public header includes only blipft/ and the standard library")

      never("models", "^(include/blipft|src)/(comm|strategy|strategies|optimizer|optimizers|cpu|cuda)[./]")
      never("strategies", "^(include/blipft|src)/(model|models|data|checkpoint|config)[./]")
      never("strategies", "^src/(run|memory|trace|io|cpu|cuda|comm|optimizers)/")
      only("store", "store|format|arena|optimizer|unit|ops|device|tensor|error|config", "ops/[a-z0-9_]*")
      only("ops", "ops|head_norm|tensor|error|device|philox", "")
      only("comm", "comm|activity|control_channel|device|tensor|error|monitor", "ops/[a-z0-9_]*|cuda/device/[a-z_]*|cuda/vector")
      only("data", "data|batch|config|device|tensor|ops|error|philox", "ops/[a-z0-9_]*|io/(file|json|crc32c)")
      only("io", "checkpoint|tensor|error", "memory/memory_text")
      only("config", "config|config_rules|error", "io/file")
      never("memory", "^src/(config|trace|cpu|cuda|comm|models|store|strategies|optimizers|data|io)/")
      never("trace", "^src/(config|cpu|cuda|comm|models|store|strategies|optimizers|data)/")
      never("run", "^src/(config|cpu|cuda|comm|models|store|strategies|optimizers)/")
      only("optimizers", "tensor|ops|error|device|optimizer|philox", "")
      only("cpu", "device|ops|head_norm|tensor|error|philox", "ops/[a-z0-9_]*|memory/memory_text")
      only("cuda", "device|ops|head_norm|tensor|error|philox|monitor", "ops/[a-z0-9_]*|memory/memory_text")
    }
    END {
      if (count) print "layering: " count (count == 1 ? " breach" : " breaches")
      exit count > 0
    }'
