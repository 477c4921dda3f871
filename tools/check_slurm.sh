#!/bin/bash
# Check on Slurm: starts a Slurm cluster of two nodes on this machine, runs the program and its job scripts on it, stops
# everything, and ends with one line "N passed, N failed, N skipped".
#
#   tools/check_slurm.sh [CUDA=0|1] [BUILD=build/cpu] [WORD...]       (make check-slurm calls it)
#
# Runs test/slurm/slurm_runs.py (the tests whose names hold a WORD) in namespaces of its own: the cluster's daemons,
# folders, hosts and ports are seen by nobody else, and the kernel ends and removes all of them with the first process,
# however that ends. Needs root, for the namespaces, and Debian's slurm and munge, which are installed where they are
# missing. If that is not possible: "SKIPPED slurm (why)", and exit status 0. Takes about a minute; 3 at most.

cd "$(dirname "$0")/.." || exit 1
PATH=$PATH:/usr/sbin:/sbin  # Slurm's daemons
words=()
for argument in "$@"; do
  case "$argument" in
    CUDA=[01]) cuda=${argument#CUDA=} ;;
    BUILD=?*) build=${argument#BUILD=} ;;
    *=*)
      echo "check_slurm: unknown argument $argument; usage: tools/check_slurm.sh [CUDA=0|1] [BUILD=FOLDER] [WORD...]" >&2
      exit 2 ;;
    *) words+=("$argument") ;;
  esac
done
cuda=${cuda:-0}
build=${build:-build/$([ "$cuda" = 1 ] && echo cuda || echo cpu)}

skip() {
  echo "SKIPPED slurm ($1)"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

programs=(slurmctld slurmd munged sbatch ip)
has_programs() {
  local program
  for program in "${programs[@]}"; do command -v "$program" > /dev/null || return 1; done
}
# The packages would start daemons of their own, on the machine's own network; policy-rc.d is how one tells them not to.
install_slurm() {
  local policy=/usr/sbin/policy-rc.d run=(timeout 300 apt-get -q -o DPkg::Lock::Timeout=120)
  command -v apt-get > /dev/null || return 1
  echo "check_slurm: installing slurm and munge" >&2
  if [ ! -e $policy ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > $policy && chmod 755 $policy
  fi
  export DEBIAN_FRONTEND=noninteractive
  { "${run[@]}" update; "${run[@]}" install -y --no-install-recommends slurmctld slurmd slurm-client munge iproute2
  } > "$build/slurm-install.log" 2>&1
  hash -r
  has_programs
}

[ "$(id -u)" = 0 ] || skip "needs root, for namespaces of its own"
namespaces=(unshare --mount --pid --net --uts --ipc --fork --kill-child --mount-proc)
why=$("${namespaces[@]}" true 2>&1) || skip "this machine allows no namespaces: ${why:-unshare failed}"
mkdir -p "$build"
has_programs || install_slurm || skip "slurm and munge could not be installed: $build/slurm-install.log"

echo "== build (CUDA=$cuda, $build)"
make -s -j"$(nproc)" CUDA="$cuda" BUILD="$build" blipft > "$build/slurm-build.log" 2>&1 || {
  tail -20 "$build/slurm-build.log"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
}

echo "== test/slurm/slurm_runs.py"
log=$build/slurm.log
timeout --foreground --signal=KILL 180 "${namespaces[@]}" "$(tools/setup.sh --python 2> /dev/null || echo python3)" \
  test/slurm/slurm_runs.py "${words[@]}" < /dev/null 2>&1 | tee "$log" |
  grep -a --line-buffered -E '^(ok|SKIPPED|FAILED) '
status=${PIPESTATUS[0]}
p=$(grep -ac '^ok ' "$log") f=$(grep -ac '^FAILED ' "$log") s=$(grep -ac '^SKIPPED ' "$log")
# A script that ends badly, or says nothing, has failed even when no line says so.
if [ "$f" = 0 ] && { [ "$status" != 0 ] || [ $((p + s)) = 0 ]; }; then f=1; fi
if [ "$f" != 0 ]; then
  grep -av '^ok ' "$log" | tail -120
  echo "exit status $status"
fi
echo "$p passed, $f failed, $s skipped"
[ "$f" = 0 ]
