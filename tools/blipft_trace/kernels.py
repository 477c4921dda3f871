"""The time of kernels, copies and fills in the steps of trace.kernels."""
import collections

import numpy as np

from .files import KERNEL_KINDS, Progress, TraceError
from .intervals import Union
from .parts import open_run

WIDTH = 96  # of a name in the table


def without_brackets(name, opening, closing):
    """Removes the text inside the outermost brackets: "a<b<c>>(d)" becomes "a<>(d)"."""
    out, depth = [], 0
    for letter in name:
        depth -= letter == closing and depth > 0
        if not depth:
            out.append(letter)
        depth += letter == opening
    return "".join(out)


def short_name(name, width=WIDTH):
    """A kernel's name without its return type and arguments, and without template arguments if it is too long."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    end = len(name)
    if name.endswith(")"):  # the arguments are the last brackets
        depth = 0
        for i in range(len(name) - 1, -1, -1):
            depth += (name[i] == ")") - (name[i] == "(")
            if not depth:
                end = i
                break
    name = name[:end] or name
    if len(name) > width:
        name = without_brackets(name, "<", ">")
    return name if len(name) <= width else name[:width - 3] + "..."


def recorded_steps(trace):
    """Numbers of the steps whose kernels were recorded."""
    if not trace.rows("kernels"):
        return []
    return sorted({int(step) for _, rows in trace.chunks("kernels") for step in np.unique(rows["step"])})


def kernels_of_steps(trace):
    """The rows of /kernels in groups of whole steps: a step's kernels are written one after the other."""
    carried = None
    for _, rows in trace.chunks("kernels"):
        if carried is not None:
            rows = np.concatenate((carried, rows))
        last = rows["step"] == rows["step"][-1]
        carried = rows[last]
        if not last.all():
            yield rows[~last]
    if carried is not None:
        yield carried


def add_kernels(totals, trace, rows):
    length = rows["end_ns"] - rows["begin_ns"]
    for number in np.unique(rows["name"]):
        chosen = rows["name"] == number
        entry = totals[trace.kernel_name(int(number))]
        entry["count"] += int(chosen.sum())
        entry["time_ns"] += int(length[chosen].sum())
        entry["bytes"] += int(rows["bytes"][chosen].sum())
        entry["kind"] = KERNEL_KINDS[int(rows["kind"][chosen][0])]


def part_with_kernels(run):
    """The newest part with recorded kernels."""
    with_kernels = (part for part in reversed(run.parts[1:]) if any(trace.rows("kernels") for trace in part.traces))
    return next(with_kernels, run.parts[0])


def analyze(run, ranks=None, part=None):
    """Time by kernel, over the recorded steps of the chosen ranks of one part, longest first."""
    run = open_run(run, part)
    shown = part_with_kernels(run)
    totals = collections.defaultdict(lambda: {"count": 0, "time_ns": 0, "bytes": 0, "kind": ""})
    step_ns = busy_ns = steps = 0
    used = []
    traces = [trace for trace in shown.traces if ranks is None or trace.rank in ranks]
    with Progress("reading kernels", len(traces)) as progress:
        for trace in traces:
            used.append(trace.rank)
            table = trace.steps() if trace.rows("kernels") else trace.read("steps", 0, 0)
            seen = set()
            for rows in kernels_of_steps(trace) if len(table) else ():
                finished = table[np.isin(table["step"], rows["step"])]
                rows = rows[np.isin(rows["step"], finished["step"])]
                seen.update(finished["step"].tolist())
                union = Union(rows["begin_ns"], rows["end_ns"])
                busy_ns += int(union.within(finished["begin_ns"], finished["end_ns"]).sum())
                add_kernels(totals, trace, rows)
            table = table[np.isin(table["step"], list(seen))]
            steps += len(table)
            step_ns += int((table["end_ns"] - table["begin_ns"]).sum())
            trace.close()
            progress.add()
    if not used:
        raise TraceError(f"{run.path}: has no rank {', '.join(map(str, ranks))}")
    if not steps:
        raise TraceError(f"{run.path}: no step's kernels were recorded; "
                         "run on a GPU with trace.kernels=[10,12] (a list of steps)")
    kernels = [{"name": name, **entry, "mean_ns": entry["time_ns"] / entry["count"],
                "percent_of_step": 100 * entry["time_ns"] / step_ns if step_ns else 0.0}
               for name, entry in sorted(totals.items(), key=lambda item: -item[1]["time_ns"])]
    return {"part": shown.number, "parts": len(run.parts), "ranks": used, "steps": steps, "step_ns": step_ns,
            "busy_ns": busy_ns, "kernels": kernels}


def to_text(answer, top=30, full=False):
    """The table; times and counts are of one step of one rank."""
    steps, step_ns = answer["steps"], answer["step_ns"]
    lines = [f"{steps} recorded step(s) of {len(answer['ranks'])} rank(s), {step_ns / steps / 1e6:.3f} ms each; "
             f"something runs on the device {100 * answer['busy_ns'] / step_ns if step_ns else 0:.1f} % of that time",
             "Times that overlap count each, so that shares may add up to more than 100 %.",
             f"{'ms a step':>10s} {'of step':>8s} {'calls':>7s} {'mean us':>9s} {'GB/s':>7s}  name"]
    if answer["parts"] > 1:
        lines.insert(0, f"part {answer['part']} of a run of {answer['parts']} parts (--part N shows another)")
    for row in answer["kernels"][:top]:
        rate = f"{row['bytes'] / row['time_ns']:7.1f}" if row["bytes"] and row["time_ns"] else f"{'':7s}"
        name = row["name"] if full else short_name(row["name"])
        lines.append(f"{row['time_ns'] / steps / 1e6:10.3f} {row['percent_of_step']:7.2f}% {row['count'] / steps:7.1f} "
                     f"{row['mean_ns'] / 1e3:9.2f} {rate}  {name}")
    rest = answer["kernels"][top:]
    if rest:
        time, count = sum(row["time_ns"] for row in rest), sum(row["count"] for row in rest)
        lines.append(f"{time / steps / 1e6:10.3f} {100 * time / step_ns if step_ns else 0:7.2f}% {count / steps:7.1f} "
                     f"{time / count / 1e3:9.2f} {'':7s}  ({len(rest)} others)")
    return "\n".join(lines)
