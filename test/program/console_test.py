#!/usr/bin/env python3
"""Printed output: a reader that takes nothing stops no training, and output that cannot be written is no success. Prints ok,
FAILED or SKIPPED for each test.

    test/program/console_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft).
"""
import os
import pathlib
import pty
import signal
import subprocess
import sys
import termios
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import check, run_tests, test  # noqa: E402

try:
    import h5py  # noqa: F401
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED console_test ({missing})")
    sys.exit(0)
from program_runs import PROGRAM, ROOT, Space, command_line, environment, mpirun, saved_model  # noqa: E402

TIMEOUT = 3                     # parallel.timeout_seconds: a rank without progress for so long ends the run
ENDLESS = ["train.max_steps=1000000", "train.max_epochs=1000000", "output.progress_seconds=0",
           f"parallel.timeout_seconds={TIMEOUT}"]


def steps_in(output):
    path = output / "metrics.jsonl"
    return path.read_text().count('"event":"step"') if path.exists() else 0


def wait_for(what, seconds, condition, process):
    end = time.monotonic() + seconds
    while not condition():
        check(process.poll() is None, "ended before", what, "with", process.poll())
        check(time.monotonic() < end, "no", what, "in", seconds, "s")
        time.sleep(0.05)


def blocked_run(space, stdout, stderr=subprocess.PIPE):
    output = space.new()
    command = command_line(0, [PROGRAM, space.config, f"output.path={output}", *ENDLESS])
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr), output


def trains_on_and_stops(process, output):
    """Longer than the time limit of a rank without progress, and more lines than a pipe or terminal holds."""
    begin = time.monotonic()
    wait_for("steps", 120, lambda: steps_in(output) > 3000 and time.monotonic() - begin > 3 * TIMEOUT, process)
    before = steps_in(output)
    wait_for("further steps", 60, lambda: steps_in(output) > before + 100, process)
    process.send_signal(signal.SIGUSR1)
    check(process.wait(timeout=60) == 75, "status", process.returncode)
    check(any((output / "checkpoints").glob("step-*/checkpoint.json")), "no checkpoint")
    log = (output / "log.txt").read_text()
    check("stopped    by" in log, "the log lacks its last lines", log[-500:])
    return log


@test
def a_pipe_that_nobody_reads_stops_no_training(space):
    read, write = os.pipe()
    process, output = blocked_run(space, write)
    os.close(write)
    log = trains_on_and_stops(process, output)
    check(log.count("\n") > 3000, "the log lacks lines", log[-500:])
    text = b""
    while piece := os.read(read, 65536):
        text += piece
    os.close(read)
    check(text.startswith(b"blipft") or b"model" in text, text[:300])


@test
def a_stopped_terminal_stops_no_training(space):
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)  # Ctrl-S
    process, output = blocked_run(space, slave, stderr=slave)
    trains_on_and_stops(process, output)
    os.close(slave)
    os.close(master)


@test
def a_stopped_terminal_stops_no_generation(space):
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    output = space.new()
    process = subprocess.Popen(command_line(0, [PROGRAM, "--generate", space.config, f"output.path={output}",
                                                "generate.weights=base", "generate.samples=6", "generate.max_new_tokens=4"]),
                               cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    try:
        check(process.wait(timeout=60) == 0, process.returncode)
    finally:
        process.kill()
    written = list(output.rglob("generated.jsonl"))
    check(written and len(written[0].read_text().splitlines()) == 6, written)
    os.close(slave)
    os.close(master)


@test
def a_reader_that_pauses_is_shown_how_many_lines_are_missing(space):
    read, write = os.pipe()
    process, output = blocked_run(space, write)
    os.close(write)
    wait_for("steps", 300, lambda: steps_in(output) > 5000, process)  # over 300 KiB of lines
    process.send_signal(signal.SIGUSR1)
    text = b""
    while piece := os.read(read, 65536):
        text += piece
    os.close(read)
    check(process.wait(timeout=60) == 75, "status", process.returncode)
    check(b" lines are missing here: the output was not read]" in text, text[-2000:])
    check(b"stopped    by" in text, text[-2000:])


@test
def output_that_cannot_be_written_is_no_success(space):
    model = saved_model(space)
    for arguments in (["--help"], ["--version"], [space.config, "--print-config"], [space.config, "--plan"],
                      [space.config, f"model.path={model}", "model.init=pretrained", "--generate", "--prompt", "a",
                       "--image", next(space.data.rglob("*.jpg"), None) or next(space.data.rglob("*.png")),
                       "generate.max_new_tokens=2", f"output.path={space.new()}"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(command_line(0, [PROGRAM, *arguments]), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        check(done.returncode == 1 and "standard output: cannot be written" in done.stderr, arguments, done.returncode, done.stderr)
    status, out, err, _ = mpirun(0, ["bash", "-c", f"set -o pipefail; {PROGRAM} --help | head -1"])
    check(status in (0, 141), status, out, err)  # a reader that has enough


if __name__ == "__main__":
    sys.exit(run_tests("console_test", Space, PROGRAM))
