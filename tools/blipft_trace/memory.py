"""Owners of the memory: at the planned peak, and at the largest moment of the steps that ran."""
import collections

import numpy as np

PIECE = 1 << 16       # approximate number of rows of /memory in memory
MOST_ROWS = 1 << 21   # rows of one file; of longer tables, pieces over the whole run


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
    if (words[first][inverse] != words).any():  # two strings have one hash: use the slow, exact way
        names, inverse = np.unique(wide, return_inverse=True)
        return [name.decode("utf-8", "replace") for name in names], inverse
    return [name.decode("utf-8", "replace") for name in wide[first]], inverse


def pieces(trace):
    """The table /memory in pieces that hold whole steps."""
    total = trace.rows("memory")
    stride = -(-total // MOST_ROWS) if total else 1
    carried = None
    for number, begin in enumerate(range(0, total, PIECE)):
        if number % stride and begin + PIECE < total:
            carried = None
            continue
        rows = trace.read("memory", begin, begin + PIECE)
        if carried is not None:
            rows = np.concatenate((carried, rows))
        whole = rows["step"] != rows["step"][-1]
        if begin + PIECE >= total or not whole.any():
            carried = None
            yield rows
        else:
            carried = rows[~whole]
            yield rows[whole]
    if carried is not None:
        yield carried


def largest_moment(rows):
    """The moment of these rows at which all owners together hold most: total, its rows.

    A snapshot is a step's rows of one moment; a moment that comes for every micro-batch is identified by how often its
    owner came before.
    """
    _, number = string_groups(rows["owner"])
    _, moment = string_groups(rows["phase"])
    order = np.lexsort((rows["time_ns"], number, moment, rows["step"]))
    key = (rows["step"] * (int(moment.max()) + 1) + moment)[order]
    new = np.append(True, (key[1:] != key[:-1]) | (number[order][1:] != number[order][:-1]))
    starts = np.flatnonzero(new)
    repeat = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key))))
    _, snapshot = np.unique(key * (int(repeat.max()) + 1) + repeat, return_inverse=True)
    totals = np.bincount(snapshot, rows["bytes"][order].astype(np.float64))
    chosen = int(totals.argmax())
    return int(totals[chosen]), rows[order[snapshot == chosen]]


def memory_by_owner(trace):
    """Bytes by owner at the planned peak and at the peak of the steps, and the largest of each owner; totals.

    Both are the plan's figures: "planned" of the largest step that may come, "replayed" of the steps that ran, as the
    arena replayed its plan in them. driver_memory() has the measurement. The totals also have the moment of the latter.
    """
    plan = trace.read("plan")
    owners = collections.defaultdict(lambda: {"planned": 0, "replayed": 0, "largest": 0})
    for owner, size in zip(plan["owner"], plan["bytes"]):
        owners[owner.decode("utf-8", "replace")]["planned"] += int(size)
    peak, at_peak = 0, None
    for rows in pieces(trace):
        names, number = string_groups(rows["owner"])
        largest = np.zeros(len(names), np.int64)
        np.maximum.at(largest, number, rows["bytes"])
        for name, size in zip(names, largest):
            owners[name]["largest"] = max(owners[name]["largest"], int(size))
        total, moment = largest_moment(rows)
        if total > peak:
            peak, at_peak = total, moment
    total = {"planned": int(plan["bytes"].sum()), "replayed": peak}
    if at_peak is not None:
        for owner, size in zip(at_peak["owner"], at_peak["bytes"]):
            owners[owner.decode("utf-8", "replace")]["replayed"] += int(size)
        total["step"] = int(at_peak["step"][0])
        total["moment"] = at_peak["phase"][0].decode("utf-8", "replace")
    total["host"] = int(trace.read("host_plan")["bytes"].sum()) if trace.has("host_plan") else 0
    return dict(owners), total


def driver_memory(trace):
    """The largest memory of the process that the driver reported, and its parts; None if it reported nothing."""
    rows = trace.read("driver_memory") if trace.rows("driver_memory") else []
    if not len(rows):
        return None
    largest = rows[int(np.argmax(rows["total_bytes"]))]
    return {name: int(largest[name]) for name in rows.dtype.names if name != "time_ns"}
