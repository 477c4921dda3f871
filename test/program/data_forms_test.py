#!/usr/bin/env python3
"""Whole runs: how long they are without train.max_epochs, and data in the forms that people have.

    python3 test/program/data_forms_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import csv
import gzip
import json
import os
import pathlib
import sys

os.environ.setdefault("OMPI_MCA_odls_base_sigkill_timeout", "0")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, Space, TwoModels, checkpoint, mpirun, run, start, steps_of, trained  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

EPOCH = ("train.total_batch_size=12", "train.batch_size=4")  # four steps an epoch


def entries(folder):
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


@test
def steps_alone_do_not_limit_the_epochs(space):
    result = run(space, 1, *EPOCH, "train.max_steps=10")
    check(len(result.losses()) == 10, result)
    check("4 steps an epoch, 10 steps in all (2.5 epochs)" in result.out, result)
    check("max_epochs: -1\n" in (result.output / "config.yaml").read_text(), "config.yaml")
    for options, steps in ((("train.max_steps=10", "train.max_epochs=1"), 4), (("train.max_steps=3", "train.max_epochs=2"), 3),
                           ((), 4), (("train.max_epochs=2",), 8)):
        both = run(space, 1, *EPOCH, *options)
        check(len(both.losses()) == steps and "epochs)" not in both.out, options, both)
    shown = mpirun(1, [PROGRAM, space.config, "--plan", *EPOCH, "train.max_steps=10"])
    check(shown[0] == 0, shown)
    endless = start(space, 1, "train.max_epochs=-1")
    check(endless.status == 1 and "train.max_epochs: is -1, but train.max_steps is -1. Set one" in endless.err, endless)


@test
def a_run_of_steps_goes_on_over_the_end_of_an_epoch(space):
    for schedule in ("constant", "cosine"):
        options = (*EPOCH, "train.max_steps=10", f"train.lr_schedule={schedule}", "checkpoint.every_steps=6", "checkpoint.keep=9")
        whole = run(space, 1, *options)
        resumed = run(space, 1, *options, f"checkpoint.resume={checkpoint(whole.output, 6)}")
        check(list(resumed.losses()) == list(whole.losses()[6:]), schedule, whole, resumed)
        check(steps_of(resumed.output) == steps_of(whole.output)[6:], schedule)
    # config.yaml of the run says how long it is, also where it was begun with one epoch.
    short = run(space, 1, *EPOCH, "train.max_steps=10", "train.max_epochs=1", "train.lr_schedule=cosine", "checkpoint.every_steps=2",
                "checkpoint.keep=9")
    refused = start(space, 1, *EPOCH, "train.max_steps=10", "train.lr_schedule=cosine",
                    f"checkpoint.resume={checkpoint(short.output, 2)}")
    check(refused.status == 1 and "train.max_epochs is -1 here, 1 there" in refused.err, refused)


@test
def a_table_of_pictures_trains_as_the_folder_does(space):
    expected = run(space, 1, *EPOCH)
    for name, separator, column in (("captions.csv", ",", "image"), ("train.csv", ";", "photo"), ("t.tsv.gz", "\t", "file name")):
        folder = space.copy(space.data)
        rows = entries(folder)
        (folder / "metadata.jsonl").unlink()
        with (gzip.open if name.endswith(".gz") else open)(folder / name, "wt", newline="", encoding="utf-8") as out:
            table = csv.writer(out, delimiter=separator)
            table.writerow([column, "caption"])
            table.writerows([row["file_name"], row["text"]] for row in rows)
        for path in (folder, folder / name):
            result = run(space, 1, *EPOCH, f"data.path={path}")
            check(list(result.losses()) == list(expected.losses()), name, result)
    lost = space.new("lost")
    lost.mkdir()
    (lost / "captions.csv").write_bytes(b"image,caption\nno.jpg,a cat\n")
    refused = start(space, 1, f"data.path={lost}")
    check(refused.status == 1 and "data.pictures=FOLDER" in refused.err and "column \"image\"" in refused.err, refused)


@test
def unsupported_pictures_are_refused_before_the_first_step(space):
    folder = space.copy(space.data)
    rows = entries(folder)
    last = folder / rows[-1]["file_name"]
    last.write_bytes(b"GIF89a" + bytes(40))
    result = start(space, 2, f"data.path={folder}", "data.shuffle=false")
    check(result.status == 1 and "found 1 picture in unsupported formats (1 GIF)" in result.err, result)
    check(rows[-1]["file_name"] in result.err and "JPEG, PNG or WebP" in result.err, result)
    check("step 1/" not in result.out, result)
    skipped = start(space, 1, f"data.path={folder}", "data.on_bad_sample=skip")
    check(skipped.status == 0, skipped)
    generated = start(space, 1, "--generate", f"data.path={folder}")
    check(generated.status == 1 and "unsupported formats (1 GIF)" in generated.err, generated)


@test
def a_held_out_picture_is_not_trained_on(space):
    folder = space.copy(space.data)
    rows = entries(folder)[:12]
    with open(folder / "metadata.jsonl", "w", encoding="utf-8") as out:
        for i in range(60):
            out.write(json.dumps({"file_name": rows[i // 5]["file_name"], "text": f"{rows[i // 5]['text']} {i % 5}"}) + "\n")
    result = run(space, 1, f"data.path={folder}", "data.val_split_fraction=0.25", "train.max_steps=2", "output.save_model=true")
    check("60 samples in" in result.out and "45 for training, 15 for validation" in result.out, result)
    scored = start(space, 1, "--evaluate", f"model.path={result.output / 'model'}", f"data.path={folder}",
                   "data.val_split_fraction=0.25", "generate.max_new_tokens=4")
    check(scored.status == 0, scored)
    lines = [json.loads(line) for line in next(scored.output.rglob("generated*.jsonl")).read_text().splitlines()]
    check(len(lines) == 3 and all(len(line["references"]) == 5 for line in lines), lines)


@test
def a_conversation_of_10000_turns_is_read_in_seconds(space):
    models = TwoModels(space.new(), "train:\n  batch_size: 8\n  max_steps: 1\nparallel:\n  threads: 1\n")
    own = models.folder / "own.jinja"      # without {% generation %} blocks: the answers are found by their prompts
    own.write_text("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
                   "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
    for template in ("chatml", own):
        seconds = {}
        for turns in (2, 10000):           # 8 records of 10,000 turns took minutes when the time grew with their square
            say = "turn {} says hello ".format
            says = [say(k) for k in range(10000)]
            if turns == 2:                 # as many bytes in one answer
                says = [says[0], "".join(says[1:])]
            messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(says)]
            records = models.folder / f"{turns}.jsonl"
            records.write_text((json.dumps({"messages": messages}) + "\n") * 8)
            result = trained(models, "text", 1, f"data.path={records}", f"data.chat_template={template}")
            check(len(result.losses()) == 1, result)
            seconds[turns] = result.seconds
        check(seconds[10000] < seconds[2] + 10, seconds)
        print(f"8 conversations, {template}: {seconds[2]:.1f} s with 2 turns each, {seconds[10000]:.1f} s with 10,000")


if __name__ == "__main__":
    sys.exit(run_tests("data_forms_test", Space, PROGRAM))
