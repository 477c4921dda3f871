#!/usr/bin/env python3
"""Converts parquet and arrow files to a folder that blipft reads. `convert_dataset.py -h` explains it."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from blipft_convert.dataset import main  # noqa: E402


if __name__ == "__main__":
    main()
