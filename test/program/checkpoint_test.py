#!/usr/bin/env python3
"""Checkpoints and resume, in the whole program: the run that goes on is the run that never stopped."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import h5py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (DEVICE, PROGRAM, ROOT, Space, checkpoint, command_line, environment, model_of, mpirun,  # noqa: E402
                          on_machines, ranks_up_to, read_safetensors, run, saved_model, start, steps_of, write_index)
from script_tests import Skip, check, run_tests, test  # noqa: E402

STEPS = 4

# name: ranks (0: without mpirun) and what makes the run. Each has another optimizer, precision or schedule.
RUNS = {
    "single": (0, ["train.precision=bf16-mixed", "train.accumulate_grad_batches=2", "train.dropout=true",
                   "train.lr_schedule=cosine", "train.warmup_steps=1"]),
    "ddp": (2, ["parallel.strategy=ddp", "train.precision=bf16-true", "train.stochastic_rounding=true"]),
    "fsdp": (ranks_up_to(3), ["parallel.strategy=fsdp", "train.optim=adamw8bit", "train.gradient_clip_val=1"]),
    "hybrid": (4, ["parallel.strategy=fsdp", "parallel.shard_ranks=2", "train.batch_size=2",
                   "train.precision=bf16-mixed", "train.dropout=true"]),
}


def whole_run(space, name, *overrides):
    ranks, settings = RUNS[name]
    return run(space, ranks, *settings, f"train.max_steps={STEPS}", "checkpoint.every_steps=1", "checkpoint.keep=99",
               "output.save_model=true", *overrides)


def resumed(space, ranks, settings, source, step, *overrides):
    return run(space, ranks, *settings, f"train.max_steps={STEPS}", f"checkpoint.resume={checkpoint(source, step)}",
               "output.save_model=true", *overrides)


def every_step_of(name):
    def every_step(space):
        ranks, settings = RUNS[name]
        whole = whole_run(space, name)
        model, steps = model_of(whole.output), steps_of(whole.output)
        check(len(steps) == STEPS, steps)
        for step in range(1, STEPS + 1):
            part = resumed(space, ranks, settings, whole.output, step)
            check(f"after {step} steps, from" in part.out, part)
            check("rounding may differ" not in part.out, part)
            check(steps_of(part.output) == steps[step:], step, steps_of(part.output), steps)
            check(model_of(part.output) == model, "the model resumed after step", step)
    every_step.__name__ = f"the_same_bits_from_every_step_{name}"
    return test(every_step)


for each in RUNS:
    every_step_of(each)


@test
def another_world_goes_on_with_the_same_run(space):
    of_whole = ranks_up_to(4)
    whole = run(space, of_whole, "parallel.strategy=fsdp", "train.batch_size=2", f"train.max_steps={STEPS}",
                "train.total_batch_size=16", "checkpoint.every_steps=2", "output.save_model=true")
    steps = steps_of(whole.output)
    for ranks, other in ((2, ["parallel.strategy=ddp", "train.batch_size=4"]), (1, ["train.batch_size=8"]),
                         (4, ["parallel.strategy=fsdp", "parallel.shard_ranks=2", "train.batch_size=4"]),
                         (3, ["parallel.strategy=fsdp"])):
        if ranks > of_whole:
            continue
        if ranks == 3:
            refused = start(space, ranks, *other, f"train.max_steps={STEPS}",
                            f"checkpoint.resume={checkpoint(whole.output, 2)}")
            check(refused.status == 1 and "is of another run: the number of samples of a step" in refused.err and
                  "is 12 here, 16 there" in refused.err, refused)
        part = resumed(space, ranks, other, whole.output, 2, "train.total_batch_size=16")
        check("rounding may differ" in part.out and f"ranks {ranks} instead of {of_whole}" in part.out
              or ranks == of_whole, part)
        for mine, theirs in zip(steps_of(part.output), steps[2:], strict=True):
            # Sums of equal samples in another order, in f32: a few roundings of 1e-7 in sums of some 1,000 terms.
            check(mine[0] == theirs[0] and abs(mine[1] / theirs[1] - 1) < 1e-5, mine, theirs)


@test
def a_loss_on_padding_goes_on_with_its_batch_size(space):
    settings = ("train.loss_on_padding=true", "train.total_batch_size=8", f"train.max_steps={STEPS}")
    whole = run(space, 0, *settings, "train.batch_size=8", "checkpoint.every_steps=2")
    source = checkpoint(whole.output, 2)
    refused = start(space, 0, *settings, "train.batch_size=2", f"checkpoint.resume={source}")
    check(refused.status == 1 and "is of another run: train.batch_size (which the padding that train.loss_on_padding "
          "learns depends on) is 2 here, 8 there" in refused.err, refused)
    part = run(space, 0, *settings, "train.batch_size=8", f"checkpoint.resume={source}")
    check(steps_of(part.output) == steps_of(whole.output)[2:], part)


@test
def ranks_dealt_to_machines_in_turn_write_a_whole_checkpoint(space):
    if DEVICE == "cuda":
        raise Skip("the machines that are pretended would share GPUs")
    ranks, settings = 4, ["parallel.strategy=fsdp", "parallel.shard_ranks=node", "train.precision=bf16-mixed",
                          f"train.max_steps={STEPS}", "output.save_model=true"]
    for machines in ("0,1,0,1", "0,1,1,0"):
        before = on_machines(space, machines)
        whole = run(space, ranks, *settings, "checkpoint.every_steps=2", before=before)
        part = run(space, ranks, *settings, f"checkpoint.resume={checkpoint(whole.output, 2)}", before=before)
        check(steps_of(part.output) == steps_of(whole.output)[2:], machines, part)
        check(model_of(part.output) == model_of(whole.output), machines)


@test
def what_lies_in_the_host_is_no_part_of_the_run(space):
    ranks, settings = RUNS["ddp"]
    whole = whole_run(space, "ddp")
    for offload in ("parameters", "optimizer, parameters"):
        part = resumed(space, ranks, settings, whole.output, 2, f"parallel.offload=[{offload}]",
                       "checkpoint.every_steps=1", "checkpoint.keep=9")
        check(steps_of(part.output) == steps_of(whole.output)[2:], offload, part)
        check(model_of(part.output) == model_of(whole.output), "the model of", offload)
        back = resumed(space, ranks, settings, part.output, 3)
        check(model_of(back.output) == model_of(whole.output), "the model of", offload, "and back")


@test
def adapters_go_on(space):
    settings = ["adapter.kind=lora", "adapter.targets=[q, v]", "train.precision=bf16-true", "parallel.strategy=fsdp"]
    whole = run(space, 2, *settings, f"train.max_steps={STEPS}", "checkpoint.every_steps=2", "output.save_model=true")
    part = resumed(space, 2, settings, whole.output, 2)
    check(steps_of(part.output) == steps_of(whole.output)[2:], part)
    check((part.output / "adapter/adapter_model.safetensors").read_bytes() ==
          (whole.output / "adapter/adapter_model.safetensors").read_bytes(), "adapters differ")
    trained = sum(path.stat().st_size for path in checkpoint(whole.output, 2).glob("*.safetensors"))
    check(trained < 400_000, "frozen weights are in the checkpoint:", trained)


@test
def checkpoints_are_plain_safetensors(space):
    output = whole_run(space, "fsdp").output
    index = json.loads((checkpoint(output, 2) / "checkpoint.json").read_text())
    ranks, settings = RUNS["fsdp"]
    check(index["step"] == 2 and len(index["files"]) == ranks, index["files"])
    model = run(space, ranks, *settings, "train.max_steps=2", f"checkpoint.resume={checkpoint(output, 2)}",
                "output.save_model=true").output
    pieces = {}
    for file in index["files"]:
        tensors = read_safetensors(checkpoint(output, 2) / file["name"])
        check(len(tensors) == len(file["pieces"]), file["name"])
        for piece in file["pieces"]:
            whole = f"{piece['tensor']}[{piece['first']}:{piece['first'] + piece['count']}]"
            _, _, data = tensors.get(piece["tensor"]) or tensors[whole]
            pieces.setdefault(piece["tensor"], []).append((piece["first"], data))
    for name, (_, _, data) in model_of(model).items():
        joined = b"".join(part for _, part in sorted(pieces[f"weight/{name}"]))
        check(joined == data, name, "differs from the saved model's")


@test
def states_longer_than_a_chunk_of_their_writing_come_back(space):
    model = space.copy(space.model)
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["vocab_size"] = 200_000  # 25.6 MB each: weights, and two moments; a chunk has 32 MiB
    (model / "config.json").write_text(json.dumps(config))
    ranks, settings = 0, [f"model.path={model}", "data.text_padding=longest", "train.batch_size=2"]
    whole = run(space, ranks, *settings, "train.max_steps=2", "checkpoint.every_steps=1", "checkpoint.keep=9",
                "output.save_model=true")
    (state,) = checkpoint(whole.output, 1).glob("*.safetensors")
    check(state.stat().st_size > 70e6, state.stat().st_size)
    part = run(space, ranks, *settings, "train.max_steps=2", f"checkpoint.resume={checkpoint(whole.output, 1)}",
               "output.save_model=true")
    check(steps_of(part.output) == steps_of(whole.output)[1:] and model_of(part.output) == model_of(whole.output), part)


@test
def a_checkpoint_is_exported_as_a_model(space):
    for settings in (["train.precision=bf16-mixed", "train.optim=adamw8bit", "model.freeze=[vision]"],
                     ["adapter.kind=lora", "output.save_merged=true"]):
        pretrained = [f"model.path={saved_model(space)}", "model.init=pretrained", *settings, "parallel.strategy=fsdp"]
        whole = run(space, 2, *pretrained, "train.max_steps=3", "checkpoint.every_steps=3", "output.save_model=true")
        target = space.new()
        done = start(space, 0, f"output.path={target}", config=f"--export={checkpoint(whole.output, 3)}")
        check(done.status == 0 and f"model      {target}" in done.out, done)
        names = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
        check(names and all((target / name).read_bytes() == (whole.output / name).read_bytes() for name in names), names)
        check(any(name.endswith("model.safetensors") for name in names), names)
        newest = start(space, 0, f"output.path={space.new()}", config=f"--export={whole.output}")
        check(newest.status == 0 and f"checkpoint {checkpoint(whole.output, 3)}, after 3 steps" in newest.out, newest)
    nowhere = start(space, 0, config=f"--export={checkpoint(whole.output, 9)}")
    check(nowhere.status == 1 and "step-00000009: no checkpoint is there" in nowhere.err, nowhere)
    bare = mpirun(0, [PROGRAM, "--export", checkpoint(whole.output, 3)])
    check(bare[0] == 1 and "needs output.path=FOLDER" in bare[2], bare)


@test
def the_last_are_kept_and_auto_takes_the_newest(space):
    output = space.new()
    common = ["parallel.strategy=fsdp", f"output.path={output}", "checkpoint.every_steps=1", "checkpoint.resume=auto"]
    first = run(space, 2, *common, "train.max_steps=3")
    check("resume " not in first.out, first)
    check(sorted(path.name for path in (output / "checkpoints").iterdir()) == ["blipft.json", "step-00000002",
                                                                               "step-00000003"],
          list((output / "checkpoints").iterdir()))
    (output / "checkpoints/step-00000009.partial").mkdir()  # as a killed run leaves it
    longer = run(space, 2, *common, "train.max_steps=4")
    check("after 3 steps, from" in longer.out and [step for step, _, _ in steps_of(output)] == [3], longer)
    check(sorted(path.name for path in (output / "checkpoints").glob("step-*")) == ["step-00000003", "step-00000004"],
          list((output / "checkpoints").iterdir()))


@test
def damaged_checkpoints_are_refused_by_name(space):
    output = whole_run(space, "single").output
    ranks, settings = RUNS["single"]

    def refused(spoil, *expected):
        folder = space.new("checkpoint")
        shutil.copytree(checkpoint(output, 2), folder)
        file = next(folder.glob("state*"))
        spoil(folder, file)
        result = start(space, ranks, *settings, f"train.max_steps={STEPS}", f"checkpoint.resume={folder}")
        check(result.status == 1 and all(text in result.err for text in expected), expected, result)
        check(len(result.err) < 2000, result)

    def cut(_, file):
        os.truncate(file, file.stat().st_size - 1)

    def flip(_, file):
        data = bytearray(file.read_bytes())
        data[-1000] ^= 4
        file.write_bytes(data)

    def edit(change):
        def spoil(folder, _):
            index = json.loads((folder / "checkpoint.json").read_text())
            change(index)
            write_index(folder, index)
        return spoil

    refused(cut, "state-00000-of-00001.safetensors", "bytes, expected", "resume from another")
    refused(flip, "state-00000-of-00001.safetensors", "checksum", "resume from another")
    refused(lambda folder, file: file.unlink(), "state-00000-of-00001.safetensors", "cannot be opened",
            "resume from another")
    refused(lambda folder, _: (folder / "checkpoint.json").write_text('{"format": "blipft'), "checkpoint.json",
            "damaged")
    refused(edit(lambda index: index.update(version=3)), "checkpoint.json", "version 3")

    def old(folder, _):
        index = json.loads((folder / "checkpoint.json").read_text())
        index.pop("crc32c"), index.update(version=1)
        (folder / "checkpoint.json").write_text(json.dumps(index))
    refused(old, "checkpoint.json", "version 1 of the format, which has no checksum", "(commit ")
    refused(edit(lambda index: index["files"][0]["pieces"].pop()), "has no tensor")
    refused(edit(lambda index: index["files"][0]["pieces"][0].update(first=-1)), "checkpoint.json")
    refused(edit(lambda index: index["files"][0]["pieces"][0].update(offset=2**62)), "checkpoint.json")
    missing = start(space, 0, "checkpoint.resume=/no/such/checkpoint")
    check(missing.status == 1 and "/no/such/checkpoint is no folder" in missing.err, missing)
    other = start(space, ranks, *settings, f"train.max_steps={STEPS}", "train.lr=0.5", "train.seed=9",
                  f"checkpoint.resume={checkpoint(output, 2)}")
    check(other.status == 1 and "is of another run" in other.err and "train.lr is 0.5 here, 0.001 there" in other.err
          and "train.seed is 9 here, 0 there" in other.err, other)
    folder = space.new()
    run(space, 0, "train.max_steps=2", "train.lr_schedule=cosine", "checkpoint.every_steps=1", f"output.path={folder}")
    longer = start(space, 0, "train.max_steps=4", "train.lr_schedule=cosine", f"output.path={folder}", "checkpoint.resume=auto")
    check(longer.status == 1 and "train.max_steps is 4 here, 2 there. The learning rate (train.lr_schedule=cosine) depends on the run's length" in longer.err
          and "as adapter.path" in longer.err, longer)


@test
def what_changes_nothing_so_far_may_be_given_when_resuming(space):
    data = space.copy(space.data)
    lines = (data / "metadata.jsonl").read_text().splitlines()
    (data / json.loads(lines[30])["file_name"]).write_bytes(b"no picture")
    settings = (f"data.path={data}", "data.shuffle=false", "train.max_steps=10", "checkpoint.every_steps=1",
                "checkpoint.keep=99", "output.save_model=true")  # the picture is in the eighth step
    skip = ("data.on_bad_sample=skip", "train.on_nonfinite=skip")
    whole = run(space, 0, *settings, *skip)
    stopped = start(space, 0, *settings)
    check(stopped.status == 1 and "no picture" not in stopped.out and not checkpoint(stopped.output, 8).exists(), stopped)
    others = ("data.allow_outside=true", "data.val_path=" + str(space.data), "train.val_check_interval=2",
              "train.limit_val_batches=1", "checkpoint.keep=2", "checkpoint.every_minutes=9", "parallel.timeout_seconds=99",
              "trace.sample_seconds=0.5", "output.memory_every=3", "output.progress_seconds=0", "data.num_workers=2",
              "train.act_ckpt=full")
    part = run(space, 0, *settings, *skip, *others, f"checkpoint.resume={checkpoint(stopped.output, 5)}")
    check(steps_of(part.output) == steps_of(whole.output)[5:], part)
    check(model_of(part.output) == model_of(whole.output), "other weights")
    told, = [line for line in part.out.splitlines() if line.startswith("changed ")]
    for text in ("data.on_bad_sample skip instead of stop", "train.on_nonfinite skip instead of stop",
                 "checkpoint.keep 2 instead of 99", "parallel.timeout_seconds 99 instead of 60", "train.val_check_interval 2"):
        check(text in told, text, told)
    check("output.path" not in told and "resume" not in told, told)
    with h5py.File(part.output / "trace.rank0000.h5") as trace:
        noted = trace.attrs["changed_keys"]
        check((noted.decode() if isinstance(noted, bytes) else noted) == told.split(None, 1)[1], noted, told)
    again = run(space, 0, *settings, *skip, f"checkpoint.resume={checkpoint(whole.output, 9)}")
    check("changed " not in again.out, again)
    refused = start(space, 0, *settings, *skip, "train.momentum=0.5", "train.optim=sgd", "data.shuffle=true",
                    f"checkpoint.resume={checkpoint(stopped.output, 5)}")
    check(refused.status == 1 and "train.optim is sgd here, adamw there" in refused.err and "data.shuffle" in refused.err,
          refused)


@test
def other_files_are_refused(space):
    ranks, settings = RUNS["single"]
    output = whole_run(space, "single").output
    data, model = space.copy(space.data), space.copy(space.model)
    same = resumed(space, ranks, [*settings, f"data.path={data}", f"model.path={model}"], output, 2)  # moved
    check(steps_of(same.output) == steps_of(output)[2:], same)
    with open(data / "metadata.jsonl", "a") as file:
        file.write(json.dumps({"file_name": json.loads(open(data / "metadata.jsonl").readline())["file_name"],
                               "text": "one more"}) + "\n")
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text() + " ")
    for other, expected in ((f"data.path={data}", "the data at data.path is 49 samples"),
                            (f"model.path={model}", "model file tokenizer.json is")):
        refused = start(space, ranks, *settings, other, f"train.max_steps={STEPS}",
                        f"checkpoint.resume={checkpoint(output, 2)}")
        check(refused.status == 1 and expected in refused.err, refused)


@test
def a_checkpoint_that_cannot_be_written_is_told(space):
    blocked = space.new("blocked")
    blocked.write_text("a file where the folder would be")
    for path in (blocked, f"{blocked}/x"):
        refused = start(space, 2, "train.max_steps=3", "checkpoint.every_steps=1", f"checkpoint.path={path}")
        check(refused.status == 1 and "checkpoint.path: cannot create the folder" in refused.err, refused)
    output = space.new()
    command = command_line(2, [PROGRAM, space.config, "parallel.strategy=fsdp", "train.max_steps=40", "train.max_epochs=9",
                               "checkpoint.every_steps=1", f"output.path={output}"])
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("step "):
            break
    (output / "checkpoints").rename(output / "gone")
    (output / "checkpoints").write_text("a file where the folder was")
    out, err = process.communicate(timeout=120)
    check("warning: the checkpoint after" in out and "was not written" in out, out, err)
    check(process.returncode == 1 and "the checkpoint after 40 steps was not written" in err, out, err)
    check("the newest that is whole is " in err or "this run has none that is whole" in err, out, err)


@test
def a_model_is_saved_though_its_last_checkpoint_is_not(space):
    output = space.new()
    command = command_line(2, [PROGRAM, space.config, "parallel.strategy=fsdp", "train.max_steps=30", "train.max_epochs=9",
                               "checkpoint.every_steps=30", "output.save_model=true", f"output.path={output}"])
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("step "):
            break
    (output / "checkpoints").rename(space.new("gone"))
    (output / "checkpoints").write_text("a file where the folder was")
    out, err = process.communicate(timeout=120)
    check(process.returncode == 1 and "the checkpoint after 30 steps was not written" in err, out, err)
    check("model      " in out and len(model_of(output)) > 10, out, err)
    # So resume=auto does not take it for one that has ended.
    row = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    check(row["event"] == "end" and row["reason"].startswith("the checkpoint after 30 steps was not written"), row)


@test
def resume_auto_removes_no_checkpoint_that_is_whole(space):
    first = run(space, 0, "train.max_steps=2", "checkpoint.every_steps=1")
    here = f"output.path={first.output}"
    there = sorted((first.output / "checkpoints").glob("step-*"))
    refused = start(space, 0, "train.max_steps=3", "checkpoint.resume=auto", here, f"checkpoint.path={space.new()}")
    check(refused.status == 1 and "holds another run's results" in refused.err, refused)
    # A link to a disk that is not mounted is no folder without checkpoints.
    moved = space.new("moved")
    (first.output / "checkpoints").rename(moved)
    (first.output / "checkpoints").symlink_to(space.folder / "not_mounted")
    refused = start(space, 0, "train.max_steps=3", "checkpoint.resume=auto", here)
    check(refused.status == 1 and "checkpoints: cannot be looked at for checkpoints" in refused.err, refused)
    (first.output / "checkpoints").unlink()
    moved.rename(first.output / "checkpoints")
    check(sorted((first.output / "checkpoints").glob("step-*")) == there and
          (first.output / "trace.rank0000.h5").exists(), there)
    # The number of steps stands in the name and in the index.
    path = there[-1] / "checkpoint.json"
    text = path.read_text()
    write_index(path.parent, {**json.loads(text), "step": 5})
    refused = start(space, 0, "train.max_steps=9", "checkpoint.resume=auto", here)
    check(refused.status == 1 and "checkpoint.json: step 5, but the folder's name says 2" in refused.err, refused)
    path.write_text(text)
    run(space, 0, "train.max_steps=3", "checkpoint.resume=auto", here)


@test
def an_export_replaces_nothing_unasked(space):
    first = run(space, 0, "train.max_steps=1", "checkpoint.every_steps=1", "output.save_model=true",
                "output.overwrite=true")
    def export(*more):
        return subprocess.run([PROGRAM, "--export", checkpoint(first.output, 1), f"output.path={first.output}", *more],
                              cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    refused = export()
    check(refused.returncode == 1 and "model is there already" in refused.stderr, refused)
    model = model_of(first.output)
    done = export("output.overwrite=true")
    check(done.returncode == 0 and model_of(first.output) == model, done)
    (first.output / "run.lock").write_text("someone's")
    refused = export("output.overwrite=true")
    check(refused.returncode == 1 and "in use by another run" in refused.stderr, refused)


@test
def a_path_in_another_encoding_is_no_reason_to_lose_a_checkpoint(space):
    data = os.fsencode(space.folder) + b"/caf\xe9"
    os.symlink(space.data, data)
    output = space.new()
    for more in (["train.max_steps=2", "checkpoint.every_steps=1"], ["train.max_steps=3", "checkpoint.resume=auto"]):
        done = subprocess.run([PROGRAM, space.config, b"data.path=" + data, f"output.path={output}", *more], cwd=ROOT,
                              env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        check(done.returncode == 0, done)
    check(b"after 2 steps, from" in done.stdout, done)


@test
def runs_with_one_folder_of_checkpoints_do_not_remove_each_others(space):
    shared = space.new("shared")
    first = run(space, 2, "parallel.strategy=fsdp", "train.max_steps=2", "checkpoint.every_steps=1", "checkpoint.keep=2",
                f"checkpoint.path={shared}")
    there = sorted(path.name for path in shared.iterdir())
    check(there == ["blipft.json", "step-00000001", "step-00000002"], there)
    (shared / "notes.txt").write_text("kept")
    other = ("train.max_steps=1", "checkpoint.every_steps=1", "train.seed=7", f"checkpoint.path={shared}")
    refused = start(space, 0, *other)
    check(refused.status == 1 and "checkpoint.path: " in refused.err and
          "holds another run's checkpoints (step-00000001, step-00000002)" in refused.err, refused)
    refused = start(space, 0, *other, "checkpoint.resume=auto")
    check(refused.status == 1 and "train.seed" in refused.err, refused)
    (shared / "run.lock").write_text("blipft works in this folder; the file goes when the run ends\nhost: elsewhere\n")
    refused = start(space, 2, "parallel.strategy=fsdp", "train.max_steps=3", "checkpoint.every_steps=1",
                    f"checkpoint.path={shared}", "checkpoint.resume=auto")
    check(refused.status == 1 and f"{shared}/run.lock" in refused.err and "in use by another run" in refused.err, refused)
    (shared / "run.lock").unlink()
    check(sorted(path.name for path in shared.iterdir()) == sorted(["notes.txt", *there]), list(shared.iterdir()))
    # Other programs call their folders so, too.
    (shared / "step-500").mkdir()
    (shared / "step-500/weights").write_text("another's")
    run(space, 0, *other, "output.overwrite=true")
    check(sorted(path.name for path in shared.iterdir()) == ["blipft.json", "notes.txt", "step-00000001", "step-500"],
          list(shared.iterdir()))
    # Going on from elsewhere is no leave to remove what lies here.
    another = run(space, 0, "train.max_steps=1", "checkpoint.every_steps=1").output / "checkpoints"
    refused = start(space, 0, "train.max_steps=3", "train.seed=7", f"checkpoint.path={another}",
                    f"checkpoint.resume={shared}/step-00000001")
    check(refused.status == 1 and "(step-00000001)" in refused.err, refused)
    # The run's own folder in another spelling.
    output = space.new()
    for more in (["train.max_steps=1"], ["train.max_steps=2", "checkpoint.resume=auto"]):
        run(space, 0, "checkpoint.every_steps=1", f"output.path={output}", f"checkpoint.path={output}/../{output.name}/checkpoints/",
            *more)
    check(sorted(path.name for path in (output / "checkpoints").glob("step-*")) == ["step-00000001", "step-00000002"],
          output)
    refused = start(space, 0, "train.max_steps=1", f"output.path={space.folder}/nested",
                    f"checkpoint.path={space.folder}/nested/checkpoints/sub")
    check(refused.status == 1 and "the run's own folder of checkpoints" in refused.err, refused)
    check(first.status == 0, first)


if __name__ == "__main__":
    sys.exit(run_tests("checkpoint_test", Space, PROGRAM))
