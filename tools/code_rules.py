#!/usr/bin/env python3
"""The rules of the code: who may include whom (layering.py), one definition of each type (one_definition.py), lengths of files
and functions (lengths.py), and retired words (retired_words.py). Prints each breach, and "ok NAME" or "FAILED NAME" for each set of rules;
exits 1 on any breach.

    tools/code_rules.py [ROOT]     ROOT has include/ and src/ (default: this repository)
"""
import os
import sys

import layering
import lengths
import one_definition
import retired_words

RULES = {"layering": layering.breaches, "one_definition": one_definition.breaches, "lengths": lengths.breaches,
         "retired_words": retired_words.breaches}


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.isdir("src") or not os.path.isdir("include"):
        sys.exit(f"code_rules.py: found no src/ and include/ in {os.getcwd()}")
    failed = False
    for name, breaches in RULES.items():
        found = breaches()
        failed |= bool(found)
        print("".join(f"{line}\n" for line in found) + (f"FAILED {name} (breaches: {len(found)})" if found else f"ok {name}"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
