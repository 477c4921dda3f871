"""Positions of grids of patches, by transformers, for random pictures and texts.

    index.json     a list of
        merge, window (cells a side), side (of the table of positions), head_size
        runs                   [rows of text] or [height, width] of a picture in patches
        positions, delta       on three axes; of Qwen3-VL and of Qwen2.5-VL alike
        cells, starts          the windows
        places, tap_rows       checksum() of rows and columns, and of the table's rows
        tap_weights, angles    short()

Needs torch and transformers.
"""
import json
import random
from pathlib import Path

import torch

CASES = 300


def checksum(values):
    """The dot product with 1, 2, 3, ... modulo 65521."""
    weights = torch.arange(1, values.numel() + 1, dtype=torch.int64) % 65521
    return int((values.flatten().to(torch.int64) % 65521 * weights % 65521).sum() % 65521)


def positions(runs, merge):
    """Positions and delta of both families; ids are 1 where a picture stands."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    class Stub:
        class config:
            class vision_config:
                spatial_merge_size, tokens_per_second = merge, 2
    kinds, grids = [], []
    for run in runs:
        if len(run) == 2:
            grids.append([1, *run])
        kinds += [0] * run[0] if len(run) == 1 else [1] * (run[0] * run[1] // merge ** 2)
    kinds = torch.tensor([kinds])
    results = []
    for model in (Qwen3VLModel, Qwen2_5_VLModel):
        stub = Stub()
        stub.get_vision_position_ids = lambda *args, **kwargs: model.get_vision_position_ids(stub, *args, **kwargs)
        three, delta = model.get_rope_index(stub, kinds, kinds, image_grid_thw=torch.tensor(grids) if grids else None)
        results.append((three[:, 0].tolist(), int(delta)))
    assert results[0] == results[1]
    return results[0]


def tower(grids, case):
    from transformers import vision_utils
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionRotaryEmbedding
    thw, merge = torch.tensor([[1, *grid] for grid in grids]), case["merge"]
    cells, starts = vision_utils.get_vision_window_index(thw, merge, case["window"] * merge * 14, 14)
    places = vision_utils.get_vision_position_ids(thw, merge)
    rows, weights = vision_utils.get_vision_interpolation_indices_and_weights(thw, case["side"], align_corners=True,
                                                                              spatial_merge_size=merge)

    class Config:
        rope_parameters, head_dim = dict(rope_type="axial", rope_theta=10000.0), case["head_size"]
    frequencies, _ = Qwen3VLVisionRotaryEmbedding.compute_axial_rope_parameters(Config)
    angles = places[..., None].float() * frequencies
    return dict(cells=cells.tolist(), starts=starts.tolist(), places=checksum(places), tap_rows=checksum(rows),
                tap_weights=short(weights), angles=short(angles.flatten(1)))


def short(values):
    """The values of the first, the middle and the last patch, and the sum of all."""
    count = values.shape[0]
    return [[round(float(x), 9) for x in values[i]] for i in (0, count // 2, count - 1)] + [float(values.double().sum())]


def make(folder, options):
    rng, lines = random.Random(3), []
    for number in range(CASES):
        merge = rng.choice([1, 2, 2, 2, 3])
        case = dict(merge=merge, window=rng.choice([1, 2, 3, 4]), side=rng.choice([2, 5, 7, 48]), head_size=rng.choice([8, 64, 72, 80]))
        grids = [[merge * rng.randint(1, 7), merge * rng.randint(1, 7)] for _ in range(rng.randint(0 if number % 10 == 0 else 1, 4))]
        runs = []
        for grid in grids:
            runs += [[rng.randint(1, 9)], grid]
        runs = runs[rng.randint(0, 1) if grids else 0:] + ([[rng.randint(1, 9)]] if rng.random() < 0.8 or not grids else [])
        case["runs"] = runs
        case["positions"], case["delta"] = positions(runs, merge)
        if grids:
            case.update(tower(grids, case))
        lines.append(json.dumps(case, separators=(",", ":")))
    (Path(folder) / "index.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"patch_positions: {CASES} cases")
