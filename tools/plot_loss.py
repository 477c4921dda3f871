#!/usr/bin/env python3
"""Draws the loss and the learning rate of runs over their steps.

    tools/plot_loss.py RUN [RUN ...] [--out FILE.png]

RUN is an output.path of blipft (its trace.rank0000.h5 is read) or a trace file. The plot goes to RUN/loss.png of the
first run, or to --out.
"""
import argparse
import os
import sys

os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")  # before h5py: a running run may be plotted too

import h5py
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def open_trace(path):
    """A run that runs or was killed has a file still marked as being written; it is complete up to its last flush."""
    try:
        return h5py.File(path, "r")
    except OSError:
        return h5py.File(path, "r", swmr=True)


def read_steps(path):
    """The columns step, loss and lr of /steps: a dataset of records, or a group with one dataset a column."""
    if os.path.isdir(path):
        path = os.path.join(path, "trace.rank0000.h5")
    if not os.path.isfile(path):
        sys.exit(f"plot_loss: {path}: there is no such trace; give a run's output.path")
    with open_trace(path) as trace:
        if "steps" not in trace:
            sys.exit(f"plot_loss: {path}: has no /steps; is it a trace of blipft?")
        steps = trace["steps"]
        columns = {name: np.asarray(steps[name]) for name in ("step", "loss", "lr")}
    if len(columns["step"]) == 0:
        sys.exit(f"plot_loss: {path}: no step was recorded yet")
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
        (line,) = axes.plot(columns["step"], columns["loss"], linewidth=0.8, alpha=0.4)
        axes.plot(columns["step"], smooth(columns["loss"], width), color=line.get_color(),
                  label=f"{name}: loss (mean of {width})")
        rates.plot(columns["step"], columns["lr"], color=line.get_color(), linestyle=":", linewidth=1,
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
    figure.savefig(out, dpi=120)
    print(out)


if __name__ == "__main__":
    main()
