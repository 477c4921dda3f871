#!/usr/bin/env python3
"""The files by which a run folder explains itself: config.yaml, log.txt and metrics.jsonl. Prints ok, FAILED or SKIPPED for
each test.

    test/program/run_folder_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft).
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import check, run_tests, test  # noqa: E402

try:
    import h5py
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED run_folder_test ({missing})")
    sys.exit(0)
from program_runs import (  # noqa: E402
    PROGRAM, ROOT, Space, checkpoint, command_line, environment, model_of, mpirun, pids_of_ranks, ranks_up_to, run, start,
    steps_of)

FILES = ["config.yaml", "log.txt", "metrics.jsonl"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d  ")
LONG = ["train.max_steps=2000", "train.max_epochs=1000"]


def rows_of(output, event=None):
    """Every line must be JSON as Python's strictest reader has it."""
    rows = [json.loads(line, parse_constant=lambda word: check(False, "found", word))
            for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if event in (None, row["event"])]


def log_of(output):
    """The lines of the log without their times; those that begin with # have none."""
    lines = (output / "log.txt").read_text().splitlines()
    for line in lines:
        check(line.startswith("#") or TIME.match(line), "a line without a time:", line)
    return [TIME.sub("", line) for line in lines]


def wait_for_rows(output, count, process):
    """Waits until metrics.jsonl has `count` steps."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if (output / "metrics.jsonl").exists():
            text = (output / "metrics.jsonl").read_text()
            if text.count('"event":"step"') >= count:
                return
        check(process.poll() is None, "the run ended before its step", count)
        time.sleep(0.02)
    check(False, "no", count, "steps in metrics.jsonl")


def begin(space, ranks, *overrides, **variables):
    """A run under way, and its output folder."""
    output = space.new()
    command = command_line(ranks, [PROGRAM, space.config, f"output.path={output}", *overrides])
    return subprocess.Popen(command, cwd=ROOT, env={**environment(), **variables}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), output


@test
def metrics_are_those_of_the_trace(space):
    options = ["train.max_steps=5", "train.max_epochs=3", "data.val_split_fraction=0.25", "train.val_check_interval=2",
               "train.gradient_clip_val=1", "train.lr_schedule=linear"]
    tokens = {}
    for ranks, strategy, batch in ((1, "single", 8), (ranks_up_to(2), "ddp", 4), (ranks_up_to(2), "fsdp", 4)):
        result = run(space, ranks, *options, f"parallel.strategy={strategy if ranks > 1 else 'single'}",
                     f"train.batch_size={batch if ranks > 1 else 8}")
        check(sorted(p.name for p in result.output.iterdir() if not p.name.startswith("trace.")) == FILES,
              list(result.output.iterdir()))
        rows, table = rows_of(result.output, "step"), result.steps()
        check([row["step"] for row in rows] == list(range(5)), rows)
        for row, truth in zip(rows, table):
            for name in ("epoch", "loss", "lr", "grad_norm"):
                check(row[name] == truth[name], name, row, truth)
            # The trace's rate is a rank's, the file's of all ranks.
            check(abs(row["samples_per_second"] / ranks / truth["samples_per_second"] - 1) < 1e-9, row, truth)
            check(abs(row["samples_per_second"] * row["seconds"] - 8) < 1e-9, row)
            check(abs(row["tokens_per_second"] * row["seconds"] - row["tokens"]) < 1e-6 * row["tokens"], row)
        tokens[strategy] = [row["tokens"] for row in rows]
        with h5py.File(result.output / "trace.rank0000.h5", "r") as file:
            validations = [(int(row["step"]), float(row["loss"]), int(row["tokens"])) for row in file["validation"][:]]
            config = file.attrs["config"]
        found = [(row["step"], row["validation_loss"], row["validation_tokens"])
                 for row in rows_of(result.output, "validation")]
        check(found == validations and len(found) == 3, found, validations)
        first, begun, *_, end = rows_of(result.output)
        check(first["event"] == "run" and re.fullmatch("[0-9a-f]{32}", first["run_id"]), first)
        check(begun["event"] == "start" and begun["ranks"] == ranks and begun["total_steps"] == 5, begun)
        check(end["event"] == "end" and end["reason"] == "done" and end["step"] == 4, end)
        check(f"run {first['run_id']}" in log_of(result.output)[0], log_of(result.output)[0])
        text = (result.output / "config.yaml").read_text()
        check(text.startswith(f"# blipft config.yaml of run {first['run_id']}\n"), text[:200])
        check(f"lr_schedule: linear" in text and "lr_schedule: linear" in config, text)
    check(len(set(map(tuple, tokens.values()))) == 1 and min(tokens["single"]) > 8, "the same samples, but tokens:", tokens)


@test
def the_written_configuration_gives_the_same_run(space):
    """From another working directory too: the first run names everything by relative paths."""
    ranks = ranks_up_to(2)
    relative = [f"{key}={os.path.relpath(path, ROOT)}" for key, path in
                (("model.path", space.model), ("data.path", space.data), ("output.path", space.new()))]
    first = start(space, ranks, *relative, "train.max_steps=3", "train.total_batch_size=16", "train.batch_size=4",
                  "train.warmup_ratio=0.5", "output.save_model=true", "data.max_text_tokens=9", "train.dropout=true",
                  "train.beta2=0.99")
    check(first.status == 0, first)
    output = ROOT / relative[2].split("=")[1]
    second = space.new()
    elsewhere = space.new("elsewhere")
    elsewhere.mkdir()
    command = command_line(ranks, [PROGRAM, output / "config.yaml", f"output.path={second}"])
    done = subprocess.run(command, cwd=elsewhere, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=180)
    check(done.returncode == 0, done.stdout[-1000:], done.stderr[-1000:])
    check(steps_of(second) == steps_of(output) and model_of(second) == model_of(output), "another run")
    own = [(path / "config.yaml").read_text().splitlines()[1:] for path in (output, second)]
    different = [pair for pair in zip(*own) if pair[0] != pair[1]]
    check(len(own[0]) == len(own[1]) and all(line.startswith("  path: ") for line, _ in different) and len(different) == 1,
          "differ", different)


@test
def the_log_has_all_that_rank_0_printed(space):
    result = run(space, ranks_up_to(2), "train.max_steps=3", "data.val_split_fraction=0.25", "output.memory_every=1")
    printed, log = result.out.splitlines(), log_of(result.output)
    check(log[0].startswith("# blipft log.txt of run ") and log[1].startswith("# ---- part 0: the start"), log[:2])
    check([line for line in log[2:]] == [line for line in printed if line], "printed", printed, "in the log", log)
    # The error that ends a run is its last line.
    result = start(space, ranks_up_to(2), "train.lr=1e30", "train.max_steps=50", "train.max_epochs=50")
    check(result.status == 1, result)
    message, = [line for line in result.err.splitlines() if line.startswith("blipft: ")]
    check(message in log_of(result.output), message, "is not in", log_of(result.output)[-3:])
    check(rows_of(result.output)[-1]["event"] == "step", "a run that failed has no end")
    check(rows_of(result.output)[-1]["loss"] is None or rows_of(result.output)[-1]["grad_norm"] is None,
          "what is not finite is null:", rows_of(result.output)[-1])


@test
def a_resumed_run_goes_on_with_its_files(space):
    ranks = ranks_up_to(2)
    options = ["parallel.strategy=ddp" if ranks > 1 else "parallel.strategy=single", "checkpoint.every_steps=3",
               "checkpoint.keep=9", "train.max_epochs=50", "data.val_split_fraction=0.25", "train.val_check_interval=2"]
    first = run(space, ranks, *options, "train.max_steps=8")
    output = first.output
    before = rows_of(output)
    log = (output / "log.txt").read_text()
    again = start(space, ranks, *options, "train.max_steps=8", f"output.path={output}",
                  f"checkpoint.resume={checkpoint(output, 3)}")
    check(again.status == 0, again)
    rows = rows_of(output)
    check([row["step"] for row in rows if row["event"] == "step"] == list(range(8)), "each step once, in order:", rows)
    check([row["step"] for row in rows if row["event"] == "validation"] == [1, 3, 5, 7], rows)
    kept = [row for row in before if row["event"] in ("run", "start") or row["step"] < 3]
    check(rows[:len(kept)] == kept, "rows before the resume changed:", rows[:len(kept)], kept)
    resume = rows[len(kept)]
    check(resume["event"] == "resume" and resume["step"] == 3 and resume["part"] == 1 and
          resume["rows_cut"] == len(before) - len(kept), resume)
    check([row["loss"] for row in rows if row["event"] == "step"] == [row["loss"] for row in before if row["event"] == "step"],
          "the resumed run is another one")
    text = (output / "log.txt").read_text()
    check(text.startswith(log) and "# ---- part 1: resumed after step 3" in text[len(log):], text[len(log):][:300])
    check(len({row["run_id"] for row in rows if "run_id" in row}) == 1 and
          (output / "config.yaml").read_text().startswith(f"# blipft config.yaml of run {rows[0]['run_id']}\n"), rows[0])
    # Into another folder: the files begin there.
    moved = run(space, ranks, *options, "train.max_steps=8", f"checkpoint.resume={checkpoint(output, 3)}")
    there = rows_of(moved.output)
    check(there[0]["run_id"] == rows[0]["run_id"] and there[1]["event"] == "resume", there[:2])
    check([row["step"] for row in there if row["event"] == "step"] == list(range(3, 8)), there)


@test
def lines_outlive_the_process(space):
    """Killed without a word, a run leaves whole lines, up to the last printed step."""
    process, output = begin(space, ranks_up_to(2), *LONG, "output.progress_seconds=0.001",
                            "output.memory_every=1000")
    try:
        wait_for_rows(output, 6, process)
        ranks = pids_of_ranks(process)
        os.kill(ranks[0], signal.SIGKILL)
    finally:
        out = process.communicate(timeout=120)[0]
    steps = [row["step"] for row in rows_of(output, "step")]
    told = [int(number) for number in re.findall(r"^step (\d+)/", out, re.M)]
    check(steps == list(range(len(steps))) and len(steps) >= max(told) - 1, "rows of", steps[-3:], "printed", told[-3:])
    check((output / "metrics.jsonl").read_bytes().endswith(b"\n") and (output / "log.txt").read_bytes().endswith(b"\n"),
          "half a line")


@test
def files_of_others_are_never_touched(space):
    def fill(output):
        output.mkdir(parents=True)
        (output / "config.yaml").write_text("# blipft is what I run with this\nmodel:\n  path: x\n")
        target = space.new("elsewhere")
        target.write_text("mine\n")
        (output / "log.txt").symlink_to(target)
        os.mkfifo(output / "metrics.jsonl")
        return target

    def untouched(output, target):
        check((output / "config.yaml").read_text() == "# blipft is what I run with this\nmodel:\n  path: x\n", "config.yaml")
        check((output / "log.txt").is_symlink() and target.read_text() == "mine\n", "log.txt")
        check((output / "metrics.jsonl").is_fifo(), "metrics.jsonl")

    for more in ((), ("output.overwrite=true",), ("checkpoint.resume=auto",)):
        output = space.new()
        target = fill(output)
        result = start(space, 1, f"output.path={output}", "train.max_steps=2", *more)
        check(result.status == 0, result)
        for name in FILES:
            check(re.search(rf"^warning: .*/{name}: is not of blipft's making, and stays as it is; move it away, or choose "
                            r"another output.path; the run goes on without it", result.err, re.M), name, result)
        untouched(output, target)
        check(len(steps_of(output)) == 2, "the trace")
    output = space.new()
    target = fill(output)
    result = start(space, 1, f"output.path={output}", "train.max_steps=2", "trace.on_error=stop")
    check(result.status == 1 and "is not of blipft's making" in result.err and "(trace.on_error is stop)" in result.err and
          "step 1/" not in result.out, result)
    untouched(output, target)


@test
def another_runs_files_are_replaced_when_asked(space):
    first = run(space, 1, "train.max_steps=4", "trace.enabled=false")
    files = {path.name: path.read_bytes() for path in first.output.iterdir()}
    check(sorted(files) == FILES, sorted(files))
    result = start(space, 1, "train.max_steps=1", "trace.enabled=false", f"output.path={first.output}")
    check(result.status == 1 and re.search(r"holds another run's results \(config\.yaml, log\.txt, metrics\.jsonl\)",
                                           result.err), result)
    check({path.name: path.read_bytes() for path in first.output.iterdir()} == files, "a refused run changed something")
    result = start(space, 1, "train.max_steps=1", "trace.enabled=false", f"output.path={first.output}",
                   "output.overwrite=true")
    check(result.status == 0 and "warning" not in result.err, result)
    old, new = json.loads(files["metrics.jsonl"].splitlines()[0]), rows_of(first.output)
    check(new[0]["run_id"] != old["run_id"] and len(rows_of(first.output, "step")) == 1, new)
    check("max_steps: 1\n" in (first.output / "config.yaml").read_text(), "config.yaml")
    check(not any("max_steps=4" in line or "step 4/4" in line for line in log_of(first.output)), "log.txt")


@test
def a_disk_that_takes_nothing_costs_lines_alone(space):
    def limited(*more):
        output = space.new()
        shell = ["bash", "-c", 'ulimit -f 4 && exec "$0" "$@"', PROGRAM]  # KiB of any file
        return mpirun(1, [*shell, space.config, f"output.path={output}", "trace.enabled=false", "train.max_steps=60",
                          "train.max_epochs=100", "output.progress_seconds=0.001", *more]), output

    (status, out, err, _), output = limited()
    check(status == 0 and "step 60/60" in out, status, out[-1000:], err[-1000:])
    check(len(re.findall(r"^warning: .*: File too large: lines are lost; the run goes on without it", err, re.M)) == 1, err)
    rows = rows_of(output, "step")
    check(10 < len(rows) < 60 and [row["step"] for row in rows] == list(range(len(rows))), len(rows))
    check((output / "log.txt").read_bytes().endswith(b"\n"), "half a line")
    (status, out, err, _), output = limited("trace.on_error=stop")
    check(status == 1 and "File too large: lines are lost (trace.on_error is stop)" in err, status, err[-1000:])


if __name__ == "__main__":
    sys.exit(run_tests("run_folder_test", Space, PROGRAM))
