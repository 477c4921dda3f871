#!/usr/bin/env python3
"""Makes a folder that blipft reads of parquet and arrow files. `convert_dataset.py -h` says how."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from blipft_convert.dataset import main  # noqa: E402


if __name__ == "__main__":
    main()
