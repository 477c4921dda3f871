"""Pictures with matplotlib, which is loaded only when one is wanted."""
import numpy as np

from .files import TraceError, open_run


def pyplot():
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    return plt


def loss_by_step(traces):
    """Steps that every rank has finished, the mean, least and largest loss over ranks, and the learning rate."""
    rows = [trace.steps() for trace in traces]
    steps = rows[0]["step"]
    for other in rows[1:]:
        steps = np.intersect1d(steps, other["step"])
    if not len(steps):
        raise TraceError(f"{traces[0].path.parent}: no step is finished on every rank")
    loss = np.stack([r["loss"][np.searchsorted(r["step"], steps)] for r in rows])
    lr = rows[0]["lr"][np.searchsorted(rows[0]["step"], steps)]
    return steps, loss.mean(axis=0), loss.min(axis=0), loss.max(axis=0), lr


def draw_loss(traces, figure):
    steps, mean, low, high, lr = loss_by_step(traces)
    axis = figure.subplots()
    marker = "." if len(steps) < 50 else None
    if (high > low).any():
        axis.fill_between(steps, low, high, color="tab:blue", alpha=0.2, linewidth=0, label="loss, all ranks")
    axis.plot(steps, mean, color="tab:blue", marker=marker, linewidth=1.2, label="loss")
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


def write_loss(run, path):
    plt = pyplot()
    figure = plt.figure(figsize=(8, 4.5), layout="constrained")
    draw_loss(open_run(run), figure)
    figure.savefig(path, dpi=130)
    plt.close(figure)
