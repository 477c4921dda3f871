#!/usr/bin/env python3
"""A run under random kills, stopped ranks, preemptions and full disks, resumed by a loop each time: it ends with the model
of the run that nothing happened to, bit for bit.

BLIPFT_SOAK_SECONDS (default 60): rounds are begun for so long; BLIPFT_SOAK_SEED: of the faults (default: the clock, printed).
"""
import errno
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (PROGRAM, ROOT, Space, command_line, environment, ranks_up_to, model_of,  # noqa: E402
                          run)
from script_tests import check, run_tests, test  # noqa: E402

SECONDS = float(os.environ.get("BLIPFT_SOAK_SECONDS", "60"))
SEED = int(os.environ.get("BLIPFT_SOAK_SEED", time.time_ns() % 1_000_000))
RANKS, STEPS, FAULTS = ranks_up_to(2), 240, 5  # of a round
DISK = 48 << 20                   # bytes of the disk for checkpoints, which holds a few
SETTINGS = ["parallel.strategy=fsdp", "train.precision=bf16-mixed", "train.dropout=true", f"train.max_steps={STEPS}",
            "train.max_epochs=1000", "output.save_model=true", "output.progress_seconds=0", "trace.enabled=true",
            "parallel.timeout_seconds=4"]


class Disk:
    """A small file system of its own where that can be made (as root), so that it can be full; else a folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "blipft-soak", folder]
        self.mounted = os.getuid() == 0 and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
        self.filler = folder / "filler"

    def fill(self):
        # Without a buffer: what does not fit in one would raise again as the file is closed.
        try:
            with open(self.filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 18))
        except OSError as error:
            check(error.errno == errno.ENOSPC, error)

    def clear(self):
        self.filler.unlink(missing_ok=True)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.folder], check=False)


def ranks_of(process):
    """The processes of the program under an mpirun."""
    found = subprocess.run(["pgrep", "-P", str(process.pid), "-f", PROGRAM], stdout=subprocess.PIPE, text=True).stdout
    return [int(line) for line in found.split()]


def hurt(fault, process, disk, draw):
    ranks = ranks_of(process)
    try:
        if fault == "preempted":
            process.send_signal(signal.SIGUSR1)
        elif fault == "disk full":
            disk.fill()
            time.sleep(draw.uniform(0.3, 1.5))
            process.send_signal(signal.SIGUSR1)
        elif fault == "mpirun killed":
            process.kill()
        elif ranks:
            os.kill(draw.choice(ranks), signal.SIGKILL if fault == "rank killed" else signal.SIGSTOP)
    except ProcessLookupError:
        pass                               # it was faster


def part(space, output, disk, fault, draw):
    """Starts or resumes the run, hurts it after a random number of steps; its status."""
    command = command_line(RANKS, [PROGRAM, space.config, *SETTINGS, f"output.path={output}", "checkpoint.every_steps=9",
                                   f"checkpoint.path={disk.folder}/checkpoints", "checkpoint.resume=auto"])
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    left, lines = draw.randint(2, STEPS // FAULTS), []
    for line in process.stdout:
        lines.append(line)
        left -= line.startswith("step ")
        if fault and left == 0:
            hurt(fault, process, disk, draw)
            fault = None
    begin = time.monotonic()
    status = process.wait(timeout=60)
    check(time.monotonic() - begin < 30, "ended late", lines[-20:])
    subprocess.run(["pkill", "-KILL", "-f", str(output)], check=False)  # ranks whose mpirun was killed
    disk.clear()
    return status, "".join(lines[-40:])


@test
def a_hurt_run_ends_with_the_same_model(space):
    draw = random.Random(SEED)
    print(f"BLIPFT_SOAK_SEED={SEED}", flush=True)
    expected = model_of(run(space, RANKS, *SETTINGS).output)
    begin, rounds = time.monotonic(), 0
    while rounds == 0 or time.monotonic() - begin < SECONDS:
        output, disk = space.new("soak"), Disk(space.new("disk"))
        kinds = ["rank killed", "rank stopped", "preempted", "mpirun killed", *["disk full"] * disk.mounted]
        faults = draw.sample(kinds, len(kinds))[:FAULTS] + [None] * 4
        try:
            for number, fault in enumerate(faults):
                status, tail = part(space, output, disk, fault, draw)
                print(f"round {rounds}, part {number}: {fault or 'nothing'}, status {status}", flush=True)
                check(status != 0 or "model  " in tail, tail)
                if status == 0:
                    break
                check(fault is not None, "ended by itself:", tail)
                if (output / "model").exists():  # a full disk may take the last checkpoint alone
                    check(f"the checkpoint after {STEPS} steps was not written" in tail, "a model before the end:", tail)
                    shutil.rmtree(output / "model")
            check(status == 0, "never ended:", tail)
            check(model_of(output) == expected, "another model", SEED, rounds)
        finally:
            disk.close()
        rounds += 1
    print(f"{rounds} round(s) in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(run_tests("soak_test", Space, PROGRAM))
