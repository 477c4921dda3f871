"""Pictures with matplotlib, which is loaded only if one is drawn."""
import numpy as np

from .compare import names_of
from .evaluation import draw_scores, scores_of
from .files import TraceError
from .parts import open_run
from .validation import rows_of as validation_rows


def pyplot():
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    return plt


def loss_of_part(part):
    """loss_by_step() of one part."""
    columns = []  # of each rank, without the fields that are not needed: there may be many ranks
    for trace in part.traces:
        rows = part.counting(trace.steps())
        columns.append((rows["step"].copy(), rows["loss"].copy()))
        if len(columns) == 1:
            rates = rows["lr"].copy()
    steps = columns[0][0]
    for other, _ in columns[1:]:
        steps = np.intersect1d(steps, other)
    total, low, high = np.zeros(len(steps)), np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    for numbers, loss in columns:
        loss = loss[np.searchsorted(numbers, steps)]
        total += loss
        low, high = np.minimum(low, loss), np.maximum(high, loss)
    return steps, total / len(columns), low, high, rates[np.searchsorted(columns[0][0], steps)]


def loss_by_step(run):
    """Steps that every rank has finished, the mean, least and largest loss over ranks, and the learning rate."""
    curve = [np.concatenate(column) for column in zip(*map(loss_of_part, run.parts))]
    if not len(curve[0]):
        raise TraceError(f"{run.path}: no step is finished on every rank")
    return curve


def draw_validation(run, axis):
    """The losses of validations as points on a line, beside those of steps."""
    steps, loss = validation_rows(run, "step", "loss")
    if len(steps):
        axis.plot(steps + 1, loss, color="#aa3377", marker="o", markersize=4, linewidth=1, label="validation loss")


def draw_resumes(run, axis):
    """A line at each step from which the run resumed."""
    for number, part in enumerate(run.parts[1:]):
        axis.axvline(part.first_step + 0.5, color="#999999", linewidth=0.9, linestyle=":",
                     label="_" if number else "resumed")


def draw_loss(run, figure):
    """The loss, and below it the scores of the texts that the run generated. Steps count from 1, as in the log."""
    scores = scores_of(run)
    if scores:
        figure, below = figure.subfigures(2, 1, height_ratios=(3, 2))
        draw_scores(scores)(below)
    steps, mean, low, high, lr = loss_by_step(run)
    steps = steps + 1
    axis = figure.subplots()
    marker = "." if len(steps) < 50 else None
    if (high > low).any():
        axis.fill_between(steps, low, high, color="tab:blue", alpha=0.2, linewidth=0, label="loss, all ranks")
    axis.plot(steps, mean, color="tab:blue", marker=marker, linewidth=1.2, label="loss")
    draw_validation(run, axis)
    draw_resumes(run, axis)
    axis.set_xlabel("step")
    axis.set_ylabel("loss [nat]")
    axis.grid(alpha=0.3)
    rate = axis.twinx()
    rate.plot(steps, lr, color="tab:orange", linewidth=1, linestyle="--", label="learning rate")
    rate.set_ylabel("learning rate")
    rate.set_ylim(bottom=0)
    rate.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    handles = [h for a in (axis, rate) for h in a.get_legend_handles_labels()[0]]
    labels = [l for a in (axis, rate) for l in a.get_legend_handles_labels()[1]]
    axis.legend(handles, labels, loc="upper right")


def smooth(values, width):
    """Mean of the last `width` values, of fewer at the beginning."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - width)
    return (sums[ends] - sums[begins]) / (ends - begins)


def draw_losses(runs, names, figure):
    """The losses of several runs over their steps: each unsmoothed in a pale colour, and smoothed; validations as points."""
    axis = figure.subplots()
    for run, name in zip(runs, names):
        steps, mean, *_ = loss_by_step(run)
        steps = steps + 1
        width = max(1, len(steps) // 20)
        (line,) = axis.plot(steps, mean, linewidth=0.8, alpha=0.35)
        axis.plot(steps, smooth(mean, width), color=line.get_color(), linewidth=1.4,
                  label=f"{name} (mean of {width} steps)" if width > 1 else name)
        steps, loss = validation_rows(run, "step", "loss")
        if len(steps):
            axis.plot(steps + 1, loss, color=line.get_color(), marker="o", markersize=4, linewidth=0.8, linestyle="--",
                      label=f"{name}: validation")
    axis.set_xlabel("step")
    axis.set_ylabel("loss [nat]")
    axis.grid(alpha=0.3)
    axis.legend(loc="upper right")


def write_loss(paths, path, part=None):
    """One run with its learning rate, or the losses of several."""
    runs = [open_run(run, part) for run in paths]
    for run in runs:
        run.tell()
    plt = pyplot()
    figure = plt.figure(figsize=(8, 7 if len(runs) == 1 and scores_of(runs[0]) else 4.5), layout="constrained")
    if len(runs) == 1:
        draw_loss(runs[0], figure)
    else:
        draw_losses(runs, names_of(paths), figure)
    figure.savefig(path, dpi=130)
    plt.close(figure)
