#!/usr/bin/env python3
"""Makes the golden data of the tests, and packs and unpacks them. `golden.py -h` lists the commands."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import own_python  # noqa: E402

if __name__ == "__main__" and sys.argv[1:2] == ["make"]:
    own_python.need("torch", "transformers")

from blipft_golden.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
