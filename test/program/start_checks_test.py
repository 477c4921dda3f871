#!/usr/bin/env python3
"""Checks before the first step, with the whole program under mpirun: that all ranks were given the same, that
the output folder is this run's, and what becomes of a trace that cannot be written.

    python3 test/program/start_checks_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

try:
    import h5py
except ImportError as missing:
    print(f"SKIPPED start_checks_test ({missing})")
    sys.exit(0)

# mpirun gives ranks that are still there two seconds after one has failed; here none has anything left to do.
os.environ.setdefault("OMPI_MCA_odls_base_sigkill_timeout", "0")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (  # noqa: E402
    PROGRAM, RECORD_FILES, ROOT, Space, command_line, environment, mpirun, run, saved_model, start)
from script_tests import Skip, check, run_tests, test  # noqa: E402

SECONDS_TO_FAIL = 20
HOST = socket.gethostname()


def start_unlike(space, own, program=PROGRAM):
    """Rank 0 as the run file says, rank 1 with `own` options besides. Returns status, output and errors."""
    common = [str(space.config), f"output.path={space.new()}"]
    command = [*command_line(1, [PROGRAM, *common]), ":", "-np", "1", str(program), *common, *map(str, own)]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=120)
    check(time.monotonic() - begin < SECONDS_TO_FAIL, "took", time.monotonic() - begin, "s", done)
    return done


def refused_unlike(space, pattern, own, program=PROGRAM):
    done = start_unlike(space, own, program)
    messages = [line for line in done.stderr.splitlines() if line.startswith("blipft: ")]
    check(done.returncode != 0 and len(messages) == 1, done)
    check(re.search(rf"^blipft: rank 1 on {re.escape(HOST)}: {pattern}", messages[0]), messages[0])


@test
def ranks_that_were_given_different_runs_end_at_once(space):
    refused_unlike(space, r'train\.seed is 7 \(override "train\.seed=7"\), but on rank 0 \(.*\) it is 0 \(.*run\.yaml\); '
                   "start all ranks with the same program, run file and options", ["train.seed=7"])
    refused_unlike(space, r"output\.save_model is true ", ["output.save_model=true"])
    fewer = space.copy(space.data)
    lines = (fewer / "metadata.jsonl").read_text().splitlines(keepends=True)
    (fewer / "metadata.jsonl").write_text("".join(lines[:-1]))
    refused_unlike(space, rf"the data at data\.path is 47 samples, digest \w+ \({re.escape(str(fewer))}\), but on rank 0 "
                   r"\(.*\) it is 48 samples", [f"data.path={fewer}"])
    model = space.copy(space.model)
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text() + "\n")
    refused_unlike(space, r"model file tokenizer\.json is \d+ bytes", [f"model.path={model}"])
    refused_unlike(space, r"unknown option --bogus", ["--bogus"])


@test
def another_build_on_a_rank_is_refused(space):
    data = bytearray(pathlib.Path(PROGRAM).read_bytes())
    note = data.find(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")  # a build ID of 20 bytes
    check(note > 0, "the program has no build ID")
    data[note + 16] ^= 1
    other = space.new("blipft")
    other.write_bytes(data)
    other.chmod(0o755)
    refused_unlike(space, "the program's build is [0-9a-f]{40}, but on rank 0", [], program=other)


@test
def copies_on_each_machine_are_as_good(space):
    done = start_unlike(space, [f"model.path={space.copy(space.model)}", f"data.path={space.copy(space.data)}",
                                "data.num_workers=2"])
    check(done.returncode == 0, done)


@test
def ranks_that_see_other_folders_are_told_apart(space):
    # As on machines without a file system that they share.
    common = [str(space.config), "output.path=here", "train.max_steps=2"]
    first, second = space.new("first"), space.new("second")
    for folder in (first, second):
        folder.mkdir()
    command = [*command_line(1, ["-wdir", first, PROGRAM, *common]), ":", "-np", "1", "-wdir", second, PROGRAM, *common]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)
    check(done.returncode == 1 and re.search(r"rank 1 on .*: here: is not the folder in which rank 0 on", done.stderr), done)
    check(not list(first.iterdir()) and not list(second.iterdir()), "the folders are left as they were")


def refused(space, pattern, *options):
    result = start(space, 2, *options)
    messages = [line for line in result.err.splitlines() if line.startswith("blipft: ")]
    check(result.status != 0 and len(messages) == 1 and re.search(pattern, messages[0]), pattern, result)
    check(result.seconds < SECONDS_TO_FAIL, result.seconds)


@test
def another_runs_results_are_kept_unless_they_may_be_overwritten(space):
    options = ["train.max_steps=1", f"output.path={space.new()}"]
    folder = pathlib.Path(options[1].split("=")[1])
    run(space, 3, *options)
    traces = {path.name: path.read_bytes() for path in folder.iterdir()}
    check(sorted(traces) == [*RECORD_FILES, *(f"trace.rank{rank:04d}.h5" for rank in range(3))], sorted(traces))
    refused(space, r"output\.path: .* holds another run's results \(trace\.rank0000\.h5, .*output\.overwrite=true",
            *options)
    check({path.name: path.read_bytes() for path in folder.iterdir()} == traces, "something changed")
    other = run(space, 0, "train.max_steps=1", "checkpoint.every_steps=1").output
    shutil.move(other / "checkpoints", folder)
    refused(space, r"data\.path|nothing_here", *options, "output.overwrite=true", "data.path=nothing_here")
    check((folder / "checkpoints/step-00000001/checkpoint.json").exists(),
          "a run that did not begin removed what it would overwrite")
    run(space, 2, *options, "output.overwrite=true")
    check(sorted(path.name for path in folder.iterdir()) ==
          ["checkpoints", *RECORD_FILES, "trace.rank0000.h5", "trace.rank0001.h5"], list(folder.iterdir()))
    check(not list((folder / "checkpoints").glob("step-*")), "old checkpoints")


@test
def what_is_there_and_cannot_be_used_is_called_what_it_is(space):
    link = space.new("link")
    link.symlink_to(space.folder / "not_mounted")
    refused(space, r"output\.path: .* is a link to .*not_mounted, where nothing is; make that folder", f"output.path={link}")
    first = json.loads((space.data / "metadata.jsonl").read_text().splitlines()[0])["file_name"]
    for make, what in ((os.mkfifo, "is a named pipe, a device or a socket, expected a regular file"),
                       (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
                       (pathlib.Path.mkdir, "is a folder, expected a file")):
        data = space.copy(space.data)
        (data / first).unlink()
        make(data / first)
        refused(space, rf"picture .* {what} \(so it is with 1 of", f"data.path={data}")


@test
def a_model_folder_that_may_not_be_read_is_not_one_without_a_config(space):
    model = space.copy(space.model)
    model.chmod(0)
    try:
        for path in (space.folder, space.config):
            path.chmod(path.stat().st_mode | 0o055)
        as_nobody = ["setpriv", "--reuid=65534", "--clear-groups"] if os.getuid() == 0 else []
        if as_nobody and subprocess.run([*as_nobody, PROGRAM, "--version"], capture_output=True).returncode:
            raise Skip("the program cannot be run as another user here")
        done = subprocess.run([*as_nobody, PROGRAM, "--plan", space.config, f"model.path={model}"], cwd=ROOT, env=environment(),
                              capture_output=True, text=True)
        check(done.returncode != 0 and "config.json cannot be looked at: Permission denied" in done.stderr and
              "no config.json is" not in done.stderr, done)
    finally:
        model.chmod(0o755)


@test
def a_run_does_not_replace_the_model_that_it_reads(space):
    model = space.copy(saved_model(space))
    output = space.new()
    output.mkdir()
    shutil.move(model, output / "model")
    refused(space, r"model\.path: .*/model is read from .*/model, which this run would replace",
            f"model.path={output / 'model'}", "model.init=pretrained", f"output.path={output}", "output.save_model=true",
            "output.overwrite=true")
    check((output / "model/model.safetensors").exists() and not (output / "run.lock").exists(), list(output.iterdir()))


@test
def adapters_that_do_not_fit_are_refused_by_a_run_and_by_its_plan(space):
    lora = ("adapter.kind=lora", "adapter.r=2")
    adapter = run(space, 0, *lora, "train.max_steps=1", "output.save_model=true").output / "adapter"
    for pattern, *options in ((r'adapter\.path=/nothing_here": found no /nothing_here/adapter_config\.json; expected a folder',
                               "adapter.path=/nothing_here"),
                              (r"adapter_config\.json: r: found 2, the run file has 4 \(adapter\.r\)",
                               f"adapter.path={adapter}", "adapter.r=4"),
                              (r"adapter_model\.safetensors: tensor .* is missing .*section adapter",
                               f"adapter.path={adapter}", "adapter.targets=[q, v, k]")):
        refused(space, pattern, *lora, *options)
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", space.config, f"output.path={space.new()}", *lora, *options])
        check(status == 2 and re.search(pattern, err), status, out, err)
    def planned(folder, *options):
        return mpirun(0, [PROGRAM, "--plan", space.config, f"output.path={space.new()}", *lora,
                          f"adapter.path={folder}", *options])[:3]
    status, out, err = planned(adapter)
    check(status == 0, out, err)
    status, out, err = planned(adapter, "adapter.targets=[v]")
    check(status == 2 and "it is no adapter that the run file describes" in err, out, err)
    changed = space.copy(adapter)
    config = json.loads((changed / "adapter_config.json").read_text())

    def with_key(**keys):
        (changed / "adapter_config.json").write_text(json.dumps({**config, **keys}))
        return planned(changed)
    # As PEFT writes them: off, or about how the adapters were trained.
    fine = dict(use_dora=False, rank_pattern={}, modules_to_save=None, bias="none", qalora_group_size=16, eva_config=None,
                loftq_config={}, init_lora_weights="gaussian", runtime_config={"ephemeral_gpu_offload": False},
                layers_to_transform=[0, 1], peft_version="0.21.2", some_later_key=None)
    status, out, err = with_key(**fine)
    check(status == 0, out, err)
    for key, value in dict(use_dora=True, bias="all", alora_invocation_tokens=[1, 2], use_qalora=True, lora_bias=True,
                           rank_pattern={"q": 3}, modules_to_save=["x"], kasa_config={"beta": 1}, a_later_key=True,
                           use_rslora=True).items():
        status, out, err = with_key(**{**fine, key: value})
        check(status == 2 and f"adapter_config.json: {key}: found " in err, key, out, err)
    for value in ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "mica"):
        status, out, err = with_key(init_lora_weights=value)
        check(status == 2 and "which changes the weights of the model itself" in err, value, out, err)
    (changed / "adapter_config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "use_rslora"}))
    status, out, err = planned(changed, "adapter.rslora=true")
    check(status == 2 and "use_rslora: found null, the run file has true" in err, out, err)
    result = start(space, 0, *lora, "model.freeze=[adapter]")
    check(result.status == 1 and 'model.freeze: found "adapter"' in result.err, result)


class Running:
    """A run without an end, past its first steps."""

    def __init__(self, space, ranks, *options):
        self.output = space.new()
        command = command_line(ranks, [PROGRAM, space.config, "train.max_epochs=1000000", "output.progress_seconds=0",
                                       f"output.path={self.output}", *options])
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self):
        until = time.monotonic() + 60
        for line in self.process.stdout:
            check(time.monotonic() < until, "no step within a minute")
            if "loss" in line and "step" in line:
                # Else it stands still with its next step's line once the pipe is full: soon, on a fast machine.
                threading.Thread(target=collections.deque, args=(self.process.stdout, 0), daemon=True).start()
                return self
        raise AssertionError("the run ended: " + self.process.stderr.read())

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@test
def a_plan_of_a_model_with_pictures_refuses_what_its_run_refuses(space):
    for pattern, *options in ((r"data\.max_text_tokens: found 9999, expected at most \d+: the model has \d+ positions",
                               "data.max_text_tokens=9999"),
                              (r"train\.batch_size: an epoch has 1 sample, but one step takes 4 .* x 1 rank\); lower these",
                               "data.num_train_samples=1"),
                              (r"train\.total_batch_size=4.*: an epoch has 3 samples.*; lower train\.total_batch_size",
                               "data.num_train_samples=3", "train.total_batch_size=4"),
                              (r"checkpoint\.resume: /nothing_here is no folder", "checkpoint.resume=/nothing_here")):
        result = start(space, 0, *options)
        check(result.status == 1 and re.search(pattern, result.err), pattern, result)
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", space.config, f"output.path={space.new()}", *options])
        check(status == 2 and re.search(pattern, err), pattern, status, out, err)


@test
def one_run_at_a_time_and_a_killed_one_does_not_stand_in_the_way(space):
    with Running(space, 0) as running:
        options = [f"output.path={running.output}", "output.overwrite=true", "train.max_steps=1"]
        refused(space, rf"in use by another run: process {running.process.pid} on {re.escape(HOST)}, started 20.* UTC",
                *options)
        check((running.output / "run.lock").exists(), "its lock is gone")
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        check((running.output / "run.lock").exists(), "no lock was left behind")
        run(space, 2, *options)
    check(not (running.output / "run.lock").exists(), "the lock stayed")


@test
def a_trace_that_vanishes_is_told_at_once(space):
    for on_error in ("warn", "stop"):
        options = [f"trace.on_error={on_error}"]
        with Running(space, 0, *options) as running:
            away = space.new("away")       # at once: what the run makes meanwhile is not to stand in the way
            running.output.rename(away)
            shutil.rmtree(away)
            begin = time.monotonic()
            for line in running.process.stderr:
                if "the trace cannot be written" in line:
                    break
            else:
                raise AssertionError("nothing was said of the trace")
            check(time.monotonic() - begin < 30, "said after", time.monotonic() - begin)
            check("trace.rank0000.h5: the trace file is gone" in line and HOST in line, line)
            if on_error == "stop":
                check(line.startswith("blipft: rank 0 on ") and running.process.wait(20) == 1, line)
            else:
                check(line.startswith("warning: rank 0 on ") and running.process.poll() is None, line)


@test
def what_has_the_name_of_a_trace_is_refused_before_the_first_step(space):
    for on_error in ("warn", "stop"):
        output = space.new("output")
        (output / "trace.rank0001.h5").mkdir(parents=True)
        result = start(space, 2, f"output.path={output}", f"trace.on_error={on_error}", "train.max_steps=2",
                       "output.save_model=true")
        check(result.status == 1 and "trace.rank0001.h5: is no trace that blipft wrote" in result.err, result)
        check((output / "trace.rank0001.h5").is_dir() and not (output / "model").exists(), result)


if __name__ == "__main__":
    sys.exit(run_tests("start_checks_test", Space, PROGRAM))
