#!/usr/bin/env python3
"""Runs that are told to stop, by a signal or a time limit: each ends with a checkpoint and code 75, and goes on from it."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (DEVICE, PROGRAM, ROOT, Space, checkpoint, command_line, environment, model_of,  # noqa: E402
                          pids_of_ranks, run, start, steps_of)
from script_tests import check, run_tests, test  # noqa: E402


def signalled(space, number, ranks, *overrides, blocked=()):
    """The outcome of a run that gets a signal once it has trained some steps. blocked: signals, by whoever starts it."""
    output = space.new()
    command = command_line(ranks, [PROGRAM, space.config, f"output.path={output}", "output.progress_seconds=0",
                                   "train.max_epochs=500", *overrides])
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, blocked))
    for line in process.stdout:
        if line.startswith("step 4/"):
            break
    begin = time.monotonic()
    if ranks and os.environ.get("OMPI_MCA_plm") == "isolated":  # then mpirun forwards none
        for pid in pids_of_ranks(process).values():
            os.kill(pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err, time.monotonic() - begin, output


@test
def a_signal_makes_a_checkpoint(space):
    settings = ["parallel.strategy=fsdp"]
    status, out, err, seconds, output = signalled(space, signal.SIGUSR1, 2, *settings)
    check(status == 75 and "stopped    by SIGUSR1" in out and seconds < 20, status, out[-1500:], err[-1500:])
    check(not (output / "model").exists(), "a stopped run saved a model")
    done = len(steps_of(output))
    check(checkpoint(output, done).is_dir(), done, list((output / "checkpoints").iterdir()))
    whole = run(space, 2, *settings, f"train.max_steps={done + 2}", "train.max_epochs=500",
                "output.save_model=true")
    part = run(space, 2, *settings, f"train.max_steps={done + 2}", "train.max_epochs=500",
                "output.save_model=true", "checkpoint.resume=auto",
               f"output.path={output}")
    check(model_of(output) == model_of(whole.output), part)
    table = space.new("csv")
    subprocess.run([sys.executable, ROOT / "tools/trace.py", "csv", output, "-o", table], check=True,
                   stdout=subprocess.DEVNULL)
    rows = [row.split(",") for row in (table / "steps.csv").read_text().splitlines()[1:]]
    check([int(row[2]) for row in rows if row[0] == "0"] == list(range(done + 2)), "the parts are one run:", rows)
    status, out, err, _, _ = signalled(space, signal.SIGTERM, 0, blocked=(signal.SIGTERM, signal.SIGUSR1))
    check(status == 75 and "stopped    by SIGTERM" in out, status, out[-1500:], err[-1500:])


@test
def a_time_limit_makes_a_checkpoint(space):
    output = space.new()
    result = start(space, 0, "train.max_epochs=5000", f"output.path={output}", "checkpoint.time_limit=0:00:05")
    check(result.status == 75 and "stopped    by checkpoint.time_limit" in result.out and result.seconds < 15, result)
    check(len(list((output / "checkpoints").iterdir())) == 1, result)
    for wrong in ("1:2:3:4", "5:x", "-5", "soon", "0:00", "3:99:00", "0:00:99", "1-24:00:00"):
        refused = start(space, 0, f"checkpoint.time_limit={wrong}")
        check(refused.status == 1 and "checkpoint.time_limit: found" in refused.err, wrong, refused)


@test
def a_signal_before_the_first_step_is_no_end_without_a_word(space):
    # While CUDA starts, its driver has a handler of its own for half a second, and a signal that comes then is lost.
    for delay in (0,) if DEVICE == "cuda" else (0, 0.1, 0.3):
        output = space.new()
        process = subprocess.Popen([PROGRAM, space.config, "train.max_epochs=5000", f"output.path={output}"], cwd=ROOT,
                                   env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        caught = 0                         # the program's first moment: until then libraries are loaded
        while not caught >> (signal.SIGUSR1 - 1) & 1:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
        time.sleep(delay)
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
        check(process.returncode == 75 and "stopped    by SIGUSR1" in out, delay, process.returncode, out, err)


if __name__ == "__main__":
    sys.exit(run_tests("preemption_test", Space, PROGRAM))
