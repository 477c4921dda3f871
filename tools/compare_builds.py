#!/usr/bin/env python3
"""Compares two builds of blipft that must compute the same. `compare_builds.py -h` explains it."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from blipft_compare.builds import main  # noqa: E402


if __name__ == "__main__":
    sys.exit(main())
