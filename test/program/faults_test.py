#!/usr/bin/env python3
"""Faults while the whole program runs under mpirun: killed and stopped ranks, steps that are not finite, bad
samples, a full disk, an output folder that vanishes. Each must end all ranks in bounded time with a message, or go on.

    python3 test/program/faults_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

try:
    import h5py
    import numpy
except ImportError as missing:
    print(f"SKIPPED faults_test ({missing})")
    sys.exit(0)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (DEVICE, PROGRAM, ROOT, Result, Space, command_line, environment, mpirun, pids_of_ranks,  # noqa: E402
                          ranks_up_to, model_of, run, saved_model, start)
from script_tests import Skip, check, run_tests, test  # noqa: E402

LOST = 3              # exit code of ranks that end because another is gone
TIMEOUT = 4           # parallel.timeout_seconds of these tests: ranks share cores with whatever else runs
SECONDS_TO_END = 60   # from the fault to the end of mpirun; starved machines included
LONG = ("train.max_steps=100000", "train.max_epochs=100000", f"parallel.timeout_seconds={TIMEOUT}")


class Job:
    """A run in the background."""

    def __init__(self, space, ranks, *overrides, before=()):
        """before: a command that each rank's program is started by."""
        self.output = space.new()
        command = command_line(ranks, [*before, PROGRAM, space.config, f"output.path={self.output}",
                                       "output.progress_seconds=0", *overrides])
        self.logs = [space.new("out"), space.new("err")]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment(ranks), stdin=subprocess.DEVNULL,
                                        stdout=open(self.logs[0], "w"), stderr=open(self.logs[1], "w"))

    def wait_for(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            check(self.process.poll() is None, "ended early", self.result(0))
            check(time.monotonic() < end, "no", what, "after", seconds, "s", self.logs[0].read_text()[-2000:])
            time.sleep(0.01)

    def wait_for_step(self, step, seconds=60):
        self.wait_for(lambda: f"step {step}/" in self.logs[0].read_text(), f"step {step}", seconds)

    def wait_for_traces(self, ranks, seconds=60):
        """Until each of these ranks' traces has a step: they are written about once a second."""
        for rank in ranks:
            self.wait_for(lambda: steps_in_trace(self.output, rank) > 0, f"trace of rank {rank}", seconds)

    def pids(self):
        """Process ids of the ranks, by rank."""
        return pids_of_ranks(self.process)

    def end(self, seconds=SECONDS_TO_END):
        begin = time.monotonic()
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            for pid in self.pids().values():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still there {seconds} s after the fault: {self.result(seconds)}") from None
        return self.result(time.monotonic() - begin)

    def result(self, seconds):
        return Result(self.process.poll(), self.logs[0].read_text(), self.logs[1].read_text(), seconds, self.output)


def lines_of_ranks(result):
    """{rank: line} of the lines that ranks print when they end."""
    found = {}
    for line in result.err.splitlines():
        match = re.match(r"blipft: rank (\d+) on \S+: (.*)", line)
        if match:
            check(int(match[1]) not in found, "two lines of rank", match[1], result)
            found[int(match[1])] = match[2]
    return found


def lives(pid):
    """Returns True if the process is running; a zombie does not count."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def steps_in_trace(output, rank):
    """0 where there is no trace yet."""
    try:
        with h5py.File(output / f"trace.rank{rank:04d}.h5", "r", libver="latest", swmr=True) as file:
            return file["steps"].shape[0]
    except (OSError, KeyError):
        return 0


def readable_traces(result, ranks):
    for rank in ranks:
        check(steps_in_trace(result.output, rank) > 0, "no steps of rank", rank)


@test
def a_killed_rank_ends_the_others_who_name_it(space):
    ranks = max(2, ranks_up_to(3))
    job = Job(space, ranks, "parallel.strategy=fsdp", *LONG)
    job.wait_for_step(3)
    others = [rank for rank in range(ranks) if rank != 1]
    job.wait_for_traces(others)
    os.kill(job.pids()[1], signal.SIGKILL)
    result = job.end()
    check(result.status != 0, result)
    lines = lines_of_ranks(result)
    check(sorted(lines) == others, "lines of ranks", sorted(lines), result)
    for line in lines.values():
        check(re.search(r"^step \d+.*; missing: rank 1 on \S+ \(last heard: .*\): killed", line), line)
    readable_traces(result, others)


@test
def the_first_rank_killed_is_named_too(space):
    job = Job(space, 2, *LONG)
    job.wait_for_step(3)
    os.kill(job.pids()[0], signal.SIGKILL)
    result = job.end()
    lines = lines_of_ranks(result)
    check(result.status != 0 and sorted(lines) == [1] and "missing: rank 0 on" in lines[1] and
          "(last heard: " in lines[1], lines, result)


@test
def a_stopped_rank_ends_all(space):
    stopped = max(2, ranks_up_to(3)) - 1
    job = Job(space, stopped + 1, *LONG)
    job.wait_for_step(3)
    pids = job.pids()
    os.kill(pids[stopped], signal.SIGSTOP)
    result = job.end()
    check(result.status == LOST, result)
    check(result.seconds >= TIMEOUT - 1, "found before it could be known:", result.seconds, result)
    lines = lines_of_ranks(result)
    check(sorted(lines) == list(range(stopped)), "lines of ranks", sorted(lines), result)
    for line in lines.values():
        check(re.search(rf"missing: rank {stopped} on \S+ .*no heartbeat for \d", line), line)
        # The host does not see the position within a GPU's graph.
        check("all_reduce" in line or DEVICE == "cuda" and line.startswith("step "), line)
    end = time.monotonic() + SECONDS_TO_END
    while any(lives(pid) for pid in pids.values()):
        check(time.monotonic() < end, "a rank is left behind", pids)
        time.sleep(0.1)


@test
def a_first_rank_that_was_stopped_does_not_say_that_others_were_killed(space):
    job = Job(space, 2, *LONG)
    job.wait_for_step(3)
    os.kill(job.pids()[0], signal.SIGSTOP)
    result = job.end()                     # mpirun continues it before it ends it
    lines = lines_of_ranks(result)
    check(1 in lines and "missing: rank 0 on" in lines[1] and "no heartbeat" in lines[1], lines, result)
    check(not any("killed" in line for line in lines.values()), lines, result)
    check(0 not in lines or "this rank itself did not run for" in lines[0], lines, result)


@test
def a_rank_that_does_not_come_to_mpi_init_ends_all(space):
    """Stopped, before it is the program, or gone; the others name it, and end by themselves."""
    stopped = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then kill -STOP $$; fi; exec "$0" "$@"'
    sleeps = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then sleep 1000; fi; exec "$0" "$@"'
    for script, missing in ((stopped, r"rank 1 on \S+ \(process \d+\) is stopped"),
                            (sleeps, r"rank 1 on \S+ \(process \d+, (bash|sleep)\) has not begun blipft")):
        job = Job(space, 2, *LONG[:2], "parallel.timeout_seconds=1", before=["bash", "-c", script])
        result = job.end()
        check(result.status == LOST, result)
        # mpirun continues the other before it ends it, which may then say that it waits too.
        said = [line for line in result.err.splitlines() if re.search(r"rank 0 on \S+: MPI_Init is not through after", line)]
        check(len(said) == 2 and all(re.search(rf"; missing: {missing}", line) for line in said), result)
        check("all end after 5 s" in said[0] and "(5 times parallel.timeout_seconds, 1)" in said[1], said)


@test
def a_job_that_is_stopped_and_continued_as_a_whole_goes_on(space):
    job = Job(space, 2, *LONG)
    job.wait_for_step(3)
    pids = job.pids()
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * TIMEOUT + 1)
    before = len(job.logs[0].read_text())
    for pid in pids.values():
        os.kill(pid, signal.SIGCONT)
    job.wait_for(lambda: "\nstep " in job.logs[0].read_text()[before:], "step after it was continued")
    time.sleep(TIMEOUT)                    # in which a verdict would have come
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR1)
    result = job.end(120)
    check(result.status == 75, result)


def gpu_fault(space, fault, strategy):
    """The result of a run whose last rank meets this fault of test/support/gpu_faults.cu behind its second step; its line."""
    if DEVICE != "cuda":
        raise Skip("needs a GPU; gpu_runs_test runs it where there is one")
    nvcc = shutil.which("nvcc") or os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc"
    library = space.folder / "gpu_faults.so"
    if not library.exists():
        subprocess.run([nvcc, "-shared", "-cudart", "shared", "-Xcompiler", "-fPIC", "-arch", "native", "-o", library,
                        ROOT / "test/support/gpu_faults.cu", "-ldl"], check=True)
    ranks = ranks_up_to(2)
    strategy = strategy if ranks > 1 else "single"
    at_last_rank = f'if [ "$OMPI_COMM_WORLD_RANK" = {ranks - 1} ]; then export LD_PRELOAD={library}; fi; exec "$0" "$@"'
    now = space.new("now")
    job = Job(space, ranks, f"parallel.strategy={strategy}", *LONG,
              before=["env", f"FAULT={fault}", f"FAULT_FILE={now}", "bash", "-c", at_last_rank])
    job.wait_for_step(2)
    now.touch()
    result = job.end()
    check(result.status != 0, result)
    lines = lines_of_ranks(result)
    check(ranks - 1 in lines, "no line of the rank that met it", lines, result)
    return result, lines[ranks - 1]


@test
def an_error_of_a_gpu_ends_all_and_is_told(space):
    for strategy in ("ddp", "fsdp"):
        result, line = gpu_fault(space, "gpu", strategy)
        check(re.search(r"step \d+.*cudaErrorIllegalAddress", line), line, result)


@test
def an_error_of_nccl_ends_all_and_is_told(space):
    if ranks_up_to(2) < 2:
        raise Skip("needs 2 GPUs")
    result, line = gpu_fault(space, "nccl", "fsdp")
    check(re.search(r"step \d+.*NCCL: remote", line), line, result)


@test
def a_loss_that_is_not_finite_ends_the_run_and_leaves_the_model_alone(space):
    good = space.copy(saved_model(space))
    output = space.new()
    (output).mkdir()
    shutil.copytree(good, output / "model")
    before = {p.name: p.read_bytes() for p in (output / "model").iterdir()}
    result = start(space, 2, f"output.path={output}", "output.overwrite=true", "output.save_model=true",
                   "train.lr=1e30", "train.max_epochs=5")
    check(result.status == 1, result)
    messages = [line for line in result.err.splitlines() if line.startswith("blipft: ")]
    check(len(messages) == 1 and re.search(
        r"rank 0 on \S+: .*train\.on_nonfinite: stop: step \d+: loss \S+, gradient norm \S+: not finite", messages[0]),
        messages, result)
    check({p.name: p.read_bytes() for p in (output / "model").iterdir()} == before, "the model on disk changed")
    with h5py.File(output / "trace.rank0000.h5", "r", libver="latest", swmr=True) as file:
        last = file["steps"][-1]
        check(not numpy.isfinite(last["loss"]) or not numpy.isfinite(last["grad_norm"]), "the bad step is not there", last)


@test
def steps_that_are_not_finite_are_skipped_until_too_many_are(space):
    result = start(space, 2, "output.save_model=true", "train.lr=1e30", "train.on_nonfinite=skip")
    check(result.status == 1 and "steps changed no weight" in result.err and "no model was saved" in result.err, result)
    check(re.search(r"warning: step \d+: loss .*the step changes no weight", result.out), result)
    check(not (result.output / "model").exists(), "a model was saved")
    # Held gradients are in the plan, and a run without a bad step is the same.
    skips = run(space, 1, "train.on_nonfinite=skip", "train.max_steps=3")
    stops = run(space, 1, "train.max_steps=3")
    check(list(skips.losses()) == list(stops.losses()), skips.losses(), stops.losses())


def corrupt(data, numbers):
    """Cuts the pictures of these samples; their names."""
    lines = (data / "metadata.jsonl").read_text().splitlines()
    names = [json.loads(lines[number])["file_name"] for number in numbers]
    for name in names:
        (data / name).write_bytes((data / name).read_bytes()[:200])
    return [pathlib.Path(name).name for name in names]


@test
def bad_samples_are_skipped_counted_and_listed(space):
    data = space.copy(space.data)
    names = corrupt(data, (5, 21))
    stopped = start(space, 2, f"data.path={data}")
    check(stopped.status == 1 and any(re.search(rf"{re.escape(name)}.*; data.on_bad_sample=skip leaves such samples out",
                                                stopped.err) for name in names), stopped)
    result = run(space, 2, f"data.path={data}", "data.on_bad_sample=skip", "train.max_epochs=2")
    for name in names:
        check(len(re.findall(rf"^warning: rank [01] on \S+: step \d+: .*{re.escape(name)}", result.err, re.M)) in (1, 2),
              "one warning a rank for", name, result)
        check(re.search(rf"samples were left out.*\n(.*\n)*.*{re.escape(name)}", result.out), name, result)
    check("warning: 4 of 96 samples were left out (data.on_bad_sample: skip):" in result.out, result)
    check(numpy.isfinite(result.losses()).all(), result.losses())
    # All of one step: loss and gradient are 0, as of empty captions.
    data = space.copy(space.data)
    corrupt(data, range(8))
    result = run(space, 2, f"data.path={data}", "data.on_bad_sample=skip", "data.shuffle=false")
    check(result.losses()[0] == 0 and result.steps()["grad_norm"][0] == 0 and (result.losses()[1:] > 1).all(),
          result.losses())


@test
def a_bad_sample_behind_a_validation_names_its_own_step(space):
    data = space.copy(space.data)
    names = corrupt(data, (40,))
    result = run(space, 1, f"data.path={data}", "data.on_bad_sample=skip", "data.shuffle=false", f"data.val_path={space.data}",
                 "train.batch_size=4", "train.val_check_interval=3")
    check(re.search(rf"warning: rank 0 on \S+: step 10: .*{re.escape(names[0])}", result.err), result)


@test
def bad_samples_of_validations_are_not_counted_as_training_samples(space):
    data = space.copy(space.data)
    names = corrupt(data, (3,))
    result = run(space, 1, f"data.val_path={data}", "data.on_bad_sample=skip", "train.batch_size=1", "train.val_check_interval=1",
                 "train.max_steps=2")
    check(re.search(rf"warning: rank 0 on \S+: validation after step 0: .*{re.escape(names[0])}", result.err), result)
    check("samples were left out" not in result.out + result.err, result)


@test
def data_that_is_gone_is_not_skipped(space):
    data = space.copy(space.data)
    corrupt(data, range(48))
    result = start(space, 2, f"data.path={data}", "data.on_bad_sample=skip")
    check(result.status == 1 and ("in a row could not be read" in result.err
                                  or "no sample could be read" in result.err), result)


@test
def a_file_that_may_not_grow_is_an_error_of_saving(space):
    output = space.new()
    limited = ["bash", "-c", 'ulimit -f 150 && exec "$0" "$@"', PROGRAM]  # KiB; MPI's own files are not limited
    result = Result(*mpirun(1, [*limited, space.config, f"output.path={output}", "output.save_model=true",
                                "trace.enabled=false", "train.max_steps=2"]), output)
    check(result.status == 1 and "File too large" in result.err and "model.safetensors" in result.err, result)
    check(not (result.output / "model").exists() and not (result.output / "model.partial").exists(), "left behind")


@test
def a_disk_that_is_full_is_an_error_of_saving(space):
    mount = space.new("mount")
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=36m", "tmpfs", mount], capture_output=True).returncode:
        raise Skip("no right to mount a small file system")
    try:
        (mount / "filler").write_bytes(bytes(8_000_000))
        result = start(space, 2, f"output.path={mount}/run", "output.save_model=true", "trace.enabled=false",
                       "train.max_steps=2")
        check(result.status == 1 and re.search(r"the disk of .* has .* free, but this run is going to write", result.err),
              result)
        (mount / "filler").unlink()
        job = Job(space, 2, f"output.path={mount}/run", "output.save_model=true", "output.overwrite=true",
                  "trace.enabled=false", "train.max_steps=2000" if DEVICE == "cuda" else "train.max_steps=300",
                  "train.max_epochs=1000")
        job.wait_for_step(2)
        with contextlib.suppress(OSError):
            (mount / "filler").write_bytes(bytes(40_000_000))
        result = job.end()
        check(result.status == 1 and re.search(r"the disk has only|No space left", result.err), result)
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


@test
def an_output_folder_that_vanishes_is_an_error_and_the_model_is_saved(space):
    steps = 2000 if DEVICE == "cuda" else 300  # it is to vanish during the training
    job = Job(space, 2, "output.save_model=true", f"train.max_steps={steps}", "train.max_epochs=1000", *LONG[2:])
    job.wait_for_step(2)
    shutil.move(job.output, space.new("away"))
    result = job.end()
    check(result.status == 1 and "removed or replaced" in result.err and "output.path" in result.err, result)
    check(model_of(result.output), "no model was saved")


if __name__ == "__main__":
    sys.exit(run_tests("faults_test", Space, PROGRAM))
