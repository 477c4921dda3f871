#!/usr/bin/env python3
"""Draws docs/images/speed.png from step times (in seconds) of docs/results.md and docs/history/results.md.

  $(tools/setup.sh --python) tools/make_speed_chart.py
"""
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Name, the other program's time, blipft's. BLIP-2 with PyTorch: commit 632b064, H200; LLaMA with LitGPT: b492659.
ROWS = [
    ("BLIP-2, 1 GPU, 16 x 4", 0.513, 0.337), ("BLIP-2, 1 GPU, 64 x 1", 0.395, 0.320),
    ("BLIP-2, DDP 4, 16 x 4", 0.576, 0.351), ("BLIP-2, DDP 4, 64 x 1", 0.432, 0.329),
    ("BLIP-2, FSDP 4, 16 x 4", 0.847, 0.341), ("BLIP-2, FSDP 4, checkpointing", 1.425, 0.488),
    ("OpenLLaMA 3B, full", 0.536, 0.160), ("OpenLLaMA 7B, full", 0.798, 0.168), ("7B, LoRA", 0.947, 0.127),
    ("7B, QLoRA", 1.326, 0.160), ("TinyLlama, full", 0.616, 0.053)]


def main():
    figure, axes = plt.subplots(figsize=(7.2, 3.4), dpi=130)
    ratios = [other / own for _, other, own in ROWS]
    colours = ["#4477aa" if name.startswith("BLIP") else "#228833" for name, _, _ in ROWS]
    axes.barh(range(len(ROWS)), ratios, color=colours)
    axes.set_yticks(range(len(ROWS)), [name for name, _, _ in ROWS], fontsize=8)
    axes.invert_yaxis()
    for i, ratio in enumerate(ratios):
        axes.text(ratio + 0.1, i, f"{ratio:.1f}", va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast (blue: as the best of PyTorch 2.11; green: as LitGPT 0.5.13)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "speed.png")


if __name__ == "__main__":
    main()
