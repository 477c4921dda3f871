#!/usr/bin/env python3
"""--generate as a whole program: the same texts however they are computed, from whatever holds the weights."""
import collections
import json
import math
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from generation_runs import SHORT, Eloquent, generate, texts  # noqa: E402
from program_runs import DEVICE, PROGRAM, ROOT, SAMPLES, mpirun, run  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402


@test
def the_same_texts_on_any_number_of_ranks_and_slots(space):
    for rules in ((), ("generate.do_sample=true", "generate.temperature=0.9", "generate.top_p=0.95"), ("generate.num_beams=3",)):
        expected, folder, _ = generate(space, 0, *SHORT, *rules)
        check(len(expected) == 10 and [line["sample"] for line in expected] == list(range(10)), expected)
        check(len(set(texts(expected))) > 5, "hardly a text of its own:", expected)
        # A GPU's products round differently for other numbers of slots, and near ties may then fall elsewhere.
        slots = ((0, "generate.batch_size=1"), (0, "generate.batch_size=3")) if DEVICE == "cpu" else ()
        for ranks, *options in (*slots, (2,), (3, "parallel.strategy=fsdp")):
            found, _, _ = generate(space, ranks, *SHORT, *rules, *options)
            check(texts(found) == texts(expected), ranks, options, rules, texts(found), texts(expected))
        other, _, _ = generate(space, 0, *SHORT, *rules, "train.seed=5", "model.init=random")
        check(texts(other) != texts(expected), "another seed has the same random weights", other)


@test
def in_bf16(space):
    # Logits of bf16 have few bits: many texts are the same as in f32, and some are not.
    exact, _, _ = generate(space, 0, *SHORT)
    found, _, _ = generate(space, 0, *SHORT, "train.precision=bf16-true")
    same = sum(one[:1] == other[:1] for one, other in zip(texts(exact), texts(found)))
    check(len(found) == 10 and same >= 5, texts(exact), texts(found))
    beams, _, _ = generate(space, 2, *SHORT, "train.precision=bf16-true", "generate.num_beams=3", "parallel.strategy=fsdp")
    check(len(beams) == 10, beams)


@test
def draws_depend_on_the_seed_alone(space):
    trained = run(space, 1, "output.save_model=true", "train.max_steps=2").output
    rules = (*SHORT, f"generate.weights={trained}/model", "generate.do_sample=true", "generate.top_k=0")
    one, _, _ = generate(space, 0, *rules, "train.seed=1")
    again, _, _ = generate(space, 0, *rules, "train.seed=1")
    other, _, _ = generate(space, 0, *rules, "train.seed=2")
    check(texts(one) == texts(again) and texts(one) != texts(other), one, again, other)


def chi_square_bound(cells):
    """The value that a chi-square of `cells` cells exceeds once in 10^6 (Wilson and Hilferty's approximation)."""
    k = cells - 1
    return k * (1 - 2 / (9 * k) + 4.753 * math.sqrt(2 / (9 * k))) ** 3


def counts_of_tokens(lines):
    """{score: how often}: of one token where scores lie so close that f32 does not tell them apart (a product rounds its rows
    each in its own way), of different tokens where not."""
    counts, last = collections.Counter(), None
    for score in sorted(line["score"] for line in lines):
        if last is None or score - last > 2e-5:
            token = score
        counts[token] += 1
        last = score
    return counts


@test
def draws_follow_the_model_s_distribution(space):
    # One token of each of so many equal prompts. A line's score is the token's log probability of the logits as they are.
    subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(space.folder / "draws"), "--samples", "4"],
                   check=True, stdout=subprocess.DEVNULL)
    path = space.folder / "draws/model/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "initializer_range": 0.25}))  # or all tokens are as likely
    data, count = space.folder / "draws/equal.jsonl", 1500
    data.write_text('{"instruction": "Name a letter.", "output": "a"}\n' * count)
    for rules, temperature, most in (((), 1.0, None), (("generate.temperature=0.5", "generate.top_k=5"), 0.5, 5)):
        lines, _, _ = generate(space, 0, f"model.path={space.folder}/draws/model", "model.init=random", f"generate.path={data}",
                               "generate.do_sample=true", "generate.max_new_tokens=1", "data.max_text_tokens=64",
                               "generate.top_k=0", *rules, "train.seed=11")
        drawn = counts_of_tokens(lines)
        check(sum(drawn.values()) == count and (most is None or len(drawn) == most), len(drawn), "different tokens")
        weights = {score: math.exp(score / temperature) for score in drawn}
        whole = sum(weights.values()) if most else 1
        # Cells of fewer than five expected draws are one, with all that was never drawn.
        cells = [(drawn[score], count * weight / whole) for score, weight in weights.items() if count * weight / whole >= 5]
        rest = count - sum(found for found, _ in cells), count - sum(expected for _, expected in cells)
        cells += [rest] * (rest[1] >= 5)
        check(5 <= len(cells) <= 100, "too few or too many different draws:", len(cells))
        found = sum((seen - expected) ** 2 / expected for seen, expected in cells)
        check(found < chi_square_bound(len(cells)), found, chi_square_bound(len(cells)), cells)
        # A distribution that is a little off is seen: of another temperature.
        wrong = {score: math.exp(1.5 * score / temperature) for score in drawn}
        whole = sum(wrong.values())
        off = sum((drawn[s] - count * w / whole) ** 2 / (count * w / whole) for s, w in wrong.items() if count * w / whole >= 5)
        check(off > chi_square_bound(len(cells)), "a wrong temperature would not be seen:", off, cells)


@test
def from_whatever_holds_the_weights(space):
    lora = ("adapter.kind=lora", "adapter.r=4", "adapter.alpha=64", "adapter.targets=[q,v,mlp]", "train.lr=0.05")
    base = run(space, 1, "output.save_model=true", "train.max_steps=1").output / "model"
    options = (f"model.path={base}", "model.init=pretrained")
    trained = run(space, 2, *options, *lora, "output.save_model=true", "output.save_merged=true", "train.max_steps=4",
                  "checkpoint.every_steps=4").output
    merged, _, _ = generate(space, 0, *options, *SHORT, f"generate.weights={trained}/model")
    for weights in (trained / "adapter", trained / "checkpoints/step-00000004"):
        found, _, _ = generate(space, 0, *options, *SHORT, f"generate.weights={weights}")
        check(texts(found) == texts(merged), weights, texts(found), texts(merged))
    auto, folder, _ = generate(space, 0, *options, *SHORT, f"output.path={trained}")
    check(texts(auto) == texts(merged) and folder == trained / "generated-0001", folder, auto)
    plain, _, _ = generate(space, 0, *options, *SHORT, "generate.weights=base")
    for path, why in ((space.new(), "does not exist, and so holds no trained model"), (folder, "holds no trained model")):
        status, out, err, _ = mpirun(0, [PROGRAM, "--generate", space.config, *options, *SHORT, f"output.path={path}"])
        check(status == 0 and f"warning: {path} {why}: these are the weights of {base}" in err, status, out, err)
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", space.config, *SHORT, "model.path=absent", f"output.path={folder}"])
    check(status == 1 and 'found "absent"' in err and f"model.path is read since {folder} holds no trained model; if a run" in err,
          status, out, err)
    check(texts(plain) != texts(merged), "the adapter changes nothing", plain)
    for held in ("nf4", "int8", "fp8"):
        _, _, out = generate(space, 0, *options, *SHORT, f"generate.weights={trained}/adapter", f"model.quantize={held}")
        check("10 texts" in out, out)
        # Few texts at once are multiplied with the codes, more with what they stand for; each rank has all or its share.
        few, _, _ = generate(space, 0, *options, *SHORT, f"model.quantize={held}", "generate.weights=base",
                             "generate.batch_size=2")
        many, _, _ = generate(space, 0, *options, *SHORT, f"model.quantize={held}", "generate.weights=base",
                              "generate.batch_size=16")
        cut, _, _ = generate(space, 2, *options, *SHORT, f"model.quantize={held}", "generate.weights=base",
                             "generate.batch_size=2", "parallel.strategy=fsdp")
        check(texts(few) == texts(many) == texts(cut), held, texts(few), texts(many), texts(cut))


@test
def one_picture_on_the_command_line(space):
    picture = next(iter(sorted(space.data.rglob("*.png")) + sorted(space.data.rglob("*.jpg"))))
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", space.config, f"output.path={space.new()}", "--image", picture,
                                     "generate.max_new_tokens=5"])
    check(status == 0 and out.endswith("\n") and "tokens/s" in err, status, out, err)
    for more, message in ((["--prompt", "x"], "--image FILE"), (["--image", space.folder / "none.png"], "none.png")):
        status, out, err, _ = mpirun(0, [PROGRAM, "--generate", space.config, f"output.path={space.new()}", *more])
        check(status != 0 and message in err, more, status, err)


@test
def a_folder_of_pictures_without_captions(space):
    pictures = sorted(space.data.rglob("*.png")) + sorted(space.data.rglob("*.jpg"))
    folder = space.new("photos")
    for name, picture in zip(("b.png", "a.PNG", "trip/day 2/c.png", "trip/.thumbnails/c.png", "._b.png"), pictures, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture.read_bytes())
    (folder / "notes.md").write_text("mine")
    (folder / "trip/clip.mp4").write_text("no picture")
    names = [str(folder / name) for name in ("a.PNG", "b.png", "trip/day 2/c.png")]
    for ranks, key in ((0, "generate.path"), (2, "generate.path"), (0, "data.path")):
        lines, _, out = generate(space, ranks, f"{key}={folder}", "generate.max_new_tokens=4")
        check([line["name"] for line in lines] == names and "references" not in lines[0], key, lines)
        check(re.search(r"^left out +3 files there, no picture by name", out, re.M), out)
    # One picture with its caption: a reference, and the others none.
    error = generate(space, 0, f"generate.path={folder}", action="--evaluate", expected=1)
    check(f"generate.path: {folder}: none of its 3 samples has a reference" in error and "metadata.jsonl" in error, error)
    status, _, err, _ = mpirun(0, [PROGRAM, space.config, f"data.path={folder}", f"output.path={space.new()}"])
    check(status == 1 and f"no dataset at {folder}" in err and "found pictures without captions; to learn from them write a "
          "metadata.jsonl" in err and "--generate captions them" in err, err)
    status, _, err, _ = mpirun(0, [PROGRAM, space.config, f"data.path={folder}", "data.format=imagefolder", f"output.path={space.new()}"])
    check(status == 1 and "found pictures without captions" in err, err)
    flat = space.new("flat")
    flat.mkdir()
    for name in ("a.png", "b.png"):
        (flat / name).write_bytes((folder / "b.png").read_bytes())
    (flat / "b.txt").write_text("a square\n")
    lines, _, _ = generate(space, 0, f"generate.path={flat}", "generate.max_new_tokens=4")
    check([line.get("references") for line in lines] == [None, ["a square"]], lines)
    _, scored, _ = generate(space, 0, f"generate.path={flat}", "generate.max_new_tokens=4", action="--evaluate")
    check((scored / "scores.json").exists(), list(scored.iterdir()))


@test
def a_run_s_own_file_leaves_the_model_s_settings(space):
    trained = run(space, 0, "train.max_steps=1", "output.save_model=true", "generate.max_new_tokens=3").output
    path = trained / "model/generation_config.json"
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), "do_sample": True, "temperature": 0.6,
                                "top_k": 7, "max_new_tokens": 9}))
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", trained / "config.yaml", "generate.samples=2"])
    check(status == 0 and "drawn at temperature 0.6, top_k 7" in out and "at most 3 tokens" in out, out, err)
    # A repetition with the settings that were saved with the answers.
    again = trained / "generated-0001/config.yaml"
    section = re.search(r"^generate:\n((?: +.*\n)*)", again.read_text(), re.M).group(1)
    check("samples: 2" in section and "max_new_tokens: 3" in section and "temperature" not in section, again.read_text())
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", again])
    check(status == 0 and "drawn at temperature 0.6, top_k 7" in out and "prompts    2 of" in out, out, err)


@test
def texts_end_where_positions_and_max_length_end(space):
    model = space.copy(space.model)
    config = json.loads((model / "config.json").read_text())
    queries = config["num_query_tokens"]
    config["text_config"]["max_position_embeddings"] = queries + 8
    (model / "config.json").write_text(json.dumps(config))
    generation = model / "generation_config.json"
    of_file = json.loads(generation.read_text()) if generation.exists() else {}

    def new_tokens(*options, **keys):
        generation.write_text(json.dumps({**of_file, **keys}))
        lines, _, out = generate(space, 0, f"model.path={model}", "generate.samples=2", "generate.min_new_tokens=60", *options)
        return {line["tokens"] for line in lines}, out

    # The prompt is the start token. All 8 positions are read, and the last of them gives a token too.
    check(new_tokens("generate.max_new_tokens=50")[0] == {8})
    found, out = new_tokens(max_length=queries + 6)
    check(found == {5} and f"at most {queries + 6} tokens with the prompt" in out, found, out)
    check(new_tokens("generate.max_new_tokens=3", max_length=queries + 6)[0] == {3})
    generation.write_text(json.dumps({**of_file, "renormalize_logits": True}))
    error = generate(space, 0, f"model.path={model}", "generate.samples=2", "generate.num_beams=2", expected=1)
    check(f"{generation}: renormalize_logits: found true" in error and "remove it" in error, error)
    generation.write_text(json.dumps({**of_file, "max_length": queries}))
    error = generate(space, 0, f"model.path={model}", "generate.samples=2", expected=1)
    check(f"{generation}: max_length: found {queries}" in error and "generate.max_new_tokens" in error, error)


@test
def bad_input_is_told_and_keeps_what_was_written(space):
    broken = space.copy(space.data)
    pictures = sorted(broken.rglob("*.png")) + sorted(broken.rglob("*.jpg"))
    pictures[3].write_bytes(b"no picture")
    error = generate(space, 0, f"generate.path={broken}", "generate.max_new_tokens=2", "generate.batch_size=1", expected=1)
    check(pictures[3].name in error and "on_bad_sample=skip" in error, error)
    lines, _, out = generate(space, 0, f"generate.path={broken}", "generate.max_new_tokens=2", "data.on_bad_sample=skip")
    check(len(lines) == SAMPLES - 1 and re.search(r"^left out +1 ", out, re.M), out)
    for option, message in (("generate.weights=/nowhere/x", "generate.weights"),
                            ("generate.path=/nowhere/x", '"generate.path=/nowhere/x": generate.path: /nowhere/x does not exist'),
                            ("data.path=/nowhere/x", '"data.path=/nowhere/x": data.path: /nowhere/x does not exist'),
                            ("data.val_path=/nowhere/x", '"data.val_path=/nowhere/x": data.val_path: /nowhere/x does not exist'),
                            ("generate.num_return_sequences=2", "num_beams"), ("evaluate.metrics=[meteor]", "cider"),
                            ("generate.temperature=0", "temperature")):
        error = generate(space, 0, option, expected=1)
        check(message in error, option, error)


@test
def settings_of_draws_without_draws_are_warned_of(space):
    given = ("generate.max_new_tokens=2", "generate.samples=2", "generate.temperature=0.7", "generate.min_p=0.1")
    file = space.new("draws.yaml")
    file.write_text(space.config.read_text() + "generate: {top_p: 0.9, top_k: 50}\n")
    for ranks, action, config, options, keys in (
            (0, "--generate", space.config, given, "generate.temperature, generate.min_p are"),
            (2, "--evaluate", space.config, given, "generate.temperature, generate.min_p are"),
            (0, "--generate", space.config, (*given, "generate.do_sample=false"), "generate.temperature, generate.min_p are"),
            (0, "--generate", file, given[:2], "generate.top_p is"),
            (0, "--generate", space.config, (*given[:2], "generate.top_k=50"), "generate.top_k is"),
            (0, "--generate", space.config, (*given, "generate.do_sample=true"), ""), (0, "--generate", space.config, given[:2], "")):
        status, out, err, _ = mpirun(ranks, [PROGRAM, action, config, f"output.path={space.new()}", *options])
        check(status == 0 and err.count("not looked at") == (1 if keys else 0), options, out, err)
        check(not keys or f"warning: {keys} not looked at, since no token is drawn; give generate.do_sample=true" in err, keys, err)


if __name__ == "__main__":
    sys.exit(run_tests("generation_test", Eloquent, PROGRAM))
