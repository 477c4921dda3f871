#!/bin/bash
# Layering: who may include whom; see layering.py. And each type has a name of its own; see one_definition.py. And no file and
# no function is too long to read; see lengths.py.
#
#   tools/layering.sh [ROOT]     ROOT has include/ and src/ (default: this repository)
tools=$(dirname "${BASH_SOURCE[0]}")
status=0
python3 "$tools/layering.py" "$@" || status=1
python3 "$tools/one_definition.py" "$@" || status=1
python3 "$tools/lengths.py" "$@" || status=1
exit $status
