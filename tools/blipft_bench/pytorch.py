"""The step in PyTorch: a Python with torch, and one run of bench_torch.py."""
import pathlib
import sys

from .commands import BenchError, result_of, run_command
from .machine import output_of, say
from .rows import CUT_SHORT, TEXT_TOKENS, torch_steps

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "bench_torch.py"


def find_python(given, modules=("torch",)):
    """(python, versions of the modules), or None after printing why."""
    ask = "; ".join([*(f"import {m}" for m in modules), f"print({', '.join(m + '.__version__' for m in modules)})"])
    for python in [given] if given else dict.fromkeys([sys.executable, "python3", "/usr/bin/python3"]):
        answer = output_of([python, "-c", ask], timeout=180)
        if answer:
            return python, dict(zip(modules, answer.splitlines()[-1].split()))
    say(f"{given or 'no python3 here'} has not {' and '.join(modules)}: no comparison with PyTorch "
        "(--torch-python names a python3 that has)")
    return None


def find(wanted, given_python):
    """{python, script, torch, transformers}, or None. `wanted`: auto, none, or a script with bench_torch.py's arguments
    and RESULT line."""
    if wanted == "none":
        return None
    script = SCRIPT if wanted == "auto" else pathlib.Path(wanted).resolve()
    if not script.exists():
        raise BenchError(f"--torch {wanted}: there is no such script")
    found = find_python(given_python, ("torch", "transformers"))
    return dict(python=found[0], script=str(script), **found[1]) if found else None


def launch(ranks):
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []


def command_of(bench, row, variant, ranks):
    return [bench.torch["python"], *launch(ranks), bench.torch["script"], "--strategy", *row[variant],
            "--bs", str(row["batch"]), "--accum", str(row["accumulate"]), "--seq", str(TEXT_TOKENS),
            "--steps", str(torch_steps(bench.arguments.steps))]


def run(bench, row, variant, ranks, limit):
    """The RESULT line, or {error} or {skipped}."""
    command = command_of(bench, row, variant, ranks)
    log = bench.out / row["name"] / f"torch-{variant}.log"
    result = dict(command=" ".join(command))
    try:
        outcome = run_command(command, log, bench.gpus[:ranks], limit)
        outcome.pop("start_ns")
        result.update(result_of(log), **outcome)
        say(f"{row['name']}: torch {variant} {result['step_s']:.4f} s/step, prompt after {result['seconds']:.1f} s")
    except BenchError as error:
        if bench.cut_short(error, limit):
            result["skipped"] = CUT_SHORT
            say(f"{row['name']}: torch {variant} skipped: {CUT_SHORT}")
        else:
            result["error"] = str(error)
            say(f"{row['name']}: torch {variant} FAILED: {error}")
    return result
