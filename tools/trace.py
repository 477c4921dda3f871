#!/usr/bin/env python3
"""Reads the trace files of a run: tables, pictures, timelines, use of time. `trace.py -h` lists the commands."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import own_python  # noqa: E402

if __name__ == "__main__" and not {"-h", "--help"} & set(sys.argv[1:]):
    own_python.need("numpy", "h5py", *(["matplotlib"] if {"report", "loss"} & set(sys.argv[1:2]) else []))

from blipft_trace.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
