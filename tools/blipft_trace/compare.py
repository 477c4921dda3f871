"""One table of several runs: in which settings they differ, and what came of each.

Losses, rates and times come from metrics.jsonl where the run folder has one, else from the traces; memory comes from the
traces alone.
"""
import csv
import io
import pathlib
import shutil

import numpy as np

from . import energy, metrics, settings
from .files import TraceError
from .memory import driver_memory
from .parts import open_run
from .validation import rows_of as validation_rows

LAST = 20        # the loss at the end is the mean over so many steps
WARMUP = 3       # steps that rates leave out, where there are enough
RESULTS = {      # name: how it is told
    "steps": "{:d}", "loss at the end": "{:.4f}", "best validation loss": "{:.4f}", "last validation loss": "{:.4f}",
    "samples/s": "{:.1f}", "tokens/s": "{:.0f}", "step, ms": "{:.2f}", "memory, GiB": "{:.2f}",
    "energy, kWh": "{:.4g}", "J/sample": "{:.4g}", "J/token": "{:.4g}",
    "training, s": "{:.1f}", "ranks": "{:d}", "resumed": "{:d}", "ended": "{}"}


def mean_of_last(values):
    values = [value for value in values[-LAST:] if value is not None and np.isfinite(value)]
    return float(np.mean(values)) if values else None


def median_of(values):
    values = [value for value in values if value is not None and np.isfinite(value)]
    values = values[WARMUP:] if len(values) > 2 * WARMUP else values
    return float(np.median(values)) if values else None


def validations(losses):
    losses = [loss for loss in losses if loss is not None and np.isfinite(loss)]
    return {"best validation loss": min(losses) if losses else None,
            "last validation loss": losses[-1] if losses else None}


def from_metrics(rows):
    steps = metrics.of_event(rows, "step")
    parts = metrics.of_event(rows, "start") + metrics.of_event(rows, "resume")
    seconds = median_of([row.get("seconds") for row in steps])
    last = next((row for row in reversed(rows) if row.get("event") in ("end", "step", "start", "resume")), {})
    return {"steps": len(steps), "loss at the end": mean_of_last([row.get("loss") for row in steps]),
            **validations([row.get("validation_loss") for row in metrics.of_event(rows, "validation")]),
            "samples/s": median_of([row.get("samples_per_second") for row in steps]),
            "tokens/s": median_of([row.get("tokens_per_second") for row in steps]),
            "step, ms": seconds and 1e3 * seconds,
            "training, s": float(sum(row.get("seconds") or 0 for row in steps)),
            "ranks": parts[-1].get("ranks") if parts else None,
            "resumed": len(metrics.of_event(rows, "resume")),
            "ended": last.get("reason") if last.get("event") == "end" else "no"}


def from_trace(run):
    loss, duration, begin, end = (run.curve(name)[0] for name in ("loss", "samples_per_second", "begin_ns", "end_ns"))
    newest = run.newest()
    ranks = int(newest.attributes.get("world_size", len(newest.paths)))
    samples = float(newest.attributes.get("samples_per_step", 0)) * ranks
    rate = median_of(duration)
    total = int(newest.attributes.get("total_steps", 0))
    done = int(newest.first.steps()["step"][-1]) + 1 if newest.first.rows("steps") else 0
    times = sum((int(rows["end_ns"][-1]) - int(rows["begin_ns"][0])) / 1e9
                for rows in (part.counting(part.first.steps()) for part in run.parts) if len(rows))
    return {"steps": len(loss), "loss at the end": mean_of_last(loss.tolist()),
            **validations(validation_rows(run, "loss")[0].tolist()),
            "samples/s": rate and rate * ranks, "tokens/s": None,
            "step, ms": 1e3 * samples / (rate * ranks) if rate and samples else median_of((end - begin) / 1e6),
            "training, s": times, "ranks": ranks, "resumed": len(run.parts) - 1,
            "ended": "done" if total and done >= total else "no"}


def memory_of(run):
    """GiB of the fullest rank: what the driver reported, else (on CPUs) what was planned."""
    found = []
    for trace in run.newest(0).traces:
        measured = driver_memory(trace)
        found.append(measured["total_bytes"] if measured else trace.attributes().get("planned_total_bytes", 0))
    return max(found) / 2**30 if found and max(found) else None


def look(path):
    """(settings, results) of one run."""
    rows = metrics.read_rows(path)
    try:
        run = open_run(path)
        told = settings.of_run(path, run)
    except TraceError:
        if not rows:
            raise
        run, told = None, settings.of_folder(path)
    results = from_metrics(rows) if rows else from_trace(run)
    results["memory, GiB"] = memory_of(run) if run else None
    used = energy.of_run(run) if run else None
    results.update(zip(("energy, kWh", "J/sample", "J/token"), (used[name] for name in ("kwh", "joules_a_sample", "joules_a_token")) if used else ()))
    for part in run.parts if run else ():
        for trace in part.traces:
            trace.close()
    return told, {name: results.get(name) for name in RESULTS}


def names_of(paths):
    """The shortest ends of the paths that tell them apart."""
    whole = [pathlib.Path(path).absolute().parts for path in paths]
    for count in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-count:]).removeprefix("//") for parts in whole]
        if len(set(names)) == len(set(whole)):
            return names
    return [str(path) for path in paths]


def compare(paths):
    told, results = zip(*map(look, paths))
    return {"runs": names_of(paths), "paths": [str(path) for path in paths], "settings": settings.different(told),
            "results": {name: [of_run[name] for of_run in results] for name in RESULTS}}


def shown(name, value):
    return "-" if value is None else RESULTS[name].format(value)


def rows_of(answer):
    """[name, value of each run] of all rows, as text: settings, then results that any run has."""
    rows = [[key, *("-" if value is None else value for value in values)] for key, values in answer["settings"].items()]
    results = [[name, *(shown(name, value) for value in values)] for name, values in answer["results"].items()
               if any(value is not None for value in values)]
    return rows, results


def cut(text, width):
    return text if len(text) <= width else text[:width - 3] + "..."


def to_text(answer, width=None):
    """Runs side by side, as many as the terminal is wide; the others below."""
    width = width or shutil.get_terminal_size((120, 20)).columns
    told, results = rows_of(answer)
    first = max(len(row[0]) for row in [*told, *results]) + 2
    columns = [cut(name, 40) for name in answer["runs"]]
    widths = [max(len(columns[i]), *(len(cut(row[i + 1], 40)) for row in [*told, *results])) + 2
              for i in range(len(columns))]
    lines, at = [], 0
    while at < len(columns):
        end, used = at + 1, first + widths[at]
        while end < len(columns) and used + widths[end] <= width:
            used += widths[end]
            end += 1

        def line(name, cells):
            return (name.ljust(first) + "".join(cut(cells[i], 40).rjust(widths[i]) for i in range(at, end))).rstrip()
        lines += ([""] if at else []) + [line("", columns)]
        lines += ["settings that differ" if told else "all settings are the same"]
        lines += [line(row[0], row[1:]) for row in told]
        lines += ["results"] + [line(row[0], row[1:]) for row in results]
        at = end
    return "\n".join(lines)


def to_csv(answer):
    """A row a run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", *answer["settings"], *answer["results"]])
    for i, path in enumerate(answer["paths"]):
        cells = [values[i] for values in [*answer["settings"].values(), *answer["results"].values()]]
        writer.writerow([path, *("" if cell is None else cell for cell in cells)])
    return out.getvalue()
