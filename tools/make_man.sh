#!/bin/bash
# Prints the manual page of the program that is given, made of its --help.
set -euo pipefail
program=$1
version=$("$program" --version | head -1)
"$program" --help | awk -v version="${version//,/}" '
  function escaped(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.'"'"']/, "\\\\\\&&", text); return text }
  function literal(on) { if (on != inside) print on ? ".nf" : ".fi"; inside = on }
  NR == 1 { print ".TH BLIPFT 1 \"\" \"" escaped(version) "\""; print ".SH NAME"; print "blipft \\- fine\\-tunes vision\\-language and language models"; first = $0; next }
  /^usage:/ { print ".SH SYNOPSIS"; literal(1) }
  /^On several GPUs/ { literal(0); print ".SH DESCRIPTION"; print escaped(first) }
  /^Options$/ { literal(0); print ".SH OPTIONS"; literal(1); next }
  /^The keys of a run file/ { literal(0); print ".SH RUN FILES"; print escaped($0); next }
  /^[a-z]+:$/ { literal(0); print ".SS " substr($0, 1, length($0) - 1); literal(1); next }
  { print escaped($0) }
  END { literal(0) }'
