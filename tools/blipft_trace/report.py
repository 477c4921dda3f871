"""One self-contained HTML page about a run: figures, pictures, and the timeline of one step for all ranks."""
import html
import json
import pathlib

import numpy as np

from .energy import energy_text
from .evaluation import section as evaluation_section
from .fp8 import fp8_text
from .parts import open_run, parts_text
from .plots import pyplot
from .report_pictures import all_pictures, samples_of_a_step
from .report_timeline import timeline_data, typical_step
from .summary import PARTS, close_all, gather_results, samples_per_second, series_of, summarize_rank, summarize_run
from .summary_text import (NAMES, clocks_text, evaluation_text, rank_text, ranks_text, slowest_text, split_text,
                           validation_text)

MOST_RANKS = 16  # ranks whose figures are on the page as text

# The page may load nothing from outside.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

STYLE = """
body { font: 15px/1.45 sans-serif; color: #222; background: #fff; max-width: 1320px; margin: 1.2em auto;
       padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: 0.2em } h2 { font-size: 1.2em; margin: 1.6em 0 0.4em }
.table { overflow: auto; max-height: 40em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px }
td, th { padding: 2px 14px 2px 0; text-align: right; border-bottom: 1px solid #e4e4e4; vertical-align: bottom }
td:first-child, th:first-child { text-align: left }
#run td, #generated td, #generated th { text-align: left }
#generated td { max-width: 260px; vertical-align: top } #generated img { width: auto }
#ranks td, #timeline-shares td { white-space: nowrap }
pre { overflow-x: auto; background: #f6f6f6; padding: 8px; font-size: 12px; margin: 0.3em 0 }
.wrap { white-space: pre-wrap }
summary { cursor: pointer }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 18px 14px }
figure { margin: 0 } figcaption { font-weight: bold } figure p { margin: 0; font-size: 13px; color: #555 }
img { width: 100% }
canvas { display: block; width: 100%; cursor: crosshair; border: 1px solid #ddd }
canvas:focus { outline: 2px solid #4477aa }
button { font: inherit; min-width: 2.2em }
.hint { font-size: 13px; color: #555; margin: 0.3em 0 }
.legend span { margin-right: 14px; white-space: nowrap; font-size: 13px }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 4px; vertical-align: -1px }
#timeline-view { margin-left: 1em; font-variant-numeric: tabular-nums }
#timeline-shares { margin-top: 0.5em; font-size: 13px }
#tip { display: none; position: fixed; z-index: 1; background: #222; color: #fff; padding: 5px 9px; font-size: 12px;
       max-width: 480px; white-space: pre-wrap; pointer-events: none; border-radius: 3px }
"""


def table(head, rows, name=""):
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"] if head else []
    lines += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<div class="table"><table id="{name}">' + "\n".join(lines) + "</table></div>"


def ranks_table(summary):
    head = ["rank", "steps", "step, ms", *(NAMES[name] + ", %" for name in PARTS), "communication hidden, %",
            "waited for slower ranks, ms a step", "peak planned, GiB", "peak as run, GiB",
            "whole process by the driver, GiB"]
    rows = []
    for rank in summary:
        overlap = rank["overlap_percent"]
        rows.append([str(rank["rank"]), str(rank["steps"]), f"{rank['step']['median_ns'] / 1e6:.3f}",
                     *(f"{rank['parts'][name]['percent']:.2f}" for name in PARTS),
                     f"{overlap:.1f}" if overlap is not None else "",
                     f"{rank['waited_for_slower_ns'] / rank['steps'] / 1e6:.3f}",
                     *(f"{rank['memory_total'][name] / 2**30:.2f}" for name in ("planned", "replayed")),
                     f"{rank['driver_memory']['total_bytes'] / 2**30:.2f}" if rank["driver_memory"] else ""])
    return table(head, rows, "ranks")


def counted(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"


def headline(run, results, series):
    """The run and its speed, in one paragraph. Losses are those of the whole run, the rest those of the shown part."""
    attributes = results[0].trace.attributes()
    what = [str(attributes[name]) for name in ("model", "strategy", "device") if attributes.get(name)]
    what.append(counted(len(results), "rank"))
    steps = [result.trace.steps() for result in results]
    step_ns = float(np.median(series["every_step"]))
    samples = samples_of_a_step(results)
    rates = [samples_per_second(result) for result in results]
    rate = sum(rates) if all(rates) else 1e9 * samples / step_ns if samples else sum(float(np.median(rows["samples_per_second"])) for rows in steps)
    tflops = float(np.mean([np.median(rows["tflops"]) for rows in steps]))
    losses, = run.curve("loss")
    loss = losses[np.isfinite(losses)]
    said = [f"{counted(len(series['every_step']), 'step')}, {step_ns / 1e6:.4g} ms each in the median, "
            f"{rate:.4g} samples/s, {tflops:.4g} TFLOP/s a rank"]
    if len(loss):
        said.append(f"loss {loss[0]:.4g} at first, {loss[-1]:.4g} at last")
    if len(loss) < len(losses):
        said.append(f"{counted(len(losses) - len(loss), 'step')} with a loss that is not a finite number")
    world = attributes.get("world_size")
    if world and int(world) != len(results):
        said.append(f"the run had {int(world)} ranks, the files of {len(results)} are here")
    return f"<p>{html.escape('; '.join(what))}.<br>{html.escape('; '.join(said))}.</p>"


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
            rows.append([name, value])
    return table([], rows, "run") + "\n".join(long_texts)


def figures_as_text(summary):
    """Comparisons of ranks and steps, then the summary of each rank, the first one open."""
    texts = [text(summary) for text in (split_text, slowest_text, validation_text, evaluation_text, fp8_text,
                                            clocks_text, ranks_text, energy_text)]
    lines = [f'<pre class="wrap">{html.escape(text)}</pre>' for text in texts if text]
    for number, rank in enumerate(summary[:MOST_RANKS]):
        lines.append(f"<details{'' if number else ' open'}><summary>rank {rank['rank']}</summary>"
                     f"<pre>{html.escape(rank_text(rank))}</pre></details>")
    if len(summary) > MOST_RANKS:
        lines.append(f"<p>trace.py summary has those of the other {len(summary) - MOST_RANKS} ranks.</p>")
    return "\n".join(lines)


def timeline_section(data):
    left_out = data["spans"] - data["shown"]
    note = (f" Of {data['spans']} spans the {data['shown']} longest are shown; {left_out} under "
            f"{data['least'] / 1e3:.3g} us are left out." if left_out else "")
    if data["of_ranks"] > len(data["ranks"]):
        note += f" The first {len(data['ranks'])} of {data['of_ranks']} ranks are shown."
    if data["clock"]:
        note += f" The ranks' clocks were up to {data['clock'] / 1e3:.1f} us off in this step; that is corrected here."
    # "</" would end the script element.
    code = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return f"""<section id="timeline"><h2>Timeline of step {data["step"]} on every rank</h2>
<p class="hint">The wheel zooms, dragging moves, shift and dragging zooms into a range, a double click shows the whole
step; keys: + &minus; &larr; &rarr; 0. The thin strip of each rank says what each moment was: red is communication that
compute did not hide. Pointing at a span outlines the same work on the other ranks.{note}</p>
<div class="legend" id="parts-legend"><span>strip:</span></div>
<div class="legend" id="legend"><span>streams:</span></div>
<p class="hint"><button data-key="+" title="zoom in">+</button> <button data-key="-" title="zoom out">&minus;</button>
<button data-key="ArrowLeft" title="earlier">&larr;</button> <button data-key="ArrowRight" title="later">&rarr;</button>
<button data-key="0">whole step</button><span id="timeline-view"></span></p>
<canvas id="timeline-canvas" tabindex="0" role="img" aria-label="timeline of the step by rank and stream"></canvas>
<div class="table"><table id="timeline-shares"></table></div><div id="tip"></div></section>
<script type="application/json" id="timeline-data">{code}</script>"""


def write_report(directory, path, step=None, part=None):
    run = open_run(directory, part)
    shown = run.newest()
    results = gather_results(shown, 0)
    of_run = summarize_run(run, shown)
    summary = [summarize_rank(result, of_run) for result in results]
    series = series_of(results)
    if step is None:
        step = typical_step(results, series)
    timeline = timeline_section(timeline_data(results, step))
    pictures = "\n".join(all_pictures(pyplot(), run, shown, results, summary, series))
    script = (pathlib.Path(__file__).parent / "timeline.js").read_text(encoding="utf-8")
    name = html.escape(pathlib.Path(directory).resolve().name or str(directory))
    parts = html.escape(parts_text(of_run["run_parts"], shown.number))
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{name}</title><style>{STYLE}</style></head><body>
<h1>{name}</h1>
{headline(run, results, series)}
{f'<pre id="parts">{parts}</pre>' if parts else ''}
{ranks_table(summary)}
<h2>Pictures</h2>
<div class="pictures">{pictures}</div>
{evaluation_section(run)}
{timeline}
<h2>Where time and memory went</h2>
{figures_as_text(summary)}
<h2>The run</h2>
{attributes_table(results[0].trace)}
<script>{script}</script>
</body></html>
"""
    close_all(results)
    # Names of files in the page may be in another encoding.
    pathlib.Path(path).write_text(page, encoding="utf-8", errors="replace")
