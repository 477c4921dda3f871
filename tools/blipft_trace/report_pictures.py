"""The report's pictures: matplotlib's SVG, embedded in the page."""
import base64
import html
import io

import numpy as np

from .evaluation import draw_scores, scores_of
from .plots import draw_resumes, draw_validation, loss_by_step
from .step_index import StepIndex
from .summary import PARTS, common_steps
from .summary_text import NAMES

MOST_POINTS = 600   # in a curve; longer series are averaged in bins of neighbours
MOST_BARS = 60      # steps that are drawn as bars; more become areas
MOST_CURVES = 16    # ranks with a separate curve

# Colours that colour-blind readers can tell apart; the timeline's are the same.
PART_COLOURS = {"compute": "#4477aa", "exposed_communication": "#cc3311", "exposed_copy": "#009988",
                "data_wait": "#ccbb44", "idle": "#c8c8c8"}
OWNER_COLOURS = ["#4477aa", "#ee7733", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#777777", "#332288"]


def bins_of(count):
    """The start of each bin of neighbours, and its number of values."""
    size = max(1, -(-count // MOST_POINTS))
    starts = np.arange(0, count, size)
    return starts, np.diff(np.append(starts, count)), size


def mean_in_bins(values):
    """Means of neighbours; values that are not finite do not count."""
    values = np.asarray(values, np.float64)
    if not len(values):
        return values
    starts, _, _ = bins_of(len(values))
    known = np.isfinite(values)
    total = np.add.reduceat(np.where(known, values, 0), starts)
    count = np.add.reduceat(known.astype(np.float64), starts)
    return np.divide(total, count, out=np.full(len(starts), np.nan), where=count > 0)


def size_unit(largest):
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if largest >= 0.5 * size:
            return unit, size
    return "B", 1


def thinned_note(count):
    _, _, size = bins_of(count)
    return f"mean of {size} steps a point" if size > 1 else ""


def draw_loss(curve, run):
    """curve: loss_by_step() of the run."""
    steps, mean, low, high, rate_values = curve
    low, high = (np.where(np.isfinite(v), v, np.nan) for v in (low, high))

    def draw(figure):
        axis = figure.subplots()
        starts, _, size = bins_of(len(steps))
        x = mean_in_bins(steps) + 1        # counted as in the log
        bottom, top = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
        if (top > bottom).any():
            label = f"least to largest of {size} steps" if size > 1 else "least to largest rank"
            axis.fill_between(x, bottom, top, color="#4477aa", alpha=0.25, linewidth=0, label=label)
        marker = "." if len(x) < 50 else None
        axis.plot(x, mean_in_bins(mean), color="#4477aa", marker=marker, linewidth=1.3, label="loss")
        draw_validation(run, axis)
        draw_resumes(run, axis)
        axis.set_xlabel("step")
        axis.set_ylabel("loss [nat per token]")
        axis.grid(alpha=0.3)
        rate = axis.twinx()
        rate.plot(x, mean_in_bins(rate_values), color="#ee7733", linewidth=1.1, linestyle="--", label="learning rate")
        rate.set_ylabel("learning rate")
        rate.set_ylim(bottom=0)
        rate.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        drawn = [item for a in (axis, rate) for item in zip(*a.get_legend_handles_labels())]
        rate.legend(*zip(*drawn), fontsize=8, loc="best")
    return draw


def samples_of_a_step(results):
    """The samples of a step on all ranks; 0 if the trace does not have them."""
    return sum(float(result.trace.attributes().get("samples_per_step", 0)) for result in results)


def room_above(values, factor):
    """The upper end of an axis."""
    known = values[np.isfinite(values)]
    return factor * known.max() if len(known) and known.max() > 0 else 1


def common_rows(result, steps):
    rows = result.trace.steps()
    return rows[np.searchsorted(rows["step"], steps)]


def draw_speed(results):
    def draw(figure):
        axis = figure.subplots()
        steps, longest = common_steps(results)
        x = mean_in_bins(steps)
        # From the device's times; the rows' figure is the host's, which may run ahead.
        samples = samples_of_a_step(results)
        rows = [common_rows(result, steps) for result in (results[:1] if samples else results)]
        ends = [common_rows(result, steps)["end_ns"] for result in results]
        if len(steps) > 1 and samples:   # from the end of a step to the end of the next; the first has none before it
            between = np.max([np.diff(end, prepend=end[0] - own) for end, own in zip(ends, [longest[0]] * len(ends))], axis=0)
            longest = np.where(np.diff(steps, prepend=steps[0] - 1) == 1, between, longest)
        rate = 1e9 * samples / np.maximum(longest, 1) if samples else sum(r["samples_per_second"] for r in rows)
        shown, norms = mean_in_bins(rate), mean_in_bins(rows[0]["grad_norm"])
        axis.plot(x, shown, color="#228833", linewidth=1.2, marker="." if len(x) < 50 else None, label="samples/s")
        axis.set_xlabel("step")
        axis.set_ylabel("samples/s, all ranks")
        axis.set_ylim(0, room_above(shown, 1.15))
        axis.grid(alpha=0.3)
        norm = axis.twinx()
        norm.plot(x, norms, color="#aa3377", linewidth=1, linestyle="--", label="gradient norm")
        norm.set_ylabel("gradient norm")
        norm.set_ylim(0, room_above(norms, 1.3))
        drawn = [item for a in (axis, norm) for item in zip(*a.get_legend_handles_labels())]
        norm.legend(*zip(*drawn), fontsize=8, loc="best")
    return draw


def draw_parts(results, series):
    def draw(figure):
        axis = figure.subplots()
        x = mean_in_bins(series["number"])
        parts = [mean_in_bins(series[name]) / 1e6 for name in PARTS]
        every, longest = common_steps(results)
        whole = np.asarray(longest, np.float64) / 1e6
        if len(x) <= MOST_BARS:
            below = np.zeros(len(x))
            for part, name in zip(parts, PARTS):
                axis.bar(x, part, bottom=below, width=0.9, color=PART_COLOURS[name], label=NAMES[name])
                below = below + part
        else:
            axis.stackplot(x, *parts, labels=[NAMES[name] for name in PARTS], linewidth=0,
                           colors=[PART_COLOURS[name] for name in PARTS])
        starts, _, size = bins_of(len(whole))
        label = "slowest rank" + (f", slowest of {size} steps" if size > 1 else "")
        style = {"marker": "_", "linestyle": "none"} if len(x) <= MOST_BARS else {"linewidth": 0.7}
        axis.plot(mean_in_bins(every), np.maximum.reduceat(whole, starts), color="#222", label=label, **style)
        top = 1.4 * np.percentile(whole, 99) or 1
        axis.set_ylim(0, top)
        if whole.max() > top:
            axis.annotate(f"longest step: {whole.max():.4g} ms", (0.01, 0.72), xycoords="axes fraction", fontsize=7)
        axis.set_xlabel("step")
        axis.set_ylabel("ms a step, mean of ranks")
        axis.legend(fontsize=7.5, ncols=3, loc="upper center")
    return draw


def snapshots_of(rows):
    """(moment, {owner: bytes}) in order of the rows; a moment comes again for every micro-batch."""
    snapshots = []
    for phase, owner, size in zip(rows["phase"].tolist(), rows["owner"].tolist(), rows["bytes"].tolist()):
        moment, name = phase.decode("utf-8", "replace"), owner.decode("utf-8", "replace")
        if not snapshots or snapshots[-1][0] != moment or name in snapshots[-1][1]:
            snapshots.append((moment, {}))
        snapshots[-1][1][name] = size
    return snapshots


def memory_over_step(results, summary):
    """The rank and the step that held most, and the step's snapshots; None where nothing was recorded.

    The set-up counts as the begin of step 0.
    """
    recorded = [number for number, rank in enumerate(summary) if "step" in rank["memory_total"]]
    if not recorded:
        return None
    most = max(recorded, key=lambda number: summary[number]["memory_total"]["replayed"])
    first = summary[most]["memory_total"]["step"]
    step = max(first, 0)
    rows = StepIndex(results[most].trace, "memory").read(first, step)
    return summary[most], step, snapshots_of(rows)


def draw_memory_over_step(snapshots, planned):
    def draw(figure):
        axis = figure.subplots()
        moments = [moment.replace("_", " ") for moment, _ in snapshots]
        owners = {name: np.array([held.get(name, 0) for _, held in snapshots], np.float64) for _, all_ in snapshots
                  for name in all_}
        owners = dict(sorted(owners.items(), key=lambda item: np.ptp(item[1])))   # constant owners at the bottom
        unit, size = size_unit(max(planned, sum(owners.values()).max()))
        place, below = np.arange(len(moments)), np.zeros(len(moments))
        colours = dict(zip(sorted(owners), OWNER_COLOURS * 9))
        for name, held in owners.items():
            if held.any():
                axis.bar(place, held / size, bottom=below, width=0.8, color=colours[name], label=name)
                below = below + held / size
        if planned:
            axis.axhline(planned / size, color="#222", linewidth=1, linestyle="--", label="planned peak")
        if len(set(moments)) < len(moments):   # the n-th micro-batch
            moments = [f"{moment} {moments[:i + 1].count(moment)}" if moments.count(moment) > 1 else moment
                       for i, moment in enumerate(moments)]
        every = -(-len(moments) // 16)
        axis.set_xticks(place[::every], moments[::every], rotation=25 if len(moments) > 4 else 0, fontsize=8,
                        ha="right" if len(moments) > 4 else "center")
        axis.set_ylabel(unit)
        axis.set_ylim(0, 1.3 * max(planned / size, below.max()) or 1)
        axis.legend(fontsize=7.5, ncols=4, loc="upper center")
    return draw


def draw_memory_by_owner(summary):
    def draw(figure):
        axis = figure.subplots()
        owners = {owner for rank in summary for owner in rank["memory"]}
        kinds, labels = ("planned", "replayed"), ("planned for the largest step", "of the steps that ran")
        table = {owner: [[rank["memory"].get(owner, {}).get(kind, 0) for rank in summary] for kind in kinds]
                 for owner in owners}
        table["sum"] = [[rank["memory_total"][kind] for rank in summary] for kind in kinds]
        names = sorted(table, key=lambda owner: max(max(values) for values in table[owner]))
        unit, size = size_unit(max(max(max(values) for values in both) for both in table.values()))
        place = np.arange(len(names))
        for offset, kind, colour in ((0.2, 0, "#bbbbbb"), (-0.2, 1, "#4477aa")):
            least, most = (np.array([pick(table[name][kind]) for name in names]) / size for pick in (min, max))
            bars = axis.barh(place + offset, most, 0.38, color=colour, label=labels[kind])
            texts = [f"{b:.3g}" if b - a <= 0.005 * b else f"{a:.3g} to {b:.3g}" for a, b in zip(least, most)]
            axis.bar_label(bars, texts, fontsize=7, padding=2)
        axis.set_yticks(place, names, fontsize=8)
        axis.set_xlabel(unit + (", largest of the ranks" if len(summary) > 1 else ""))
        axis.margins(x=0.12)
        axis.legend(fontsize=8, loc="lower right")
    return draw


def device_series(results, shift_ns):
    """Rank, time in s since the run began, utilisation, power, SM clock and host memory of each rank with samples."""
    for result in results[:MOST_CURVES]:
        rows = result.trace.read("device")
        if len(rows):
            yield (result.trace.rank, mean_in_bins((rows["time_ns"] + shift_ns) / 1e9),
                   *(mean_in_bins(rows[name]) for name in ("utilization", "power_watts", "sm_mhz")),
                   mean_in_bins(np.where(rows["host_rss_bytes"] > 0, rows["host_rss_bytes"], np.nan)))


def draw_device(samples):
    def draw(figure):
        use, power, clock = figure.subplots(3, 1, sharex=True)
        for number, (rank, x, use_values, power_values, clock_values, _) in enumerate(samples):
            use.plot(x, use_values, linewidth=0.9, label=str(rank) if number else f"rank {rank}")
            power.plot(x, power_values, linewidth=0.9)
            clock.plot(x, clock_values, linewidth=0.9)
        for axis, name in ((use, "in use, %"), (power, "power, W"), (clock, "SM, MHz")):
            axis.set_ylabel(name, fontsize=8)
            axis.grid(alpha=0.3)
            axis.set_ylim(bottom=0)
        use.set_ylim(0, 105)
        clock.set_xlabel("s since the run began")
        use.legend(fontsize=7, ncols=8, loc="lower right", handlelength=1.2, columnspacing=0.9)
    return draw


def draw_host(samples):
    def draw(figure):
        axis = figure.subplots()
        unit, size = size_unit(max(np.nanmax(values) for *_, values in samples))
        for rank, x, *_, values in samples:
            axis.plot(x, values / size, linewidth=1, label=f"rank {rank}")
        axis.set_ylabel(f"host memory, {unit}")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("s since the run began")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, ncols=4, loc="lower right")
    return draw


def picture(plt, name, title, draw, note=""):
    """A figure of the page; with `draw` None only the note, which then says why there is no picture."""
    image = ""
    if draw:
        figure = plt.figure(figsize=(6.4, 3.5), layout="constrained")
        draw(figure)
        out = io.BytesIO()
        figure.savefig(out, format="svg")
        plt.close(figure)
        code = base64.b64encode(out.getvalue()).decode()
        image = f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{code}">'
    note = f"<p>{html.escape(note)}</p>" if note else ""
    return f'<figure id="{name}"><figcaption>{html.escape(title)}</figcaption>{image}{note}</figure>'


def all_pictures(plt, run, part, results, summary, series):
    """The figures of the page: the losses of the run, the rest of the part."""
    curve = loss_by_step(run)
    count, split = len(common_steps(results)[0]), len(series["number"])
    thinned = thinned_note(count)
    of_parts = f"parts of {split} of {count} steps" if split < count else thinned
    figures = [picture(plt, "loss", "Loss and learning rate", draw_loss(curve, run),
                       thinned_note(len(curve[0]))),
               picture(plt, "step-time", "Step time and its parts", draw_parts(results, series), of_parts),
               picture(plt, "speed", "Throughput and gradient norm", draw_speed(results), thinned)]
    scores = scores_of(run)
    if scores:
        figures.append(picture(plt, "scores", "Scores of generated texts", draw_scores(scores)))
    over = memory_over_step(results, summary)
    if over:
        rank, held_most, snapshots = over
        figures.append(picture(plt, "memory", f"Memory by owner over step {held_most}, rank {rank['rank']}",
                               draw_memory_over_step(snapshots, rank["memory_total"]["planned"])))
    else:
        figures.append(picture(plt, "memory", "Memory by owner over a step", None,
                               "No memory was recorded: the trace has no rows in /memory."))
    if any(rank["memory"] for rank in summary):
        figures.append(picture(plt, "plan", "Memory at the peak: planned for the largest step, and of the steps that ran", draw_memory_by_owner(summary)))
    samples = list(device_series(results, part.shift_ns))
    more = f"The first {MOST_CURVES} ranks." if len(results) > MOST_CURVES else ""
    if any(np.isfinite(sample[2]).any() for sample in samples):
        figures.append(picture(plt, "device", "Device: utilisation, power and clock", draw_device(samples), more))
    elif any(np.isfinite(sample[5]).any() for sample in samples):
        with_host = [sample for sample in samples if np.isfinite(sample[5]).any()]
        figures.append(picture(plt, "device", "Host memory of each rank", draw_host(with_host),
                               f"No GPU reported utilisation and power. {more}".strip()))
    else:
        figures.append(picture(plt, "device", "Device", None, "No device reported utilisation and power."))
    return figures
