#!/bin/bash
# Check: builds everything, runs every test, and ends with one line "N passed, N failed, N skipped".
#
#   tools/check.sh [CUDA=0|1] [BUILD=build/cpu] [SMOKE=1] [SAN=1|thread] [GPU=1] [SCRIPTS=N]        (make check calls it)
#
# A test is a doctest case of the binary, or a line "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" of a script:
# tools/code_rules.py and test/*/*_test.py. A doctest case that prints a line "SKIPPED: ..." counts as skipped.
#
# The binary runs whole; its suites named *golden* again with the matrix products of other processors (OpenBLAS' kernels, those
# that this one can run); its suites named mpi* under mpirun with 1, 2, 3 and 4 ranks, and those named mpi groups* with 6.
# SMOKE=1 (make check-smoke): the rules of the code, the cases that are not named [slow], and one whole run: a minute.
# SAN: the build has sanitizers (see the Makefile), and the binary alone is run, its mpi* suites with 2 ranks.
# GPU=1 (make check-gpu): only what a GPU is needed for: the cases on the GPU, its collectives, and gpu_runs_test.py.
# Parts run beside each other where there are cores for it: one for each 8 (three with CUDA), and scripts by threes, since they
# mostly wait; SCRIPTS=N: N at once. Logs stay in $BUILD/check. Exits 1 when anything failed or nothing ran.

cd "$(dirname "$0")/.." || exit 1
for argument in "$@"; do
  case "$argument" in
    CUDA=[01]) cuda=${argument#CUDA=} ;;
    BUILD=?*) build=${argument#BUILD=} ;;
    SMOKE=1) smoke=1 ;;
    GPU=1) only_gpu=1 ;;
    SAN=1|SAN=thread) san=${argument#SAN=} ;;
    SCRIPTS=[1-9]|SCRIPTS=[1-9][0-9]) scripts_at_once=${argument#SCRIPTS=} ;;
    *) echo "check: unknown argument $argument; usage: tools/check.sh [CUDA=0|1] [BUILD=FOLDER] [SMOKE=1] [SAN=1|thread] [GPU=1] [SCRIPTS=N]" >&2; exit 2 ;;
  esac
done
cuda=${cuda:-0}
case "$san" in
  1) build=${build:-build/san} ;;
  thread) build=${build:-build/tsan} ;;
esac
build=${build:-build/$([ "$cuda" = 1 ] && echo cuda || echo cpu)}
logs=$build/check
rm -rf "$logs"
mkdir -p "$logs"

cores=$(nproc)
passed=0 failed=0 skipped=0

begin() { echo "== $1"; started=$SECONDS; }
end() { echo "   $1 ($((SECONDS - started)) s)"; }
finish() {
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] && [ $((passed + skipped)) != 0 ]
  exit
}

# Numbers of doctest's line "[doctest] test cases: N | P passed | F failed | S skipped". Its own "skipped" counts the
# cases that the filters left out, so only lines "SKIPPED:" count here; doctest takes those cases for passed.
summary_of() { sed 's/\x1b\[[0-9;]*m//g' "$1" | grep -a '^\[doctest\] test cases:' | tail -1; }
summary_number() { summary_of "$1" | grep -oE "[0-9]+ $2" | grep -oE '^[0-9]+'; }
skipped_lines() { grep -ac '^SKIPPED:' "$1"; }

# count_doctest EXIT LOG...: one log for each rank; a case that fails on any rank is a failed case.
count_doctest() {
  local status=$1 worst=0 lost=0 ok p f s log
  shift
  for log in "$@"; do
    f=$(summary_number "$log" failed)
    if [ -z "$f" ]; then lost=1; elif [ "$f" -gt "$worst" ]; then worst=$f; fi
  done
  p=$(summary_number "$1" passed)
  f=$(summary_number "$1" failed)
  s=$(skipped_lines "$1")
  # A rank without a summary crashed, hung or was ended for another's failure: at least one case did not pass.
  if [ "$worst" = 0 ] && { [ $lost = 1 ] || [ "$status" != 0 ]; }; then worst=1; fi
  ok=$((${p:-0} + ${f:-0} - worst - s))
  [ $ok -lt 0 ] && ok=0
  passed=$((passed + ok)) failed=$((failed + worst)) skipped=$((skipped + s))
  result="$ok passed, $worst failed, $s skipped"
  [ "$worst" = 0 ]
}

begin "build (CUDA=$cuda, $build)"
jobs=$((cores > 16 ? 16 : cores))
[ -z "$san" ] && program=blipft
if make -j$jobs CUDA="$cuda" BUILD="$build" SAN="$san" $program "$build/tests" > "$logs/build.log" 2>&1; then
  grep -aE 'warning:' "$logs/build.log" | sort -u | head -20
  end "built"
else
  grep -aE -A3 'error|Error|cannot|undefined|Missing' "$logs/build.log" | head -60
  end "failed: $logs/build.log has everything"
  failed=1
  finish
fi

# Each part is a function, run in a shell of its own, which leaves its numbers in a file; where parts run beside each other,
# so does their output, which is printed one part after the other.
# Tensors of the tests are small: threads and ranks mostly wait for each other. They are not to spin meanwhile: where the processors
# have other work too, that takes ten times as long.
# The GPU's operations are compared with the CPU's on large tensors too: where there are many processors, more of them.
threads=$((cores > 32 ? 8 : cores > 8 ? cores / 4 : cores > 2 ? 2 : cores))
export OMP_WAIT_POLICY=passive
# Tests on a GPU often wait for it, and for each other's start.
at_once=$((cuda ? cores / 2 : cores / 8))
[ $at_once -gt 1 ] && [ -z "$san" ] || at_once=1
parts=0 printed=0
stop() {
  for job in $(jobs -p); do pkill -TERM -P "$job"; done
  exit 130
}
trap stop INT TERM
part() {
  local n=$parts
  parts=$((parts + 1))
  while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; tell; done
  (
    passed=0 failed=0 skipped=0
    [ $at_once = 1 ] || exec > "$logs/part$n.out" 2>&1
    "$@"
    echo "$passed $failed $skipped" > "$logs/part$n.numbers.partial"
    mv "$logs/part$n.numbers.partial" "$logs/part$n.numbers"
  ) &
  [ $at_once = 1 ] && wait && tell
}
# Prints the results of parts that have ended, in order.
tell() {
  local p f s
  while [ -e "$logs/part$printed.numbers" ]; do
    [ ! -e "$logs/part$printed.out" ] || cat "$logs/part$printed.out"
    read -r p f s < "$logs/part$printed.numbers"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s)) printed=$((printed + 1))
  done
}
tell_all() {
  wait
  tell
  # A part that was killed has no numbers.
  [ $printed = $parts ] && return
  echo "part $printed of $parts did not end"
  failed=$((failed + 1))
}

unit_limit=1800 ranks_limit=900                # seconds
[ -n "$san" ] && unit_limit=3600 ranks_limit=3600  # several times as slow
if [ -n "$san" ]; then
  export UBSAN_OPTIONS=print_stacktrace=1
  export ASAN_OPTIONS=detect_stack_use_after_return=1
  export LSAN_OPTIONS=suppressions=$PWD/tools/sanitizers/leaks.txt:print_suppressions=0
  export TSAN_OPTIONS=suppressions=$PWD/tools/sanitizers/threads.txt:halt_on_error=0:exitcode=66
fi
if [ "$san" = thread ]; then
  # libgomp and OpenBLAS are not built with the sanitizer: it sees neither their barriers nor their locks, and takes every
  # parallel loop for a race. With one thread each, what is checked is the threads that this program starts itself.
  threads=1
  export OMP_THREAD_LIMIT=1 OPENBLAS_NUM_THREADS=1    # the limit: also where a test asks for two
fi

# unit_tests NAME OPTION...: doctest's options choose the cases.
unit_tests() {
  local name=$1 log=$logs/${1// /_}.log
  shift
  begin "$name"
  OMP_NUM_THREADS=$threads timeout "$unit_limit" "$build/tests" -tse='mpi*' "$@" -nc=true -d=true > "$log" 2>&1
  local status=$?
  grep -a '^SKIPPED:' "$log"
  count_doctest $status "$log" || { cat "$log"; echo "exit status $status"; }
  end "$result"
}
# script_tests FILE [WORD...]: the words choose tests.
script_tests() {
  local test=$1 log status p f s
  begin "$*"
  log=$logs/$(basename "$test").log
  timeout --kill-after=20 1800 "$python" "$@" > "$log" 2>&1
  status=$?
  p=$(grep -ac '^ok ' "$log") f=$(grep -ac '^FAILED [^(]' "$log") s=$(grep -ac '^SKIPPED[: ]' "$log")
  # A script that ends badly, or says nothing, has failed even when no line says so.
  if [ "$f" = 0 ] && { [ $status != 0 ] || [ $((p + s)) = 0 ]; }; then f=1; fi
  if [ "$f" != 0 ]; then
    grep -av '^ok ' "$log" | tail -80
    echo "exit status $status"
  else
    grep -a '^SKIPPED[: ]' "$log"
  fi
  passed=$p failed=$f skipped=$s
  end "$p passed, $f failed, $s skipped"
}

python=$(tools/setup.sh --python 2> /dev/null || echo python3)
export BLIPFT_PYTHON=$python
part script_tests tools/code_rules.py
if [ -n "$smoke" ]; then
  part unit_tests "quick unit tests" -tce='*[slow]*,every case on the GPU*'
  part script_tests test/program/program_test.py trains_to_the_end the_saved_model
  tell_all
  finish
fi
# On a GPU these take longest: they begin first.
longest=(test/program/gpu_runs_test.py)
[ "$only_gpu" = 1 ] || longest+=(test/tools/bench_test.py test/tools/bench_pytorch_test.py test/program/llama_program_test.py)
if [ "$cuda" = 1 ] && [ -z "$san" ]; then
  for test in "${longest[@]}"; do part script_tests "$test"; done
fi

# On a GPU the comparison of every operation takes minutes: four processes share it. Without one it is skipped, once.
compared="every case on the GPU*"
gpu_operations() { BLIPFT_OPS_PART=$1/4 unit_tests "operations on the GPU, part $1 of 0 to 3" -tc="$compared"; }
if [ "$cuda" = 1 ]; then
  for quarter in 0 1 2 3; do part gpu_operations $quarter; done
fi
if [ "$only_gpu" = 1 ]; then
  part unit_tests "the GPU's own tests" -ts="cuda*,monitor,architecture" -tce="$compared"
  part unit_tests "models and clock on the GPU" -tc="*on the GPU,the clock of a GPU*"
elif [ "$cuda" = 1 ]; then
  part unit_tests "unit tests" -tce="$compared"
else
  part unit_tests "unit tests"
fi

# OpenBLAS selects kernels by the processor, and each kernel sums in its own order.
has_flags() {
  local flag
  for flag in "$@"; do grep -qw -m1 "$flag" /proc/cpuinfo || return 1; done
}
golden_tests() {
  local kernel=$1 log=$logs/golden.$1.log status
  begin "golden files with OpenBLAS' $kernel kernels"
  OPENBLAS_CORETYPE=$kernel OPENBLAS_VERBOSE=2 OMP_NUM_THREADS=1 timeout "$unit_limit" "$build/tests" -ts='*golden*' -tse='mpi*' \
    -tce='*on the GPU*' -nc=true -d=true > "$log" 2>&1
  status=$?
  if [ $status = 0 ] && ! grep -qax "Core: $kernel" "$log"; then
    echo "SKIPPED: this OpenBLAS has no kernels of $kernel"
    skipped=1 result="0 passed, 0 failed, 1 skipped"
  else
    count_doctest $status "$log" || { cat "$log"; echo "exit status $status"; }
  fi
  end "$result"
}
if [ -z "$san$only_gpu" ]; then
  if has_flags avx; then part golden_tests Sandybridge; fi
  if has_flags avx2 fma; then part golden_tests Haswell; part golden_tests Zen; fi
  if has_flags avx512f avx512bw avx512cd avx512dq avx512vl; then part golden_tests SkylakeX; fi
fi

# Each rank writes its own log, so that lines of ranks do not mix.
# run_ranks RANKS PREFIX SUITES [TESTS MPIRUN]: default: the tests of this build, under Open MPI.
run_ranks() {
  local ranks=$1 prefix=$2 suites=$3 tests=${4:-$build/tests} launcher=${5:-mpirun} each
  local options=(-np "$ranks")
  if [ "$launcher" = mpirun ]; then
    options+=(--oversubscribe --bind-to none)
    [ "$(id -u)" = 0 ] && options+=(--allow-run-as-root)
  fi
  each=$((threads / ranks > 0 ? threads / ranks : 1))
  [ "$san" = thread ] && each=1
  # shellcheck disable=SC2016  # expanded by each rank
  OMP_NUM_THREADS=$each timeout --kill-after=20 "$ranks_limit" "$launcher" "${options[@]}" bash -c \
    'exec "$0" -ts="$2" -nc=true -d=true > "$1.rank${OMPI_COMM_WORLD_RANK:-$PMI_RANK}.log" 2>&1' "$tests" "$prefix" "$suites" \
    > "$prefix.mpirun.log" 2>&1
}

# mpi_tests RANKS [SUITES [NAME-OF-MPI TESTS MPIRUN]]
mpi_tests() {
  local ranks=$1 suites=${2:-mpi*} mpi=${3:-} prefix=$logs/mpi$1${3:-} rank_logs=() rank status
  [ "$ranks" = 6 ] && suites="mpi groups*"      # 2 x 3 and 3 x 2; the others learn nothing new
  begin "mpi tests${mpi:+ under $mpi}, $ranks $([ "$ranks" = 1 ] && echo rank || echo ranks)"
  run_ranks "$ranks" "$prefix" "$suites" "${@:4}"
  status=$?
  for ((rank = 0; rank < ranks; ++rank)); do
    touch "$prefix.rank$rank.log"
    rank_logs+=("$prefix.rank$rank.log")
  done
  grep -a '^SKIPPED:' "$prefix.rank0.log"
  count_doctest $status "${rank_logs[@]}" || {
    for log in "${rank_logs[@]}" "$prefix.mpirun.log"; do
      [ "$(summary_number "$log" failed)" = 0 ] && continue
      echo "--- $log"
      # The cases and lines that failed, then how it ended.
      grep -aE -B 6 -A 8 ': (FATAL )?ERROR: ' "$log" | head -80
      tail -8 "$log"
    done
    echo "exit status $status"
  }
  end "$result"
}

mpi_cases=$("$build/tests" -ts='mpi*' -ltc -nc=true 2> /dev/null | grep -c '^[^=[]')
if [ "$mpi_cases" != 0 ]; then
  # Containers often forbid reading another process's memory; Open MPI then warns on every start.
  export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
  # Open MPI and its libraries keep what they allocated until the process ends, hundreds of places each.
  [ -n "$san" ] && export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0
  if [ "$only_gpu" = 1 ]; then
    for ranks in 1 2; do part mpi_tests "$ranks" 'mpi gpu*,mpi lora*'; done
  else
    for ranks in $([ -n "$san" ] && echo 2 || echo 1 2 3 4 6); do part mpi_tests "$ranks"; done
  fi
fi
# The mpi tests under MPICH: src/comm alone is compiled again.
if [ -z "$san$only_gpu$smoke" ] && [ "$cuda" = 0 ]; then
  if ! command -v mpicxx.mpich > /dev/null || ! command -v mpirun.mpich > /dev/null; then
    echo "SKIPPED: mpi tests under MPICH (packages libmpich-dev and mpich)"
    skipped=$((skipped + 1))
  elif make -j$jobs CUDA=0 BUILD="$build" "$build/other_mpi/tests" > "$logs/build_mpich.log" 2>&1; then
    for ranks in 2 3; do part mpi_tests "$ranks" 'mpi*' MPICH "$build/other_mpi/tests" mpirun.mpich; done
  else
    grep -aE -A3 'error|undefined' "$logs/build_mpich.log" | head -20
    failed=$((failed + 1))
  fi
fi
if [ -n "$san" ]; then
  tell_all
  echo "SKIPPED: test/*/*_test.py (they run programs and tools that have no sanitizer)"
  skipped=$((skipped + 1))
  finish
fi

tests=()
if [ "$cuda" = 0 ]; then tests+=("${longest[@]}"); fi
for test in test/*/*_test.py; do
  [ "$only_gpu" = 1 ] || [[ " ${longest[*]} " == *" $test "* ]] || tests+=("$test")
done
# Scripts wait for time limits and for programs to start: three of them keep two cores busy.
[ $at_once -lt 3 ] && [ "$cores" -ge 2 ] && at_once=3
at_once=${scripts_at_once:-$at_once}
for test in "${tests[@]}"; do part script_tests "$test"; done
tell_all
finish
