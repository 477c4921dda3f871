"""Traces in other formats: CSV tables, and JSON for ui.perfetto.dev or chrome://tracing."""
import csv
import functools
import json
import pathlib

import numpy as np

from .collectives import align, estimate_clocks, of_phases, run_together
from .files import (COMMUNICATION, FP8_FACTORS, HOST, KERNEL_KINDS, STREAMS, TABLES, Progress, TraceError, phase_name, text,
                    unit_name)
from .kernels import short_name
from .parts import NO_END, open_run
from .sampling import SAMPLE_SPANS
from .step_index import StepIndex

CSV_ROWS = 1 << 13
TIMES = ("begin_ns", "end_ns", "time_ns")
CLOCK_STEPS, CLOCK_CLUSTER = 64, 4  # steps for the estimate of the clocks
EVENTS = 200_000  # the default of perfetto: the last steps that together have about this many spans


def column(rows, name, trace, table, shift_ns):
    """shift_ns: offset from the part's times to the run's."""
    if name not in rows.dtype.names:
        return [""] * len(rows)
    values = rows[name]
    if shift_ns and name in TIMES:
        values = values + shift_ns
    if values.dtype.kind == "S":
        return text(values)
    if table == "kernels":
        if name == "name":
            return [trace.kernel_name(i) for i in values.tolist()]
        if name == "kind":
            return [KERNEL_KINDS[i] if 0 <= i < len(KERNEL_KINDS) else str(i) for i in values.tolist()]
        return values.tolist()
    if table == "fp8" and name in ("matrix", "factor"):
        names = trace.fp8_matrices if name == "matrix" else FP8_FACTORS
        return [names[i] if 0 <= i < len(names) else str(i) for i in values.tolist()]
    if name == "phase":
        return [phase_name(trace.phases, i) for i in values.tolist()]
    if name == "unit":
        return [unit_name(trace.units, i) for i in values.tolist()]
    if name == "stream":
        return [STREAMS[i] if 0 <= i < len(STREAMS) else str(i) for i in values.tolist()]
    return values.tolist()


def wanted_rows(trace, table, steps):
    """A table in pieces; only the selected steps if it has steps."""
    names = trace.dataset(table).dtype.names
    if steps is not None and "step" in names:
        for rows in StepIndex(trace, table).groups(*steps):
            yield from (rows[begin:begin + CSV_ROWS] for begin in range(0, len(rows), CSV_ROWS))
        return
    for _, rows in trace.chunks(table, CSV_ROWS):
        if steps is not None and "first_step" in names:
            rows = rows[(rows["last_step"] >= steps[0]) & (rows["first_step"] <= steps[1])]
        yield rows


def columns_of(run, table):
    """The names of a table's columns. A part that another version of the program wrote may have others."""
    tables = (part.first.dataset(table) for part in run.parts if part.first.has(table))
    return list(dict.fromkeys(name for dataset in tables for name in dataset.dtype.names))


def steps_of(part, steps):
    """The selected steps without those that a later part repeated; None: all. The set-up is step -1."""
    first, last = steps or (-1, NO_END)
    return steps if part.until == NO_END else (first, min(last, part.until - 1))


def write_csv(run, directory, tables=None, steps=None, part=None):
    """One CSV a table with all ranks of all parts, each rank's parts one after the other; returns the paths."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    run = open_run(run, part)
    run.tell()
    traces = sorted(((trace, part) for part in run.parts for trace in part.traces), key=lambda item: item[0].rank)
    there = [table for table in TABLES if any(trace.has(table) for trace, _ in traces)]
    paths = []
    for table in there if tables is None else tables:
        if table not in there:
            raise TraceError(f"{run.path}: has no table /{table}; it has {', '.join(there)}")
        path = directory / f"{table}.csv"
        with open(path, "w", newline="", encoding="utf-8") as out, Progress(f"writing {path}", len(traces)) as progress:
            writer = csv.writer(out)
            header = columns_of(run, table)
            writer.writerow(["rank", "part", *header])
            for trace, part in traces:
                if trace.has(table):
                    for rows in wanted_rows(trace, table, steps_of(part, steps)):
                        columns = [column(rows, name, trace, table, part.shift_ns) for name in header]
                        writer.writerows(zip([trace.rank] * len(rows), [part.number] * len(rows), *columns))
                progress.add()
        paths.append(path)
    return paths


STEP_ROW = len(STREAMS)  # the thread that shows whole steps, below the streams
KERNEL_ROW = 100         # plus the number of the CUDA stream: the threads that show kernels


def corrected(rows, clocks, rank):
    """Steps or spans with the device's times on the clock that is the middle of the group's devices'."""
    if rank not in clocks or not len(rows):
        return rows
    rows = rows.copy()
    ahead = clocks[rank](rows["begin_ns"])
    if "stream" in rows.dtype.names:
        ahead[rows["stream"] == HOST] = 0  # measured with the host's clock
    rows["begin_ns"] -= ahead
    rows["end_ns"] -= ahead
    return rows


def rate_args(step, size, begin, end, more):
    args = {"step": step, **more}
    if size:
        args["bytes"] = size
        if end > begin:
            args["GB/s"] = round(size / (end - begin), 3)
    return args


def kernel_events(trace, first, last):
    """A thread for each CUDA stream with recorded kernels."""
    pid, streams = trace.rank, set()
    for rows in StepIndex(trace, "kernels").groups(first, last):
        streams.update(rows["stream"].tolist())
        for row in rows:
            begin, end = int(row["begin_ns"]), int(row["end_ns"])
            name = trace.kernel_name(int(row["name"]))
            more = {"name": name, **({"graph_node": int(row["graph_node"])} if row["graph_node"] else {})}
            yield {"ph": "X", "pid": pid, "tid": KERNEL_ROW + int(row["stream"]), "name": short_name(name),
                   "cat": KERNEL_KINDS[int(row["kind"])], "ts": begin / 1e3, "dur": (end - begin) / 1e3,
                   "args": rate_args(int(row["step"]), int(row["bytes"]), begin, end, more)}
    for stream in sorted(streams):
        yield {"ph": "M", "pid": pid, "tid": KERNEL_ROW + stream, "name": "thread_name",
               "args": {"name": f"kernels, CUDA stream {stream}"}}


def span_events(trace, index, first, last, correct):
    for rows in index.groups(first, last):
        for step, micro, unit, phase, stream, begin, end, size, flops in correct(rows).tolist():
            args = rate_args(step, size, begin, end, {"micro_batch": micro})
            if flops and end > begin:
                args["TFLOP/s"] = round(flops / (end - begin) / 1e3, 3)
            name = f"{phase_name(trace.phases, phase)} {unit_name(trace.units, unit)}".strip()
            yield {"ph": "X", "pid": trace.rank, "tid": stream, "name": name, "cat": STREAMS[min(stream, HOST)],
                   "ts": begin / 1e3, "dur": (end - begin) / 1e3, "args": args}


def counter_events(trace, steps, first, last):
    """Memory by owner, and the device's state."""
    pid = trace.rank
    for rows in StepIndex(trace, "memory").groups(first, last):
        for owner, time, size in zip(text(rows["owner"]), rows["time_ns"].tolist(), rows["bytes"].tolist()):
            yield {"ph": "C", "pid": pid, "name": f"memory: {owner}", "ts": time / 1e3,
                   "args": {"GiB": size / 2**30}}
    if not len(steps):
        return
    for device in trace.device_samples(steps):
        for row in device:
            for name in ("utilization", "power_watts"):
                if row[name] == row[name]:  # NaN: unknown
                    yield {"ph": "C", "pid": pid, "name": name, "ts": int(row["time_ns"]) / 1e3,
                           "args": {name: float(row[name])}}


def perfetto_events(trace, index, first, last, correct):
    """Trace events of one rank: a process with a thread for each stream, and counters."""
    pid = trace.rank
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"rank {trace.rank}"}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": trace.rank}}
    for tid, name in enumerate([*STREAMS, "steps"]):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    steps = trace.steps()
    steps = steps[(steps["step"] >= first) & (steps["step"] <= last)]
    for row in correct(steps):
        yield {"ph": "X", "pid": pid, "tid": STEP_ROW, "name": f"step {row['step']}",
               "ts": int(row["begin_ns"]) / 1e3, "dur": int(row["end_ns"] - row["begin_ns"]) / 1e3,
               "args": {"loss": float(row["loss"]), "lr": float(row["lr"])}}
    yield from span_events(trace, index, first, last, correct)
    yield from kernel_events(trace, first, last)
    yield from counter_events(trace, steps, first, last)


def last_steps(part):
    """The last finished steps that together have about EVENTS spans, at least one."""
    traces, ends, counts = part.traces, [], []
    for trace in traces:
        n = trace.rows("steps")
        if n:
            ends.append(int(trace.read("steps", n - 1, n)["step"][0]))
            counts.append(n)
    if not ends:
        return 0, 0
    each = sum(trace.rows("spans") for trace in traces) / max(counts)
    count = max(int(EVENTS / max(each, 1)), 1)
    return max(min(ends) - count + 1, part.first_step), min(ends)


def clocks_of_steps(traces, indexes, first, last):
    """How far ahead a rank's clock is during these steps, from some of them: {rank: function of times}.

    Ranks whose clocks equal their group's are missing.
    """
    numbers = traces[0].steps()["step"]
    numbers = numbers[(numbers >= first) & (numbers <= last)]
    if len(traces) < 2 or not len(numbers):
        return {}
    each = sum(trace.rows("spans") for trace in traces) / max(traces[0].rows("steps"), 1)
    most = min(max(int(SAMPLE_SPANS / max(each, 1)), 1), CLOCK_STEPS)
    if len(numbers) > most:  # a few neighbours at a time: a step may have few collectives
        begin = np.linspace(0, len(numbers) - 1, -(-most // CLOCK_CLUSTER)).astype(int)
        at = np.unique(begin[:, None] + np.arange(CLOCK_CLUSTER))
        numbers = numbers[at[at < len(numbers)]]
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    block = []
    for rank, trace in enumerate(traces):
        index = indexes[rank] = StepIndex(trace)
        parts = [rows[rows["stream"] == COMMUNICATION] for run in runs
                 for rows in index.groups(int(run[0]), int(run[-1]))]
        block.append(np.concatenate([trace.read("spans", 0, 0), *parts]))
        index.forget()
    phases, clocks = traces[0].phases, {}
    for together, groups in run_together(phases, [trace.attributes() for trace in traces], block)[:1]:
        for ranks in groups:
            found = estimate_clocks(phases, *align([of_phases(block[rank], together) for rank in ranks]))
            if found:
                clocks.update({rank: functools.partial(found.ahead, i) for i, rank in enumerate(ranks)})
    return clocks


def events_of_part(part, first, last, moved, progress):
    """Trace events of all ranks of a part, at the run's times; adds the ranks whose clocks are corrected to `moved`."""
    traces = part.traces
    indexes = [None] * len(traces)
    clocks = clocks_of_steps(traces, indexes, first, last)
    moved.update(clocks)
    for rank, trace in enumerate(traces):
        index = indexes[rank] or StepIndex(trace)
        correct = functools.partial(corrected, clocks=clocks, rank=rank)
        for event in perfetto_events(trace, index, first, last, correct):
            if "ts" in event:
                event["ts"] += part.shift_ns / 1e3
            yield event
        index.forget()
        progress.add()


def write_perfetto(run, path, steps=None, part=None):
    """Streams the events into a JSON file; how many, the first and last step, whether clocks were corrected, and which
    parts these are where there are several.
    """
    run, count, moved = open_run(run, part), 0, set()
    shown = run.newest()
    first, last = steps or last_steps(shown)
    parts = [part for part in run.parts if part.first_step <= last and part.until > first] if steps else [shown]
    ranks = sum(len(part.traces) for part in parts)
    with open(path, "w", encoding="utf-8") as out, Progress(f"writing {path}", ranks) as progress:
        out.write('{"displayTimeUnit":"ns","traceEvents":[')
        for part in parts:
            for event in events_of_part(part, first, min(last, part.until - 1) if steps else last, moved, progress):
                # NaN (a loss that was never computed) is not JSON.
                for key, value in event.get("args", {}).items():
                    if value != value or value in (float("inf"), float("-inf")):
                        event["args"][key] = str(value)
                out.write(",\n" if count else "\n")
                out.write(json.dumps(event))
                count += 1
        out.write("\n]}\n")
    numbers = f"part {', '.join(str(part.number) for part in parts)} of the run" if len(run.parts) > 1 else ""
    return count, (first, last), bool(moved), numbers
