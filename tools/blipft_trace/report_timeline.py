"""The data of the report's timeline: the spans of one step on every rank, and what each moment of each rank was."""
import numpy as np

from .files import COMMUNICATION, COMPUTE, COPY, STREAMS, TraceError
from .intervals import Union
from .kernels import recorded_steps
from .summary import PARTS

MOST_SPANS = 100_000   # of all ranks; a page of 5 MB. Longer steps keep their longest spans, and the page says so.
MOST_RANKS = 64        # in the picture; a browser's canvas has a size limit


def typical_step(results, series):
    """The step whose time is closest to the median. Steps whose kernels were recorded are slower and do not count."""
    numbers, times = series["number"], np.asarray(series["step"], np.float64)
    slowed = {step for result in results for step in recorded_steps(result.trace)}
    usual = ~np.isin(numbers, list(slowed))
    if not usual.any():
        usual[:] = True
    distance = np.where(usual, np.abs(times - np.median(times[usual])), np.inf)
    return int(numbers[np.argmin(distance)])


def union_of(rows):
    return Union(rows["begin_ns"], rows["end_ns"])


def parts_of(spans, waits, begin, end):
    """Pieces (begin, end, number in PARTS) that fill the step [begin, end) of one rank, as summary.py splits it."""
    is_wait = np.isin(spans["phase"], waits)
    layers = [spans[(spans["stream"] == COMPUTE) & ~is_wait], spans[spans["stream"] == COMMUNICATION],
              spans[(spans["stream"] == COPY) & ~is_wait], spans[is_wait]]
    covered, pieces = Union([], []), []
    for number, rows in enumerate([*layers, None]):
        layer = union_of(rows) if rows is not None else Union([begin], [end])
        low, high = np.clip(layer.begin, begin, end), np.clip(layer.end, begin, end)
        inside = high > low
        if not inside.any():
            continue
        piece_begin, piece_end, _ = covered.gaps(low[inside], high[inside])
        pieces += zip(piece_begin.tolist(), piece_end.tolist(), [number] * len(piece_begin))
        covered = covered | layer
    return sorted(pieces)


def window_of(result, step):
    at = np.flatnonzero(result.steps["step"] == step)
    if not len(at):
        raise TraceError(f"{result.trace.path}: has no finished step {step}")
    return int(result.steps["begin_ns"][at[0]]), int(result.steps["end_ns"][at[0]])


def clock_ahead(result, step):
    """How far this rank's clock was ahead in this step, in ns; 0 where the summary took the clocks for equal."""
    if not result.split.clock:
        return 0
    steps, offsets = zip(*sorted(result.split.clock))
    return int(round(np.interp(step, steps, offsets)))


def spans_of(result, step, start, end, ahead):
    """Spans that touch the time [start, end): those of the neighbouring steps reach into it."""
    spans = result.index.read(step - 1, step + 1).copy()
    spans["begin_ns"] -= ahead
    spans["end_ns"] -= ahead
    spans = spans[(spans["end_ns"] >= start) & (spans["begin_ns"] < end)]
    whole = [number for number, name in enumerate(result.trace.phases) if name == "step"]
    spans = spans[~np.isin(spans["phase"], whole)]   # the span of the step itself is no work
    return spans[np.argsort(spans["begin_ns"], kind="stable")]


def stream_data(spans, number, start):
    rows = spans[spans["stream"] == number]
    columns = [rows["begin_ns"] - start, rows["end_ns"] - start, rows["phase"], rows["unit"], rows["micro_batch"],
               rows["bytes"]]
    stream = {"name": STREAMS[number], "spans": list(zip(*(column.tolist() for column in columns)))}
    if rows["flops"].any():
        stream["flops"] = [float(f"{value:.5g}") for value in rows["flops"].tolist()]
    return stream


def timeline_data(results, step):
    """The spans of one step on every rank, in ns since the first rank began it."""
    of_run = len(results)
    results = results[:MOST_RANKS]
    ahead = [clock_ahead(result, step) for result in results]
    windows = [(begin - offset, end - offset)
               for offset, (begin, end) in zip(ahead, (window_of(result, step) for result in results))]
    start, end = min(begin for begin, _ in windows), max(end for _, end in windows)
    spans = [spans_of(result, step, start, end, offset) for result, offset in zip(results, ahead)]
    count = sum(map(len, spans))
    least = 0
    if count > MOST_SPANS:
        lengths = np.concatenate([rows["end_ns"] - rows["begin_ns"] for rows in spans])
        least = int(np.partition(lengths, count - MOST_SPANS)[count - MOST_SPANS]) + 1
    ranks, shown = [], 0
    for result, rows, (first, last) in zip(results, spans, windows):
        waits = [number for number, name in enumerate(result.trace.phases) if name == "data_wait"]
        pieces = [(a - start, b - start, part) for a, b, part in parts_of(rows, waits, first, last)
                  if b - a >= least or not least]
        rows = rows[rows["end_ns"] - rows["begin_ns"] >= least]
        shown += len(rows)
        used = [number for number in range(len(STREAMS)) if (rows["stream"] == number).any()]
        streams = [stream_data(rows, number, start) for number in used]
        ranks.append({"rank": result.trace.rank, "begin": first - start, "end": last - start, "streams": streams,
                      "parts": pieces})
    return {"step": step, "ranks": ranks, "phases": results[0].trace.phases, "units": results[0].trace.units,
            "parts": PARTS, "length": max(end - start, 1), "spans": count, "shown": shown, "least": least,
            "clock": max(map(abs, ahead)), "of_ranks": of_run}
