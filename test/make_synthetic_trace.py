#!/usr/bin/env python3
"""Makes trace files without a run: small ones whose right answers are known, and long ones to time the tools.

Written from docs/trace-format.md alone, so that it also checks that page against the program's own files.
"""
import argparse
import pathlib

import h5py
import numpy as np

PHASES = ["forward", "backward", "recompute", "gather", "reduce_scatter", "all_reduce", "optimizer", "loss",
          "copy_batch", "data_wait", "step"]
KINDS = {"kernel": 0, "copy": 1, "fill": 2}
STREAMS = {"compute": 0, "communication": 1, "copy": 2, "host": 3}


def dtypes(phases):
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
        "device": np.dtype([("time_ns", "i8"), ("utilization", "f8"), ("power_watts", "f8"), ("sm_mhz", "f8"),
                            ("memory_mhz", "f8"), ("temperature_c", "f8"), ("memory_bytes", "i8"),
                            ("host_rss_bytes", "i8")]),
        "driver_memory": np.dtype([(name, "i8") for name in (
            "step", "time_ns", "total_bytes", "context_bytes", "nccl_bytes", "allocated_bytes", "unplanned_bytes",
            "planned_bytes")]),
        "kernels": np.dtype([("step", "i8"), ("begin_ns", "i8"), ("end_ns", "i8"), ("bytes", "i8"),
                             ("graph_node", "i8"), ("name", "i4"), ("kind", h5py.enum_dtype(KINDS, basetype="i4")),
                             ("stream", "i4"), ("device", "i4")]),
        "kernel_names": np.dtype([("name", "S512")]),
        "dropped": np.dtype([("first_step", "i8"), ("last_step", "i8"), ("spans", "i8")]),
    }


CHUNKS = {"spans": 4096, "steps": 1024, "memory": 1024, "plan": 256, "device": 1024, "driver_memory": 64,
          "kernels": 4096, "kernel_names": 64, "dropped": 64}
SINCE_1_1 = {"driver_memory", "kernels", "kernel_names"}


def write_trace(path, tables, units=(), phases=PHASES, version="1.1"):
    """tables: name -> structured array or list of tuples; tables that are not given are empty; 1.0 lacks some."""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:  # what HDF5 1.10 can read
        file.attrs["format_version"] = version
        file.attrs["creator"] = "blipft"
        file.create_dataset("units", data=list(units), dtype=h5py.string_dtype())
        file.create_dataset("phases", data=list(phases), dtype=h5py.string_dtype())
        for name, dtype in dtypes(phases).items():
            if version == "1.0" and name in SINCE_1_1:
                continue
            rows = np.array(tables.get(name, []), dtype)
            dataset = file.create_dataset(name, data=rows, maxshape=(None,), chunks=(CHUNKS[name],))
            for field in dtype.names:
                dataset.attrs[field + ".unit"] = "1"
                dataset.attrs[field + ".description"] = field


def long_rank(rank, steps, spans_per_step, seed=0):
    """A plausible rank: compute back to back, collectives beside it, a copy and a short data wait each step."""
    random = np.random.default_rng(seed * 1000 + rank)
    step_ns = 300_000_000
    types = dtypes(PHASES)
    begin = np.arange(steps, dtype=np.int64) * step_ns
    table = np.zeros(steps, types["steps"])
    table["step"] = np.arange(steps)
    table["loss"] = 2 + 3 * np.exp(-np.arange(steps) / (steps / 5)) + random.normal(0, 0.02, steps)
    table["lr"] = 1e-5
    table["begin_ns"], table["end_ns"] = begin, begin + step_ns - random.integers(0, 1_000_000, steps)
    table["data_wait_ns"] = 1_000_000
    n = spans_per_step
    spans = np.zeros((steps, n), types["spans"])
    spans["step"] = table["step"][:, None]
    kind = np.arange(n) % 4   # two compute spans, a gather and a reduce-scatter, again and again
    slot = (step_ns - 5_000_000) // n
    spans["micro_batch"] = np.arange(n) * 4 // n
    spans["unit"] = np.arange(n) % 40
    spans["phase"] = np.array([PHASES.index(p) for p in ("forward", "backward", "gather", "reduce_scatter")])[kind]
    spans["stream"] = np.array([0, 0, 1, 1])[kind]
    start = begin[:, None] + 1_000_000 + np.arange(n) * slot + random.integers(0, slot // 8, (steps, n))
    spans["begin_ns"] = start
    spans["end_ns"] = start + np.where(kind < 2, 2 * slot, slot)
    spans["bytes"] = np.where(kind < 2, 0, 50 << 20)
    spans["flops"] = np.where(kind < 2, 1e12, 0)
    spans["phase"][:, 0], spans["stream"][:, 0] = PHASES.index("data_wait"), 3
    spans["begin_ns"][:, 0], spans["end_ns"][:, 0] = begin, begin + 1_000_000
    moments = [b"before_forward", b"after_forward", b"after_backward", b"after_optimizer"]
    owners = [b"parameters", b"gradients", b"optimizer", b"activations", b"communication"]
    memory = np.zeros((steps, 4, 5), types["memory"])
    memory["step"] = table["step"][:, None, None]
    memory["phase"] = np.array(moments)[None, :, None]
    memory["owner"] = np.array(owners)[None, None, :]
    memory["time_ns"] = begin[:, None, None] + (np.arange(4) * step_ns // 4)[None, :, None]
    memory["bytes"] = (np.arange(5) + 1)[None, None, :] << 30
    plan = [(b"buffer", owner, (i + 1) << 30) for i, owner in enumerate(owners)]
    device = np.zeros(steps // 3 + 1, types["device"])
    device["time_ns"] = np.arange(len(device)) * step_ns * 3
    device["utilization"], device["power_watts"] = 97, 600 + random.normal(0, 20, len(device))
    return {"steps": table, "spans": spans.reshape(-1), "memory": memory.reshape(-1), "plan": plan, "device": device}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", help="run directory to make")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--spans", type=int, default=100, help="spans a step")
    args = parser.parse_args()
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(args.ranks):
        write_trace(folder / f"trace.rank{rank:04d}.h5", long_rank(rank, args.steps, args.spans),
                    [f"unit.{i}" for i in range(40)])


if __name__ == "__main__":
    main()
