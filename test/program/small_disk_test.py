#!/usr/bin/env python3
"""Disks that are just large enough, or have no inodes left: what a run needs, and what it says."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, ROOT, Space, command_line, environment, run, start  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402


class LargerSpace(Space):
    """Checkpoints of some MB, so that they and not a page here and there fill the disk."""

    def shrink(self):
        super().shrink()
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        config["text_config"]["vocab_size"] = 20_000
        path.write_text(json.dumps(config))


@contextlib.contextmanager
def small_disk(space, options):
    mount = space.new("mount")
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", mount], capture_output=True).returncode:
        raise Skip("no right to mount a small file system")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def stopped(space, *overrides):
    """Runs until some steps are done, and is preempted then; its exit status and what it said."""
    process = subprocess.Popen(command_line(0, [PROGRAM, space.config, *overrides]), cwd=ROOT, env=environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("checkpoint after") and len([one for one in lines if one.startswith("checkpoint after")]) == 3:
            process.send_signal(signal.SIGUSR1)
    return process.wait(), "".join(lines[-40:])


def checkpoint_bytes(space):
    """On the disk."""
    folder = run(space, 0, "train.max_steps=1", "checkpoint.every_steps=1").output / "checkpoints/step-00000001"
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@test
def a_resume_needs_no_more_room_than_the_run(space):
    one, trace = checkpoint_bytes(space), 4 << 20
    steps = ["train.max_steps=5000", "train.max_epochs=9999", "trace.spans=none"]
    # Room for keep + 1 checkpoints and for the trace, and for less than one more.
    with small_disk(space, f"size={3 * one + trace + one // 3}") as mount:
        settings = [f"output.path={mount}/run", "checkpoint.every_steps=2", "checkpoint.resume=auto"]
        status, said = stopped(space, *settings, *steps)
        check(status == 75, status, said)
        left = list((mount / "run/checkpoints").glob("step-*"))
        check(len(left) == 2, left)
        # And what a killed run leaves is no reason to refuse either.
        os.rename(left[0], left[0].with_name("step-00000009.partial"))
        status, said = stopped(space, *settings, *steps)
        check(status == 75 and "resume " in said or status == 75, status, said)
        # Overwriting gives back what it removes.
        status, said = stopped(space, f"output.path={mount}/run", "checkpoint.every_steps=2", "output.overwrite=true", *steps)
        check(status == 75, status, said)
    with small_disk(space, f"size={2 * one + trace}") as mount:  # one on its way has no place
        refused = start(space, 0, f"output.path={mount}/run", "checkpoint.every_steps=2", "checkpoint.resume=auto", *steps)
        check(refused.status == 1 and "free, but this run is going to write" in refused.err, refused)
        check("checkpoints " in refused.err and "step 1/" not in refused.out, refused)


@test
def a_start_says_that_no_checkpoint_will_have_room_when_it_is_stopped(space):
    one = checkpoint_bytes(space)
    with small_disk(space, f"size={one // 2 + (2 << 20)}") as mount:
        done = run(space, 0, f"output.path={mount}/run", "train.max_steps=1", "checkpoint.resume=auto", "trace.spans=none")
        check("warning: the disk of" in done.err and "a checkpoint when it is stopped" in done.err, done)


@test
def a_disk_without_inodes_is_named_as_one(space):
    with small_disk(space, "size=64m,nr_inodes=40") as mount:
        (mount / "run").mkdir()
        filled = 0
        with contextlib.suppress(OSError):
            while True:
                (mount / f"file{filled}").write_text("")
                filled += 1
        check(filled > 10, filled)
        for number in range(6):            # for the lock and what a run needs before it writes a model
            (mount / f"file{number}").unlink()
        done = start(space, 0, f"output.path={mount}/run", "output.save_model=true", "train.max_steps=1",
                     "trace.enabled=false")
        check(done.status == 1 and "No space left on device" in done.err and "you may write to" not in done.err, done)
        check("inodes" in done.err, done)


if __name__ == "__main__":
    sys.exit(run_tests("small_disk_test", LargerSpace, PROGRAM))
