#!/usr/bin/env python3
"""Texts that a run generates and scores at its validations: the same as --evaluate finds, under every strategy, and nothing
of the training changes by it; the best checkpoint by a score; a run that is killed in an evaluation."""
import html
import json
import os
import pathlib
import re
import signal
import subprocess
import sys


sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from generation_runs import Eloquent, generate, texts  # noqa: E402
from program_runs import DEVICE, PROGRAM, checkpoint, command_line, environment, model_of, mpirun, read_table, run  # noqa: E402
from program_runs import ROOT, start  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

# 48 samples, of which the first 10 are answered after steps 4 and 8.
TRAIN = ("train.max_steps=8", "train.val_check_interval=4", "train.total_batch_size=12", "train.batch_size=2",
         "train.lr=0.01", "train.max_epochs=5", "generate.max_new_tokens=8")


def evaluated(space):
    return (*TRAIN, f"data.val_path={space.data}", "evaluate.samples=10")


def scores_of(result, ranks):
    """{(step, metric): value}, the same on every rank."""
    tables = [read_table(result.output, rank, "evaluation") for rank in range(ranks)]
    found = [{(int(row["step"]), row["metric"].decode()): float(row["value"]) for row in table} for table in tables]
    check(all(one == found[0] for one in found), "ranks have other scores:", found)
    return found[0]


def texts_of(result, step):
    rows = read_table(result.output, 0, "evaluation_texts")
    return [row["text"].decode() for row in sorted(rows[rows["step"] == step], key=lambda row: row["sample"])]


def compare_with_evaluate(space, result, ranks, *options):
    """The results of --evaluate for the run's last checkpoint."""
    lines, folder, _ = generate(space, 0, *options, f"data.val_path={space.data}", "generate.max_new_tokens=8",
                                "generate.samples=10", f"generate.weights={checkpoint(result.output, 8)}", action="--evaluate")
    found = texts_of(result, 7)
    # A GPU's products round differently for other numbers of slots, and near ties may then fall elsewhere.
    same = sum(one == other for one, other in zip(found, texts(lines)))
    check(len(found) == len(lines) == 10 and same >= (10 if DEVICE == "cpu" else 8), options, found, texts(lines))
    if same < 10:
        return
    expected = json.loads((folder / "scores.json").read_text())["results"]
    expected = next(iter(expected.values()))
    for (step, metric), value in scores_of(result, ranks).items():
        check(step == 3 or expected[f"{metric},none"] == value, metric, value, expected)


@test
def the_same_as_evaluate_says_of_the_checkpoint(space):
    lora = ("adapter.kind=lora", "adapter.r=4", "adapter.alpha=64", "adapter.targets=[q,v,mlp]", "train.lr=0.05")
    held = []
    for ranks, *options in (
            (1,), (2, "parallel.strategy=ddp"), (3, "parallel.strategy=fsdp", "parallel.reshard=always"),
            (3, "parallel.strategy=fsdp", "train.batch_size=1", "train.act_ckpt=full"),
            (2, "parallel.strategy=fsdp", "parallel.reshard=step"), (1, "parallel.offload=[parameters]"), (2, *lora),
            (2, *lora, "model.quantize=nf4", "parallel.strategy=fsdp"),
            (2, "generate.num_beams=3"), (1, "generate.do_sample=true", "generate.top_k=0"),
            (1, "generate.prompt=a photo of")):
        result = run(space, ranks, *evaluated(space), "checkpoint.every_steps=8", *options)
        held += re.findall(r"^generation at validations: .*$", result.out, re.M)
        decoding = [option for option in options if option.startswith(("generate.", "model.quantize"))]
        compare_with_evaluate(space, result, ranks, *decoding)
        found = scores_of(result, ranks)
        check({metric for _, metric in found} == {"bleu4", "rouge_l", "cider"} and len(found) == 6, found)
        check({step for step, _ in found} == {3, 7}, found)
    if DEVICE == "cpu":                    # both ways of gathering have been here
        check(any("once an evaluation" in line for line in held) and any("for each token" in line for line in held), held)


@test
def training_is_the_same_to_the_bit(space):
    for ranks, *options in ((1, "train.dropout=true"), (2, "parallel.strategy=ddp"), (3, "parallel.strategy=fsdp"),
                            (2, "parallel.strategy=fsdp", "train.precision=bf16-mixed", "train.gradient_clip_val=0.5")):
        plain = run(space, ranks, *TRAIN, f"data.val_path={space.data}", "output.save_model=true", *options)
        other = run(space, ranks, *evaluated(space), "output.save_model=true", *options)
        check((plain.losses() == other.losses()).all() and model_of(plain.output) == model_of(other.output), options)
        losses = [read_table(result.output, 0, "validation")["loss"].tolist() for result in (plain, other)]
        check(losses[0] == losses[1], losses)
        memory = [re.search(r"peak memory (\S+) MiB", result.out).group(1) for result in (plain, other)]
        check(memory[0] == memory[1], "generation takes more than a step:", memory, other)


@test
def what_is_told_of_it(space):
    result = run(space, 2, *evaluated(space), "evaluate.every=2", "evaluate.metrics=[rouge_l,exact_match]", "train.max_steps=10")
    found = scores_of(result, 2)
    check({step for step, _ in found} == {7, 9}, "not at every second validation, and the last:", found)
    shown = re.findall(r"^evaluation after step (\d+)/10  rouge_l (\S+)  exact_match (\S+)  10 samples  \d+ tokens  \S+ s$",
                       result.out, re.M)
    check([(int(step) - 1, rouge, exact) for step, rouge, exact in shown] == [
        (step, f"{found[step, 'rouge_l']:.4f}", f"{found[step, 'exact_match']:.4f}") for step in (7, 9)], shown, found)
    rows = [json.loads(line) for line in (result.output / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["event"] == "evaluation"]
    check([row["step"] for row in rows] == [7, 9] and rows[1]["scores"]["rouge_l"] == found[9, "rouge_l"], rows)
    samples = read_table(result.output, 0, "evaluation_samples")
    check(samples["sample"].tolist() == list(range(10)) and all(row["references"] for row in samples), samples)
    check(all(pathlib.Path(row["picture"].decode()).is_file() for row in samples), samples["picture"])
    check(len(read_table(result.output, 1, "evaluation_texts")) == 0, "texts on every rank")
    page = result.output / "report.html"
    for command in (("summary", result.output), ("report", result.output, "-o", page)):
        status, out, err, _ = mpirun(0, [sys.executable, ROOT / "tools/trace.py", *command])
        if status and "matplotlib" in err:
            print("skipped: no matplotlib for the report")
            return
        check(status == 0, command, out, err)
        if command[0] == "summary":
            check(re.search(r"^evaluation: rouge_l, 2 times; first \S+ at step 7, ", out, re.M), out)
    shown = page.read_text()
    check('id="scores"' in shown and "After step 8".lower() in shown, "no scores on the page")
    for said in (*texts_of(result, 7), *texts_of(result, 9)):
        check(html.escape(said) in shown, said)
    check(shown.count('src="data:image/jpeg') == 10, shown.count('src="data:image/jpeg'))


@test
def texts_of_a_language_model(space):
    subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(space.folder / "text"), "--samples", "30"],
                   check=True, stdout=subprocess.DEVNULL)
    data = space.folder / "text/data/instructions.jsonl"
    options = (f"model.path={space.folder}/text/model", f"data.path={data}", f"data.val_path={data}", "evaluate.samples=7",
               "generate.max_new_tokens=6", "train.max_steps=2", "data.max_text_tokens=128")
    result = run(space, 2, *options, "checkpoint.every_steps=2", "parallel.strategy=fsdp")
    lines, _, _ = generate(space, 0, *options, "generate.samples=7", f"generate.weights={checkpoint(result.output, 2)}")
    check(texts_of(result, 1) == texts(lines) and len(lines) == 7, texts_of(result, 1), texts(lines))
    check({metric for _, metric in scores_of(result, 2)} == {"exact_match", "rouge_l"}, scores_of(result, 2))
    tool, page, picture = ROOT / "tools/trace.py", result.output / "page.html", result.output / "loss.png"
    for command in (("report", result.output, "-o", page), ("loss", result.output, "-o", picture)):
        done = subprocess.run([sys.executable, tool, *command], capture_output=True, text=True)
        if "matplotlib" in done.stderr:
            return
        check(done.returncode == 0, done.stderr)
    check('<table id="generated">' in page.read_text(), "the report has no generated texts")
    check(image_size(picture)[1] > 1.3 * 4.5 / 8 * image_size(picture)[0], "the scores are drawn below the loss")


def image_size(path):
    from PIL import Image
    with Image.open(path) as image:
        return image.size


def best_of(result, metric):
    """The step of the best score, the first of equal ones, and the scores."""
    found = [(row["step"] + 1, row["scores"][metric]) for row in map(json.loads, (result.output / "metrics.jsonl").read_text().
                                                                     splitlines()) if row["event"] == "evaluation"]
    return max(found, key=lambda one: (one[1], -one[0]))[0], found


# A rate that first teaches and then ruins.
KEEP = ("data.val_split_fraction=0.25", "train.val_check_interval=1", "train.max_epochs=8", "train.optim=sgd", "train.lr=30",
        "train.warmup_steps=20", "evaluate.samples=12", "generate.max_new_tokens=8", "checkpoint.keep=1",
        "checkpoint.keep_best=rouge_l", "output.save_model=true", "output.save_best=true", "train.early_stopping_patience=6")


@test
def the_best_score_is_kept_and_a_resume_keeps_it(space):
    whole = run(space, 2, *KEEP)
    best, found = best_of(whole, "rouge_l")
    check(len(found) == best + 6 and "early stop" in whole.out and "rouge_l was highest" in whole.out, best, found, whole)
    check(re.search(rf"^best       rouge_l \S+, after step {best};", whole.out, re.M), best, whole)
    check(checkpoint(whole.output, best).is_dir(), best, list((whole.output / "checkpoints").iterdir()))
    again = run(space, 2, *KEEP, "checkpoint.every_steps=2", "train.max_steps=3")
    run(space, 2, *KEEP, "checkpoint.every_steps=2", "checkpoint.resume=auto", f"output.path={again.output}",
        "output.overwrite=true")
    check(best_of(again, "rouge_l") == (best, found), best_of(again, "rouge_l"), found)
    check(model_of(again.output) == model_of(whole.output), "resumed, the best model is another")


def killed_in_an_evaluation(space, ranks, output, options):
    """Kills all ranks while the third evaluation generates: after its validation is printed, before its scores are."""
    process = subprocess.Popen(command_line(ranks, [PROGRAM, space.config, f"output.path={output}", *options]), cwd=ROOT,
                               env=environment(ranks), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("validation after step 3/"):
            os.killpg(process.pid, signal.SIGKILL)
            break
    said += process.stdout.read()
    process.wait()
    return said


@test
def a_run_killed_in_an_evaluation_goes_on_to_the_same(space):
    # Texts one after the other, with a draw of each token: 0.05 s where nothing else runs, a second on a loaded machine.
    options = (*KEEP, "train.early_stopping_patience=2", "checkpoint.every_steps=2", "generate.max_new_tokens=400",
               "generate.min_new_tokens=400", "generate.batch_size=1", "parallel.strategy=fsdp", "generate.do_sample=true")
    whole = run(space, 2, *options)
    for _ in range(8):                     # until mpirun has passed the line on, the evaluation may have ended
        output = space.new()
        said = killed_in_an_evaluation(space, 2, output, options)
        if "evaluation after step 3/" not in said:
            break
    check("validation after step 3/" in said and "evaluation after step 2/" in said and "evaluation after step 3/" not in said,
          "not killed in the third evaluation:", said)
    resumed = run(space, 2, *options, "checkpoint.resume=auto", f"output.path={output}")
    resumed.output = output
    check(best_of(resumed, "rouge_l") == best_of(whole, "rouge_l"), best_of(resumed, "rouge_l"), best_of(whole, "rouge_l"))
    check(model_of(output) == model_of(whole.output), "the best model is another")


@test
def what_cannot_be_scored_is_refused(space):
    for options, message in (
            (("evaluate.samples=4",), "data.val_path is not set"),
            (("data.val_split_fraction=0.25", "evaluate.every=2"), "evaluate.samples is 0"),
            (("data.val_split_fraction=0.25", "checkpoint.keep_best=cider"), "evaluate.samples is 0"),
            (("data.val_split_fraction=0.25", "evaluate.samples=4", "checkpoint.keep_best=meteor"), "checkpoint.keep_best"),
            (("data.val_split_fraction=0.25", "evaluate.samples=4", "checkpoint.keep_best=acc"), "which validations do not compute"),
            (("data.val_split_fraction=0.25", "evaluate.samples=4", "evaluate.metrics=[acc]"), "no metric of generated texts"),
            (("data.val_split_fraction=0.25", "evaluate.samples=4", "evaluate.metrics=[vqa_accuracy]"), "several annotators")):
        result = start(space, 2, *options)
        check(result.status == 1 and message in result.err, options, result)


@test
def a_picture_that_cannot_be_read(space):
    broken = space.copy(space.data)
    pictures = sorted(broken.rglob("*.png")) + sorted(broken.rglob("*.jpg"))
    pictures[3].write_bytes(b"no picture")
    options = (*TRAIN, f"data.val_path={broken}", "evaluate.samples=10", "train.limit_val_batches=1")
    skipped = run(space, 2, *options, "data.on_bad_sample=skip")
    check(len(read_table(skipped.output, 0, "evaluation_samples")) == 9 and "1 validation samples cannot be answered" in skipped.out,
          skipped)
    check(skipped.out.count("cannot be answered") == 1, skipped)


@test
def the_plan_says_what_it_needs(space):
    for ranks, *options in ((1,), (2, "parallel.strategy=fsdp")):
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--ranks", ranks, space.config, *evaluated(space), *options])
        check(status == 0 and re.search(r"^generation at validations: \d+ texts? of up to \d+ tokens at once, keys and values ",
                                        out, re.M), out, err)
        _, without, _, _ = mpirun(0, [PROGRAM, "--plan", "--ranks", ranks, space.config, *TRAIN, f"data.val_path={space.data}",
                                      *options])
        totals = [re.search(r"^  total +(\S+)", text, re.M).group(1) for text in (out, without)]
        check(totals[0] == totals[1] and "generation at" not in without, totals, without)


@test
def the_plan_of_generation(space):
    data = ("generate.samples=10", "generate.max_new_tokens=8")
    status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--generate", space.config, *data, "--gpu-memory", "2"])
    check(status == 0 and re.search(r"^10 prompts of .*, the longest of 1 tokens; greedy, at most 8 tokens$", out, re.M), out, err)
    cache, = re.findall(r"^  cache +(\S+) MiB", out, re.M)
    # Keys and values of 2 layers, f32, 32 wide, for 10 texts of 4 pictures' queries, a token and 8 new ones.
    queries = json.loads((space.model / "config.json").read_text())["num_query_tokens"]
    check(abs(float(cache) - 2 * 2 * 4 * 32 * 10 * (queries + 9) / 2**20) < 0.01, cache, queries, out)
    check(re.search(r"^fits: 10 texts of up to 9 tokens at once on each of 1 rank\(s\), ", out, re.M), out)
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", space.config, *data, "--plan", "--gpu-memory", "0.1"])
    check(status == 1 and "does not fit: " in out, status, out, err)
    # The memory that the largest number takes, and one more does not.
    shape = ROOT / "share/models/qwen2.5-0.5b"
    other = (f"model.path={shape}", "train.precision=bf16-true", "data.max_text_tokens=128", "data.path=nowhere.json")
    status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--evaluate", space.config, *other, "--fit", "3GiB"])
    rows = [(int(tokens), int(texts)) for tokens, texts in re.findall(r"^ +(\d+) +(\d+)", out, re.M)]
    check(status == 0 and len(rows) >= 3 and rows[0][0] == 128 + 64, out, err)
    check(all(a[0] < b[0] and a[1] > b[1] for a, b in zip(rows, rows[1:])), rows)
    for more, expected in ((0, 0), (1 + rows[0][1] // 64, 1)):
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--evaluate", space.config, *other, "--gpu-memory", "3",
                                         f"generate.batch_size={rows[0][1] + more}", "generate.samples=100000"])
        check(status == expected, more, rows, out, err)


if __name__ == "__main__":
    sys.exit(run_tests("evaluation_run_test", Eloquent, PROGRAM))
