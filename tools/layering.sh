#!/bin/bash
# Layering: who may include whom; see layering.py.
#
#   tools/layering.sh [ROOT]     ROOT has include/ and src/ (default: this repository)
exec python3 "$(dirname "${BASH_SOURCE[0]}")/layering.py" "$@"
