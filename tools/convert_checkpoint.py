#!/usr/bin/env python3
"""Converts pytorch_model*.bin to safetensors. `convert_checkpoint.py -h` explains it."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import own_python  # noqa: E402

if __name__ == "__main__":
    own_python.need("numpy")

from blipft_convert.checkpoint import main  # noqa: E402


if __name__ == "__main__":
    main()
