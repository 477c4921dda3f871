"""A file of the Python package `safetensors` (needs torch).

Values follow a rule that safetensors_test.cpp repeats: element i of tensor k is (i + k) * 0.5 - 3 (floats) or
i * 3 + k (integers, modulo 256 for u8).
"""
import pathlib

import torch
from safetensors.torch import save_file

NAMES = ["plain.weight", "h\u00e4lf \u2603", "brain/\"quoted\"\\\n", "ids", "counts", "bytes", "scalar", "empty"]


def values(k, count, dtype):
    i = torch.arange(count)
    if dtype.is_floating_point:
        return ((i + k) * 0.5 - 3).to(dtype)
    return (i * 3 + k).remainder(256 if dtype == torch.uint8 else 1 << 30).to(dtype)


def make(folder, options):
    tensors = {
        NAMES[0]: values(0, 24, torch.float32).reshape(2, 3, 4),
        NAMES[1]: values(1, 5, torch.float16),
        NAMES[2]: values(2, 6, torch.bfloat16).reshape(2, 1, 1, 1, 3),
        NAMES[3]: values(3, 4, torch.int64),
        NAMES[4]: values(4, 3, torch.int32),
        NAMES[5]: values(5, 7, torch.uint8),
        NAMES[6]: values(6, 1, torch.float32).reshape(()),
        NAMES[7]: values(7, 0, torch.float32).reshape(3, 0, 2),
    }
    save_file(tensors, pathlib.Path(folder) / "python.safetensors", {"format": "pt"})
