#!/usr/bin/env python3
"""Compares blipft with transformers.

    tools/compare.py families        losses, gradients and weights of random tiny models of each family
    tools/compare.py instructblip    the same of InstructBLIP
    tools/compare.py pictures        models with pictures in texts, from records to losses, adapters and generated texts
    tools/compare.py generation      generated texts of random tiny models
    tools/compare.py transformers    a step of a model at full size

`compare.py WHAT -h` explains each. Needs torch and transformers.
"""
import importlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import own_python  # noqa: E402

MODULES = {"families": "families", "instructblip": "instructblip", "pictures": "pictures",
           "generation": "generation", "transformers": "full_size"}


def main():
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        print(__doc__)
        return
    what = sys.argv.pop(1)
    if what not in MODULES:
        sys.exit(f"compare.py: found {what}, expected one of {', '.join(MODULES)}")
    importlib.import_module(f"blipft_compare.{MODULES[what]}").main()


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in MODULES:
        own_python.need("torch", "transformers")
    main()
