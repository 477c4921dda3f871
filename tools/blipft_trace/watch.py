"""Follows the newest part of a run in the terminal: one line an interval while steps come in, until the last."""
import time

import numpy as np

from .files import RankTrace, TraceError
from .parts import paths_of_parts

RECENT = 50  # steps that the medians are taken over


def finished(traces):
    """Returns True if every rank has taken all steps of the run; traces older than version 1.3 do not have their number."""
    for trace in traces:
        attributes, n = trace.attributes(), trace.rows("steps")
        total = attributes.get("total_steps")
        done = trace.read("steps", n - 1, n)["step"][0] + 1 if n else attributes.get("first_step", 0)
        if not total or done < total:
            return False
    return True


def look(traces):
    """One line about the newest step of a run; None before the first."""
    newest = []
    for trace in traces:
        trace.refresh(("steps", "device"))
        n = trace.rows("steps")
        if not n:
            return None
        newest.append(trace.read("steps", max(0, n - RECENT), n))
    step = min(int(rows["step"][-1]) for rows in newest)
    last = newest[0][-1]
    loss = np.mean([rows["loss"][-1] for rows in newest])
    duration = [np.median(rows["end_ns"] - rows["begin_ns"]) for rows in newest]
    slowest = int(np.argmax(duration))
    rate = sum(np.median(rows["samples_per_second"]) for rows in newest)
    wait = np.mean([np.median(rows["data_wait_ns"]) for rows in newest])
    line = (f"step {step:7d}  epoch {int(last['epoch']):3d}  loss {loss:8.4f}  lr {float(last['lr']):.2e}  "
            f"step {max(duration) / 1e6:9.2f} ms  {rate:9.1f} samples/s  "
            f"{np.mean([np.median(rows['tflops']) for rows in newest]):7.1f} TFLOP/s a GPU  "
            f"data wait {wait / 1e6:.2f} ms")
    if max(duration) > 1.05 * min(duration):
        line += f"  slowest rank {traces[slowest].rank}"
    used = []
    for trace in traces:
        n = trace.rows("device")
        if n:
            used.append(int(trace.read("device", n - 1, n)["memory_bytes"][0]))
    if any(used):  # 0: unknown
        line += f"  {max(used) / 2**30:.1f} GiB"
    return line


def watch(run, interval, once):
    traces = []
    try:
        follow(run, interval, once, traces)
    finally:
        for trace in traces:
            trace.close()


def open_newest(run, traces):
    """Replaces `traces` by those of the newest part if it has other files, and prints so; returns True if it had."""
    number, paths = list(paths_of_parts(run).items())[-1]
    if paths == [trace.path for trace in traces]:
        return False
    newest = [RankTrace(path) for path in paths]
    for trace in traces:
        trace.close()
    traces[:] = newest
    if number:
        first = int(newest[0].attributes().get("first_step", 0))
        print(f"part {number} of the run, from step {first} on, {len(paths)} rank(s)", flush=True)
    return True


def follow(run, interval, once, traces):
    """`traces` is filled when the run has begun to write."""
    shown = None
    while True:
        try:
            if open_newest(run, traces):
                shown = None
            line = look(traces)
        except TraceError:
            if once:
                raise
            line = None  # the run, or its next part, has not begun to write yet
        if line is None and shown is None:
            print(f"{run}: no finished step yet", flush=True)
            shown = ""
        elif line and line != shown:
            print(line, flush=True)
            shown = line
        if once or (traces and finished(traces)):
            return
        time.sleep(interval)
