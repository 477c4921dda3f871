#!/bin/bash
# Installs what blipft is built, tested and reported with, where it is missing (Debian 12, Ubuntu 24.04).
#
#   tools/setup.sh                    installs the missing packages through apt (as root), or prints the command
#   tools/setup.sh --check CUDA=0|1   only names what the build misses; make calls it at each build, so it is fast
#   tools/setup.sh --python [MODULE ...]   prints the python3 that has these modules (default: what most of tools/*.py
#                                     need): BLIPFT_PYTHON where it is set, the first in PATH, or the system's
#   tools/setup.sh --browser          prints the browser that the test of the report page uses; installs one where apt
#                                     has it (as root on Debian); without one the test is skipped
#
# Anything that is there counts, wherever it came from: headers are looked for in the compiler's places, Python
# modules by asking Python for them.

cd "$(dirname "$0")/.." || exit 1

multiarch=$(uname -m)-linux-gnu
include_dirs=(/usr/include "/usr/include/$multiarch" /usr/local/include /usr/include/hdf5/serial)
library_dirs=("/usr/lib/$multiarch" "/usr/lib/$multiarch/hdf5/serial" /usr/lib64 /usr/lib
              /usr/local/lib /usr/local/lib64)
if [ -n "${HDF5_ROOT:-}" ]; then  # make takes it too
  include_dirs+=("$HDF5_ROOT/include")
  library_dirs+=("$HDF5_ROOT/lib" "$HDF5_ROOT/lib64")
fi
IFS=: read -ra more <<< "${CPATH:-}:${CPLUS_INCLUDE_PATH:-}"
for d in "${more[@]}"; do [ -n "$d" ] && include_dirs+=("$d"); done
IFS=: read -ra more <<< "${LIBRARY_PATH:-}"
for d in "${more[@]}"; do [ -n "$d" ] && library_dirs+=("$d"); done

names=()     # what is missing, one text for each
packages=()  # the apt packages that have it
missing() { names+=("$1"); packages+=(${2:+$2}); }

# has_header HEADER [DIR...], has_library NAME [DIR...]: the usual places first (no process is started),
# then the compiler.
has_header() {
  local header=$1 d
  shift
  for d in "${include_dirs[@]}" "$@"; do [ -e "$d/$header" ] && return 0; done
  command -v g++ > /dev/null || return 1
  echo "#include <$header>" | g++ -x c++ -std=c++20 -E -o /dev/null - 2> /dev/null
}
has_library() {
  local name=$1 d
  shift
  for d in "${library_dirs[@]}" "$@"; do [ -e "$d/lib$name.so" ] && return 0; done
  command -v g++ > /dev/null || return 1
  [[ $(g++ -print-file-name="lib$name.so") == /* ]]
}
need_tool() { command -v "$1" > /dev/null || missing "the program $1" "$2"; }
need_header() { has_header "$1" || missing "the header $1" "$2"; }
need_library() { has_library "$1" || missing "the library $1" "$2"; }

need_build_packages() {
  need_tool g++ g++
  need_tool make make
  [ ! -e .git ] || need_tool git git         # a source package needs none
  need_tool "${MPICXX:-mpicxx}" libopenmpi-dev
  need_tool mpirun openmpi-bin
  need_header hdf5.h libhdf5-dev
  need_header yaml-cpp/yaml.h libyaml-cpp-dev
  need_header doctest/doctest.h doctest-dev
  need_header nlohmann/json.hpp nlohmann-json3-dev
  need_header jpeglib.h libjpeg-dev
  need_header png.h libpng-dev
  need_header zlib.h zlib1g-dev
  need_header sentencepiece_processor.h libsentencepiece-dev
  need_header pcre2.h libpcre2-dev
  need_header utf8proc.h libutf8proc-dev
  need_library yaml-cpp libyaml-cpp-dev
  need_library jpeg libjpeg-dev
  need_library png libpng-dev
  need_library z zlib1g-dev
  need_library sentencepiece libsentencepiece-dev
  need_library pcre2-8 libpcre2-dev
  need_library utf8proc libutf8proc-dev
  if ! has_library hdf5_serial && ! has_library hdf5; then missing "the library hdf5" libhdf5-dev; fi
  # cblas.h and libopenblas may lie in a folder that only pkg-config knows.
  if ! has_header cblas.h || ! has_library openblas; then
    if ! command -v pkg-config > /dev/null; then
      missing "OpenBLAS (cblas.h, libopenblas)" "libopenblas-dev pkg-config"
    elif ! pkg-config --exists openblas; then
      missing "OpenBLAS (cblas.h, libopenblas)" libopenblas-dev
    fi
  fi
}

# install_optional NAME REASON PACKAGE...: as root, with apt. A failure is remembered for a day, so that checks without a network
# stay fast.
install_optional() {
  local failed=build/no_$1 reason=$2 run=(timeout 600 apt-get -q -o DPkg::Lock::Timeout=300)
  shift 2
  [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null && [ -z "$(find "$failed" -mtime -1 2> /dev/null)" ] || return 1
  echo "setup: installing $* ($reason)" >&2
  export DEBIAN_FRONTEND=noninteractive
  if { "${run[@]}" install -y --no-install-recommends "$@" ||
       { "${run[@]}" update && "${run[@]}" install -y --no-install-recommends "$@"; }; } >&2; then
    hash -r
    return 0
  fi
  mkdir -p build && touch "$failed"
  return 1
}

# WebP pictures are read if libwebp is installed. Everything else works without it.
want_webp() {
  has_header webp/demux.h && return 0
  install_optional webp "to read WebP pictures" libwebp-dev && has_header webp/demux.h && return 0
  echo "setup: note: without libwebp-dev (webp/demux.h) WebP pictures will not be read" >&2
}

# A second MPI, under which make check runs the mpi tests again.
want_mpich() {
  command -v mpicxx.mpich > /dev/null && command -v mpirun.mpich > /dev/null && return 0
  install_optional mpich "to test src/comm under a second MPI" libmpich-dev mpich
}

# The CUDA toolkit and NCCL come from NVIDIA; nothing of them is installed here.
need_cuda() {
  local nvcc home
  nvcc=$(command -v nvcc || true)
  [ -z "$nvcc" ] && [ -x /usr/local/cuda/bin/nvcc ] && nvcc=/usr/local/cuda/bin/nvcc
  home=${CUDA_HOME:-}
  [ -z "$home" ] && [ -n "$nvcc" ] && home=$(readlink -f "$nvcc") && home=${home%/bin/nvcc}
  home=${home:-/usr/local/cuda}
  local libraries=("$home/lib64" "$home/targets/$([ "$(uname -m)" = aarch64 ] && echo sbsa || uname -m)-linux/lib" "$home/lib")
  [ -x "$home/bin/nvcc" ] || [ -n "$nvcc" ] || missing "nvcc, $toolkit"
  # 12.4 is the oldest toolkit that has what src/cuda calls.
  local version
  version=$(sed -n 's/^#define CUDART_VERSION *\([0-9]*\).*/\1/p' "$home/include/cuda_runtime_api.h" 2> /dev/null)
  if [ "${version:-99999}" -lt 12040 ]; then
    missing "CUDA 12.4 or newer (found $((version / 1000)).$((version % 1000 / 10)) in $home), $toolkit"
  fi
  has_header cublasLt.h "$home/include" || missing "the header cublasLt.h, $toolkit"
  has_library cublasLt "${libraries[@]}" || missing "the library cublasLt, $toolkit"
  has_header nccl.h "$home/include" || missing "the header nccl.h, $nccl"
  has_library nccl "${libraries[@]}" || missing "the library nccl, $nccl"
}
toolkit="from NVIDIA's CUDA toolkit (https://developer.nvidia.com/cuda-downloads; \
on clusters often: module load cuda); or build with CUDA=0"
nccl="from NVIDIA's NCCL (packages libnccl2 and libnccl-dev of NVIDIA's apt repository); or build with CUDA=0"

modules=(numpy h5py matplotlib PIL)
has_modules() {
  "$1" -c 'import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in sys.argv[1:]))' \
    "${@:2}" 2> /dev/null
}
# The python3 of the tools: the first in PATH when it has the modules, else the system's, where apt puts them.
find_python() {
  local candidate
  [ $# = 0 ] && set -- "${modules[@]}"
  for candidate in "${BLIPFT_PYTHON:-}" python3 /usr/bin/python3; do
    [ -n "$candidate" ] && has_modules "$candidate" "$@" && echo "$candidate" && return 0
  done
  return 1
}
need_python() {
  find_python > /dev/null && return
  local m
  for m in "${modules[@]}"; do
    has_modules /usr/bin/python3 "$m" || missing "the Python module $m" "python3 python3-${m,,}"
  done
}

# The browser that the test of the report page drives. Ubuntu's package is a script that asks for a snap, which
# containers cannot install: it tells no version.
find_browser() {
  local name
  for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
    command -v "$name" > /dev/null || continue
    "$name" --version 2> /dev/null < /dev/null | grep -q Chrom && command -v "$name" && return 0
  done
  return 1
}
# Only Debian's package is a browser.
install_browser() {
  [ "$(sed -n 's/^ID=//p' /etc/os-release 2> /dev/null)" = debian ] || return 1
  install_optional browser "to open the report page in make check" chromium fonts-dejavu-core && find_browser > /dev/null
}

print_missing() {
  local name
  for name in "${names[@]}"; do echo "  $name"; done
}
apt_packages() { printf '%s\n' "${packages[@]}" | tr ' ' '\n' | sort -u | paste -sd ' '; }
apt_command() { echo "apt-get update && apt-get install -y --no-install-recommends $(apt_packages)"; }

install_missing() {
  echo "setup: missing:" && print_missing
  if ! command -v apt-get > /dev/null; then
    echo "setup: there is no apt-get here; install these with this system's package manager" >&2
    exit 1
  fi
  if [ "$(id -u)" != 0 ]; then
    echo "setup: install them as root with" >&2
    echo "  sudo sh -c '$(apt_command)'" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  local options=(-q -o DPkg::Lock::Timeout=300)
  apt-get "${options[@]}" update || echo "setup: apt-get update failed; trying with the lists that are there" >&2
  # shellcheck disable=SC2046  # one word for each package
  apt-get "${options[@]}" install -y --no-install-recommends $(apt_packages) || {
    echo "setup: apt-get could not install $(apt_packages)" >&2
    exit 1
  }
  hash -r
}

case "${1:-}" in
  --check)
    [ -n "${2:-}" ] && [[ $2 != CUDA=[01] ]] && echo "setup: found \"$2\", expected CUDA=0 or CUDA=1" >&2 && exit 2
    need_build_packages
    [ "${2:-}" = CUDA=1 ] && need_cuda
    [ ${#names[@]} = 0 ] && exit 0
    {
      echo "blipft cannot be built yet. Missing:"
      print_missing
      if [ ${#packages[@]} != 0 ]; then echo "make setup installs packages of this system, as root: $(apt_packages)"; fi
    } >&2
    exit 1
    ;;
  --python)
    shift
    find_python "$@" && exit 0
    [ $# = 0 ] && echo "setup: no python3 has ${modules[*]}; make setup installs them" >&2
    exit 1
    ;;
  --browser)
    find_browser || { install_browser && find_browser; } && exit 0
    echo "setup: no Chromium here; the test of the report page will be skipped" >&2
    exit 1
    ;;
  --mpich)
    want_mpich && exit 0
    echo "setup: no MPICH here; the tests of a second MPI will be skipped" >&2
    exit 1
    ;;
  "") ;;
  *)
    echo "setup: unknown option $1; usage: tools/setup.sh [--check CUDA=0|1 | --python [MODULE ...] | --browser | --mpich]" >&2
    exit 2
    ;;
esac

need_build_packages
need_python
want_webp
[ ${#names[@]} = 0 ] && exit 0
[ ${#packages[@]} != 0 ] && install_missing
names=() packages=()
need_build_packages
need_python
[ ${#names[@]} = 0 ] && echo "setup: everything is there" && exit 0
echo "setup: still missing after the installation:" >&2
print_missing >&2
exit 1
