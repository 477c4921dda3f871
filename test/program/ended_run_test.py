#!/usr/bin/env python3
"""checkpoint.resume=auto where the run has ended: nothing is trained or written, and a longer run goes on."""
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, Space, checkpoint, model_of, ranks_up_to, run, start, steps_of  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

AUTO = "checkpoint.resume=auto"


def state(folder):
    """The files of the folder, with sizes and times."""
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in folder.rglob("*") if path.is_file()}


def ended(space, ranks, output, steps, *settings):
    """Repeats the command, which must end at once. Returns its output."""
    before = state(output)
    again = run(space, ranks, f"output.path={output}", AUTO, *settings)
    check(f"ended      the run in {output} has ended, after {steps} step" in again.out, again)
    check("step 1/" not in again.out and "[done]" not in again.out, again)
    check(state(output) == before, "something was written", state(output), before)
    return again.out


def not_ended(space, ranks, output, *settings):
    again = run(space, ranks, f"output.path={output}", AUTO, *settings)
    check("has ended" not in again.out and "[done]" in again.out, again)
    return again


@test
def a_run_that_left_nothing_but_its_records_has_ended(space):
    ranks = ranks_up_to(2)
    for more in ((), ("trace.enabled=false",), ("output.overwrite=true",)):
        first = run(space, ranks, "train.max_steps=3", AUTO, *more)
        said = ended(space, ranks, first.output, 3, "train.max_steps=3", *more)
        check("trains on" not in said and "another output.path begins a new run" in said, said)
    # Epochs that end it; auto, which says other numbers in config.yaml.
    first = run(space, 0, AUTO, "train.batch_size=auto", "train.total_batch_size=16")
    steps = len(steps_of(first.output))
    ended(space, 0, first.output, steps, "train.batch_size=auto", "train.total_batch_size=16")
    ended(space, 0, first.output, steps, "train.batch_size=16")  # as many samples a step
    # Each command of the advice.
    again = run(space, 0, f"output.path={first.output}", "checkpoint.resume=never", "output.overwrite=true", "train.max_steps=1")
    check(len(steps_of(first.output)) == 1, again)


@test
def a_longer_run_goes_on_from_the_checkpoint_before_the_end(space):
    ranks = ranks_up_to(2)
    settings = ("output.save_model=true",)
    first = run(space, ranks, *settings, "train.max_steps=2", "checkpoint.every_steps=2")
    output = first.output
    not_ended(space, ranks, output, *settings, "train.max_steps=3")
    check([path.name for path in (output / "checkpoints").glob("step-*")] == ["step-00000002"], "a final checkpoint")
    said = ended(space, ranks, output, 3, *settings, "train.max_steps=3")
    check(f"a larger train.max_steps trains on from {checkpoint(output, 2)}, " in said, said)
    longer = not_ended(space, ranks, output, *settings, "train.max_steps=5")
    check("after 2 steps, from" in longer.out and [step for step, _, _ in steps_of(output)] == [2, 3, 4], longer)
    ended(space, ranks, output, 5, *settings, "train.max_steps=5")
    # With a checkpoint at the end, and a schedule by which no longer run is the same.
    whole = run(space, 0, "train.max_steps=2", "checkpoint.every_steps=1", "train.lr_schedule=cosine")
    said = ended(space, 0, whole.output, 2, "train.max_steps=2", "checkpoint.every_steps=1", "train.lr_schedule=cosine")
    check("trains on" not in said, said)


@test
def what_is_asked_for_and_not_there_is_made(space):
    settings = ("train.max_steps=3", "output.save_model=true")
    first = run(space, 0, *settings, "checkpoint.every_steps=2", "checkpoint.keep=9")
    output, model = first.output, model_of(first.output)
    ended(space, 0, output, 3, *settings)
    # Killed before the model had its name, and before the last row.
    for spoil in (lambda: shutil.rmtree(output / "model"),
                  lambda: (output / "model").rename(output / "model.partial"),
                  lambda: (output / "metrics.jsonl").write_text("".join(
                      line for line in (output / "metrics.jsonl").read_text().splitlines(True) if '"end"' not in line)),
                  lambda: shutil.rmtree(checkpoint(output, 3))):
        spoil()
        if (output / "model").exists() and '"end"' in (output / "metrics.jsonl").read_text():
            ended(space, 0, output, 3, *settings)  # the last checkpoint alone is no loss
            continue
        not_ended(space, 0, output, *settings)
        check(model_of(output) == model, "another model")
        ended(space, 0, output, 3, *settings)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    check(rows[-1]["event"] == "end" and rows[-1]["total_steps"] == 3 and rows[-1]["reason"] == "done", rows[-1])


@test
def another_run_is_not_taken_for_it(space):
    settings = ("train.max_steps=2", "output.save_model=true")
    first = run(space, 0, *settings)
    before = state(first.output)
    moved = space.copy(space.data)
    for other in ("train.lr=2.0e-3", "train.seed=5", "train.batch_size=2", f"data.path={moved}", "output.save_dtype=bf16"):
        refused = start(space, 0, f"output.path={first.output}", AUTO, *settings, other)
        check(refused.status == 1 and "holds another run's results" in refused.err and "has ended" not in refused.out, refused)
    refused = start(space, 0, f"output.path={first.output}", *settings)  # and without auto as before
    check(refused.status == 1 and "holds another run's results" in refused.err, refused)
    check(state(first.output) == before, "something was written")
    ended(space, 0, first.output, 2, *settings, "data.num_workers=2")


@test
def a_run_that_ended_early_has_ended(space):
    settings = ("data.val_split_fraction=0.5", "train.val_check_interval=1", "train.early_stopping_patience=1", "train.lr=1.0e-12",
                "train.max_steps=6", "train.max_epochs=9", "checkpoint.every_steps=1")
    first = run(space, 0, *settings)
    steps = len(steps_of(first.output))
    check(steps < 6 and "early stop" in first.out, first)
    said = ended(space, 0, first.output, steps, *settings)
    check(f"a larger train.early_stopping_patience trains on from {checkpoint(first.output, steps)}" in said, said)
    more = not_ended(space, 0, first.output, *settings, "train.early_stopping_patience=0")
    check(len(steps_of(first.output)) == 6 - steps, more)


if __name__ == "__main__":
    sys.exit(run_tests("ended_run_test", Space, PROGRAM))
