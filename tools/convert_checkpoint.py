#!/usr/bin/env python3
"""Makes safetensors of pytorch_model*.bin. `convert_checkpoint.py -h` says how."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import own_python  # noqa: E402

if __name__ == "__main__":
    own_python.need("numpy")

from blipft_convert.checkpoint import main  # noqa: E402


if __name__ == "__main__":
    main()
