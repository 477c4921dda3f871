"""Odd pictures through the image processors of transformers: sizes and checksums of the pixel values.

Pictures are drawn from a formula (numbers()), which the C++ test draws alike, and stored as PNG in memory: gray, gray with
alpha, RGB and RGBA, with every orientation.

    index.json     a list of {number, height, width, channels, orientation, min_pixels, max_pixels, patch, grid, pillow,
                   torchvision}: the size as stored; the grid in patches; checksum() of f32 [rows, 3, 2, patch, patch] of both
                   processors. Patch 896: one patch without time slices, the processor of pictures of one size.

Needs torch, transformers and torchvision.
"""
import io
import json
import random
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from .images import decoded, png_bytes, png_chunk, orientation_entry, tiff

CASES, SQUARE_EVERY = 500, 10
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}     # of PNG, by channels
HALF, CLIP = [0.5] * 3, ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])


def mixed(z):
    """splitmix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def numbers(number, height, width, channels):
    """u8 [height, width, channels]: noise, or ramps with a little noise."""
    index = np.arange(height * width * channels, dtype=np.uint64) + np.uint64((number + 1) << 32)
    noise = mixed(index * GOLDEN_RATIO).reshape(height, width, channels)
    if number % 2:
        return (noise >> np.uint64(56)).astype(np.uint8)
    y, x, c = np.ogrid[:height, :width, :channels]
    return (3 * x + 5 * y + 40 * c + (noise >> np.uint64(60)).astype(np.int64)).astype(np.uint8)


def checksum(values):
    """Checksum of the bits of f32 values, in their order."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(-1).astype(np.uint64)
    return int((bits * (np.arange(1, bits.size + 1, dtype=np.uint64) * GOLDEN_RATIO)).sum(dtype=np.uint64))


def png_of(case):
    pixels = numbers(case["number"], case["height"], case["width"], case["channels"])
    exif = tiff("<", orientation_entry("<", case["orientation"])) if case["orientation"] > 1 else None
    return png_bytes(case["width"], case["height"], 8, COLOR_TYPES[case["channels"]], [row.tobytes() for row in pixels],
                     png_chunk(b"eXIf", exif) if exif else b"")


def draw(rng, number):
    sizes = {0: (1, 1), 1: (40, 1500), 2: (1500, 40), 3: (1, 150), 4: (1080, 1920), 5: (336, 432), 6: (56, 56)}
    height, width = sizes.get(number) or (0, 0)
    while not height or max(height, width) > 200 * min(height, width):
        height, width = (int(2 ** rng.uniform(0, 9.5)) for _ in range(2))
    low = rng.choice([3136, 3136, 20000, 65536])
    return dict(number=number, height=height, width=width, channels=rng.choice([1, 2, 3, 3, 4]),
                orientation=rng.choice([1, 1, 1, *range(2, 9)]), min_pixels=low,
                max_pixels=12845056 if number == 4 else low + rng.choice([5000, 50000, 200000]), patch=rng.choice([14, 16]))


def processors(case):
    from transformers import Gemma3ImageProcessor, Gemma3ImageProcessorPil, Qwen2VLImageProcessor, Qwen2VLImageProcessorPil
    if case["patch"] == 896:
        settings = dict(size=dict(height=896, width=896), resample=2, image_mean=HALF, image_std=HALF)
        return Gemma3ImageProcessorPil(**settings), Gemma3ImageProcessor(**settings)
    mean, std = CLIP if case["patch"] == 14 else (HALF, HALF)
    settings = dict(size=dict(shortest_edge=case["min_pixels"], longest_edge=case["max_pixels"]), patch_size=case["patch"],
                    merge_size=2, temporal_patch_size=2, resample=3, image_mean=mean, image_std=std)
    return Qwen2VLImageProcessorPil(**settings), Qwen2VLImageProcessor(**settings)


def make(folder, options):
    rng, cases = random.Random(5), []
    for number in range(CASES):
        case = draw(rng, number)
        if number % SQUARE_EVERY == 9:
            case.update(patch=896)
        picture = decoded(png_of(case), True)
        for name, processor in zip(("pillow", "torchvision"), processors(case)):
            made = processor(images=[picture], return_tensors="np")
            case["grid"] = [int(x) for x in made["image_grid_thw"][0][1:]] if "image_grid_thw" in made else [1, 1]
            case[name] = checksum(made["pixel_values"])
        cases.append(case)
    (Path(folder) / "index.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"pixels: {len(cases)} pictures, {sum(case['pillow'] != case['torchvision'] for case in cases)} with other values of "
          "torchvision")
