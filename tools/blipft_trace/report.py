"""One self-contained HTML page about a run: figures, pictures, and the timeline of one step for all ranks."""
import base64
import html
import io
import json
import pathlib

import numpy as np

from .files import STREAMS, TraceError
from .plots import draw_loss, pyplot
from .summary import PARTS, close_all, gather_results, series_of, summarize_rank
from .summary_text import NAMES, to_text

MOST_POINTS = 800      # in a picture; longer series are averaged in bins
MOST_SPANS = 400_000   # in the timeline

STYLE = """
body { font: 15px/1.45 sans-serif; color: #222; background: #fff; max-width: 1200px;
       margin: 1.5em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 1.8em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: 2px 12px 2px 0; text-align: right; border-bottom: 1px solid #e4e4e4 }
td:first-child, th:first-child { text-align: left }
img { max-width: 100% } pre { overflow-x: auto; background: #f6f6f6; padding: 8px; font-size: 12px }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 8px }
canvas { width: 100%; cursor: grab; border: 1px solid #ddd }
#legend span { margin-right: 14px; white-space: nowrap }
#legend i { display: inline-block; width: 11px; height: 11px; margin-right: 4px }
#tip { display: none; position: fixed; background: #222; color: #fff; padding: 3px 8px; font-size: 12px;
       max-width: 320px; pointer-events: none }
"""


def binned(x, *series):
    """Averages long series in bins of neighbours."""
    size = -(-len(x) // MOST_POINTS)
    if size <= 1:
        return (x, *series)
    starts = np.arange(0, len(x), size)
    counts = np.diff(np.append(starts, len(x)))
    return tuple(np.add.reduceat(np.asarray(values, np.float64), starts) / counts for values in (x, *series))


def picture(plt, draw, title):
    figure = plt.figure(figsize=(6.4, 3.4), layout="constrained")
    draw(figure)
    figure.suptitle(title, fontsize=11)
    out = io.BytesIO()
    figure.savefig(out, format="svg")
    plt.close(figure)
    code = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{code}">'


def draw_parts(series):
    def draw(figure):
        axis = figure.subplots()
        x, *parts = binned(series["number"], *(series[name] / 1e6 for name in PARTS))
        colours = ["#3b7dd8", "#d9822b", "#2a9d63", "#c94f6d", "#c8c8c8"]
        if len(x) < 60:
            below = np.zeros(len(x))
            for part, name, colour in zip(parts, PARTS, colours):
                axis.bar(x, part, bottom=below, width=0.9, color=colour, label=NAMES[name])
                below = below + part
        else:
            axis.stackplot(x, *parts, labels=[NAMES[name] for name in PARTS], colors=colours, linewidth=0)
        axis.set_ylim(0, 1.25 * np.percentile(series["step"], 99) / 1e6)
        axis.set_xlabel("step")
        axis.set_ylabel("ms, mean of ranks")
        axis.legend(fontsize=8, ncols=3, loc="upper center")
    return draw


def draw_memory(summary):
    def draw(figure):
        axis = figure.subplots()
        owners = sorted({owner for rank in summary for owner in rank["memory"]})
        width = 0.8 / (len(summary) + 1)
        place = np.arange(len(owners))
        plan = [summary[0]["memory"].get(owner, {}).get("planned", 0) / 2**30 for owner in owners]
        axis.bar(place, plan, width, color="#999", label="planned (first rank)")
        for i, rank in enumerate(summary):
            size = [rank["memory"].get(owner, {}).get("measured", 0) / 2**30 for owner in owners]
            axis.bar(place + (i + 1) * width, size, width, label=f"rank {rank['rank']}")
        axis.set_xticks(place + width * len(summary) / 2, owners, rotation=20, fontsize=8)
        axis.set_ylabel("GiB, largest")
        axis.legend(fontsize=8)
    return draw


def draw_device(results):
    def draw(figure):
        use, power = figure.subplots(2, 1, sharex=True)
        for result in results:
            rows = result.trace.read("device")
            rows = rows[np.isfinite(rows["utilization"])]
            x, use_values, power_values = binned(rows["time_ns"] / 1e9, rows["utilization"], rows["power_watts"])
            use.plot(x, use_values, linewidth=0.9, label=f"rank {result.trace.rank}")
            power.plot(x, power_values, linewidth=0.9)
        use.set_ylabel("utilisation, %")
        use.set_ylim(0, 105)
        power.set_ylabel("power, W")
        power.set_ylim(bottom=0)
        power.set_xlabel("s")
        use.legend(fontsize=8, ncols=4)
    return draw


def timeline_data(results, step):
    """The spans of one step on every rank, in ns since the step's first begin."""
    windows = []
    for result in results:
        at = np.flatnonzero(result.steps["step"] == step)
        if not len(at):
            raise TraceError(f"{result.trace.path}: has no finished step {step}")
        windows.append(result.steps[at[0]])
    start = min(int(row["begin_ns"]) for row in windows)
    end = max(int(row["end_ns"]) for row in windows)
    ranks = []
    phases = results[0].trace.phases
    for result in results:
        spans = result.index.read(step - 1, step + 1)
        spans = spans[(spans["end_ns"] >= start) & (spans["begin_ns"] <= end)]
        if "step" in result.trace.phases:
            spans = spans[spans["phase"] != result.trace.phases.index("step")]
        spans = spans[np.argsort(spans["begin_ns"], kind="stable")][:MOST_SPANS // len(results)]
        streams = []
        for number, name in enumerate(STREAMS):
            rows = spans[spans["stream"] == number]
            if len(rows):
                columns = [(rows["begin_ns"] - start), (rows["end_ns"] - start), rows["phase"], rows["unit"],
                           rows["micro_batch"], rows["bytes"]]
                streams.append({"name": name, "spans": list(zip(*(column.tolist() for column in columns)))})
        ranks.append({"rank": result.trace.rank, "streams": streams})
    return {"ranks": ranks, "phases": phases, "units": results[0].trace.units, "length": end - start}


def ranks_table(summary):
    head = ["rank", "steps", "step, ms", *(NAMES[name] + ", %" for name in PARTS), "overlap, %",
            "waited for slower ranks, ms a step", "peak planned, GiB", "peak measured, GiB"]
    lines = ["<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>"]
    for rank in summary:
        overlap = rank["overlap_percent"]
        cells = [str(rank["rank"]), str(rank["steps"]), f"{rank['step']['median_ns'] / 1e6:.3f}",
                 *(f"{rank['parts'][name]['percent']:.2f}" for name in PARTS),
                 f"{overlap:.1f}" if overlap is not None else "",
                 f"{rank['waited_for_slower_ns'] / rank['steps'] / 1e6:.3f}",
                 *(f"{rank['memory_total'][name] / 2**30:.2f}" for name in ("planned", "measured"))]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def attributes_table(trace):
    rows, long_texts = [], []
    for name, value in sorted(trace.attributes().items()):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        value = str(value)
        if "\n" in value or len(value) > 120:
            long_texts.append(f"<details><summary>{html.escape(name)}</summary>"
                              f"<pre>{html.escape(value)}</pre></details>")
        else:
            rows.append(f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>")
    return "<table>" + "\n".join(rows) + "</table>" + "\n".join(long_texts)


def write_report(run, path, step=None):
    results = gather_results(run, 0)
    summary = [summarize_rank(result) for result in results]
    series = series_of(results)
    if step is None:  # the step whose time is closest to the median
        step = int(series["number"][np.argmin(np.abs(series["step"] - np.median(series["step"])))])
    plt = pyplot()
    traces = [result.trace for result in results]
    pictures = [picture(plt, lambda figure: draw_loss(traces, figure), "Loss and learning rate"),
                picture(plt, draw_parts(series), "Step time by part")]
    if any(rank["memory"] for rank in summary):
        pictures.append(picture(plt, draw_memory(summary), "Memory by owner"))
    if all(np.isfinite(trace.read("device")["utilization"]).any() for trace in traces):  # NaN: no GPU to ask
        pictures.append(picture(plt, draw_device(results), "Device"))
    # "</" would end the script element.
    data = json.dumps(timeline_data(results, step), separators=(",", ":")).replace("</", "<\\/")
    script = (pathlib.Path(__file__).parent / "timeline.js").read_text(encoding="utf-8")
    name = html.escape(str(run))
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>{STYLE}</style></head><body>
<h1>{name}</h1>
{ranks_table(summary)}
<h2>Pictures</h2>
<div class="pictures">{"".join(pictures)}</div>
<h2>Step {step} on every rank</h2>
<p>The wheel zooms, dragging moves, a double click shows the whole step.</p>
<div id="legend"></div><canvas id="timeline"></canvas><div id="tip"></div>
<h2>Where time and memory went</h2>
<pre>{html.escape(to_text(summary))}</pre>
<h2>The run</h2>
{attributes_table(traces[0])}
<script type="application/json" id="timeline-data">{data}</script>
<script>{script}</script>
</body></html>
"""
    close_all(results)
    pathlib.Path(path).write_text(page, encoding="utf-8")
