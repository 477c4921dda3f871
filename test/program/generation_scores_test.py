#!/usr/bin/env python3
"""--evaluate as a whole program: scores, multiple choice, and which samples are scored."""
import base64
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

from PIL import Image, ImageChops, ImageStat

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from generation_runs import Eloquent, generate  # noqa: E402
from program_runs import PROGRAM, ROOT, SAMPLES, mpirun, run  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402


@test
def scores_results_and_the_page(space):
    lines, folder, out = generate(space, 2, "generate.samples=12", "generate.max_new_tokens=6", action="--evaluate")
    for name in ("loss", "perplexity", "bleu4", "rouge_l", "cider"):
        check(re.search(rf"^{name} +[0-9.e+-]+", out, re.M), name, out)
    scores = json.loads((folder / "scores.json").read_text())
    check("results" in scores, scores)
    page = (folder / "page.html").read_text()
    check("<html" in page and len(lines) == 12, page[:500])
    # The page shows every picture wherever it lies: a small one is in it, and a link leads to the file.
    thumbnails = json.loads(re.search(r"^const thumbnails = (.*);$", page, re.M).group(1))
    for sample in json.loads(re.search(r"^const samples = (.*);$", page, re.M).group(1)):
        name = (folder / urllib.parse.unquote(sample[1])).resolve()
        small = Image.open(io.BytesIO(base64.b64decode(thumbnails[sample[6]], validate=True)))
        original = Image.open(name).convert("RGB")
        original.thumbnail((240, 240))
        check(small.format == "JPEG" and small.size == original.size, name, small, original)
        difference = ImageStat.Stat(ImageChops.difference(small, original)).mean
        other = ImageStat.Stat(ImageChops.difference(small, original.rotate(180))).mean
        check(max(difference) < 6 and max(difference) < max(other) / 2, name, difference, other)
    check(len(thumbnails) == 12 and len(page) < 400_000, len(thumbnails), len(page))
    check(all(line["references"] for line in lines), lines)
    validation = run(space, 1, "data.val_path=" + str(space.data), "train.max_steps=1", "train.val_check_interval=1",
                     "train.lr=1e-30")
    told = float(re.search(r"^validation after step 1/1  loss (\S+)", validation.out, re.M).group(1))
    _, _, whole = generate(space, 1, "generate.max_new_tokens=1", action="--evaluate")
    found = float(re.search(r"^loss +(\S+)", whole, re.M).group(1))
    check(abs(found - told) < 2e-3 * told, "another loss than a validation has:", found, told)


@test
def multiple_choice_by_likelihood(space):
    subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(space.folder / "text"), "--samples", "30"],
                   check=True, stdout=subprocess.DEVNULL)
    questions = [{"query": f"What is the first letter of {word}? ", "choices": [word[0], "the letter x", word], "gold": i % 3}
                 for i, word in enumerate("apple bread chair cloud dance eagle field".split())] + [
                     {"question": "", "choices": ["a", "b c"], "answer": 1}]
    lists = space.folder / "questions.json", space.folder / "questions.jsonl"
    lists[0].write_text(json.dumps(questions))
    lists[1].write_text("".join(json.dumps(question) + "\n" for question in questions))
    found = []
    for ranks, path, more in ((0, lists[0], ()), (3, lists[1], ()), (2, lists[1], ("parallel.strategy=fsdp",))):
        output = space.new()
        status, out, err, _ = mpirun(ranks, [PROGRAM, "--evaluate", space.config, f"model.path={space.folder}/text/model",
                                             "evaluate.metrics=[acc,acc_norm,acc_bytes]", f"generate.path={path}",
                                             f"output.path={output}", *more])
        check(status == 0, status, out, err)
        lines = [json.loads(line) for line in (output / "generated-0001/choices.jsonl").read_text().splitlines()]
        check([line["sample"] for line in lines] == list(range(8)), lines)
        for line in lines:
            sums = line["log_likelihoods"]
            check(all(one < 0 for one in sums) and line["chosen"] == sums.index(max(sums)), line)
        best = [max(range(len(line["choices"])), key=lambda i, line=line: line["log_likelihoods"][i] / len(line["choices"][i]))
                for line in lines]
        for metric, chosen in (("acc", [line["chosen"] for line in lines]), ("acc_norm", best)):
            told = float(re.search(rf"^{metric} +(\S+)", out, re.M).group(1))
            right = sum(one == line["gold"] for one, line in zip(chosen, lines)) / 8
            check(abs(told - right) < 1e-3, metric, told, right, out)
        found.append([one for line in lines for one in line["log_likelihoods"]])
    for other in found[1:]:
        check(max(abs(a - b) for a, b in zip(found[0], other)) < 1e-4, found)
    for name, text, message in (("mixed", None, "give one kind"), ("gold", {"query": "a", "choices": ["b", "c"], "gold": 2}, "gold"),
                                ("one", {"query": "a", "choices": ["b"], "gold": 0}, "choices")):
        path = space.folder / f"{name}.jsonl"
        path.write_text(json.dumps(text or questions[0]) + "\n")
        metrics = "[acc,bleu4]" if text is None else "[acc]"
        status, out, err, _ = mpirun(0, [PROGRAM, "--evaluate", space.config, f"model.path={space.folder}/text/model",
                                         f"evaluate.metrics={metrics}", f"generate.path={path}", f"output.path={space.new()}"])
        check(status == 1 and message in err, name, status, err)


@test
def what_training_held_out_is_what_is_scored(space):
    trained = run(space, 2, "data.val_split_fraction=0.25", "train.max_steps=3", "output.save_model=true")
    loss = float(re.findall(r"^validation after step 3/3  loss (\S+)", trained.out, re.M)[-1])
    whole, _, _ = generate(space, 0, "generate.max_new_tokens=2", f"generate.weights={trained.output}/model")
    for ranks in (0, 2):
        status, out, err, _ = mpirun(ranks, [PROGRAM, "--evaluate", trained.output / "config.yaml", "generate.max_new_tokens=2"])
        check(status == 0 and f"prompts    12 of {space.data} (the 12 samples held out by data.val_split_fraction), greedy" in out,
              out, err)
        scored = float(re.search(r"^loss +(\S+)", out, re.M).group(1))
        check(abs(scored - loss) < 2e-3, "not the validation's samples:", scored, loss, out)
        folder = pathlib.Path(re.search(r"^texts +(.*)/generated.jsonl$", out, re.M).group(1))
        names = [json.loads(line)["name"] for line in (folder / "generated.jsonl").read_text().splitlines()]
        check(len(set(names)) == 12 and set(names) < {line["name"] for line in whole}, names)
    # Samples that are named, and texts that are not scored, are all.
    split = ("data.val_split_fraction=0.25", "generate.max_new_tokens=2")
    for action, *options in (("--generate",), ("--evaluate", f"generate.path={space.data}")):
        lines, _, out = generate(space, 0, *split, *options, action=action)
        check(len(lines) == SAMPLES and "held out" not in out, action, out)


def scored(space, config, *options):
    """{what was scored} of generated.jsonl or choices.jsonl, and what was said on stderr."""
    if config == space.config and not any(option.startswith("output.path=") for option in options):
        options = (f"output.path={space.new()}", *options)
    status, out, err, _ = mpirun(0, [PROGRAM, "--evaluate", config, "generate.max_new_tokens=2", *options])
    check(status == 0, status, out, err)
    file = pathlib.Path(re.search(r"^(?:texts|choices) +(.*jsonl)$", out, re.M).group(1))
    return {json.loads(line)["name"] for line in file.read_text().splitlines()}, err


@test
def the_split_of_the_run_that_made_the_model_counts(space):
    trained = run(space, 0, "data.val_split_fraction=0.25", "train.seed=5", "train.max_steps=2", "output.save_model=true",
                  "checkpoint.every_steps=1").output
    own, said = scored(space, trained / "config.yaml")
    check(len(own) == 12 and "note" not in said, own, said)
    where = f"{trained}/config.yaml has data.val_split_fraction=0.25 of train.seed=5, and this command data.val_split_fraction="
    for config, options, note in (
            (space.config, (f"output.path={trained}",), where + "0;"),
            (trained / "config.yaml", ("train.seed=7", "data.val_split_fraction=0.5"), where + "0.5 of train.seed=7;"),
            (space.config, (f"generate.weights={trained}/model/", "data.val_split_fraction=0.25"),
             "note: train.seed=5 as in the run of the weights"),
            (space.config, (f"generate.weights={trained}/checkpoints/step-00000001",), "checkpoint.json has data.val_split_fraction=0.25"),
            (trained / "config.yaml", (f"generate.weights={trained}/model",), "")):
        found, said = scored(space, config, *options)
        check(found == own and (note in said if note else "note" not in said), options, note, found ^ own, said)
    # The named samples are scored, and no other run has these weights.
    split = ("data.val_split_fraction=0.25", "train.seed=7")
    for options in (("data.val_split_fraction=0", f"data.val_path={space.data}"), (f"generate.path={space.data}",)):
        found, said = scored(space, trained / "config.yaml", *options)
        check(len(found) == SAMPLES and "held out:" not in said, options, said)
    other, said = scored(space, space.config, *split, f"output.path={trained}", "generate.weights=base")
    check(len(other) == 12 and other != own and "note" not in said, other, said)
    text = (trained / "config.yaml").read_text()
    (trained / "config.yaml").write_text(re.sub(r"of run [0-9a-f]{32}", "of run " + "0" * 32, text))
    found, said = scored(space, space.config, *split, f"output.path={trained}")
    check(found == other and "note" not in said, found, said)
    # A run that validated with samples of their own, and one that held nothing out.
    for options, expected in ((("train.val_check_interval=1", f"data.val_path={space.data}"), f"data.val_path={space.data}, and"),
                              ((), "data.val_split_fraction=0, and")):
        output = run(space, 0, *options, "train.max_steps=1", "output.save_model=true").output
        found, said = scored(space, space.config, f"output.path={output}", "data.val_split_fraction=0.25")
        check(len(found) == SAMPLES and expected in said, options, said)


@test
def questions_are_those_that_texts_would_be_of(space):
    subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(space.folder / "held"), "--samples", "30"],
                   check=True, stdout=subprocess.DEVNULL)
    both = space.folder / "both.jsonl"       # a record is an instruction, and a question with choices
    both.write_text("".join(json.dumps({"instruction": f"Letter {i}?", "output": "a", "query": f"Letter {i}?", "choices": ["a", "b"],
                                        "gold": 0}) + "\n" for i in range(12)))
    few = space.folder / "few.jsonl"
    few.write_text("".join(both.read_text().splitlines(True)[:3]))
    model, choices = f"model.path={space.folder}/held/model", "evaluate.metrics=[acc]"
    split = (model, f"data.path={both}", "data.val_split_fraction=0.25", "train.seed=3")
    texts_held, _ = scored(space, space.config, *split)
    for options, count in (((), 3), (("generate.samples=2",), 2)):
        held, _ = scored(space, space.config, *split, choices, *options)
        check(len(held) == count and held <= texts_held, held, texts_held)
    for options, count in (((f"generate.path={both}",), 12), ((f"data.val_path={few}", "data.val_split_fraction=0"), 3),
                           ((f"data.val_path={few}", "data.val_split_fraction=0", f"generate.path={both}"), 12)):
        held, _ = scored(space, space.config, *split, choices, *options)
        check(len(held) == count, options, held)
    for path, key in (("data.val_path=/nowhere/x", "data.val_path"), ("generate.path=/nowhere/x", "generate.path")):
        error = generate(space, 0, model, choices, path, action="--evaluate", expected=1)
        check(f"{key}: /nowhere/x does not exist" in error, error)
    # The plan counts the same.
    for options, line in (((), f"3 prompts of {both} (the 3 samples held out by data.val_split_fraction), the longest of "),
                          ((choices,), f"3 questions of {both} (the 3 samples held out by data.val_split_fraction), the longest text "),
                          ((choices, f"generate.path={both}"), f"12 questions of {both}, the longest text of ")):
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--evaluate", space.config, *split, *options, "--gpu-memory", "2",
                                         f"output.path={space.new()}"])
        check(status == 0 and f"\n{line}" in out, line, out, err)


@test
def the_plan_counts_what_is_scored(space):
    trained = run(space, 0, "data.val_split_fraction=0.25", "train.seed=5", "train.max_steps=1", "output.save_model=true").output
    for action, config, options, line, note in (
            ("--evaluate", trained / "config.yaml", (), f"12 prompts of {space.data} (the 12 samples held out", False),
            ("--evaluate", space.config, (f"output.path={trained}",), f"12 prompts of {space.data} (the 12 samples held out", True),
            ("--evaluate", trained / "config.yaml", (f"generate.path={space.data}",), f"{SAMPLES} prompts of {space.data}, ", False),
            ("--generate", trained / "config.yaml", (), f"{SAMPLES} prompts of {space.data}, ", False)):
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", action, config, *options, "--gpu-memory", "2"])
        check(status == 0 and f"\n{line}" in out and ("note: what is scored" in err) == note, action, options, out, err)


@test
def the_best_weights_are_found_beside_the_resumed_checkpoint_and_a_missing_one_loses_nothing(space):
    # A learning rate that ruins the model after its best validation.
    options = ("data.val_split_fraction=0.25", "train.val_check_interval=1", "train.max_epochs=4", "train.optim=sgd",
               "train.lr=30", "train.warmup_steps=20", "checkpoint.keep_best=loss", "output.save_model=true",
               "output.save_best=true", "train.early_stopping_patience=3")
    whole = run(space, 1, *options)
    best = int(re.search(r"^best       loss \S+, after step (\d+);", whole.out, re.M).group(1))
    part = run(space, 1, *options, f"train.max_steps={best + 1}", "checkpoint.every_steps=1")
    last = part.output / f"checkpoints/step-{best + 1:08d}"
    resumed = run(space, 1, *options, f"checkpoint.resume={last}")
    check(re.search(rf"^best       loss \S+, after step {best};", resumed.out, re.M), resumed)
    check((resumed.output / "model/model.safetensors").read_bytes() == (whole.output / "model/model.safetensors").read_bytes(),
          "resumed elsewhere, the best model is another")
    shutil.rmtree(part.output / f"checkpoints/step-{best:08d}")
    alone = run(space, 1, *options, f"checkpoint.resume={last}")
    check("warning: output.save_best: " in alone.err and "the weights of the last step are saved instead" in alone.err, alone)
    check((alone.output / "model/model.safetensors").exists(), alone)


@test
def the_best_checkpoint_is_kept_and_saved_and_a_run_ends_early(space):
    # A learning rate that ruins the model after its best validation.
    options = ("data.val_split_fraction=0.25", "train.val_check_interval=1", "train.max_epochs=4", "train.optim=sgd",
               "train.lr=30", "train.warmup_steps=20", "checkpoint.keep=1", "checkpoint.keep_best=loss",
               "output.save_model=true", "output.save_best=true", "train.early_stopping_patience=3")
    whole = run(space, 2, *options)
    losses = [float(text) for text in re.findall(r"^validation after step \d+/\d+  loss (\S+)", whole.out, re.M)]
    best = losses.index(min(losses)) + 1
    check(len(losses) == best + 3 and "early stop" in whole.out, losses, whole)
    check(re.search(rf"^best       loss \S+, after step {best};", whole.out, re.M), best, whole)
    last = run(space, 2, *options, "output.save_best=false")
    told = rf"^note: the best loss, \S+, was after step {best}; the saved model is that of step {best + 3} \(output.save_best=true"
    check(re.search(told, last.out, re.M) and "the saved model is that of step" not in whole.out, last)
    kept = sorted(path.name for path in (whole.output / "checkpoints").glob("step-*"))
    check(f"step-{best:08d}" in kept and len(kept) == 2, kept, best)
    again = run(space, 2, *options, "checkpoint.every_steps=2", "train.max_steps=3")
    resumed = run(space, 2, *options, "checkpoint.every_steps=2", "checkpoint.resume=auto", f"output.path={again.output}",
                  "output.overwrite=true")
    check(re.search(rf"^best       loss \S+, after step {best};", resumed.out, re.M), resumed)
    check((again.output / "model/model.safetensors").read_bytes() == (whole.output / "model/model.safetensors").read_bytes(),
          "resumed, the best model is another")
    for option in ("checkpoint.keep_best=loss", "train.early_stopping_patience=2"):
        refused = mpirun(1, [PROGRAM, space.config, f"output.path={space.new()}", option])
        check(refused[0] == 1 and "data.val_path" in refused[2], option, refused)


if __name__ == "__main__":
    sys.exit(run_tests("generation_scores_test", Eloquent, PROGRAM))
