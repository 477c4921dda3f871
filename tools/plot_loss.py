#!/usr/bin/env python3
"""Draws the loss and the learning rate of runs over their steps.

    tools/plot_loss.py RUN [RUN ...] [--out FILE.png]

RUN is an output.path of blipft (its first rank's traces are read) or a trace file. The plot goes to RUN/loss.png of the
first run, or to --out.
"""
import argparse
import os
import sys

os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")  # before the import of h5py, so that a running run can be plotted

import own_python

if __name__ == "__main__":
    own_python.need("numpy", "h5py", "matplotlib")

import matplotlib  # noqa: E402

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from blipft_trace.files import TraceError  # noqa: E402
from blipft_trace.parts import open_run  # noqa: E402


def read_steps(run):
    """The columns step, loss and lr of /steps, each step once: of all parts of a run that was resumed."""
    try:
        trace = open_run(run)
        trace.tell()
        columns = dict(zip(("step", "loss", "lr"), trace.curve("step", "loss", "lr")))
    except (TraceError, OSError) as error:
        sys.exit(f"plot_loss: {error}")
    if len(columns["step"]) == 0:
        sys.exit(f"plot_loss: {run}: no step was recorded yet")
    return columns


def smooth(values, width):
    """Mean of the last `width` values, of fewer at the beginning."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - width)
    return (sums[ends] - sums[begins]) / (ends - begins)


def main():
    parser = argparse.ArgumentParser(description="Draws the loss and the learning rate of runs over their steps.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="an output.path of blipft, or a trace file")
    parser.add_argument("--out", help="the picture (default: loss.png in the first run's folder)")
    arguments = parser.parse_args()

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    rates = axes.twinx()
    for run in arguments.runs:
        columns = read_steps(run)
        name = os.path.basename(os.path.normpath(run))
        width = max(1, len(columns["loss"]) // 20)
        (line,) = axes.plot(columns["step"] + 1, columns["loss"], linewidth=0.8, alpha=0.4)
        axes.plot(columns["step"] + 1, smooth(columns["loss"], width), color=line.get_color(),
                  label=f"{name}: loss (mean of {width})")
        rates.plot(columns["step"] + 1, columns["lr"], color=line.get_color(), linestyle=":", linewidth=1,
                   label=f"{name}: learning rate")
        print(f"{name}: {len(columns['step'])} steps, loss {columns['loss'][0]:.4f} -> {columns['loss'][-1]:.4f}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)
    rates.set_ylabel("learning rate")
    rates.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    handles = [pair for axis in (axes, rates) for pair in zip(*axis.get_legend_handles_labels())]
    axes.legend(*zip(*handles), loc="upper right")
    first = arguments.runs[0]
    out = arguments.out or os.path.join(first if os.path.isdir(first) else os.path.dirname(first), "loss.png")
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:  # a path that cannot be written, or an unknown picture format
        sys.exit(f"plot_loss: {out}: {error}; --out names another file")
    print(out)


if __name__ == "__main__":
    main()
