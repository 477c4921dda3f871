#!/usr/bin/env python3
"""--generate and --evaluate of a run: whose settings hold, what is scored against what, and which files are left."""
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, SAMPLES, TwoModels, command_line, environment, mpirun, start, trained  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

REST = "train:\n  lr: 1.0e-3\n  batch_size: 4\n  precision: 32-true\n  dropout: false\nparallel:\n  device: cpu\n  threads: 1\n"


class Models(TwoModels):
    """Its LLaMA has random weights that are large enough for texts to differ."""

    def __init__(self, folder):
        super().__init__(folder, REST)
        path = self.text / "model/config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "initializer_range": 0.3}))
        self.config, self.records = self.configs["text"], self.text / "data/instructions.jsonl"


def answered(action, config, *options, ranks=0, expected=0):
    status, out, err, _ = mpirun(ranks, [PROGRAM, action, config, "generate.max_new_tokens=4", *options])
    check(status == expected, status, out, err)
    return out, err


def folder_of(out):
    return pathlib.Path(re.search(r"^(?:texts|choices) +(.*)/\w+\.jsonl$", out, re.M).group(1))


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def scores_of(out):
    results = json.loads((folder_of(out) / "scores.json").read_text())["results"]
    return {name.split(",")[0]: value for name, value in next(iter(results.values())).items() if isinstance(value, float)}


def write_records(space, records):
    file = space.new("records").with_suffix(".jsonl")
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@test
def a_perfect_model_has_exact_match_1(space):
    own = f"output.path={space.new()}"
    data = write_records(space, [{"instruction": f"Say {i}.", "output": "?"} for i in range(5)])
    out, _ = answered("--generate", space.config, own, f"generate.path={data}")
    said = [line["text"] for line in lines_of(folder_of(out) / "generated.jsonl")]
    check(len(set(said)) > 2, said)
    for before, behind, options in ((" ", "\n", ()), ("<think>\n\n</think>\n\n", "", ()), ("", "|rest", ("generate.stop=[\"|\"]",))):
        right = write_records(space, [{"instruction": f"Say {i}.", "output": before + text + behind} for i, text in enumerate(said)])
        out, _ = answered("--evaluate", space.config, own, f"generate.path={right}", "evaluate.metrics=[exact_match]", *options)
        check(scores_of(out)["exact_match"] == 1, before, behind, out)
    wrong = write_records(space, [{"instruction": f"Say {i}.", "output": " " + text + "x"} for i, text in enumerate(said)])
    out, _ = answered("--evaluate", space.config, own, f"generate.path={wrong}", "evaluate.metrics=[exact_match]")
    check(scores_of(out)["exact_match"] == 0, out)


TRAINED = ("data.prompt_style=none", "data.mask_prompt=true", "data.max_text_tokens=40", "data.append_eos=false",
           "train.precision=bf16-true", "data.val_split_fraction=0.25", "train.max_steps=2")


@test
def what_stands_before_a_mark_is_not_scored(space):
    data = write_records(space, [{"instruction": f"Say {i}.", "output": "?"} for i in range(8)])
    own = (f"output.path={space.new()}", "generate.max_new_tokens=8", "train.precision=32-true")
    out, _ = answered("--generate", space.config, *own, f"generate.path={data}")
    said = [line["text"] for line in lines_of(folder_of(out) / "generated.jsonl")]
    mark = max({letter for text in said for letter in text[1:-1] if letter.isalnum()},
               key=lambda letter: sum(letter in text[:-1] for text in said))
    tails = [text.rpartition(mark)[2].strip(" \t\r\n") if mark in text else text for text in said]
    check(tails != said, "no text has the mark", mark, said)
    right = write_records(space, [{"instruction": f"Say {i}.", "output": tail} for i, tail in enumerate(tails)])
    same = sum(text == tail for text, tail in zip(said, tails)) / len(said)
    for action in ("--generate", "--evaluate"):
        for options, expected in (((), same), ((f"evaluate.ignore_before={mark}",), 1)):
            out, _ = answered(action, space.config, *own, f"generate.path={right}", "evaluate.metrics=[exact_match]", *options)
            check(scores_of(out)["exact_match"] == expected, action, options, out)
            check([line["text"] for line in lines_of(folder_of(out) / "generated.jsonl")] == said, "texts are cut in the file")
    # Validations of a run score in the same way.
    for options, expected in (((), same), ((f"evaluate.ignore_before={mark}",), 1)):
        result = trained(space, "text", 1, f"data.val_path={right}", "train.max_steps=1", "train.lr=1e-30", "evaluate.samples=8",
                         "evaluate.metrics=[exact_match]", "generate.max_new_tokens=8", *options)
        found = float(re.search(r"exact_match (\S+)", result.out).group(1).rstrip(","))
        check(abs(found - expected) < 1e-3, options, expected, result)


@test
def the_settings_of_the_run_hold(space):
    result = trained(space, "text", 0, *TRAINED, "output.save_model=true", "checkpoint.every_steps=2")
    own, said = answered("--evaluate", result.output)
    check("note:" not in said and f"prompts    20 of {space.records} (the 20 samples held out" in own, own, said)
    loss = scores_of(own)["loss"]
    told = float(re.findall(r"^validation after step 2/2  loss (\S+)", result.out, re.M)[-1])
    check(abs(loss - told) < 0.02 * told, loss, told)          # bf16, in groups of another size
    keys = [option.split("=")[0] for option in TRAINED[:-2]]
    for weights in (f"output.path={result.output}", f"generate.weights={result.output}/checkpoints/step-00000002"):
        out, said = answered("--evaluate", space.config, *(() if "output" in weights else (f"output.path={space.new()}",)), weights)
        check(scores_of(out)["loss"] == loss, weights, scores_of(out), loss)
        notes = [line for line in said.splitlines() if line.startswith("note:")]
        check(len(notes) == len(keys) + 1 and all(sum(f"note: {key}=" in note for note in notes) == 1 for key in keys), notes)
        check(notes[-1].startswith("note: what is scored is what the run of") and "=0.25 of train.seed=0, and this" in notes[-1], notes)
        check(f"note: data.max_text_tokens=40 as in the run of the weights (" in said and f", not 96 ({space.config}:" in said, said)
    # The command line wins, without a note; and what belongs to no run is the recipe's.
    out, said = answered("--evaluate", space.config, f"output.path={result.output}", "data.mask_prompt=false", "generate.samples=3")
    check(scores_of(out)["loss"] != loss and "data.mask_prompt" not in said and "data.prompt_style" in said, said)
    check("prompts    3 of" in out, out)
    # Base weights have no run.
    _, said = answered("--evaluate", space.config, f"output.path={result.output}", "generate.weights=base")
    check("note:" not in said, said)
    # --generate and both plans do the same.
    for command in (("--generate",), ("--plan", "--evaluate"), ("--plan", "--generate")):
        status, out, said, _ = mpirun(0, [PROGRAM, *command, space.config, f"output.path={result.output}", "--gpu-memory", "2",
                                          "generate.max_new_tokens=4"] if "--plan" in command else
                                      [PROGRAM, *command, space.config, f"output.path={result.output}", "generate.max_new_tokens=4"])
        check(status == 0 and said.count("note: data.prompt_style=none") == 1, command, out, said)


@test
def an_adapter_is_scored_on_the_model_that_it_was_trained_on(space):
    base = trained(space, "text", 0, "train.max_steps=1", "output.save_model=true", "train.seed=3").output / "model"
    lora = ("adapter.kind=lora", "adapter.r=4", "adapter.alpha=64", "train.max_steps=2", "train.lr=0.05", "output.save_model=true")
    result = trained(space, "text", 0, f"model.path={base}", "model.init=pretrained", *lora, "data.val_split_fraction=0.25")
    own, _ = answered("--evaluate", result.output)
    out, said = answered("--evaluate", space.config, f"output.path={result.output}")
    check(scores_of(out) == scores_of(own), scores_of(out), scores_of(own))
    check(said.count("note: model.path=") == 1 and "note: model.init=pretrained" in said, said)


@test
def a_run_s_folder_stands_for_its_settings(space):
    result = trained(space, "text", 0, "train.max_steps=1", "output.save_model=true", "data.val_split_fraction=0.25")
    moved = space.new("moved")
    os.rename(result.output, moved)
    out, said = answered("--evaluate", moved)
    check(folder_of(out) == moved / "generated-0001" and f"the model in {moved}/model" in out and not said, out, said)
    elsewhere = space.new()
    out, said = answered("--generate", moved, f"output.path={elsewhere}", f"generate.weights={moved}/model")
    check(folder_of(out) == elsewhere / "generated-0001", out)
    status, out, _, _ = mpirun(0, [PROGRAM, "--plan", "--evaluate", moved, "--gpu-memory", "2"])
    check(status == 0 and "(the 20 samples held out" in out, out)
    # A style that the run file did not give is not taken for one: the prompt goes to the model as it is.
    check("prompt_style" not in (moved / "config.yaml").read_text(), "prompt_style in config.yaml")
    for config, message, status in (
            (space.folder, "found a folder without config.yaml, expected a run file or the folder of a run", 2),
            (space.folder / "nowhere", "there is no such run file", 1)):
        _, said = answered("--evaluate", config, expected=status)
        check(message in said, said)
    status, _, said, _ = mpirun(0, [PROGRAM, moved])
    check(status == 1 and f"that of the run in it is {moved}/config.yaml" in said, said)


@test
def scores_of_training_samples_are_warned_of(space):
    none_held = trained(space, "text", 0, "train.max_steps=1", "output.save_model=true").output
    held = trained(space, "text", 0, "train.max_steps=1", "output.save_model=true", "data.val_split_fraction=0.25").output
    other = write_records(space, [{"instruction": "Say a.", "output": "a"}, {"instruction": "Say b.", "output": "b"}])
    warning = f"warning: {space.records}: these samples trained the weights in {none_held}/model"
    for config, options, warned in ((none_held, (), True), (space.config, (f"output.path={none_held}",), True),
                                    (none_held, (f"generate.path={other}",), False), (none_held, (f"data.path={other}",), False),
                                    (none_held, (f"data.val_path={other}",), False), (held, (), False),
                                    (none_held, ("generate.weights=base",), False)):
        for ranks in (0, 2) if config == none_held and not options else (0,):
            _, said = answered("--evaluate", config, "generate.samples=2", *options, ranks=ranks)
            check(said.count(warning) == warned, config, options, said)
    _, said = answered("--generate", none_held, "generate.samples=2")
    check("these samples trained" not in said, said)
    status, _, said, _ = mpirun(0, [PROGRAM, "--plan", "--evaluate", none_held, "--gpu-memory", "2"])
    check(status == 0 and warning in said, said)


@test
def bad_records_are_left_out_and_counted(space):
    good = [{"instruction": f"Say {i}.", "output": str(i)} for i in range(6)]
    data = write_records(space, good[:2] + [{"instruction": 7, "output": "x"}] + good[2:4] + [{"instruction": "Say."}] + good[4:])
    own = f"output.path={space.new()}"
    _, said = answered("--evaluate", space.config, own, f"generate.path={data}", expected=1)
    check(f"{data}:3" in said and "data.on_bad_sample=skip leaves such samples out" in said, said)
    expected, _ = answered("--evaluate", space.config, own, f"generate.path={write_records(space, good)}")
    for ranks in (0, 2):
        out, _ = answered("--evaluate", space.config, own, f"generate.path={data}", "data.on_bad_sample=skip", ranks=ranks)
        check(re.search(r"^left out +2 samples", out, re.M) and f"{data}:3" in out, out)
        check(abs(scores_of(out)["loss"] - scores_of(expected)["loss"]) < 1e-6, scores_of(out), scores_of(expected))
        names = [line["name"] for line in lines_of(folder_of(out) / "generated.jsonl")]
        check(names == [f"{data}:{i}" for i in (1, 2, 4, 5, 6, 7, 8)], names)       # a prompt without an answer is answered
    # So do questions.
    question = [{"query": f"Say {i}", "choices": ["a", "b"], "gold": 0} for i in range(4)]
    wrong = write_records(space, [question[0], {**question[1], "gold": 2}, question[2], {"query": "Say"}, question[3]])
    acc = ("evaluate.metrics=[acc]", own)
    _, said = answered("--evaluate", space.config, *acc, f"generate.path={wrong}", expected=1)
    check(f"{wrong}:2: gold: found 2" in said and "data.on_bad_sample=skip leaves such samples out" in said, said)
    for ranks in (0, 2):
        out, _ = answered("--evaluate", space.config, *acc, f"generate.path={wrong}", "data.on_bad_sample=skip", ranks=ranks)
        names = [line["name"] for line in lines_of(folder_of(out) / "choices.jsonl")]
        check(names == [f"{wrong}:{i}" for i in (1, 3, 5)] and re.search(rf"^left out +2 records, the first: {wrong}:2", out, re.M), out)
    # Validations leave the same records out.
    result = start(space, 0, f"data.val_path={data}", "evaluate.samples=8", "data.on_bad_sample=skip", "train.max_steps=1",
                   "generate.max_new_tokens=4")
    check(result.status == 0 and re.search(r"^evaluation after step 1/1 .* 6 samples", result.out, re.M), result)


@test
def a_picture_that_cannot_be_read_is_left_out_of_the_loss(space):
    broken = space.copy(space.data)
    sorted(broken.rglob("*.jpg"))[3].write_bytes(b"no picture")
    out, _ = answered("--evaluate", space.configs["picture"], f"output.path={space.new()}", f"generate.path={broken}",
                      "data.on_bad_sample=skip", ranks=2)
    check(re.search(r"^left out +1 samples", out, re.M) and scores_of(out)["loss"] > 0, out)


@test
def files_are_in_the_order_of_the_samples(space):
    for ranks, options in ((0, ("generate.batch_size=3",)), (3, ())):
        out, _ = answered("--generate", space.configs["picture"], f"output.path={space.new()}", *options, ranks=ranks)
        folder = folder_of(out)
        lines = lines_of(folder / "generated.jsonl")
        check([line["sample"] for line in lines] == list(range(SAMPLES)), [line["sample"] for line in lines])
        check(not list(folder.glob("*partial*")), list(folder.iterdir()))
        with open(folder / "captions.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        check([space.data / row["file_name"] for row in rows] == [pathlib.Path(line["name"]) for line in lines], rows)
        check([row["text"] for row in rows] == [line["text"] for line in lines], rows)
    out, _ = answered("--generate", space.config, f"output.path={space.new()}")
    check(not (folder_of(out) / "captions.csv").exists(), "captions of texts")
    # They are captions to train on.
    table = space.copy(space.data) / "mine.csv"
    with open(table, "w", newline="") as file:
        csv.writer(file).writerows([["file_name", "text"], *[[row["file_name"], row["text"] + " ok"] for row in rows]])
    result = start(space, 0, f"data.path={table}", "train.max_steps=1", config=space.configs["picture"])
    check(result.status == 0, result)


def partial_lines(output):
    return sum(file.read_text().count("\n") for file in output.glob("generated-0001/*.partial.jsonl"))


def generate_slowly(space, ranks, output, count):
    """Starts a generation of `samples` texts, one at a time."""
    many = write_records(space, [{"instruction": f"Say {i}.", "output": "?"} for i in range(count)])
    command = command_line(ranks, [PROGRAM, "--generate", space.config, f"output.path={output}", f"generate.path={many}",
                                   "generate.batch_size=1", "generate.max_new_tokens=60", "generate.min_new_tokens=60"])
    process = subprocess.Popen(command, env=environment(ranks), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while partial_lines(output) < 4 and process.poll() is None:
        time.sleep(0.01)
    check(process.poll() is None, "it has ended too soon")
    return process


@test
def a_killed_generation_keeps_its_partial_file(space):
    for ranks in (0, 2):
        output = space.new()
        process = generate_slowly(space, ranks, output, 20000)
        process.send_signal(signal.SIGTERM if ranks else signal.SIGKILL)
        process.communicate()
        folder = output / "generated-0001"
        names = {file.name for file in folder.iterdir()}
        partial = {"generated.partial.jsonl"} if not ranks else {f"generated.rank{i:04d}.partial.jsonl" for i in range(ranks)}
        check(names == {"config.yaml"} | partial and partial_lines(output) >= 4, names, partial_lines(output))
        lines = [line for name in partial for line in (folder / name).read_text().splitlines(True) if line.endswith("\n")]
        check(all("text" in json.loads(line) for line in lines), lines)


@test
def files_of_others_stay(space):
    output = space.new()
    process = generate_slowly(space, 0, output, 400)
    folder = output / "generated-0001"
    os.rename(folder / "generated.partial.jsonl", folder / "mine.jsonl")
    for name in ("generated.partial.jsonl", "generated.jsonl"):
        (folder / name).write_text("a note\n")
    _, said = process.communicate()
    check(process.returncode == 1 and f"{folder}/generated.jsonl: cannot be created: File exists".encode() in said, said)
    check(all((folder / name).read_text() == "a note\n" for name in ("generated.partial.jsonl", "generated.jsonl")), folder)
    check(len(lines_of(folder / "mine.jsonl")) == 400, "lines are lost")


@test
def a_question_begins_as_a_trained_text(space):
    query, choice = "What is the first letter of apple?", "The letter a"
    questions = write_records(space, [{"query": query, "choices": [choice, "b"], "gold": 0}])
    record = write_records(space, [{"instruction": query, "output": " " + choice}])
    own = f"output.path={space.new()}"
    out, _ = answered("--evaluate", space.config, own, f"generate.path={questions}", "evaluate.metrics=[acc]")
    likelihood = lines_of(folder_of(out) / "choices.jsonl")[0]["log_likelihoods"][0]
    out, _ = answered("--evaluate", space.config, own, f"generate.path={record}", "data.prompt_style=none", "data.append_eos=false",
                      "data.mask_prompt=true", "evaluate.metrics=[loss]")
    tokens = -likelihood / scores_of(out)["loss"]
    check(round(tokens) > 2 and abs(tokens - round(tokens)) < 1e-4, "another text than in training:", tokens)


@test
def metrics_that_are_not_computed_are_refused(space):
    for name in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        _, said = answered("--evaluate", space.config, f"output.path={space.new()}", f"evaluate.metrics=[{name}]", expected=1)
        check(f"evaluate.metrics: found {name}" in said and "perplexity" in said, said)
    out, _ = answered("--evaluate", space.config, f"output.path={space.new()}", "evaluate.metrics=[perplexity]")
    check(set(scores_of(out)) == {"loss", "perplexity"}, scores_of(out))


@test
def empty_values_of_options_are_refused(space):
    for option in ("--prompt", "--image"):
        for arguments in ((option, ""), (f"{option}=",)):
            status, out, said, _ = mpirun(0, [PROGRAM, "--generate", space.config, f"output.path={space.new()}", *arguments])
            check(status == 2 and f"{option}: found an empty value, expected" in said and not out, status, out, said)
    status, _, said, _ = mpirun(0, [PROGRAM, "--export", "", f"output.path={space.new()}"])
    check(status == 2 and "--export: found an empty value, expected CHECKPOINT" in said, status, said)


if __name__ == "__main__":
    sys.exit(run_tests("scores_test", Models, PROGRAM))
