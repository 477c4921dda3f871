#!/usr/bin/env python3
"""Inputs of a run, compared by content: between its ranks, and between its parts. Files have the same names, sizes and
headers, and other weights or words.

    python3 test/program/contents_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

os.environ.setdefault("OMPI_MCA_odls_base_sigkill_timeout", "0")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (PROGRAM, ROOT, Space, checkpoint, command_line, environment, model_of, ranks_up_to, run,  # noqa: E402
                          saved_model, start, steps_of)
from script_tests import check, run_tests, test  # noqa: E402

DATA = r"contents of the data at data\.path is digest \w+ .*, but on rank 0 .*; give all machines the same data"


def start_apart(space, common, first, second):
    """Two ranks, each with options of its own besides `common`; a folder among these options is where it starts."""
    output = space.new()

    def rank(own):
        folders = [["-wdir", one] for one in own if isinstance(one, pathlib.Path)]
        options = [one for one in own if not isinstance(one, pathlib.Path)]
        return [*sum(folders, []), PROGRAM, space.config, f"output.path={output}", *common, *options]
    command = list(map(str, [*command_line(1, rank(first)), ":", "-np", "1", *rank(second)]))
    done = subprocess.run(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=180)
    return done, output


def refused_apart(space, pattern, common, first, second):
    done, output = start_apart(space, ["checkpoint.every_steps=1", "output.save_model=true", "train.max_steps=4", *common],
                               first, second)
    messages = [line for line in done.stderr.splitlines() if line.startswith("blipft: ")]
    check(done.returncode == 1 and len(messages) == 1 and re.search(rf"^blipft: rank 1 on .*: {pattern}", messages[0]),
          pattern, done)
    left = [str(path) for path in output.rglob("*") if path.name in ("checkpoint.json", "model", "adapter")]
    check(not left, "a model that is nobody's:", left)


def with_other_bytes(file):
    """One bit of the last tensor."""
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def other_copy(space, model, name="model.safetensors"):
    copy = space.copy(model)
    with_other_bytes(copy / name)
    return copy


class Texts:
    """A text model, and records of two files that differ by a word of the same length."""

    def __init__(self, space):
        folder = space.new("texts")
        subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(folder), "--samples", "60"],
                       check=True, stdout=subprocess.DEVNULL)
        path = folder / "model/config.json"
        config = json.loads(path.read_text())
        config.update(hidden_size=32, intermediate_size=48, num_hidden_layers=1)
        path.write_text(json.dumps(config))
        self.model, self.data = folder / "model", folder / "data/instructions.jsonl"
        self.other = folder / "other/instructions.jsonl"
        self.other.parent.mkdir()
        lines = self.data.read_text().splitlines(keepends=True)
        record = json.loads(lines[40])
        record["output"] = "".join("x" if letter.isalnum() else letter for letter in record["output"])
        lines[40] = lines[40].replace(json.dumps(json.loads(lines[40])["output"]), json.dumps(record["output"]))
        self.other.write_text("".join(lines))
        before, after = self.data.read_bytes(), self.other.read_bytes()
        check(len(before) == len(after) and before != after, lines[40])
        self.settings = (f"model.path={self.model}", "data.max_text_tokens=64")


_texts = {}


def texts_of(space):
    if space not in _texts:
        _texts[space] = Texts(space)
    return _texts[space]


@test
def ranks_that_read_other_weights_end(space):
    model = saved_model(space)
    other = other_copy(space, model)
    pattern = (r"model file model\.safetensors: bytes \d+ to \d+ have the checksum \d+, but on rank 0 .* \d+; give all "
               "machines the same files")
    for settings in (["parallel.strategy=ddp"], ["parallel.strategy=fsdp"],
                     ["parallel.strategy=fsdp", "adapter.kind=lora", "model.quantize=nf4"],
                     ["parallel.strategy=ddp", "parallel.offload=[parameters]"]):
        refused_apart(space, pattern, ["model.init=pretrained", *settings], [f"model.path={model}"],
                      [f"model.path={other}"])
    # One relative path, from two folders.
    first, second = space.new("first"), space.new("second")
    for folder, source in ((first, model), (second, other)):
        folder.mkdir()
        shutil.copytree(source, folder / "model")
    refused_apart(space, pattern, ["model.init=pretrained", "model.path=model"], [first], [second])


@test
def ranks_with_copies_of_the_same_train_the_same(space):
    model = saved_model(space)
    losses = []
    for second in (model, space.copy(model)):
        done, output = start_apart(space, ["model.init=pretrained", "parallel.strategy=fsdp", "train.max_steps=2"],
                                   [f"model.path={model}"], [f"model.path={second}"])
        check(done.returncode == 0, done)
        losses.append(steps_of(output))
    check(losses[0] == losses[1], losses)


@test
def ranks_that_begin_with_other_adapters_end(space):
    lora = ("adapter.kind=lora", "adapter.r=2")
    adapter = run(space, 0, *lora, "train.max_steps=1", "output.save_model=true").output / "adapter"
    other = other_copy(space, adapter, "adapter_model.safetensors")
    refused_apart(space, r"adapter file adapter_model\.safetensors: bytes", lora, [f"adapter.path={adapter}"],
                  [f"adapter.path={other}"])


@test
def ranks_that_read_other_words_end(space):
    texts = texts_of(space)
    for strategy in ("ddp", "fsdp"):
        refused_apart(space, DATA, [*texts.settings, f"parallel.strategy={strategy}"], [f"data.path={texts.data}"],
                      [f"data.path={texts.other}"])
    refused_apart(space, DATA.replace("path", "val_path"),
                  [*texts.settings, f"data.path={texts.data}"], [f"data.val_path={texts.data}"],
                  [f"data.val_path={texts.other}"])


@test
def ranks_with_another_chat_template_at_the_same_path_end(space):
    texts = texts_of(space)
    folders = [space.new("first"), space.new("second")]
    for folder, role in zip(folders, ("user", "User")):
        folder.mkdir()
        (folder / "t.jinja").write_text("{% for m in messages %}<" + role + ">{{ m.content }}<end>{% endfor %}")
    records = folders[0] / "chat.jsonl"
    messages = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]
    records.write_text((json.dumps({"messages": messages}) + "\n") * 60)
    options = [*texts.settings, "parallel.strategy=ddp", f"data.path={records}", "data.chat_template=t.jinja"]
    pattern = r"the text of data\.chat_template is \d+ bytes, \w+ \(t\.jinja\), but on rank 0 .*; give all machines the same "
    refused_apart(space, pattern + "data", options, [folders[0]], [folders[1]])
    refused_apart(space, pattern + "files", ["--generate", *options], [folders[0]], [folders[1]])


@test
def ranks_that_read_other_pictures_or_captions_of_tars_end(space):
    pictures = space.copy(space.data)
    name = json.loads((pictures / "metadata.jsonl").read_text().splitlines()[7])["file_name"]
    with_other_bytes(pictures / name)
    refused_apart(space, DATA, [], [f"data.path={space.data}"], [f"data.path={pictures}"])
    tars = []
    for word in ("red", "tan"):
        folder = space.new("tars")
        folder.mkdir()
        tars.append(folder)
        with tarfile.open(folder / "0.tar", "w") as tar:
            for i, line in enumerate((space.data / "metadata.jsonl").read_text().splitlines()):
                row = json.loads(line)
                caption = (row["text"] + (" in " + word if i == 20 else "")).encode()
                member = tarfile.TarInfo(f"{i:04d}.txt")
                member.size = len(caption)
                tar.addfile(member, io.BytesIO(caption))
                picture = space.data / row["file_name"]
                tar.add(picture, f"{i:04d}{picture.suffix}")
    refused_apart(space, DATA, [], [f"data.path={tars[0]}"], [f"data.path={tars[1]}"])


@test
def ranks_that_read_other_captions_beside_pictures_end(space):
    folders = [space.new("captions"), space.new("captions")]
    for folder, word in zip(folders, ("red", "tan")):
        folder.mkdir()
        for i, line in enumerate((space.data / "metadata.jsonl").read_text().splitlines()):
            row = json.loads(line)
            picture = space.data / row["file_name"]
            shutil.copy(picture, folder / f"{i:04d}{picture.suffix}")
            (folder / f"{i:04d}.txt").write_text(row["text"] + (" in " + word if i == 20 else "") + "\n")
    refused_apart(space, DATA, [], [f"data.path={folders[0]}"], [f"data.path={folders[1]}"])


@test
def frozen_weights_that_were_replaced_are_refused_on_resume_and_export(space):
    model = space.copy(saved_model(space))
    settings = (f"model.path={model}", "model.init=pretrained", "adapter.kind=lora", "train.total_batch_size=8",
                "output.save_model=true", "train.max_steps=4")
    whole = run(space, 2, *settings, "parallel.strategy=fsdp", "checkpoint.every_steps=2")
    source = f"checkpoint.resume={checkpoint(whole.output, 2)}"
    # Whoever reads which part of the files, their digest is the same.
    for ranks, more in ((0, ["train.batch_size=8"]), (ranks_up_to(4), ["parallel.strategy=fsdp", "train.batch_size=2"])):
        part = run(space, ranks, *settings, *more, source, "checkpoint.every_steps=2")
        kept = [json.loads((checkpoint(output, 4) / "checkpoint.json").read_text())["run"]
                for output in (whole.output, part.output)]
        names = [name for name in kept[0] if name.startswith("contents of ")]
        check(len(names) == 2 and all(kept[0][name] == kept[1][name] for name in names), kept)
    data = (model / "model.safetensors").read_bytes()
    with_other_bytes(model / "model.safetensors")
    for ranks, more in ((2, ["parallel.strategy=fsdp"]), (0, ["train.batch_size=8"])):
        refused = start(space, ranks, *settings, *more, source, "checkpoint.every_steps=1")
        check(refused.status == 1 and "contents of model file model.safetensors is digest" in refused.err and
              "give the run the files that it began with" in refused.err, refused)
        check(not list(refused.output.rglob("checkpoint.json")) and not (refused.output / "adapter").exists(), refused)
    exported = start(space, 0, f"output.path={space.new()}", config=f"--export={checkpoint(whole.output, 2)}")
    check(exported.status == 1 and "contents of model file model.safetensors" in exported.err, exported)
    (model / "model.safetensors").write_bytes(data)
    run(space, 2, *settings, "parallel.strategy=fsdp", source)


@test
def answers_that_were_changed_are_refused_on_resume(space):
    texts = texts_of(space)
    data = space.new("records").with_suffix(".jsonl")
    shutil.copy(texts.data, data)
    settings = (*texts.settings, f"data.path={data}", f"data.val_path={texts.data}", "train.max_steps=4", "train.batch_size=4",
                "output.save_model=true")
    whole = run(space, 0, *settings, "checkpoint.every_steps=2")
    source = f"checkpoint.resume={checkpoint(whole.output, 2)}"
    shutil.copy(texts.other, data)
    refused = start(space, 0, *settings, source, "checkpoint.every_steps=1")
    check(refused.status == 1 and "contents of the data at data.path is digest" in refused.err and
          not list(refused.output.rglob("checkpoint.json")) and not (refused.output / "model").exists(), refused)
    # Nothing is learnt from what validates.
    shutil.copy(texts.data, data)
    part = run(space, 0, *settings, source, f"data.val_path={texts.other}")
    check("warning: changed since the checkpoint: contents of the data at data.val_path digest" in part.out + part.err, part)
    check(model_of(part.output) == model_of(whole.output), "other weights")


if __name__ == "__main__":
    sys.exit(run_tests("contents_test", Space, PROGRAM))
