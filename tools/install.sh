#!/bin/bash
# Installs the program for all users of a machine, or removes what it installed.
#
#   tools/install.sh PROGRAM PREFIX [DESTDIR]         make install PREFIX=... [DESTDIR=...] calls it
#   tools/install.sh --uninstall PREFIX [DESTDIR]     make uninstall
#
# PREFIX/bin has blipft and the tools, PREFIX/share/blipft what they need (recipes, shapes of models, job scripts), PREFIX/share/man
# the manual page, PREFIX/share/modulefiles the module files, PREFIX/share/doc/blipft the pages. Nothing is written there later: the prefix may be read-only, and several
# versions lie side by side in prefixes of their own. The files are listed in PREFIX/share/blipft/installed.txt with their
# checksums; uninstalling removes those that have not been changed since.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "install: $*" >&2; }
absolute() { [[ $1 == /* ]] || { say "found \"$1\", expected an absolute path: make install PREFIX=/opt/blipft"; exit 2; }; }

uninstall() {
  local root=$1 list=$1/share/blipft/installed.txt sum file kept=0
  [ -f "$list" ] || { say "$list is not there: nothing was installed in $root by make install"; exit 1; }
  while read -r sum file; do
    if [ ! -e "$root/$file" ] && [ ! -L "$root/$file" ]; then continue; fi
    if [ "$(sha256sum < "$root/$file" | cut -d' ' -f1)" = "$sum" ]; then rm "$root/$file"
    else say "kept $root/$file, which was changed after it was installed"; kept=1; fi
  done < "$list"
  rm "$list"
  # Folders that are now empty, the deepest first.
  find "$root"/{bin,share/blipft,share/doc/blipft,share/man/man1,share/modulefiles/blipft} -depth -type d -empty -delete 2> /dev/null || true
  [ $kept = 0 ] || exit 1
}

if [ "${1:-}" = --uninstall ]; then
  absolute "$2"
  uninstall "${3:-}$2"
  exit
fi
program=$1 prefix=$2 root=${3:-}$2
absolute "$prefix"
[ ! -f "$root/share/blipft/installed.txt" ] || uninstall "$root"   # an older version in the same place

installed=()
# put MODE FROM TO: TO below the prefix, where no other file may be.
put() {
  if [ -e "$root/$3" ]; then say "$root/$3 is there and was not installed by make install; move it, or choose another PREFIX"; exit 1; fi
  install -D -m "$1" "$2" "$root/$3"
  installed+=("$3")
}
put_folder() {  # FROM TO: every file below FROM
  local file mode
  while read -r file; do
    mode=644
    [ ! -x "$1/$file" ] || mode=755
    put $mode "$1/$file" "$2/$file"
  done < <(cd "$1" && find . -type f ! -name '*.pyc' -printf '%P\n' | sort)
}

put 755 "$program" bin/blipft
put_folder inputs share/blipft/inputs
put_folder jobs share/blipft/jobs
put_folder share/models share/blipft/models
put 644 share/gemm_algorithms.txt share/blipft/gemm_algorithms.txt
for package in trace convert; do put_folder "tools/blipft_$package" "share/blipft/tools/blipft_$package"; done
for file in own_python.py setup.sh sweep.py; do put 755 "tools/$file" "share/blipft/tools/$file"; done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for tool in trace convert_dataset convert_checkpoint plot_loss; do
  name=blipft-${tool//_/-}
  put 755 "tools/$tool.py" "share/blipft/tools/$tool.py"
  printf '#!/bin/sh\nexec python3 "$(dirname "$(readlink -f "$0")")/../share/blipft/tools/%s.py" "$@"\n' "$tool" > "$scratch/$name"
  put 755 "$scratch/$name" "bin/$name"
done
version=$("$program" --version | sed -n '1s/^blipft \([^,]*\).*/\1/p')
put 644 packaging/blipft.lua "share/modulefiles/blipft/$version.lua"
put 644 packaging/blipft.tcl "share/modulefiles/blipft/$version"
tools/make_man.sh "$program" > "$scratch/blipft.1"
put 644 "$scratch/blipft.1" share/man/man1/blipft.1
for page in README.md LICENSE CHANGELOG.md CITATION.cff; do put 644 "$page" "share/doc/blipft/$page"; done
put_folder docs share/doc/blipft/docs

(cd "$root" && sha256sum "${installed[@]}" | sed 's/  / /') > "$scratch/installed.txt"
install -m 644 "$scratch/installed.txt" "$root/share/blipft/installed.txt"
echo "installed $("$program" --version | head -1) in $root (${#installed[@]} files)"
