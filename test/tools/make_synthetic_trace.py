#!/usr/bin/env python3
"""Makes trace files without a run: small ones whose right answers are known, and long ones to time the tools.

Written from docs/trace-format.md alone, so that it also checks that page against the program's own files.
"""
import argparse
import multiprocessing
import os
import pathlib

import h5py
import numpy as np

PHASES = ["forward", "backward", "recompute", "gather", "reduce_scatter", "all_reduce", "optimizer", "loss",
          "copy_batch", "data_wait", "step"]
KINDS = {"kernel": 0, "copy": 1, "fill": 2}
FACTORS = {"x": 0, "w": 1, "dy": 2}
STREAMS = {"compute": 0, "communication": 1, "copy": 2, "host": 3}


def dtypes(phases, minor=0):
    phase = h5py.enum_dtype({name: i for i, name in enumerate(phases)}, basetype="i4") if phases else np.dtype("i4")
    return {
        "steps": np.dtype([("step", "i8"), ("epoch", "i8"), ("loss", "f8"), ("lr", "f8"), ("grad_norm", "f8"),
                           ("samples_per_second", "f8"), ("tflops", "f8"), ("begin_ns", "i8"), ("end_ns", "i8"),
                           ("data_wait_ns", "i8"), ("text_tokens", "i8")]),
        "spans": np.dtype([("step", "i8"), ("micro_batch", "i4"), ("unit", "i4"), ("phase", phase),
                           ("stream", h5py.enum_dtype(STREAMS, basetype="i4")), ("begin_ns", "i8"), ("end_ns", "i8"),
                           ("bytes", "i8"), ("flops", "f8")]),
        "memory": np.dtype([("step", "i8"), ("phase", "S32"), ("owner", "S32"), ("time_ns", "i8"), ("bytes", "i8")]),
        "plan": np.dtype([("name", "S128"), ("owner", "S32"), ("bytes", "i8")]),
        "host_plan": np.dtype([("name", "S128"), ("owner", "S32"), ("bytes", "i8")]),
        "device": np.dtype([("time_ns", "i8"), ("utilization", "f8"), ("power_watts", "f8"), ("sm_mhz", "f8"),
                            ("memory_mhz", "f8"), ("temperature_c", "f8"), ("memory_bytes", "i8"),
                            ("host_rss_bytes", "i8"), *(("gpu_joules", "f8"), ("cpu_joules", "f8"))[:2 * (minor >= 14)]]),
        "driver_memory": np.dtype([(name, "i8") for name in (
            "step", "time_ns", "total_bytes", "context_bytes", "nccl_bytes", "allocated_bytes", "unplanned_bytes",
            "planned_bytes")]),
        "validation": np.dtype([("step", "i8"), ("time_ns", "i8"), ("loss", "f8"), ("tokens", "i8"),
                                ("seconds", "f8")]),
        "kernels": np.dtype([("step", "i8"), ("begin_ns", "i8"), ("end_ns", "i8"), ("bytes", "i8"),
                             ("graph_node", "i8"), ("name", "i4"), ("kind", h5py.enum_dtype(KINDS, basetype="i4")),
                             ("stream", "i4"), ("device", "i4")]),
        "kernel_names": np.dtype([("name", "S512")]),
        "fp8": np.dtype([("step", "i8"), ("matrix", "i4"), ("factor", h5py.enum_dtype(FACTORS, basetype="i4")), ("amax", "f8"),
                         ("elements", "i8"), ("underflows", "i8"), ("not_finite", "i8")]),
        "step_samples": np.dtype([("step", "i8"), ("micro_batch", "i4"), ("place", "i4"), ("sample", "i8")]),
        "dropped": np.dtype([("first_step", "i8"), ("last_step", "i8"), ("spans", "i8")]),
    }


CHUNKS = {"spans": 4096, "steps": 1024, "memory": 1024, "plan": 256, "host_plan": 256, "device": 1024,
          "driver_memory": 64, "validation": 64,
          "kernels": 4096, "kernel_names": 64, "fp8": 1024, "step_samples": 4096, "dropped": 64}
SINCE = {"driver_memory": 1, "kernels": 1, "kernel_names": 1, "host_plan": 6, "validation": 7, "fp8": 12, "step_samples": 13}  # minor versions


def create(file, units, phases, version, fp8_matrices=()):
    """Everything of a trace but rows."""
    file.attrs["format_version"] = version
    file.attrs["creator"] = "blipft"
    file.create_dataset("units", data=list(units), dtype=h5py.string_dtype())
    if fp8_matrices:
        file.create_dataset("fp8_matrices", data=list(fp8_matrices), dtype=h5py.string_dtype())
    file.create_dataset("phases", data=list(phases), dtype=h5py.string_dtype())
    minor = int(version.split(".")[1])
    types = {name: dtype for name, dtype in dtypes(phases, minor).items() if SINCE.get(name, 0) <= minor}
    for name, dtype in types.items():
        dataset = file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(CHUNKS[name],))
        for field in dtype.names:
            dataset.attrs[field + ".unit"] = "1"
            dataset.attrs[field + ".description"] = field
    return types


def append(file, name, rows):
    dataset = file[name]
    begin = len(dataset)
    dataset.resize((begin + len(rows),))
    dataset[begin:] = rows


def write_trace(path, tables, units=(), phases=PHASES, version="1.8", attributes=None, fp8_matrices=()):
    """tables: name -> structured array or list of tuples; tables that are not given are empty; 1.0 lacks some."""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:  # what HDF5 1.10 can read
        file.attrs.update(attributes or {})
        for name, dtype in create(file, units, phases, version, fp8_matrices).items():
            if len(tables.get(name, [])):
                append(file, name, np.array(tables[name], dtype))


def path_of(folder, part, rank):
    return pathlib.Path(folder, f"trace.part{part:04d}.rank{rank:04d}.h5" if part else f"trace.rank{rank:04d}.h5")


START_NS = 1_700_000_000 * 10**9  # of a run, on the system's clock


def write_part(folder, part, ranks, first_step=0, start_s=0, **attributes):
    """A part of a run that was resumed: `ranks` holds each rank's tables, times in them count from the part's start.

    start_s: the part's start, in s since the run's.
    """
    attributes = {"part": float(part), "first_step": float(first_step), "world_size": float(len(ranks)),
                  "start_unix_ns": float(START_NS + start_s * 10**9), **attributes}
    for rank, tables in enumerate(ranks):
        write_trace(path_of(folder, part, rank), tables, ["u0", "u1"], attributes={**attributes, "rank": float(rank)})


STEP_NS = 300_000_000
OWNERS = [b"parameters", b"gradients", b"optimizer", b"activations", b"communication"]
MOMENTS = [b"before_forward", b"after_forward", b"after_backward", b"after_optimizer"]
JITTERS = 64  # different steps; longer runs repeat them


class LongRank:
    """A plausible rank: compute back to back, collectives beside it, a copy and a short data wait each step.

    Its tables come in blocks of steps.
    """

    def __init__(self, rank, steps, spans_per_step, seed=0, memory_every=1):
        self.rank, self.count, self.memory_every = rank, steps, memory_every
        self.types = dtypes(PHASES)
        random = np.random.default_rng(seed * 1000 + rank)
        begin = np.arange(steps, dtype=np.int64) * STEP_NS
        table = np.zeros(steps, self.types["steps"])
        table["step"] = np.arange(steps)
        table["loss"] = 2 + 3 * np.exp(-np.arange(steps) / (steps / 5)) + random.normal(0, 0.02, steps)
        table["lr"] = 1e-5
        table["begin_ns"], table["end_ns"] = begin, begin + STEP_NS - random.integers(0, 1_000_000, steps)
        table["data_wait_ns"] = 1_000_000
        self.steps = table
        n = self.n = spans_per_step
        kind = np.arange(n) % 4   # two compute spans, a gather and a reduce-scatter, again and again
        self.slot = (STEP_NS - 5_000_000) // n
        pattern = np.zeros(n, self.types["spans"])
        pattern["micro_batch"] = np.arange(n) * 4 // n
        pattern["unit"] = np.arange(n) % 40
        phases = [PHASES.index(name) for name in ("forward", "backward", "gather", "reduce_scatter")]
        pattern["phase"] = np.array(phases)[kind]
        pattern["stream"] = np.array([0, 0, 1, 1])[kind]
        pattern["bytes"] = np.where(kind < 2, 0, 50 << 20)
        pattern["flops"] = np.where(kind < 2, 1e12, 0)
        pattern["phase"][0], pattern["stream"][0] = PHASES.index("data_wait"), 3
        pattern["bytes"][0] = pattern["flops"][0] = 0
        self.pattern = pattern
        start = 1_000_000 + np.arange(n) * self.slot
        self.start = start + random.integers(0, max(self.slot // 8, 1), (JITTERS, n))
        self.length = np.where(kind < 2, 2 * self.slot, self.slot)
        self.start[:, 0], self.length[0] = 0, 1_000_000
        # The places of the jitters are shuffled, so that they do not come at regular steps.
        self.which = random.integers(0, JITTERS, steps)
        self.buffer = None

    def spans(self, first, last):
        """The spans of the steps first..last - 1; the array is used again by the next call."""
        if self.buffer is None or len(self.buffer) < last - first:
            self.buffer = np.empty((last - first, self.n), self.types["spans"])
            self.buffer[:] = self.pattern
        spans = self.buffer[:last - first]
        steps = np.arange(first, last)
        start = self.start[self.which[first:last]] + (steps * STEP_NS)[:, None]
        spans["step"] = steps[:, None]
        spans["begin_ns"] = start
        spans["end_ns"] = start + self.length
        return spans.reshape(-1)

    def memory(self, first, last):
        steps = np.arange(-(-first // self.memory_every) * self.memory_every, last, self.memory_every)
        memory = np.zeros((len(steps), len(MOMENTS), len(OWNERS)), self.types["memory"])
        memory["step"] = steps[:, None, None]
        memory["phase"] = np.array(MOMENTS)[None, :, None]
        memory["owner"] = np.array(OWNERS)[None, None, :]
        memory["time_ns"] = (steps * STEP_NS)[:, None, None] + (np.arange(4) * STEP_NS // 4)[None, :, None]
        memory["bytes"] = (np.arange(5) + 1)[None, None, :] << 30
        return memory.reshape(-1)

    def others(self):
        """The tables that are small."""
        random = np.random.default_rng(self.rank)
        device = np.zeros(self.count // 3 + 1, self.types["device"])
        device["time_ns"] = np.arange(len(device)) * STEP_NS * 3
        device["utilization"], device["power_watts"] = 97, 600 + random.normal(0, 20, len(device))
        plan = [(b"buffer", owner, (i + 1) << 30) for i, owner in enumerate(OWNERS)]
        return {"plan": np.array(plan, self.types["plan"]), "device": device}


def long_rank(rank, steps, spans_per_step, seed=0):
    """All tables of a LongRank."""
    made = LongRank(rank, steps, spans_per_step, seed)
    return {"steps": made.steps, "spans": made.spans(0, steps), "memory": made.memory(0, steps), **made.others()}


BLOCK = 200_000  # spans in memory at once


def write_long_rank(path, rank, steps, spans_per_step, memory_every=50):
    """A LongRank's file, block by block, so that any size needs little memory."""
    made = LongRank(rank, steps, spans_per_step, memory_every=memory_every)
    size = max(BLOCK // spans_per_step, 1)
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        create(file, [f"unit.{i}" for i in range(40)], PHASES, "1.8")
        file["spans"].resize((steps * spans_per_step,))
        for first in range(0, steps, size):
            last = min(first + size, steps)
            file["spans"][first * spans_per_step:last * spans_per_step] = made.spans(first, last)
            append(file, "memory", made.memory(first, last))
        for name, rows in {"steps": made.steps, **made.others()}.items():
            append(file, name, rows)


def write_long_run(folder, steps, ranks, spans_per_step, processes=1, same=False):
    """A run of `ranks` ranks. With `same` they are links to one file, which uses disk space once."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if same:
        write_long_rank(folder / "trace.rank0000.h5", 0, steps, spans_per_step)
        for rank in range(1, ranks):
            (folder / f"trace.rank{rank:04d}.h5").symlink_to("trace.rank0000.h5")
        return
    jobs = [(folder / f"trace.rank{rank:04d}.h5", rank, steps, spans_per_step) for rank in range(ranks)]
    if processes == 1:
        for job in jobs:
            write_long_rank(*job)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(write_long_rank, jobs, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", help="run directory to make")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--spans", type=int, default=100, help="spans a step")
    parser.add_argument("--same", action="store_true", help="all ranks are links to one file")
    args = parser.parse_args()
    write_long_run(args.output, args.steps, args.ranks, args.spans, len(os.sched_getaffinity(0)), args.same)


if __name__ == "__main__":
    main()
