#!/usr/bin/env python3
"""Runs that are stopped, by a signal or a time limit: each ends with a checkpoint and code 75, and goes on from it."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (DEVICE, PROGRAM, ROOT, Space, checkpoint, command_line, environment, model_of,  # noqa: E402
                          pids_of_ranks, run, start, steps_of)
from script_tests import Skip, check, run_tests, test  # noqa: E402

SECONDS = 120  # for what ends by itself; nothing is measured by it


def send(process, ranks, number):
    """To a run: mpirun passes on what it gets, but where that is switched off."""
    if ranks and os.environ.get("OMPI_MCA_plm") == "isolated":
        for pid in pids_of_ranks(process).values():
            os.kill(pid, number)
    else:
        process.send_signal(number)


def as_from_a_terminal(blocked=()):
    """Restores the signals that a shell's background job ignores; `blocked`: signals that the starter blocks."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def started(space, ranks, output, *overrides, blocked=()):
    """A long run that has trained some steps."""
    command = command_line(ranks, [PROGRAM, space.config, f"output.path={output}", "output.progress_seconds=0",
                                   "train.max_epochs=100000", *overrides])
    process = subprocess.Popen(command, cwd=ROOT, env=environment(ranks), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                               preexec_fn=lambda: as_from_a_terminal(blocked))
    for line in process.stdout:
        if line.startswith("step 4/"):
            break
    return process


def signalled(space, number, ranks, *overrides, blocked=()):
    """The outcome of a run that gets a signal once it has trained some steps."""
    output = space.new()
    process = started(space, ranks, output, *overrides, blocked=blocked)
    send(process, ranks, number)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err, output


@test
def a_signal_makes_a_checkpoint(space):
    settings = ["parallel.strategy=fsdp"]
    status, out, err, output = signalled(space, signal.SIGUSR1, 2, *settings)
    check(status == 75 and "stopped    by SIGUSR1" in out, status, out[-1500:], err[-1500:])
    check(err.count("SIGUSR1: ends after the step under way with a checkpoint") == 1, "one rank answers:", err)
    check(not (output / "model").exists(), "a stopped run saved a model")
    done = len(steps_of(output))
    check(checkpoint(output, done).is_dir(), done, list((output / "checkpoints").iterdir()))
    whole = run(space, 2, *settings, f"train.max_steps={done + 2}", "train.max_epochs=100000",
                "output.save_model=true")
    part = run(space, 2, *settings, f"train.max_steps={done + 2}", "train.max_epochs=100000",
                "output.save_model=true", "checkpoint.resume=auto",
               f"output.path={output}")
    check(model_of(output) == model_of(whole.output), part)
    table = space.new("csv")
    subprocess.run([sys.executable, ROOT / "tools/trace.py", "csv", output, "-o", table], check=True,
                   stdout=subprocess.DEVNULL)
    rows = [row.split(",") for row in (table / "steps.csv").read_text().splitlines()[1:]]
    check([int(row[2]) for row in rows if row[0] == "0"] == list(range(done + 2)), "the parts are one run:", rows)
    status, out, err, _ = signalled(space, signal.SIGTERM, 0, blocked=(signal.SIGTERM, signal.SIGUSR1))
    check(status == 75 and "stopped    by SIGTERM" in out, status, out[-1500:], err[-1500:])


@test
def the_first_ctrl_c_makes_a_checkpoint_and_the_second_ends_at_once(space):
    status, out, err, output = signalled(space, signal.SIGINT, 0)
    check(status == 75 and "stopped    by SIGINT" in out, status, out[-1500:], err)
    check("SIGINT: ends after the step under way with a checkpoint; a second signal ends it at once" in err, err)
    check(checkpoint(output, len(steps_of(output))).is_dir(), list((output / "checkpoints").iterdir()))
    # A terminal sends it to the whole group of processes, with what MPI has started for a process of its own.
    output = space.new()
    process = started(space, 0, output)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    check(process.returncode == 75 and "stopped    by SIGINT" in out, process.returncode, out[-1500:], err)
    # The ranks, as srun passes it on.
    output = space.new()
    process = started(space, 2, output)
    for pid in pids_of_ranks(process).values():
        os.kill(pid, signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    check(process.returncode == 75 and "stopped    by SIGINT" in out, process.returncode, out[-1500:], err)
    # mpirun makes it a SIGTERM, and waits a second: what comes after that depends on how long a step takes.
    output = space.new()
    process = started(space, 2, output)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    for path in (output / "checkpoints").iterdir() if (output / "checkpoints").exists() else ():
        own = path.name in ("run.lock", "blipft.json") or path.name.endswith(".partial")
        check(own or (path / "checkpoint.json").exists(), path)
    # The second, while the run cannot come to the end of its step, since another rank does not.
    process = started(space, 2, space.new(), "parallel.timeout_seconds=1000")
    pids = pids_of_ranks(process)
    os.kill(pids[1], signal.SIGSTOP)
    os.kill(pids[0], signal.SIGINT)
    for line in process.stderr:
        if "SIGINT: ends after the step under way" in line:
            break
    time.sleep(0.2)                        # two within 0.1 s are one: launchers repeat what the terminal has sent
    os.kill(pids[0], signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    check(process.returncode != 0 and "a second signal: ends without a checkpoint" in err, process.returncode, out, err)


@test
def a_signal_before_main_ends_the_process_as_it_ends_any(space):
    # While the system loads and initialises the libraries: nothing has begun then.
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        raise Skip("no C compiler")
    source, library = space.new("early.c"), space.new("early.so")
    source.write_text("#include <signal.h>\n#include <stdlib.h>\n__attribute__((constructor)) static void early(void) {\n"
                      "  unsetenv(\"LD_PRELOAD\");  /* of what MPI starts */\n  raise(SIGUSR1);\n}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", source, "-o", library], check=True)
    output = space.new()
    for command in ([space.config, "train.max_epochs=5000", f"output.path={output}"], ["--print-config", space.config]):
        done = subprocess.run([PROGRAM, *command], cwd=ROOT, env={**environment(), "LD_PRELOAD": str(library)},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
        check(done.returncode == -signal.SIGUSR1 and not done.stdout and not done.stderr, done)
    check(not output.exists(), "a run that never began left a folder")


@test
def signals_are_noted_by_the_first_line_of_main(space):
    # Before it opens any file of its own: nothing lies between the libraries' initialisers and that line.
    trace = space.new("system calls")
    if not shutil.which("strace"):
        raise Skip("no strace")
    done = subprocess.run(["strace", "-o", trace, PROGRAM, "--print-config", space.config], cwd=ROOT, env=environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    calls = trace.read_text().splitlines()
    noted = next(i for i, call in enumerate(calls) if call.startswith("rt_sigaction(SIGUSR1, {") and "SIG_DFL" not in call[:40])
    own = next(i for i, call in enumerate(calls) if str(space.config) in call and not call.startswith("execve("))
    check(done.returncode == 0 and noted < own, done.stderr, calls[noted], calls[own])
    check(sum(call.startswith("execve(") for call in calls) == 1, "the program executes itself again")


@test
def a_time_limit_makes_a_checkpoint(space):
    output = space.new()
    result = start(space, 0, "train.max_epochs=5000", f"output.path={output}", "checkpoint.time_limit=0:00:05")
    check(result.status == 75 and "stopped    by checkpoint.time_limit" in result.out, result)
    check(len(list((output / "checkpoints").glob("step-*"))) == 1, result)
    for wrong in ("1:2:3:4", "5:x", "-5", "soon", "0:00", "3:99:00", "0:00:99", "1-24:00:00"):
        refused = start(space, 0, f"checkpoint.time_limit={wrong}")
        check(refused.status == 1 and "checkpoint.time_limit: found" in refused.err, wrong, refused)


@test
def a_signal_before_the_first_step_is_no_end_without_a_word(space):
    # While CUDA starts, its driver has a handler of its own for half a second.
    for delay in (0, 0.1, 0.3, 0.6, 1) if DEVICE == "cuda" else (0, 0.1, 0.3):
        output = space.new()
        process = subprocess.Popen([PROGRAM, space.config, "train.max_epochs=5000", f"output.path={output}"], cwd=ROOT,
                                   env=environment(0), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        caught = 0                         # the program's first moment: until then libraries are loaded
        while not caught >> (signal.SIGUSR1 - 1) & 1:
            check(process.poll() is None, "ended before it noted signals", process.returncode)
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
        time.sleep(delay)
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
        check(process.returncode == 75 and "stopped    by SIGUSR1" in out, delay, process.returncode, out, err)


if __name__ == "__main__":
    sys.exit(run_tests("preemption_test", Space, PROGRAM))
