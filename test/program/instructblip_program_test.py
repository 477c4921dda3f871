#!/usr/bin/env python3
"""The whole program on small InstructBLIP models of random sizes, beside transformers and PEFT. Prints ok, FAILED or
SKIPPED for each test.

    test/program/instructblip_program_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). Needs torch, transformers and peft; without them the tests are skipped.
Many more models: tools/compare.py instructblip.
"""
import json
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import Skip, check, run_tests, test  # noqa: E402

try:
    import h5py  # noqa: F401
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED instructblip_program_test ({missing})")
    sys.exit(0)
from program_runs import DEVICE, PROGRAM, Space, mpirun, read_safetensors, run, start  # noqa: E402

try:
    import peft
    import torch
    import transformers
    from blipft_compare import families, instructblip
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
except ImportError as missing:
    torch, why = None, str(missing)

SEED = 500                                 # not among those of compare.py's 20


def need_torch():
    if torch is None:
        raise Skip(why)


def random_model(space, seed):
    folder = space.new("instructblip")
    folder.mkdir()
    _, pixels, samples, _ = instructblip.make_folder(folder, seed)
    return folder, pixels, samples


def settings(folder):
    return (f"model.path={folder}/model", "model.init=pretrained", f"data.path={folder}/data",
            "data.max_text_tokens=40", "data.shuffle=false")


def train(space, folder, *more, ranks=0):
    return run(space, ranks, *settings(folder), "train.batch_size=3", "train.accumulate_grad_batches=2",
               "train.max_steps=3", "train.max_epochs=3", "parallel.strategy=single", *more)


@test
def a_model_has_transformers_loss_gradients_and_weights_and_loads_there(space):
    need_torch()
    if DEVICE != "cpu":
        raise Skip("compares on the CPU")
    os.environ.setdefault("BLIPFT", PROGRAM)
    folder = space.new("instructblip")
    folder.mkdir()
    loss, gradient, weight, too_far = instructblip.compare(folder, SEED)
    check(not too_far, "loss off by", loss, "gradient by", gradient, "weights by", weight)


@test
def adapters_load_in_peft(space):
    need_torch()
    folder, pixels, samples = random_model(space, SEED + 1)
    result = train(space, folder, "adapter.kind=lora", "adapter.r=4", "adapter.alpha=6",
                   "adapter.targets=[q, k, v, o, mlp]", "train.lr=0.02", "train.act_ckpt=half", "output.save_model=true", "output.save_merged=true",
                   "output.save_dtype=f32")
    names = set(read_safetensors(result.output / "adapter/adapter_model.safetensors"))
    check("base_model.model.language_model.model.layers.0.self_attn.q_proj.lora_A.weight" in names, sorted(names)[:3])
    batch = instructblip.batch_of(pixels, *instructblip.ids_of(folder, samples))
    load = transformers.InstructBlipForConditionalGeneration.from_pretrained

    def logits(model):
        with torch.no_grad():
            return instructblip.SIDE.logits(model.eval(), batch)
    base, merged = (load(place, dtype=torch.float32, attn_implementation="eager")
                    for place in (folder / "model", result.output / "model"))
    before, expected = logits(base), logits(merged)
    model = peft.PeftModel.from_pretrained(base, str(result.output / "adapter"))
    found = logits(model.get_base_model())
    largest = expected.abs().max()
    check((found - expected).abs().max() <= 1e-5 * largest, "PEFT's logits differ from the merged model's")
    check((expected - before).abs().max() >= 1e-3 * largest, "the adapters change nothing")


@test
def quantised_offloaded_and_recomputed_layers_change_no_bit(space):
    need_torch()
    folder, _, _ = random_model(space, SEED + 2)
    for what in (("adapter.kind=lora", "adapter.r=4", "adapter.targets=[q, v, mlp]", "model.quantize=nf4",
                  "train.lr=0.02"),
                 ("train.lr=0.005", "train.dropout=true")):
        plain = train(space, folder, *what).losses()
        for more in (("train.act_ckpt=full",), ("train.act_ckpt=half",),
                     ("train.act_ckpt=full", "parallel.offload=[activations]")):
            check(list(train(space, folder, *what, *more).losses()) == list(plain), what, more)
        check(plain[-1] != plain[0], plain)


@test
def two_ranks_learn_as_one_and_padding_changes_nothing(space):
    need_torch()
    folder, _, _ = random_model(space, SEED + 3)
    common = ("train.lr=0.005", "train.loss_normalization=tokens")
    alone = train(space, folder, *common).losses()
    others = [train(space, folder, *common, "data.text_padding=longest").losses()]
    for strategy in ("ddp", "fsdp"):
        others.append(run(space, 2, *settings(folder), *common, "train.batch_size=3", "train.accumulate_grad_batches=1",
                          "train.max_steps=3", "train.max_epochs=3", f"parallel.strategy={strategy}").losses())
    for other in others:
        for one, found in zip(alone, other):
            check(abs(one - found) <= 1e-5 * abs(one), alone, other)


@test
def what_is_frozen_is_saved_as_it_was(space):
    need_torch()
    folder, _, _ = random_model(space, SEED + 4)
    result = train(space, folder, "model.freeze=[vision, language]", "train.lr=0.02", "output.save_model=true")
    before, after = (read_safetensors(place / "model/model.safetensors") for place in (folder, result.output))
    check(set(before) == set(after), set(before) ^ set(after))
    for name in before:
        frozen = name.startswith(("vision_model.", "language_model."))
        same = before[name] == after[name]
        # No gradient and no decay of what nobody reads changes a bias of 0; all others move.
        check(same if frozen else not same, name)
    train(space, folder, "output.save_model=true", f"output.path={result.output}", "output.overwrite=true")
    tokenizers = [sorted(os.listdir(place / "model/qformer_tokenizer")) for place in (folder, result.output)]
    check(tokenizers[0] == tokenizers[1], tokenizers, "the second tokenizer of a folder that was replaced")
    names = os.listdir(result.output)
    check(not [name for name in names if name.endswith((".old", ".partial"))], names)


def t5_model(space, seed):
    """A space with an InstructBLIP over a T5."""
    folder = space.new("instructblip_t5")
    folder.mkdir()
    _, samples, _ = families.FAMILIES["instructblip_t5"].make_folder(folder, seed)
    (folder / "pictures").rename(folder / "data")
    return folder, None, samples


@test
def questions_are_learnt_and_their_answers_scored(space):
    """Six pictures with ten answers each: after a while the most frequent ones come."""
    need_torch()
    for make, rate in ((random_model, 0.003), (t5_model, 0.01)):
        learn_answers(space, make, rate)


def learn_answers(space, make, rate):
    folder, _, samples = make(space, SEED + 5)
    words = "bcdflm"                       # a token each
    records = [{"file_name": sample["file_name"], "prompt": f"What {i}?", "answer": [word] * 8 + ["x"] * 2}
               for i, (sample, word) in enumerate(zip(samples, words))]
    (folder / "data/metadata.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    asked = ("data.prompt_template=q: {} a:", "data.answers=common")
    result = run(space, 0, *settings(folder), *asked, "train.batch_size=6", "train.max_steps=120",
                 "train.max_epochs=120", f"train.lr={rate}", "output.save_model=true")
    status, out, err, _ = mpirun(0, [PROGRAM, "--evaluate", space.config, *settings(folder), *asked,
                                     f"model.path={result.output}/model", "generate.max_new_tokens=6",
                                     "evaluate.metrics=[vqa_accuracy]", f"output.path={space.new()}"])
    check(status == 0, out, err)
    place = pathlib.Path(re.search(r"^texts +(.*)/generated.jsonl$", out, re.M).group(1))
    lines = [json.loads(line) for line in (place / "generated.jsonl").read_text().splitlines()]
    lines.sort(key=lambda line: line["sample"])
    check([line["text"].strip() for line in lines] == list(words), [line["text"] for line in lines])
    check(all(line["prompt"].replace(" ", "").endswith("a:") for line in lines), lines[0])
    check('"vqa_accuracy"' in (place / "scores.json").read_text(), out)
    score = re.search(r"vqa_accuracy\s+([\d.]+)", out)
    check(score and float(score.group(1)) in (1.0, 100.0), out)
    one = mpirun(0, [PROGRAM, "--generate", space.config, f"model.path={result.output}/model",
                     "model.init=pretrained", "--prompt",
                     "q: What 0? a:", "--image", folder / "data/0.png",
                     "generate.max_new_tokens=6"])
    check(one[0] == 0 and one[1].strip() == words[0], one)


@test
def folders_that_lack_something_are_told(space):
    need_torch()
    folder, _, _ = random_model(space, SEED + 6)
    config = json.loads((folder / "model/config.json").read_text())

    def refused(*words):
        result = start(space, 0, *settings(folder), "train.max_steps=1")
        check(result.status != 0 and all(word in result.err for word in words), words, result)
    shutil.move(folder / "model/qformer_tokenizer", folder / "away")
    refused("model/qformer_tokenizer", "no tokenizer")
    shutil.move(folder / "away", folder / "model/qformer_tokenizer")
    qformer = config["qformer_config"]
    for change, words in (({"text_config": {"model_type": "opt"}}, ("text_config.model_type", '"opt"', '"llama" and "t5"')),
                          ({"qformer_config": {**qformer, "hidden_act": "relu"}}, ("qformer_config.hidden_act",)),
                          ({"qformer_config": {**qformer, "vocab_size": 20}}, ("has 20", "qformer_config.vocab_size")),
                          ({"use_decoder_only_language_model": False}, ("use_decoder_only_language_model",))):
        (folder / "model/config.json").write_text(json.dumps({**config, **change}))
        if "qformer_config" in change and change["qformer_config"]["vocab_size"] == 20:
            result = start(space, 0, *settings(folder), "train.max_steps=1", "model.init=random")
            check(result.status != 0 and all(word in result.err for word in words), words, result)
        else:
            refused("config.json", *words)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(run_tests("instructblip_program_test", Space, PROGRAM))
