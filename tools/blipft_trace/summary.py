"""Where the time and the memory of a run went.

Each step's time is split into parts that do not overlap, in this order: compute; communication outside of compute
(exposed); copies outside of both; waiting for data outside of these; the rest is idle, with the cause of each gap.
Files are read in blocks of steps, all ranks side by side, so that memory does not grow with the run.
"""
import collections
import multiprocessing
import os

import numpy as np

from .files import COMMUNICATION, COMPUTE, COPY, HOST, RankTrace, TraceError, open_run, phase_name
from .intervals import Union
from .kernels import recorded_steps

BLOCK_SPANS = 1_500_000     # spans of all ranks that are in memory at once in a process, roughly
PARALLEL_SPANS = 4_000_000  # more are spread over processes
MOST_WORKERS = 4
INDEX_ROWS = 1 << 15
PARTS = ["compute", "exposed_communication", "exposed_copy", "data_wait", "idle"]


def span_bounds(trace):
    """Least and largest step of each piece of INDEX_ROWS spans."""
    low, high = [], []
    for begin in range(0, trace.rows("spans"), INDEX_ROWS):
        steps = trace.read("spans", begin, begin + INDEX_ROWS)["step"]
        low.append(steps.min())
        high.append(steps.max())
    return np.array(low, np.int64), np.array(high, np.int64)


class SpanIndex:
    """Finds the spans of a range of steps without holding a file in memory. Rows need not be in order of steps."""

    def __init__(self, trace, bounds=None):
        self.trace = trace
        self.low, self.high = bounds if bounds is not None else span_bounds(trace)

    def read(self, first, last):
        """Spans of the steps first..last (both included)."""
        pieces = []
        hits = np.flatnonzero((self.low <= last) & (self.high >= first))
        # Neighbouring pieces are read in one go.
        for run in np.split(hits, np.flatnonzero(np.diff(hits) > 1) + 1) if len(hits) else []:
            rows = self.trace.read("spans", int(run[0]) * INDEX_ROWS, (int(run[-1]) + 1) * INDEX_ROWS)
            keep = (rows["step"] >= first) & (rows["step"] <= last)
            pieces.append(rows if keep.all() else rows[keep])
        if not pieces:
            return self.trace.read("spans", 0, 0)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class RankResult:
    """What is gathered about one rank, block by block."""

    def __init__(self, trace, warmup, bounds=None, count=None):
        self.trace = trace
        steps = trace.steps()[warmup:]
        self.steps = steps[:count]  # a file that still grows may have got more by now
        self.index = SpanIndex(trace, bounds)
        n = len(self.steps)
        self.parts = {name: np.zeros(n, np.int64) for name in PARTS}
        self.communication = np.zeros(n, np.int64)
        self.copy = np.zeros(n, np.int64)
        self.idle_causes = collections.Counter()
        self.phase_time = np.zeros(len(trace.phases))   # of compute, by phase
        self.phase_flops = np.zeros(len(trace.phases))
        self.waited = 0            # in collectives, for slower ranks
        self.made_wait = 0         # how much later than everybody else this rank came, summed over collectives
        self.came_last = 0
        self.kinds = {}            # phase -> Kind

    def sums(self):
        """What blocks add to; it travels between processes."""
        return {"parts": self.parts, "communication": self.communication, "copy": self.copy,
                "idle_causes": self.idle_causes, "phase_time": self.phase_time, "phase_flops": self.phase_flops,
                "waited": self.waited, "made_wait": self.made_wait,
                "came_last": self.came_last, "kinds": self.kinds}

    def add(self, sums):
        for name, values in sums["parts"].items():
            self.parts[name] += values
        self.communication += sums["communication"]
        self.copy += sums["copy"]
        self.idle_causes.update(sums["idle_causes"])
        self.phase_time += sums["phase_time"]
        self.phase_flops += sums["phase_flops"]
        self.waited += sums["waited"]
        self.made_wait += sums["made_wait"]
        self.came_last += sums["came_last"]
        for name, kind in sums["kinds"].items():
            self.kinds.setdefault(name, Kind()).add(kind)


class Kind:
    """The collectives of one phase on one rank."""

    def __init__(self):
        self.count = self.bytes = self.time = self.waited = 0
        self.rates = []            # bytes per ns of each collective, without its wait

    def add(self, other):
        self.count += other.count
        self.bytes += other.bytes
        self.time += other.time
        self.waited += other.waited
        self.rates += other.rates


def phase_numbers(trace, *names):
    return [i for i, name in enumerate(trace.phases) if name in names]


def next_cause(trace, spans, gap_end, window_end):
    """For each gap the phase of the device work that ends it; gaps that reach the step's end have no such work."""
    device = spans[spans["stream"] != HOST]
    order = np.argsort(device["begin_ns"], kind="stable")
    begin = device["begin_ns"][order]
    at = np.searchsorted(begin, gap_end, side="left")
    found = (at < len(begin)) & (gap_end < window_end)
    phase = np.where(found, np.append(device["phase"][order], -1)[np.minimum(at, len(begin))], -1)
    return phase


def add_idle_causes(result, spans, busy, host, begin, end):
    """Splits idle time: under a named host activity, else by the work that ended the gap."""
    trace = result.trace
    covered = busy
    for phase in np.unique(host["phase"]):
        rows = host[host["phase"] == phase]
        wider = covered | Union(rows["begin_ns"], rows["end_ns"])
        extra = int((wider.within(begin, end) - covered.within(begin, end)).sum())
        if extra:
            result.idle_causes["host: " + phase_name(trace.phases, phase)] += extra
        covered = wider
    gap_begin, gap_end, window = covered.gaps(begin, end)
    if not len(gap_begin):
        return
    length = gap_end - gap_begin
    phases = next_cause(trace, spans, gap_end, end[window])
    for phase in np.unique(phases):
        name = "after the last work" if phase < 0 else "before " + phase_name(trace.phases, phase)
        result.idle_causes[name] += int(length[phases == phase].sum())


def add_phases(result, compute):
    """Time and operations of compute by phase; spans of one phase do not overlap on the compute stream."""
    known = len(result.trace.phases)
    compute = compute[(compute["phase"] >= 0) & (compute["phase"] < known)]
    result.phase_time += np.bincount(compute["phase"], compute["end_ns"] - compute["begin_ns"], known)[:known]
    result.phase_flops += np.bincount(compute["phase"], compute["flops"], known)[:known]


def add_block(result, spans, select, first, last):
    """Splits the time of the steps `select` (slice of result.steps, numbers first..last)."""
    trace = result.trace
    steps = result.steps[select]
    if not len(steps):
        return None
    begin, end = steps["begin_ns"], steps["end_ns"]
    ignored = phase_numbers(trace, "step")  # the step itself is no work
    if ignored:
        spans = spans[~np.isin(spans["phase"], ignored)]
    stream = spans["stream"]

    def union(rows):
        return Union(rows["begin_ns"], rows["end_ns"])

    waits = phase_numbers(trace, "data_wait")
    is_wait = np.isin(spans["phase"], waits) if waits else np.zeros(len(spans), bool)
    compute = union(spans[(stream == COMPUTE) & ~is_wait])
    communication_rows = spans[stream == COMMUNICATION]
    communication = union(communication_rows)
    copy = union(spans[(stream == COPY) & ~is_wait])
    with_communication = compute | communication
    with_copy = with_communication | copy
    with_wait = with_copy | union(spans[is_wait])
    inside = [u.within(begin, end) for u in (compute, with_communication, with_copy, with_wait)]
    parts = result.parts
    parts["compute"][select] = inside[0]
    parts["exposed_communication"][select] = inside[1] - inside[0]
    parts["exposed_copy"][select] = inside[2] - inside[1]
    parts["data_wait"][select] = inside[3] - inside[2]
    parts["idle"][select] = (end - begin) - inside[3]
    if not is_wait.any():  # no spans for it: the step's own figure, as far as nothing else ran
        parts["data_wait"][select] = np.minimum(steps["data_wait_ns"], parts["idle"][select])
        parts["idle"][select] -= parts["data_wait"][select]
    result.communication[select] = communication.within(begin, end)
    result.copy[select] = copy.within(begin, end)
    host = spans[(stream == HOST) & ~is_wait]
    add_idle_causes(result, spans, with_wait, host, begin, end)
    add_phases(result, spans[(stream == COMPUTE) & ~is_wait & (spans["step"] >= first) & (spans["step"] <= last)])
    own = (communication_rows["step"] >= first) & (communication_rows["step"] <= last)
    return communication_rows[own]


def occurrence_keys(rows):
    """Sorts collectives by step, micro-batch, unit, phase and time, and numbers those that are otherwise equal.

    Returns the sorted rows and an array [n, 2] of keys equal for the same collective on every rank.
    """
    order = np.lexsort((rows["begin_ns"], rows["phase"], rows["unit"], rows["micro_batch"], rows["step"]))
    rows = rows[order]
    # 20 bits each for micro-batch, unit and phase are far more than any run has.
    micro_batch, unit, phase = (rows[name].astype(np.int64) & 0xFFFFF for name in ("micro_batch", "unit", "phase"))
    place = (micro_batch << 40) | (unit << 20) | phase
    n = len(rows)
    same = np.zeros(n, bool)
    same[1:] = (place[1:] == place[:-1]) & (rows["step"][1:] == rows["step"][:-1])
    starts = np.flatnonzero(~same)
    number = np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))
    return rows, np.stack((rows["step"].astype(np.int64) << 20 | number, place), axis=1)


def match_collectives(results, block):
    """Waiting for slower ranks, who was slow, and bandwidth, from all ranks' collectives of a block of steps."""
    rows_of, keys_of = [], []
    for rows in block:
        rows, keys = occurrence_keys(rows)
        rows_of.append(rows)
        keys_of.append(keys)
    keys = np.concatenate(keys_of)
    if not len(keys):
        return
    same_order = all(np.array_equal(keys_of[0], other) for other in keys_of[1:])
    if same_order:  # the usual case: every rank ran the same collectives
        number_of = [np.arange(len(keys_of[0]))] * len(keys_of)
        count = len(keys_of[0])
    else:
        _, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = np.asarray(inverse).reshape(-1)
        count = int(inverse.max()) + 1
        number_of = np.split(inverse, np.cumsum([len(k) for k in keys_of])[:-1])
    lowest = np.iinfo(np.int64).min
    last = np.full(count, lowest)       # the latest start of each collective
    second = np.full(count, lowest)     # and the one before it
    last_rank = np.full(count, -1)
    for rank, (rows, number) in enumerate(zip(rows_of, number_of)):
        begin = rows["begin_ns"]
        later = begin > last[number]
        second[number] = np.where(later, last[number], np.maximum(second[number], begin))
        last_rank[number[later]] = rank
        last[number] = np.maximum(last[number], begin)
    shared = second > lowest
    lateness = np.where(shared, last - second, 0)
    for rank, (result, rows, number) in enumerate(zip(results, rows_of, number_of)):
        mine = shared & (last_rank == rank) & (lateness > 0)
        result.came_last += int(mine.sum())
        result.made_wait += int(lateness[mine].sum())
        duration = rows["end_ns"] - rows["begin_ns"]
        waited = np.clip(last[number] - rows["begin_ns"], 0, np.maximum(duration, 0))
        result.waited += int(waited.sum())
        for phase in np.unique(rows["phase"]):
            chosen = rows["phase"] == phase
            kind = result.kinds.setdefault(phase_name(result.trace.phases, phase), Kind())
            kind.count += int(chosen.sum())
            kind.bytes += int(rows["bytes"][chosen].sum())
            kind.time += int(duration[chosen].sum())
            kind.waited += int(waited[chosen].sum())
            moving = (duration - waited)[chosen]
            useful = (moving > 0) & (rows["bytes"][chosen] > 0)
            kind.rates.append((rows["bytes"][chosen][useful] / moving[useful]).astype(np.float32))


def string_groups(values):
    """Distinct fixed-length strings and the number of each row's. Much faster than np.unique on strings."""
    if not len(values):
        return [], np.zeros(0, np.int64)
    wide = np.ascontiguousarray(values).astype("S" + str(-(-values.dtype.itemsize // 8) * 8), copy=False)
    words = wide.view(np.uint64).reshape(len(wide), -1)
    number = np.zeros(len(wide), np.uint64)
    for column in words.T:
        number = (number * np.uint64(0x9E3779B97F4A7C15)) ^ (column + (number >> np.uint64(29)))
    _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
    if (words[first][inverse] != words).any():  # two strings of one hash: the slow, exact way
        names, inverse = np.unique(wide, return_inverse=True)
        return [name.decode("utf-8", "replace") for name in names], inverse
    return [name.decode("utf-8", "replace") for name in wide[first]], inverse


def memory_by_owner(trace):
    """Bytes by owner: planned, and the largest measured. Totals: of the plan, and of the largest snapshot."""
    plan = trace.read("plan")
    owners = collections.defaultdict(lambda: {"planned": 0, "measured": 0})
    for owner, size in zip(plan["owner"], plan["bytes"]):
        owners[owner.decode("utf-8", "replace")]["planned"] += int(size)
    memory = trace.read("memory")
    names, number = string_groups(memory["owner"])
    peak = 0
    if len(memory):
        largest = np.zeros(len(names), np.int64)
        np.maximum.at(largest, number, memory["bytes"])
        for name, size in zip(names, largest):
            owners[name]["measured"] = int(size)
        # A snapshot is a step's rows of one moment; a moment that comes for every micro-batch is told apart by how
        # often its owner came before.
        _, moment = string_groups(memory["phase"])
        order = np.lexsort((memory["time_ns"], number, moment, memory["step"]))
        key = (memory["step"] * (int(moment.max()) + 1) + moment)[order]
        new = np.append(True, (key[1:] != key[:-1]) | (number[order][1:] != number[order][:-1]))
        starts = np.flatnonzero(new)
        repeat = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key))))
        _, snapshot = np.unique(key * (int(repeat.max()) + 1) + repeat, return_inverse=True)
        peak = int(np.bincount(snapshot, memory["bytes"][order].astype(np.float64)).max())
    total = {"planned": int(plan["bytes"].sum()), "measured": peak}
    return dict(owners), total


def driver_memory(trace):
    """What the driver reported of the process' memory at its largest, and its parts; None where it reported nothing."""
    rows = trace.read("driver_memory") if trace.rows("driver_memory") else []
    if not len(rows):
        return None
    largest = rows[int(np.argmax(rows["total_bytes"]))]
    return {name: int(largest[name]) for name in rows.dtype.names if name != "time_ns"}


def percent(part, whole):
    return 100.0 * part / whole if whole else 0.0


def summarize_rank(result):
    steps = result.steps
    duration = (steps["end_ns"] - steps["begin_ns"]).astype(np.float64)
    total = duration.sum()
    quartiles = np.percentile(duration, [25, 50, 75])
    slow = np.flatnonzero(duration > 1.2 * quartiles[1])
    parts = {name: {"median_ns": float(np.median(values)), "percent": percent(values.sum(), total)}
             for name, values in result.parts.items()}
    exposed = result.parts["exposed_communication"]
    communication = result.communication.sum()
    ceiling = {}
    for name in ("exposed_communication", "data_wait", "idle"):
        rest = np.maximum(duration - result.parts[name], 1)
        ceiling[name] = {"step_ns": float(np.median(rest)), "speedup": float(quartiles[1] / np.median(rest))}
    owners, memory_total = memory_by_owner(result.trace)
    kinds = {}
    for name, kind in sorted(result.kinds.items()):
        rates = np.concatenate(kind.rates) if kind.rates else np.zeros(0)
        kinds[name] = {"count": kind.count, "bytes": kind.bytes, "time_ns": kind.time, "waited_ns": kind.waited,
                       "median_bytes_per_second": float(np.median(rates)) * 1e9 if len(rates) else None}
    dropped = result.trace.read("dropped") if result.trace.rows("dropped") else None
    return {
        "rank": result.trace.rank, "steps": len(steps),
        "step": {"median_ns": float(quartiles[1]), "iqr_ns": float(quartiles[2] - quartiles[0]),
                 "p99_ns": float(np.percentile(duration, 99)), "max_ns": float(duration.max()),
                 "slow_steps": [int(s) for s in steps["step"][slow][np.argsort(-duration[slow])][:5]],
                 "slow_count": len(slow)},
        "between_steps_ns": float(np.median(steps["begin_ns"][1:] - steps["end_ns"][:-1])) if len(steps) > 1 else 0.0,
        "parts": parts,
        "phases": {name: {"time_ns": float(time), "flops": float(flops),
                          "tflops": float(flops / time / 1e3) if flops and time > 0 else None}
                   for name, time, flops in zip(result.trace.phases, result.phase_time, result.phase_flops)
                   if time > 0},
        "communication_ns": int(communication), "exposed_communication_ns": int(exposed.sum()),
        "hidden_communication_ns": int(communication - exposed.sum()), "copy_ns": int(result.copy.sum()),
        "overlap_percent": percent(communication - exposed.sum(), communication) if communication else None,
        "idle_causes": {name: {"ns": ns, "percent": percent(ns, total)}
                        for name, ns in result.idle_causes.most_common()},
        "waited_for_slower_ns": result.waited, "made_others_wait_ns": result.made_wait, "came_last": result.came_last,
        "collectives": kinds, "ceiling": ceiling, "memory": owners, "memory_total": memory_total,
        "driver_memory": driver_memory(result.trace), "kernel_steps": recorded_steps(result.trace),
        "dropped_spans": int(dropped["spans"].sum()) if dropped is not None else 0,
        "duration_ns": int(total),
    }


def add_blocks(results, blocks):
    """Adds blocks of steps (first, last) to the results of all ranks."""
    for begin, end in blocks:
        collectives = []
        for result in results:
            numbers = result.steps["step"]
            select = slice(int(np.searchsorted(numbers, begin)), int(np.searchsorted(numbers, end, side="right")))
            # A neighbouring step's work may reach into these steps' time: gathers ahead, copies of the next batch.
            spans = result.index.read(begin - 1, end + 1)
            rows = add_block(result, spans, select, begin, end)
            collectives.append(rows if rows is not None else spans[:0])
        match_collectives(results, collectives)


def bounds_of_file(path):
    with RankTrace(path) as trace:
        return span_bounds(trace)


def sums_of_blocks(job):
    """add_blocks() in a process of its own."""
    paths, warmup, bounds, counts, blocks = job
    results = [RankResult(RankTrace(path), warmup, known, count) for path, known, count in zip(paths, bounds, counts)]
    add_blocks(results, blocks)
    close_all(results)
    return [result.sums() for result in results]


def gather_results(run, warmup):
    """Every rank's result with the time of all steps split; the first `warmup` steps are left out."""
    traces = open_run(run)
    paths = [str(trace.path) for trace in traces]
    total = sum(trace.rows("spans") for trace in traces)
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS) if total > PARALLEL_SPANS else 1
    pool = multiprocessing.get_context("spawn").Pool(workers) if workers > 1 else None
    try:
        bounds = pool.map(bounds_of_file, paths, 1) if pool else [span_bounds(trace) for trace in traces]
        results = [RankResult(trace, warmup, known) for trace, known in zip(traces, bounds)]
        for result in results:
            if not len(result.steps):
                raise TraceError(f"{result.trace.path}: has no finished step" +
                                 (f" after {warmup} of warm-up" if warmup else ""))
        first = min(int(r.steps["step"][0]) for r in results)
        last = max(int(r.steps["step"][-1]) for r in results)
        size = max(int(BLOCK_SPANS / max(total / (last - first + 1), 1)), 4)
        blocks = [(begin, min(begin + size - 1, last)) for begin in range(first, last + 1, size)]
        if not pool:
            add_blocks(results, blocks)
            return results
        shares = [blocks[i * len(blocks) // workers:(i + 1) * len(blocks) // workers] for i in range(workers)]
        counts = [len(result.steps) for result in results]
        jobs = [(paths, warmup, bounds, counts, share) for share in shares if share]
        for sums in pool.map(sums_of_blocks, jobs, 1):
            for result, more in zip(results, sums):
                result.add(more)
        return results
    finally:
        if pool:
            pool.terminate()


def close_all(results):
    for result in results:
        result.trace.file.close()


def analyze(run, warmup=0):
    """The summary of every rank of a run, as plain dictionaries."""
    results = gather_results(run, warmup)
    summary = [summarize_rank(result) for result in results]
    close_all(results)
    return summary


def series_of(results):
    """Per step, over the steps that all ranks finished: the longest step time and the mean of each part over ranks.

    And the largest measured memory peak of any rank.
    """
    common = results[0].steps["step"]
    for result in results[1:]:
        common = np.intersect1d(common, result.steps["step"])
    if not len(common):
        raise TraceError(f"{results[0].trace.path.parent}: no step is finished on every rank")
    at = [np.searchsorted(result.steps["step"], common) for result in results]
    series = {name: np.mean([r.parts[name][i] for r, i in zip(results, at)], axis=0) for name in PARTS}
    series["number"] = common
    series["step"] = np.max([(r.steps["end_ns"] - r.steps["begin_ns"])[i] for r, i in zip(results, at)], axis=0)
    series["peak_bytes"] = max(memory_by_owner(result.trace)[1]["measured"] for result in results)
    return series


def analyze_series(run, warmup=0):
    """series_of() a run's directory."""
    results = gather_results(run, warmup)
    series = series_of(results)
    close_all(results)
    return series
