#!/usr/bin/env python3
"""The program and its job scripts on a real Slurm: two nodes, four ranks. tools/check_slurm.sh runs it in namespaces.

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test.
"""
import os
import pathlib
import re
import subprocess
import sys
import time

import h5py

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "program")]
import slurm_cluster  # noqa: E402
from program_runs import PROGRAM, ROOT, Space, read_safetensors  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

STEPS = 200
# Long enough to be stopped in, of small steps; the pictures are read again in every epoch.
RUN = ("model.init=random", "data.max_text_tokens=32", "data.num_train_samples=0", "data.num_workers=1",
       "train.lr=1e-3", "train.batch_size=2", "train.accumulate_grad_batches=2", "train.precision=32-true",
       "train.max_epochs=1000", f"train.max_steps={STEPS}", "parallel.device=cpu", "output.save_model=true")
# Jobs as a user submits them, with the unchanged job scripts.
ASK = ("--nodes=2", "--gpus-per-node=2")


ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


class Job:
    """A job that was submitted, its log and its output."""

    def __init__(self, space, *arguments, script="jobs/fsdp.sh", ask=ASK, overrides=()):
        self.output = space.new("job")
        self.log = self.output.with_suffix(".log")
        overrides = (*settings(space), f"output.path={self.output}", *overrides)
        command = ["sbatch", "--parsable", *ask, f"--output={self.log}", *arguments, script, *overrides]
        self.number = ask_slurm(*command)

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def field(self, name):
        return re.search(rf"\b{name}=(\S+)", ask_slurm("scontrol", "show", "job", self.number)).group(1)

    def wait_for(self, what, seconds=60):
        """Until the log has a line that matches, of the last start."""
        wait(lambda: re.search(what, self.text(), re.M), seconds, f"no {what!r}", self)

    def wait_for_step(self, step):
        wait(lambda: any(int(done) >= step for done in re.findall(r"^step +(\d+)/", self.text(), re.M)), 60,
             f"no step {step}", self)

    def wait_for_state(self, state, seconds=60):
        wait(lambda: self.field("JobState") == state, seconds, f"not {state}", self)

    def model(self):
        return read_safetensors(self.output / "model/model.safetensors")

    def __str__(self):
        return (f"job {self.number}\n{self.text()[-4000:]}\n" +
                subprocess.run(["scontrol", "show", "job", self.number], stdout=subprocess.PIPE).stdout.decode())


def ask_slurm(*command):
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=30)
    check(done.returncode == 0, *command, done.stdout.decode())
    return done.stdout.decode().strip()


def wait(ready, seconds, otherwise, job):
    end = time.monotonic() + seconds
    while not ready():
        state = job.field("JobState")
        check(state not in ENDED or ready(), otherwise, "of a job that is", state, job)
        check(time.monotonic() < end, otherwise, "in", seconds, "s:", job)
        time.sleep(0.1)


def settings(space):
    return (f"model.path={space.model}", f"data.path={space.data}", *RUN)


_whole = []


def whole_run(space):
    """The run that nothing disturbs, by srun alone. Made once."""
    if not _whole:
        output = space.new("whole")
        command = ["srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", PROGRAM, "inputs/fsdp.yaml",
                   *settings(space), f"output.path={output}"]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=90)
        check(done.returncode == 0, done.stdout.decode()[-4000:])
        _whole.append((output, done.stdout.decode(), read_safetensors(output / "model/model.safetensors")))
    return _whole[0]


def check_went_on(space, job, starts=2):
    """The job ran so often, the last time from a checkpoint, and ended with the model of the run left alone."""
    job.wait_for_state("COMPLETED")
    check(job.field("Restarts") == str(starts - 1), job)
    check(len(re.findall(r"^\S+: 4 ranks on 2 nodes", job.text(), re.M)) == starts, job)
    step = re.findall(r"after (\d+) steps, from", job.text())
    check(len(step) == starts - 1 and 0 < int(step[-1]) < STEPS, "resumed after", step, job)
    check(job.model() == whole_run(space)[2], "another model than without the interruption:", job)


@test
def srun_runs_ranks_on_both_nodes(space):
    output, text, _ = whole_run(space)
    hosts = []
    for rank in range(4):
        with h5py.File(output / f"trace.rank{rank:04d}.h5", "r") as file:
            hosts.append(file.attrs["host"])
            check(file["steps"].shape == (STEPS,), file["steps"].shape)
    hosts = [host.decode() if isinstance(host, bytes) else host for host in hosts]
    check(hosts == ["n1", "n1", "n2", "n2"], hosts, text)


@test
def a_job_script_asks_slurm_for_ranks_gpus_cpus_and_time(space):
    job = Job(space, "--time=10", "--array=3", script="jobs/ddp.sh", ask=("--gpus-per-node=2",),
              overrides=("train.max_steps=2",))
    job.wait_for_state("COMPLETED")
    check(re.search(rf"^ddp-{job.number}_3: 2 ranks on 1 nodes \(n1\) with 2 GPUs each, 8 CPUs a rank, "
                    r"time limit 0:0[89]:[05]\d, start 1$", job.text(), re.M), job)
    check((job.output / "trace.rank0001.h5").exists() and not (job.output / "trace.rank0002.h5").exists(), job)


@test
def a_job_of_an_installed_program_runs_from_another_folder(space):
    prefix, work = space.new("prefix"), space.new("work")
    work.mkdir()
    subprocess.run([ROOT / "tools/install.sh", PROGRAM, prefix], check=True, stdout=subprocess.DEVNULL)
    job = Job(space, "--time=10", f"--chdir={work}", script=prefix / "share/blipft/jobs/fsdp.sh", overrides=("train.max_steps=2",))
    job.wait_for_state("COMPLETED")
    check(re.search(r"^fsdp-\d+: 4 ranks on 2 nodes", job.text(), re.M) and (job.output / "model/model.safetensors").exists(), job)
    check(str(ROOT) not in job.text(), "the source tree is not used", job)


@test
def a_job_that_slurm_preempts_goes_on(space):
    job = Job(space)
    job.wait_for_step(3)
    urgent = ask_slurm("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null",
                       "--wrap=true")
    job.wait_for("^stopped .*by SIGTERM")
    check_went_on(space, job)
    state = ask_slurm("scontrol", "show", "job", urgent)
    check("JobState=COMPLETED" in state, state)


@test
def a_job_that_gets_sigusr1_goes_on(space):
    job = Job(space)
    job.wait_for_step(3)
    ask_slurm("scancel", "--signal=USR1", job.number)
    job.wait_for("^stopped .*by SIGUSR1")
    check_went_on(space, job)


@test
def a_job_that_slurm_requeues_goes_on(space):
    job = Job(space)
    job.wait_for_step(3)
    ask_slurm("scontrol", "requeue", job.number)
    check_went_on(space, job)


@test
def a_job_that_is_cancelled_keeps_a_checkpoint_and_stays_out_of_the_queue(space):
    job = Job(space)
    job.wait_for_step(3)
    ask_slurm("scancel", job.number)
    job.wait_for("was stopped; the same command with output.path=")
    job.wait_for_state("CANCELLED")
    check(job.field("Restarts") == "0", job)
    check(list((job.output / "checkpoints").glob("step-*/checkpoint.json")), job)


@test
def a_job_that_fails_stays_out_of_the_queue(space):
    job = Job(space, overrides=("train.lr=-1",))
    job.wait_for_state("FAILED")
    check(job.field("Restarts") == "0" and "train.lr" in job.text(), job)


@test
def a_sweep_is_an_array_with_one_table(space):
    path, folder = space.new("sweep").with_suffix(".yaml"), space.new("rates")
    lines = [f"run: inputs/fsdp.yaml\noutput: {folder}", *(setting.replace("=", ": ", 1) for setting in settings(space) if "train.lr" not in setting),
             "train.lr: [1e-3, 2e-3]"]
    path.write_text("\n".join(lines).replace(f"max_steps: {STEPS}", "max_steps: 2") + "\n")
    log = space.new("log")
    out = ask_slurm("jobs/sweep.sh", path, "--gpus-per-node=2", "--time=10", f"--output={log}_%a")
    check("Submitted batch job" in out and f"{folder}/table.txt" in out, out)

    def rows():
        table = folder / "table.txt"
        return [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    end = time.monotonic() + 90
    while [row[-2] for row in rows()] != ["ended", "done", "done"]:
        check(time.monotonic() < end, "no table:", rows(), out, *(p.read_text()[-2000:] for p in log.parent.glob(f"{log.name}_*")))
        time.sleep(0.2)
    check([row[0] for row in rows()] == ["train.lr", "1e-3", "2e-3"] and (folder / "train.lr=2e-3/trace.rank0001.h5").exists(), rows())
    check("have ended" in ask_slurm("jobs/sweep.sh", path), "nothing is submitted again")


def report(error):
    print(f"SKIPPED slurm ({error})")
    return 0


if __name__ == "__main__":
    os.environ.update(TMPDIR="/run", OMPI_MCA_btl_vader_single_copy_mechanism="none", SLURM_PMIX_FENCE="ring")
    try:
        slurm_cluster.start()
    except (slurm_cluster.Unavailable, OSError, subprocess.SubprocessError) as error:
        sys.exit(report(error))
    sys.exit(run_tests("slurm_runs", Space, PROGRAM))
