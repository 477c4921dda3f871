"""The time and the memory of a run.

Step times come from all steps. Each step's time is split into parts that do not overlap, in this order: compute;
communication outside of compute (exposed); copies outside of both; waiting for data outside of these; the rest is
idle, with the cause of each gap. This needs the steps' spans, so in a long run only those of a sample of steps are read
(sampling.py). Steps are taken in blocks, one rank's file after the other, so that memory does not grow with the run.

All this covers one part of the run (parts.py), because ranks and collectives may differ between parts.
"""
import collections
import multiprocessing
import os

import numpy as np

from . import energy
from .collectives import Kind, match_collectives
from .evaluation import summarize as summarize_evaluation
from .files import COMMUNICATION, COMPUTE, COPY, HOST, Progress, RankTrace, TraceError, phase_name
from .fp8 import summarize as summarize_fp8
from .intervals import Union
from .kernels import recorded_steps
from .memory import driver_memory, memory_by_owner
from .parts import open_run
from .sampling import SLOW, choose_steps, slowest_steps
from .step_index import StepIndex
from .validation import summarize as summarize_validation

BLOCK_SPANS = 2_600_000     # approximate spans of all ranks in a block; their collectives are in memory together
PARALLEL_SPANS = 6_000_000  # more are spread over processes
MOST_WORKERS = 4
PARTS = ["compute", "exposed_communication", "exposed_copy", "data_wait", "idle"]


class BlockResult:
    """Sums over the spans of a block of steps for one rank. It is sent between processes."""

    def __init__(self, trace, steps):
        n = len(steps)
        self.phases = trace.phases
        self.attributes = trace.attributes()
        copied = self.attributes.get("gathers") == "copies between devices"
        self.alone = [i for i, name in enumerate(trace.phases) if copied and name == "gather"]
        self.parts = {name: np.zeros(n, np.int64) for name in PARTS}
        self.begin = steps["begin_ns"].copy()  # of each step's time, with the wait for its data before it
        self.communication = np.zeros(n, np.int64)
        self.copy = np.zeros(n, np.int64)
        self.idle_causes = collections.Counter()
        self.phase_time = np.zeros(len(trace.phases))   # of compute, by phase
        self.phase_flops = np.zeros(len(trace.phases))
        self.waited = 0            # in collectives, for slower ranks
        self.made_wait = 0         # how much later than everybody else this rank came, summed over collectives
        self.came_last = 0
        self.kinds = {}            # phase -> Kind
        self.clock = []            # (step, ns that this rank's clock is ahead), where clocks had to be corrected

    def add(self, other, at):
        """Adds a block whose steps are at the positions `at`."""
        for name, values in other.parts.items():
            self.parts[name][at] = values
        self.begin[at] = other.begin
        self.communication[at] = other.communication
        self.copy[at] = other.copy
        self.idle_causes.update(other.idle_causes)
        self.phase_time += other.phase_time
        self.phase_flops += other.phase_flops
        self.waited += other.waited
        self.made_wait += other.made_wait
        self.came_last += other.came_last
        self.clock += other.clock
        for name, kind in other.kinds.items():
            self.kinds.setdefault(name, Kind()).add(kind)


class RankResult:
    """One rank: all its steps, and the split of the time of the chosen ones."""

    def __init__(self, trace, warmup):
        self.trace = trace
        self.steps = trace.steps()[warmup:]
        self.split_steps = self.steps[:0]
        self.slowest = []          # (step, ns, parts) of the run's slowest steps
        self._index = None

    @property
    def index(self):
        if self._index is None:
            self._index = StepIndex(self.trace)
        return self._index

    def choose(self, numbers):
        """Sets the steps whose time is split; None: all."""
        self.split_steps = self.steps if numbers is None else self.steps[np.isin(self.steps["step"], numbers)]
        self.split = BlockResult(self.trace, self.split_steps)

    def add(self, numbers, block):
        self.split.add(block, np.isin(self.split_steps["step"], numbers))

    @property
    def parts(self):
        return self.split.parts


def phase_numbers(phases, *names):
    return [i for i, name in enumerate(phases) if name in names]


def next_cause(spans, gap_end, window_end):
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
    if not len(begin):
        return
    covered = busy
    for phase in np.unique(host["phase"]):
        rows = host[host["phase"] == phase]
        wider = covered | Union(rows["begin_ns"], rows["end_ns"])
        extra = int((wider.within(begin, end) - covered.within(begin, end)).sum())
        if extra:
            result.idle_causes["host: " + phase_name(result.phases, phase)] += extra
        covered = wider
    gap_begin, gap_end, window = covered.gaps(begin, end)
    if not len(gap_begin):
        return
    length = gap_end - gap_begin
    phases = next_cause(spans, gap_end, end[window])
    for phase in np.unique(phases):
        name = "after the last work" if phase < 0 else "before " + phase_name(result.phases, phase)
        result.idle_causes[name] += int(length[phases == phase].sum())


def add_phases(result, compute):
    """Time and operations of compute by phase; spans of one phase do not overlap on the compute stream."""
    known = len(result.phases)
    compute = compute[(compute["phase"] >= 0) & (compute["phase"] < known)]
    result.phase_time += np.bincount(compute["phase"], compute["end_ns"] - compute["begin_ns"], known)[:known]
    result.phase_flops += np.bincount(compute["phase"], compute["flops"], known)[:known]


def begin_with_wait(trace, spans, steps):
    """When each step's time begins: with the step, or where it waited for its data before that, with the wait, but not
    before the previous step's end. A step that waits between steps is thus as long as what it keeps the run."""
    rows = trace.steps()
    at = np.searchsorted(rows["step"], steps["step"])
    before = np.where(at > 0, rows["end_ns"][np.maximum(at - 1, 0)], steps["begin_ns"])
    waits = spans[np.isin(spans["phase"], phase_numbers(trace.phases, "data_wait"))]
    wait_begin = steps["begin_ns"].copy()
    if len(waits):
        order = np.argsort(waits["step"], kind="stable")
        found = np.searchsorted(waits["step"][order], steps["step"])
        row = order[np.minimum(found, len(order) - 1)]
        known = (found < len(order)) & (waits["step"][row] == steps["step"])
        wait_begin = np.where(known, waits["begin_ns"][row], wait_begin)
    else:                                  # without spans: as much of the step's own figure as lies before it
        wait_begin -= steps["data_wait_ns"]
    return np.minimum(steps["begin_ns"], np.maximum(before, wait_begin))


def split_block(trace, spans, steps):
    """Splits the time of `steps`, given their spans and their neighbours'; the result, and the steps' collectives."""
    result = BlockResult(trace, steps)
    begin, end = begin_with_wait(trace, spans, steps), steps["end_ns"]
    result.begin = begin
    ignored = phase_numbers(trace.phases, "step")  # the step itself is no work
    if ignored:
        spans = spans[~np.isin(spans["phase"], ignored)]
    stream = spans["stream"]

    def union(rows):
        return Union(rows["begin_ns"], rows["end_ns"])

    waits = phase_numbers(trace.phases, "data_wait")
    is_wait = np.isin(spans["phase"], waits) if waits else np.zeros(len(spans), bool)
    compute_rows = spans[(stream == COMPUTE) & ~is_wait]
    communication_rows = spans[stream == COMMUNICATION]
    communication = union(communication_rows)
    copy = union(spans[(stream == COPY) & ~is_wait])
    compute = union(compute_rows)
    with_communication = compute | communication
    with_copy = with_communication | copy
    with_wait = with_copy | union(spans[is_wait])
    inside = [u.within(begin, end) for u in (compute, with_communication, with_copy, with_wait)]
    parts = result.parts
    parts["compute"] = inside[0]
    parts["exposed_communication"] = inside[1] - inside[0]
    parts["exposed_copy"] = inside[2] - inside[1]
    parts["data_wait"] = inside[3] - inside[2]
    parts["idle"] = (end - begin) - inside[3]
    if not is_wait.any():  # no spans for it: the step's own figure, as far as nothing else ran
        parts["data_wait"] = np.minimum(np.maximum(steps["data_wait_ns"], steps["begin_ns"] - begin), parts["idle"])
        parts["idle"] = parts["idle"] - parts["data_wait"]
    result.communication = communication.within(begin, end)
    result.copy = copy.within(begin, end)
    add_idle_causes(result, spans, with_wait, spans[(stream == HOST) & ~is_wait], begin, end)
    add_phases(result, compute_rows[np.isin(compute_rows["step"], steps["step"])])
    return result, communication_rows[np.isin(communication_rows["step"], steps["step"])]


def spans_near(index, steps):
    """The spans of these steps, and those of their neighbours that reach into their time."""
    numbers = steps["step"]
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 2) + 1)
    # A neighbouring step's work may reach into a step's time: gathers ahead, copies of the next batch.
    spans = [index.read(int(run[0]) - 1, int(run[-1]) + 1) for run in runs if len(run)]
    spans = spans[0] if len(spans) == 1 else np.concatenate(spans) if spans else index.read(0, -1)
    begin, end = steps["begin_ns"], steps["end_ns"]
    at = np.searchsorted(end, spans["begin_ns"], side="right")  # the first step that ends after the span's begin
    near = (at < len(steps)) & (spans["end_ns"] >= begin[np.minimum(at, len(steps) - 1)]) if len(steps) else at < 0
    own = np.isin(spans["step"], numbers)
    return spans if (near | own).all() else spans[near | own]


def split_ranks(traces, indexes, steps_of, one_done=lambda: None):
    """A block of steps on all ranks, one file after the other."""
    results, collectives = [], []
    for rank, (trace, steps) in enumerate(zip(traces, steps_of)):
        if indexes[rank] is None:
            indexes[rank] = StepIndex(trace)
        result, rows = split_block(trace, spans_near(indexes[rank], steps), steps)
        indexes[rank].forget()
        results.append(result)
        collectives.append(rows)
        one_done()
    match_collectives(results, collectives)
    return results


WORKER = {}  # in a process of the pool: the run's files and what is known about the places of their steps


def start_worker(paths):
    WORKER["traces"] = [RankTrace(path) for path in paths]
    WORKER["indexes"] = [None] * len(paths)


def split_in_worker(job):
    number, steps_of = job
    return number, split_ranks(WORKER["traces"], WORKER["indexes"], steps_of)


def add_blocks(results, blocks, workers):
    """Splits blocks (arrays of step numbers) and adds them to the results of all ranks."""
    def jobs():
        for number, block in enumerate(blocks):
            yield number, [r.split_steps[np.isin(r.split_steps["step"], block)] for r in results]

    pool = None
    if workers > 1:
        paths = [str(result.trace.path) for result in results]
        pool = multiprocessing.get_context("spawn").Pool(workers, start_worker, (paths,))
    try:
        with Progress("reading spans", len(blocks) * len(results)) as progress:
            traces, indexes = [result.trace for result in results], [result._index for result in results]
            done = pool.imap(split_in_worker, jobs()) if pool else (
                (number, split_ranks(traces, indexes, steps_of, progress.add)) for number, steps_of in jobs())
            for number, block in done:
                for result, more in zip(results, block):
                    result.add(blocks[number], more)
                if pool:
                    progress.add(len(results))
        if not pool:
            for result, index in zip(results, indexes):
                result._index = index
    finally:
        if pool:
            pool.terminate()


def common_steps(results):
    """The numbers of the steps that all ranks finished, and the longest of their times on any rank."""
    common = results[0].steps["step"]
    for result in results[1:]:
        if not np.array_equal(common, result.steps["step"]):
            common = np.intersect1d(common, result.steps["step"])
    longest = np.zeros(len(common), np.int64)
    for result in results:
        rows = result.steps[np.searchsorted(result.steps["step"], common)]
        longest = np.maximum(longest, rows["end_ns"] - rows["begin_ns"])
    return common, longest


def add_slowest(results, numbers):
    """The split of the run's slowest steps, which count in no average."""
    for number in numbers:
        for result in results:
            steps = result.steps[result.steps["step"] == number]
            block, _ = split_block(result.trace, spans_near(result.index, steps), steps)
            result.index.forget()
            parts = {name: int(values[0]) for name, values in block.parts.items()}
            result.slowest.append((number, int(steps["end_ns"][0] - block.begin[0]), parts))


def gather_results(part, warmup, all_steps=False):
    """Every rank's result with the time of the chosen steps split; the part's first `warmup` steps are left out."""
    traces = part.traces
    results, total = [], 0
    with Progress("reading steps", len(traces)) as progress:
        for trace in traces:
            results.append(RankResult(trace, warmup))
            if not len(results[-1].steps):
                raise TraceError(f"{trace.path}: has no finished step" +
                                 (f" after {warmup} of warm-up" if warmup else ""))
            total += trace.rows("spans")
            progress.add()
    common, longest = common_steps(results)
    chosen = choose_steps(len(common), total, total / len(traces)) if len(common) and not all_steps else None
    numbers = None if chosen is None or len(chosen) == len(common) else common[chosen]
    for result in results:
        result.choose(numbers)
    if numbers is None:
        numbers = np.unique(np.concatenate([result.steps["step"] for result in results]))
    # As many steps as make a block; all ranks' collectives of a block are in memory at once.
    size = max(int(BLOCK_SPANS / max(total / max(len(common), 1), 1)), 1)
    blocks = [numbers[begin:begin + size] for begin in range(0, len(numbers), size)]
    read = total * len(numbers) / max(len(common), 1)
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS, len(blocks)) if read > PARALLEL_SPANS else 1
    add_blocks(results, blocks, workers)
    if len(common):
        add_slowest(results, slowest_steps(common, longest))
    return results


def close_all(results):
    for result in results:
        result.trace.close()


def percent(part, whole):
    return 100.0 * part / whole if whole else 0.0


def times_of_steps(steps):
    """Median, spread and slow steps, from all steps."""
    duration = (steps["end_ns"] - steps["begin_ns"]).astype(np.float64)
    quartiles = np.percentile(duration, [25, 50, 75])
    slow = np.flatnonzero(duration > SLOW * quartiles[1])
    return {"median_ns": float(quartiles[1]), "iqr_ns": float(quartiles[2] - quartiles[0]),
            "p99_ns": float(np.percentile(duration, 99)), "max_ns": float(duration.max()),
            "slow_steps": [int(s) for s in steps["step"][slow][np.argsort(-duration[slow])][:5]],
            "slow_count": len(slow)}


def summarize_clock(clock):
    """How far this rank's clock was ahead of the middle of its group's, first, last and at most; None: clocks were equal."""
    if not clock:
        return None
    clock = sorted(clock)
    steps, offsets = zip(*clock)
    most = int(np.argmax(np.abs(offsets)))
    return {"first_step": steps[0], "first_ns": offsets[0], "last_step": steps[-1], "last_ns": offsets[-1],
            "largest_step": steps[most], "largest_ns": offsets[most]}


def samples_per_second(result):
    """This rank's samples/s: the median from the end of one step to the end of the next, waits included; None: unknown."""
    samples, ends = float(result.trace.attributes().get("samples_per_step", 0)), result.steps["end_ns"]
    return 1e9 * samples / float(np.median(np.diff(ends))) if samples and len(ends) > 1 else None


def summarize_split(result):
    """The part of the summary that comes from spans. Sums stand for all steps: those of a sample are scaled."""
    split, steps = result.split, result.split_steps
    duration = (steps["end_ns"] - split.begin).astype(np.float64)
    total, median = duration.sum(), float(np.median(duration))
    scale = len(result.steps) / len(steps) if len(steps) != len(result.steps) else 1

    def whole(value):
        return round(int(value) * scale)

    exposed = split.parts["exposed_communication"]
    communication = split.communication.sum()
    ceiling = {}
    for name in ("exposed_communication", "data_wait", "idle"):
        rest = float(np.median(np.maximum(duration - split.parts[name], 1)))
        ceiling[name] = {"step_ns": rest, "speedup": median / rest}
    kinds = {}
    for name, kind in sorted(split.kinds.items()):
        rates = np.concatenate(kind.rates) if kind.rates else np.zeros(0)
        kinds[name] = {"count": whole(kind.count), "bytes": whole(kind.bytes), "time_ns": whole(kind.time),
                       "waited_ns": whole(kind.waited),
                       "median_bytes_per_second": float(np.median(rates)) * 1e9 if len(rates) else None}
    return {
        "split": {"steps": len(steps), "of": len(result.steps), "median_ns": median},
        "samples_per_second": samples_per_second(result),
        "parts": {name: {"median_ns": float(np.median(values)), "percent": percent(values.sum(), total)}
                  for name, values in split.parts.items()},
        "phases": {name: {"time_ns": float(time * scale), "flops": float(flops * scale),
                          "tflops": float(flops / time / 1e3) if flops and time > 0 else None}
                   for name, time, flops in zip(split.phases, split.phase_time, split.phase_flops) if time > 0},
        "communication_ns": whole(communication), "exposed_communication_ns": whole(exposed.sum()),
        "hidden_communication_ns": whole(communication - exposed.sum()), "copy_ns": whole(split.copy.sum()),
        "overlap_percent": percent(communication - exposed.sum(), communication) if communication else None,
        "idle_causes": {name: {"ns": whole(ns), "percent": percent(ns, total)}
                        for name, ns in split.idle_causes.most_common()},
        "waited_for_slower_ns": whole(split.waited), "made_others_wait_ns": whole(split.made_wait),
        "came_last": whole(split.came_last), "collectives": kinds, "ceiling": ceiling,
        "clock": summarize_clock(split.clock),
    }


def device_use(trace, steps):
    """Medians of power and clock while the steps ran, energy of a median step; None without samples of the power."""
    power, clock = [], []
    for rows in trace.device_samples(steps):
        rows = rows[rows["power_watts"] > 0]
        power.append(rows["power_watts"])
        clock.append(rows["sm_mhz"])
    if not power or not sum(map(len, power)):
        return None
    power, clock = np.concatenate(power), np.concatenate(clock)
    watts = float(np.median(power))
    return {"samples": len(power), "median_watts": watts,
            "joules_a_step": watts * float(np.median(steps["end_ns"] - steps["begin_ns"])) / 1e9,
            "median_mhz": float(np.median(clock)), "lowest_mhz": float(clock.min()), "highest_mhz": float(clock.max())}


def summarize_run(run, part):
    """Facts that are equal on every rank: the run's parts, the selected part, validations, and fp8."""
    return {"part": part.number, "run_parts": run.about(), "validation": summarize_validation(run),
            "evaluation": summarize_evaluation(run), "fp8": summarize_fp8(run)}


def summarize_rank(result, of_run):
    """of_run: summarize_run()."""
    steps, trace = result.steps, result.trace
    owners, memory_total = memory_by_owner(trace)
    dropped = trace.read("dropped") if trace.rows("dropped") else None
    return {
        "rank": trace.rank, "steps": len(steps), "step": times_of_steps(steps),
        "between_steps_ns": float(np.median(steps["begin_ns"][1:] - steps["end_ns"][:-1])) if len(steps) > 1 else 0.0,
        **summarize_split(result),
        "slowest": [{"step": number, "ns": ns, "parts": parts} for number, ns, parts in result.slowest],
        "memory": owners, "memory_total": memory_total,
        "driver_memory": driver_memory(trace), "device": device_use(trace, steps), "energy": energy.of_rank(trace, steps),
        "kernel_steps": recorded_steps(trace), **of_run,
        "dropped_spans": int(dropped["spans"].sum()) if dropped is not None else 0,
        "duration_ns": int((steps["end_ns"] - steps["begin_ns"]).sum()),
    }


def analyze(run, warmup=0, all_steps=False, part=None):
    """The summary of every rank of a run's newest part, or of the part of this number, as plain dictionaries."""
    run = open_run(run, part)
    shown = run.newest(warmup + 1)
    results = gather_results(shown, warmup, all_steps)
    of_run, summary = summarize_run(run, shown), []
    with Progress("reading memory", len(results)) as progress:
        for result in results:
            summary.append(summarize_rank(result, of_run))
            result.trace.close()
            progress.add()
    return summary


def series_of(results):
    """Per step, over the split steps that all ranks finished: the longest step time, the mean of each part over ranks.

    And "every_step", the longest step time of all steps that all ranks finished; and the largest memory peak
    of any rank.
    """
    common = results[0].split_steps["step"]
    for result in results[1:]:
        common = np.intersect1d(common, result.split_steps["step"])
    if not len(common):
        raise TraceError(f"{results[0].trace.path.parent}: no step is finished on every rank")
    series = {name: np.zeros(len(common)) for name in PARTS}
    for result in results:
        at = np.searchsorted(result.split_steps["step"], common)
        for name in PARTS:
            series[name] += result.parts[name][at] / len(results)
    every, longest = common_steps(results)
    series["number"] = common
    series["step"] = np.zeros(len(common), np.int64)
    for result in results:
        at = np.searchsorted(result.split_steps["step"], common)
        series["step"] = np.maximum(series["step"], result.split_steps["end_ns"][at] - result.split.begin[at])
    series["every_step"] = longest
    series["peak_bytes"] = max(memory_by_owner(result.trace)[1]["replayed"] for result in results)
    return series


def analyze_series(part, warmup=0, all_steps=False):
    """series_of() a part of a run."""
    results = gather_results(part, warmup, all_steps)
    series = series_of(results)
    close_all(results)
    return series
