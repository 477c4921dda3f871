#!/bin/bash
# Runs the fuzz targets that make fuzz built, one after the other.
#
#   tools/fuzz.sh [SECONDS] [NAME ...]       SECONDS for each (default 600); NAME: of a target (default: all)
#
# A finding (a crash, an undefined operation, more than 10 s, 2 GiB of memory or 1 GiB at once) ends its target and is kept in
# build/fuzz/found. New inputs go to build/fuzz/inputs/NAME, not into the repository. Exits 1 on any finding.

cd "$(dirname "$0")/.." || exit 2
seconds=600
case "$1" in [0-9]*) seconds=$1; shift ;; esac
names=("$@")
[ ${#names[@]} = 0 ] && for file in test/fuzz/*_fuzz.cpp; do
  name=$(basename "$file")
  names+=("${name%_fuzz.cpp}")
done
status=0
for name in "${names[@]}"; do
  [ -x "build/fuzz/$name" ] || { echo "fuzz: build/fuzz/$name is missing: make fuzz" >&2; exit 2; }
  mkdir -p "build/fuzz/inputs/$name" build/fuzz/found
  log=build/fuzz/$name.log
  if "build/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536 \
    -artifact_prefix="build/fuzz/found/$name-" "build/fuzz/inputs/$name" "test/fuzz/corpus/$name" > "$log" 2>&1; then
    echo "$name: $(grep -a '^Done' "$log"), no finding"
  else
    status=1
    echo "$name: FOUND something; $log ends:"
    grep -aE 'ERROR|SUMMARY|runtime error|a message of|Test unit written' "$log" | head -8
  fi
done
exit $status
