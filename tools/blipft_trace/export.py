"""Traces in other programs' forms: CSV tables, and JSON for ui.perfetto.dev or chrome://tracing."""
import csv
import json
import pathlib

from .files import HOST, KERNEL_KINDS, STREAMS, TABLES, open_run, phase_name, text, unit_name
from .kernels import short_name


def column(rows, name, trace, table):
    values = rows[name]
    if values.dtype.kind == "S":
        return text(values)
    if table == "kernels":
        if name == "name":
            return [trace.kernel_name(i) for i in values.tolist()]
        if name == "kind":
            return [KERNEL_KINDS[i] if 0 <= i < len(KERNEL_KINDS) else str(i) for i in values.tolist()]
        return values.tolist()
    if name == "phase":
        return [phase_name(trace.phases, i) for i in values.tolist()]
    if name == "unit":
        return [unit_name(trace.units, i) for i in values.tolist()]
    if name == "stream":
        return [STREAMS[i] if 0 <= i < len(STREAMS) else str(i) for i in values.tolist()]
    return values.tolist()


def write_csv(run, directory):
    """One CSV a table with all ranks; returns the paths."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    traces = open_run(run)
    paths = []
    for table in TABLES:
        if not any(table in trace.file for trace in traces):
            continue
        path = directory / f"{table}.csv"
        with open(path, "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            header = None
            for trace in traces:
                if table not in trace.file:
                    continue
                names = trace.file[table].dtype.names
                if header is None:
                    header = names
                    writer.writerow(["rank", *names])
                for _, rows in trace.chunks(table):
                    columns = [column(rows, name, trace, table) for name in header]
                    writer.writerows(zip([trace.rank] * len(rows), *columns))
        paths.append(path)
    return paths


STEP_ROW = len(STREAMS)  # the thread that shows whole steps, below the streams
KERNEL_ROW = 100         # plus the number of the CUDA stream: the threads that show kernels


def kernel_events(trace, wanted):
    """A thread for each CUDA stream that had recorded kernels."""
    pid, streams = trace.rank, set()
    for _, rows in trace.chunks("kernels"):
        rows = wanted(rows)
        streams.update(rows["stream"].tolist())
        for row in rows:
            begin, end, size = int(row["begin_ns"]), int(row["end_ns"]), int(row["bytes"])
            name = trace.kernel_name(int(row["name"]))
            args = {"step": int(row["step"]), "name": name}
            if row["graph_node"]:
                args["graph_node"] = int(row["graph_node"])
            if size:
                args["bytes"] = size
                if end > begin:
                    args["GB/s"] = round(size / (end - begin), 3)
            yield {"ph": "X", "pid": pid, "tid": KERNEL_ROW + int(row["stream"]), "name": short_name(name),
                   "cat": KERNEL_KINDS[int(row["kind"])], "ts": begin / 1e3, "dur": (end - begin) / 1e3, "args": args}
    for stream in sorted(streams):
        yield {"ph": "M", "pid": pid, "tid": KERNEL_ROW + stream, "name": "thread_name",
               "args": {"name": f"kernels, CUDA stream {stream}"}}


def perfetto_events(trace, first, last):
    """Trace events of one rank: a process with a thread for each stream, and counters."""
    pid = trace.rank

    def wanted(rows, field="step"):
        return rows[(rows[field] >= first) & (rows[field] <= last)]

    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"rank {trace.rank}"}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": trace.rank}}
    for tid, name in enumerate([*STREAMS, "steps"]):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    steps = wanted(trace.steps())
    for row in steps:
        yield {"ph": "X", "pid": pid, "tid": STEP_ROW, "name": f"step {row['step']}", "ts": int(row["begin_ns"]) / 1e3,
               "dur": int(row["end_ns"] - row["begin_ns"]) / 1e3,
               "args": {"loss": float(row["loss"]), "lr": float(row["lr"])}}
    for _, rows in trace.chunks("spans"):
        for step, micro, unit, phase, stream, begin, end, size, flops in wanted(rows).tolist():
            name = phase_name(trace.phases, phase)
            where = unit_name(trace.units, unit)
            args = {"step": step, "micro_batch": micro}
            if size:
                args["bytes"] = size
                if end > begin:
                    args["GB/s"] = round(size / (end - begin), 3)
            if flops and end > begin:
                args["TFLOP/s"] = round(flops / (end - begin) / 1e3, 3)
            yield {"ph": "X", "pid": pid, "tid": stream, "name": f"{name} {where}".strip(),
                   "cat": STREAMS[min(stream, HOST)], "ts": begin / 1e3, "dur": (end - begin) / 1e3, "args": args}
    yield from kernel_events(trace, wanted)
    for _, rows in trace.chunks("memory"):
        rows = wanted(rows)
        for owner, time, size in zip(text(rows["owner"]), rows["time_ns"].tolist(), rows["bytes"].tolist()):
            yield {"ph": "C", "pid": pid, "name": f"memory: {owner}", "ts": time / 1e3, "args": {"GiB": size / 2**30}}
    if len(steps):
        device = trace.read("device")
        device = device[(device["time_ns"] >= steps["begin_ns"][0]) & (device["time_ns"] <= steps["end_ns"][-1])]
        for row in device:
            for name in ("utilization", "power_watts"):
                if row[name] == row[name]:  # NaN: unknown
                    yield {"ph": "C", "pid": pid, "name": name, "ts": int(row["time_ns"]) / 1e3,
                           "args": {name: float(row[name])}}


def write_perfetto(run, path, first, last):
    """Streams the events into a JSON file; returns how many."""
    count = 0
    with open(path, "w", encoding="utf-8") as out:
        out.write('{"displayTimeUnit":"ns","traceEvents":[')
        for trace in open_run(run):
            for event in perfetto_events(trace, first, last):
                # NaN (a loss that was never computed) is not JSON.
                for key, value in event.get("args", {}).items():
                    if value != value or value in (float("inf"), float("-inf")):
                        event["args"][key] = str(value)
                out.write(",\n" if count else "\n")
                out.write(json.dumps(event))
                count += 1
        out.write("\n]}\n")
    return count
