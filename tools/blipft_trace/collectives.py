"""Collectives, matched over the ranks of a group: who came late, how long the others waited, and how far the clocks are apart."""
import numpy as np

from .files import phase_name

TOGETHER = ("reduce_scatter", "all_reduce")  # every rank's result depends on all ranks
BIN = 32            # collectives whose ends give one estimate of the clocks; fewer where the next steps are unknown
LEAST_BIN = 4
CLEAR_NS = 5000     # clocks closer than this count as equal
CLEAR_ERRORS = 4    # offsets under this many standard errors count as 0
MOST_RATES = 2000   # collectives of a block, of one phase and rank, for the median


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


def align(block):
    """Numbers the collectives of all ranks: sorted rows of each rank, their numbers, and how many there are.

    `block` holds each rank's rows; its entries are released on the way, to save memory.
    """
    rows_of, keys_of, same = [], [], True
    for rank, rows in enumerate(block):
        block[rank] = None
        rows, keys = occurrence_keys(rows)
        rows_of.append(rows)
        # If every rank ran the same collectives, as usual, the first rank's keys are those of all.
        equal = bool(keys_of) and np.array_equal(keys_of[0], keys)
        same = same and (equal or not keys_of)
        keys_of.append(keys_of[0] if equal else keys)
    if same:
        count = len(keys_of[0])
        return rows_of, [np.arange(count)] * len(keys_of), count
    _, inverse = np.unique(np.concatenate(keys_of), axis=0, return_inverse=True)
    inverse = np.asarray(inverse).reshape(-1)
    return rows_of, np.split(inverse, np.cumsum([len(k) for k in keys_of])[:-1]), int(inverse.max()) + 1


def run_together(phases, attributes, block):
    """Which ranks run a phase's collectives together: [(numbers of phases, groups of ranks)], the phases in order.

    attributes: each rank's; "<phase>_group" numbers the group that a rank's collectives of that phase run in, and where
    it is missing all ranks are one group. Phases that no rank ran are absent.
    """
    found = {}
    for phase in sorted(set().union(*(np.unique(rows["phase"]).tolist() for rows in block))):
        members = {}
        for rank, values in enumerate(attributes):
            members.setdefault(int(values.get(f"{phase_name(phases, phase)}_group", 0)), []).append(rank)
        found.setdefault(tuple(map(tuple, members.values())), []).append(phase)
    return [(numbers, groups) for groups, numbers in found.items()]


def of_phases(rows, numbers):
    chosen = np.isin(rows["phase"], numbers)
    return rows if chosen.all() else rows[chosen]


class Clocks:
    """How far each rank's clock is ahead of the middle of the group's, over time: lines between a few points."""

    def __init__(self, steps, times, offsets):
        self.steps, self.times, self.offsets = steps, times, offsets  # [bins], [bins] ns, [ranks, bins] ns

    def ahead(self, rank, time):
        """In ns, at the given times; beyond the first and last point the lines go on."""
        offsets, times = self.offsets[rank], self.times
        if len(times) == 1:
            return np.full(np.shape(time), int(offsets[0]), np.int64)
        at = np.clip(np.searchsorted(times, time) - 1, 0, len(times) - 2)
        slope = np.diff(offsets) / np.diff(times)
        return np.rint(offsets[at] + slope[at] * (time - times[at])).astype(np.int64)


def cut_into_bins(steps):
    """The begin and end of bins of collectives, given their steps in order. A gap between steps ends a bin."""
    starts = np.flatnonzero(np.append(True, np.diff(steps) > 0))
    ends = np.append(starts[1:], len(steps))
    bins, begin = [], 0
    for i, end in enumerate(ends):
        gap = i + 1 < len(ends) and steps[starts[i + 1]] > steps[starts[i]] + 1
        if end - begin >= BIN or gap or i + 1 == len(ends):
            if end - begin >= LEAST_BIN:
                bins.append((begin, int(end)))
            begin = int(end)
    return bins


def estimate_clocks(phases, rows_of, number_of, count):
    """Clocks from the ends of collectives that no rank can leave early; None where the clocks are as good as equal.

    Such a collective ends at nearly the same moment on all ranks. One end may be seen some ten microseconds late, the
    median of many is not.
    """
    if len(rows_of) < 2 or not count:
        return None
    wanted = [i for i, name in enumerate(phases) if name in TOGETHER]
    present = np.zeros(count, np.int32)
    for rows, number in zip(rows_of, number_of):
        present[number[np.isin(rows["phase"], wanted)]] += 1
    chosen = np.flatnonzero(present == len(rows_of))
    if len(chosen) < LEAST_BIN:
        return None
    place = np.full(count, -1)
    place[chosen] = np.arange(len(chosen))
    ends = np.empty((len(rows_of), len(chosen)), np.int64)
    steps = np.empty(len(chosen), np.int64)
    for rank, (rows, number) in enumerate(zip(rows_of, number_of)):
        at = place[number]
        ends[rank, at[at >= 0]] = rows["end_ns"][at >= 0]
        steps[at[at >= 0]] = rows["step"][at >= 0]
    middle = np.median(ends, axis=0)
    order = np.lexsort((middle, steps))
    ends, steps, middle = ends[:, order], steps[order], middle[order]
    bins = cut_into_bins(steps)
    if not bins:
        return None
    offsets = np.empty((len(rows_of), len(bins)))
    spread = np.empty_like(offsets)
    for i, (begin, end) in enumerate(bins):
        difference = ends[:, begin:end] - middle[begin:end]
        offsets[:, i] = np.median(difference, axis=1)
        spread[:, i] = np.median(np.abs(difference - offsets[:, i, None]), axis=1)
    # The standard error of a median, with the standard deviation from the median absolute deviation. The error of few
    # values is often too small by chance, so it is at least the usual one.
    spread = np.maximum(spread, np.median(spread, axis=1, keepdims=True))
    errors = 1.2533 * 1.4826 * spread / np.sqrt([end - begin for begin, end in bins])
    clear = np.abs(offsets) > np.maximum(CLEAR_NS, CLEAR_ERRORS * errors)
    if clear.mean(axis=1).max() < 0.25:
        return None
    times = np.array([middle[begin:end].mean() for begin, end in bins])
    return Clocks(np.array([steps[(begin + end) // 2] for begin, end in bins]), times, offsets)


def match_collectives(results, block):
    """Waiting for slower ranks, who was slow, and bandwidth, from all ranks' collectives of a block of steps.

    results: objects with `phases`, `attributes`, `alone` (numbers of phases that wait for nobody), `waited`,
    `made_wait`, `came_last`, `kinds`, `clock`; block: each rank's rows.
    """
    for rank, (result, rows) in enumerate(zip(results, block)):
        by_itself = np.isin(rows["phase"], result.alone)
        if by_itself.any():
            alone = rows[by_itself]
            duration = alone["end_ns"] - alone["begin_ns"]
            add_kinds(result, alone, duration, np.zeros_like(duration))
            block[rank] = rows[~by_itself]
    together = run_together(results[0].phases, [result.attributes for result in results], block)
    for i, (numbers, groups) in enumerate(together):
        for ranks in groups:
            rows = [of_phases(block[rank], numbers) for rank in ranks]
            if i + 1 == len(together):
                for rank in ranks:
                    block[rank] = None
            # One reference for a rank's clock: the group of the first phases.
            match_group([results[rank] for rank in ranks], rows, tells_clocks=i == 0)


def match_group(results, block, tells_clocks):
    """Does so for the collectives that exactly these ranks ran together."""
    rows_of, number_of, count = align(block)
    if not count:
        return
    clocks = estimate_clocks(results[0].phases, rows_of, number_of, count)
    begins = [rows["begin_ns"] for rows in rows_of]
    if clocks:
        begins = [begin - clocks.ahead(rank, begin) for rank, begin in enumerate(begins)]
        for rank, result in enumerate(results):
            if tells_clocks:
                result.clock += list(zip(clocks.steps.tolist(), clocks.offsets[rank].tolist()))
    lowest = np.iinfo(np.int64).min
    last = np.full(count, lowest)       # the latest start of each collective
    second = np.full(count, lowest)     # and the one before it
    last_rank = np.full(count, -1)
    for rank, (begin, number) in enumerate(zip(begins, number_of)):
        later = begin > last[number]
        second[number] = np.where(later, last[number], np.maximum(second[number], begin))
        last_rank[number[later]] = rank
        last[number] = np.maximum(last[number], begin)
    shared = second > lowest
    lateness = np.where(shared, last - second, 0)
    for rank, (result, rows, begin, number) in enumerate(zip(results, rows_of, begins, number_of)):
        mine = shared & (last_rank == rank) & (lateness > 0)
        result.came_last += int(mine.sum())
        result.made_wait += int(lateness[mine].sum())
        duration = rows["end_ns"] - rows["begin_ns"]
        waited = np.clip(last[number] - begin, 0, np.maximum(duration, 0))
        result.waited += int(waited.sum())
        add_kinds(result, rows, duration, waited)


def add_kinds(result, rows, duration, waited):
    """Counts, bytes and rates of one rank's collectives by phase."""
    for phase in np.unique(rows["phase"]):
        chosen = rows["phase"] == phase
        size = rows["bytes"][chosen]
        kind = result.kinds.setdefault(phase_name(result.phases, phase), Kind())
        kind.count += len(size)
        kind.bytes += int(size.sum())
        kind.time += int(duration[chosen].sum())
        kind.waited += int(waited[chosen].sum())
        moving = (duration - waited)[chosen]
        useful = (moving > 0) & (size > 0)
        rates = (size[useful] / moving[useful]).astype(np.float32)
        kind.rates.append(rates[::-(-len(rates) // MOST_RATES) or 1].copy())
