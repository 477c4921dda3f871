"""--ops: op_bench, and attention of PyTorch's implementations at the same shapes."""
import json
import os
import pathlib

from . import pytorch
from .commands import BenchError, Skipped, run_command
from .machine import say, shown
from .rows import NO_TIME
from .table import about, print_markdown

ATTENTION = pathlib.Path(__file__).resolve().parent.parent / "bench_attention.py"
BACKENDS = {"flash": "FlashAttention-2", "cudnn": "cuDNN"}


def run_op_bench(program, out, limit, options):
    """The JSON of one call of op_bench. Raises BenchError."""
    program = pathlib.Path(program).resolve()
    if not os.access(program, os.X_OK):
        raise BenchError(f"there is no {shown(program)}; make op_bench builds it")
    path = out / "op_bench.json"
    path.unlink(missing_ok=True)
    run_command([str(program), *options, "--json", str(path)], out / "op_bench.log", [], limit)
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: {error}") from error


def ceilings(program, out, limit):
    """(TFLOP/s of the 8192^3 product, TB/s of the copy); Nones, after printing why, if they cannot be measured."""
    try:
        found = run_op_bench(program, out, limit, ["--ceilings"])
        rates = float(found["gemm_tflop_s"]), float(found["copy_tb_s"])
    except (BenchError, KeyError, TypeError, ValueError) as error:
        say(f"no ceilings, the share of the GEMM rate is left out: {error}")
        return None, None
    say(f"bf16 product of 8192 x 8192 x 8192: {rates[0]:.0f} TFLOP/s, copy: {rates[1]:.2f} TB/s")
    return rates


def attention_shapes(ops):
    """{shape: {forward: us, backward: us, **its numbers}} that op_bench timed from memory, else from the cache."""
    shapes = {}
    for source in ("memory", "L2"):
        for op in ops:
            if "attention" in op and op["from"] == source:
                shape = shapes.setdefault(op["shape"], dict(op["attention"]))
                shape.setdefault(op["op"].removeprefix("attention_"), op["us"])
    return shapes


def run_torch_attention(python, shapes, out, limit):
    """bench_attention.py's JSON for these shapes. Raises BenchError."""
    request, answer = out / "attention_shapes.json", out / "attention_torch.json"
    request.write_text(json.dumps(list(shapes.values()), indent=1) + "\n")
    answer.unlink(missing_ok=True)
    run_command([python, str(ATTENTION), "--shapes", str(request), "--json", str(answer)], out / "attention_torch.log",
                [], limit)
    return json.loads(answer.read_text())


def attention_rows(shapes, torch):
    """[shape's name, ours, FlashAttention-2, cuDNN, ratio] for forward and backward, in us."""
    rows = []
    for (name, shape), other in zip(shapes.items(), torch["shapes"]):
        row = [name]
        for phase in ("forward", "backward"):
            times = [other.get(backend, {}).get(phase) for backend in BACKENDS]
            known = [time for time in times if time]
            ours = shape.get(phase)
            row += ["-" if time is None else f"{time:.1f}" for time in (ours, *times)]
            row.append(f"{min(known) / ours:.2f}" if known and ours else "-")
        rows.append(row)
    return rows


def time_left(bench, estimate):
    limit = bench.time_for(estimate)
    if limit is None:
        raise Skipped(NO_TIME)
    return limit


def run(bench):
    """Times, prints, and fills the record. Raises BenchError."""
    arguments, record, out = bench.arguments, bench.record, bench.out
    say("op_bench: about 90 s on an H200")
    options = ["--filter", arguments.filter] if arguments.filter else []
    record["op_bench"] = found = run_op_bench(arguments.op_bench, out, time_left(bench, 90), options)
    record["gemm_tflops"], record["copy_tb_s"] = found["gemm_tflop_s"], found["copy_tb_s"]
    print((out / "op_bench.log").read_text(errors="replace"))
    shapes = attention_shapes(found["ops"])
    python = pytorch.find_python(arguments.torch_python) if shapes and arguments.torch != "none" else None
    if python:
        record["versions"]["torch"] = python[1]
        say("attention in PyTorch: about 30 s on an H200")
        record["attention"] = torch = run_torch_attention(python[0], shapes, out, time_left(bench, 30))
        titles = ["attention (us)"]
        for phase in ("forward", "backward"):
            titles += [phase, *BACKENDS.values(), "ratio"]
        print_markdown(titles, attention_rows(shapes, torch))
        for shape, other in zip(shapes, torch["shapes"]):
            for backend, title in BACKENDS.items():
                if "error" in other.get(backend, {}):
                    print(f"{shape}, {title}: {other[backend]['error']}")
        print()
    print(f"{about(record)}; {record['date']}")
    print(f"Everything measured: {shown(out / 'ops.json')}", flush=True)
