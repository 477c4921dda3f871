#!/usr/bin/env python3
"""The whole program on small models of LLaMA's younger relatives and of Gemma, of random sizes, beside transformers and
PEFT. Prints ok, FAILED or SKIPPED for each test.

    test/program/families_program_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). Needs torch, transformers and peft; without them the tests are skipped.
Many more models: tools/compare.py families.
"""
import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import Skip, check, run_tests, test, test_each  # noqa: E402

try:
    import h5py  # noqa: F401
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED families_program_test ({missing})")
    sys.exit(0)
from program_runs import DEVICE, PROGRAM, Space, run, start  # noqa: E402

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
    from blipft_compare import encoder_decoders, families
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
except ImportError as missing:
    torch, why = None, str(missing)

FAMILIES = ("qwen3", "smollm3", "phi3", "olmo2", "gemma2", "gemma3", "granite", "glm4")
ENCODER_DECODERS = ("t5", "blip2_t5", "instructblip_t5")
SEED = 500                                 # not among those of compare.py's 40


def need_torch():
    if torch is None:
        raise Skip(why)


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def train(space, folder, *more):
    return run(space, 1, f"model.path={folder}/model", "model.init=pretrained", f"data.path={folder}/texts.jsonl",
               "data.max_text_tokens=24", "train.batch_size=3", "train.accumulate_grad_batches=2", "train.max_steps=3",
               "train.max_epochs=3", "parallel.strategy=single", *more)


def random_model(space, family, seed):
    folder = space.new(family)
    folder.mkdir()
    families.FAMILIES[family].make_folder(folder, seed)
    return folder


@test_each((*FAMILIES, *ENCODER_DECODERS))
def models_of_each_family_have_transformers_loss_and_gradients_and_load_there(space, family):
    need_torch()
    if DEVICE != "cpu":
        raise Skip("compares on the CPU")
    os.environ.setdefault("BLIPFT", PROGRAM)
    folder = space.new(family)
    folder.mkdir()
    loss, gradient, own, too_far = families.compare(folder, family, SEED)
    check(not too_far, family, "loss off by", loss, "gradient by", gradient, "transformers' own by", own)


@test_each(FAMILIES)
def adapters_of_each_family_load_in_peft(space, family):
    """Includes fused matrices: q, k and v together select qkv_proj."""
    need_torch()
    folder = random_model(space, family, SEED + 1)
    result = train(space, folder, "adapter.kind=lora", "adapter.r=4", "adapter.alpha=6",
                   "adapter.targets=[all-linear]", "train.lr=0.02", "train.act_ckpt=half", "output.save_model=true",
                   "output.save_merged=true", "output.save_dtype=f32")
    base, merged = load(folder / "model"), load(result.output / "model")
    ids = torch.randint(3, base.config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(1))
    before, expected = logits_of(base, ids), logits_of(merged, ids)
    found = logits_of(peft.PeftModel.from_pretrained(base, str(result.output / "adapter")), ids)
    largest = expected.abs().max()
    # f32 on both sides: products in another order.
    check((found - expected).abs().max() <= 1e-5 * largest, family, "PEFT's logits differ from the merged model's")
    check((expected - before).abs().max() >= 1e-3 * largest, family, "the adapters change nothing")


@test_each(ENCODER_DECODERS)
def adapters_of_encoder_decoders_load_in_peft(space, family):
    """Adapters of a T5 load by their task, in self and cross attention; of a BLIP-2 or InstructBLIP with a T5 by their class."""
    need_torch()
    side = families.FAMILIES[family]
    kinds = {"t5": peft.AutoPeftModelForSeq2SeqLM, "blip2_t5": peft.AutoPeftModel, "instructblip_t5": peft.AutoPeftModel}
    folder = space.new(family)
    folder.mkdir()
    _, records, _ = side.make_folder(folder, SEED + 1)
    result = train(space, folder, f"data.path={folder}/{side.data}", "adapter.kind=lora", "adapter.r=4",
                   "adapter.alpha=6", "adapter.targets=[q, k, v, o, mlp]", "train.lr=0.02", "train.act_ckpt=half",
                   "output.save_model=true", "output.save_merged=true", "output.save_dtype=f32")
    config = json.loads((result.output / "adapter/adapter_config.json").read_text())
    check(config["task_type"] == ("SEQ_2_SEQ_LM" if family == "t5" else None), config)
    check({"q", "k", "v", "o", "wo"} <= set(config["target_modules"]), config)
    adapted = kinds[family].from_pretrained(str(result.output / "adapter"), dtype=torch.float32)
    batch = side._batch(folder, records)
    if "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].float()
    merged, base = (side.load(path, torch.float32) for path in (result.output / "model", folder / "model"))
    with torch.no_grad():
        found, expected, before = (model.eval()(**batch).logits for model in (adapted, merged, base))
    largest = expected.abs().max()
    # f32 on both sides: products in another order.
    check((found - expected).abs().max() <= 2e-5 * largest, family, "PEFT's logits differ from the merged model's")
    check((expected - before).abs().max() >= 1e-3 * largest, family, "the adapters change nothing")


@test
def adapters_of_the_qformer_have_pefts_gradients(space):
    """By PEFT's names: query, key, value, dense. From trained adapters, one step of SGD shows the gradients."""
    need_torch()
    lr = 4.0                               # so large that f32 keeps the change
    for family, targets, act_ckpt in (("blip2_t5", "[query, key, value, dense]", "none"),
                                      ("instructblip_t5", "[query, key, value, dense]", "full"),
                                      ("instructblip_t5", "[query, dense, q, v]", "half")):
        side = families.FAMILIES[family]
        folder = space.new(family)
        folder.mkdir()
        _, records, _ = side.make_folder(folder, SEED + 4)
        common = (f"model.path={folder}/model", "model.init=pretrained", f"data.path={folder}/{side.data}", "data.max_text_tokens=24",
                  "data.shuffle=false", "train.batch_size=6", f"train.act_ckpt={act_ckpt}", "train.optim=sgd", "train.momentum=0",
                  "train.weight_decay=0", "adapter.kind=lora", "adapter.r=4", "adapter.alpha=8", f"adapter.targets={targets}",
                  "output.save_model=true")
        begun = run(space, 1, *common, "train.max_steps=20", "train.max_epochs=20", "train.lr=0.05").output / "adapter"
        result = run(space, 1, *common, "train.max_steps=1", f"train.lr={lr}", f"adapter.path={begun}")
        before, after = (load_file(place / "adapter_model.safetensors") for place in (begun, result.output / "adapter"))
        model = peft.PeftModel.from_pretrained(side.load(folder / "model", torch.float32), str(begun), is_trainable=True).eval()
        batch = side._batch(folder, records)
        batch["pixel_values"] = batch["pixel_values"].float()
        loss = model(**batch).loss
        loss.backward()
        check(abs(result.losses()[0] / loss.item() - 1) < 1e-5, family, result.losses(), loss.item())
        truth = {name.replace(".default", ""): torch.zeros_like(p) if p.grad is None else p.grad
                 for name, p in model.named_parameters() if p.requires_grad}
        check(set(truth) == set(before), family, set(truth) ^ set(before))
        check(any(".qformer." in name and g.norm() > 0 for name, g in truth.items()), "no gradient in the Q-Former")
        norm = sum(g.square().sum() for g in truth.values()).sqrt()
        for name, g in truth.items():
            error = ((before[name] - after[name]) / lr - g).norm() / max(g.norm(), 0.01 * norm)
            # f32 on both sides, sums in another order, and the change's last bits.
            check(error < 2e-4, family, name, error)


@test_each(ENCODER_DECODERS)
def encoder_decoders_train_alike_quantised_recomputed_offloaded_and_on_two_ranks(space, family):
    need_torch()
    side = families.FAMILIES[family]
    folder = space.new(family)
    folder.mkdir()
    side.make_folder(folder, SEED + 2)
    qlora = (f"data.path={folder}/{side.data}", "adapter.kind=lora", "adapter.r=4", "adapter.targets=[q, v, wo]",
             "model.quantize=nf4", "train.lr=0.02", "train.dropout=true")
    plain = train(space, folder, *qlora).losses()
    check(plain[-1] != plain[0], family, plain)
    for more in (("train.act_ckpt=full",), ("train.act_ckpt=full", "parallel.offload=[activations]"),
                 ("parallel.offload=[parameters]",)):
        check(list(train(space, folder, *qlora, *more).losses()) == list(plain), family, more)
    if family != "t5":                 # adapters in the Q-Former, which draw dropout for the rows of a sample
        asked = (*qlora, "adapter.targets=[query, dense, q]", "adapter.dropout=0.2")
        expected = train(space, folder, *asked).losses()
        check(list(expected) != list(plain), family, expected)
        for more in (("train.act_ckpt=full",), ("train.act_ckpt=half", "parallel.offload=[activations]")):
            check(list(train(space, folder, *asked, *more).losses()) == list(expected), family, more)
        losses = run(space, 2, f"model.path={folder}/model", "model.init=pretrained", *asked, "data.max_text_tokens=24",
                     "train.batch_size=3", "train.max_steps=3", "train.max_epochs=3", "parallel.strategy=fsdp").losses()
        check(all(abs(a / b - 1) < 1e-4 for a, b in zip(losses, expected)), family, losses, expected)
    for strategy in ("ddp", "fsdp"):
        losses = run(space, 2, f"model.path={folder}/model", "model.init=pretrained", *qlora, "data.max_text_tokens=24",
                     "train.batch_size=3", "train.max_steps=3", "train.max_epochs=3",
                     f"parallel.strategy={strategy}").losses()
        # f32: the same samples in another order of sums, and of 4-bit codes the same codes.
        check(all(abs(a / b - 1) < 1e-4 for a, b in zip(losses, plain)), family, strategy, losses, plain)


@test
def encoder_decoders_generate_what_transformers_generates(space):
    need_torch()
    folder = space.new("t5")
    folder.mkdir()
    side = families.FAMILIES["t5"]
    _, records, _ = side.make_folder(folder, SEED + 3)
    result = start(space, 1, "--generate", f"model.path={folder}/model", "model.init=pretrained", f"data.path={folder}/texts.jsonl",
                   "generate.max_new_tokens=7")
    check(result.status == 0, result)
    lines = (result.output / "generated-0001/generated.jsonl").read_text().splitlines()
    found = {line["sample"]: line["text"] for line in map(json.loads, lines)}
    model = side.load(folder / "model", torch.float32)
    tokenizer = encoder_decoders.tokenizer_of(folder / "model")
    for i, record in enumerate(records):
        ids = torch.tensor([tokenizer(record["prompt"]).input_ids])
        text = tokenizer.decode(model.generate(ids, max_new_tokens=7, do_sample=False)[0], skip_special_tokens=True)
        check(found[i] == text.strip(), record, found[i], text)


def with_pictures(folder, text_folder):
    """The Gemma 3 of `text_folder` as the texts' part of one that sees pictures, whose other parts are random. Neither has a cap
    of the logits, which transformers leaves out where there are pictures."""
    path = text_folder / "model/config.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()), final_logit_softcapping=None)))
    shutil.copytree(text_folder, folder)
    text = load(text_folder / "model")
    vision = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14)
    config = transformers.Gemma3Config(text_config=text.config.to_dict(), vision_config=vision, mm_tokens_per_image=4,
                                       tie_word_embeddings=text.config.tie_word_embeddings)
    torch.manual_seed(7)
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    (folder / "model/model.safetensors").unlink()
    model.save_pretrained(folder / "model")


def load_with_pictures(folder):
    model, report = transformers.Gemma3ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(value) for key, value in report.items() if value}
    check(not wrong, folder, wrong)
    return model


@test
def a_gemma_that_sees_pictures_learns_texts_and_keeps_its_other_parts(space):
    need_torch()
    for seed in range(SEED + 4, SEED + 7):
        texts, whole = random_model(space, "gemma3", seed), space.new("gemma3-pictures")
        with_pictures(whole, texts)
        more = ("train.lr=0.01", "output.save_model=true", "output.save_dtype=f32")
        alone, beside = train(space, texts, *more), train(space, whole, *more)
        check(list(alone.losses()) == list(beside.losses()), alone.losses(), beside.losses())
        before, after = load_with_pictures(whole / "model"), load_with_pictures(beside.output / "model")
        for name, value in before.state_dict().items():
            other = "language_model" not in name and "lm_head" not in name
            check(not other or torch.equal(value, after.state_dict()[name]), name, "is not what it was")
        ids = torch.randint(3, before.config.text_config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(1))
        expected, found = logits_of(load(alone.output / "model"), ids), logits_of(after, ids)
        check((found - expected).abs().max() <= 1e-5 * expected.abs().max(), "logits differ from those of the texts' part alone")

        lora = train(space, whole, "adapter.kind=lora", "adapter.r=4", "adapter.targets=[all-linear]", "train.lr=0.02",
                     "output.save_model=true", "output.save_merged=true", "output.save_dtype=f32")
        merged = logits_of(load_with_pictures(lora.output / "model"), ids)
        adapted = peft.PeftModel.from_pretrained(before, str(lora.output / "adapter"))
        check((logits_of(adapted, ids) - merged).abs().max() <= 1e-5 * merged.abs().max(), "PEFT's logits differ from the merged model's")
        check((merged - logits_of(load_with_pictures(whole / "model"), ids)).abs().max() >= 1e-3 * merged.abs().max(), "the adapters change nothing")
        check(not any("vision" in name and "lora" in name for name, _ in adapted.named_modules()), "PEFT adapts the vision tower, too")
        generated = start(space, 1, "--generate", f"model.path={beside.output}/model", "model.init=pretrained",
                          f"data.path={whole}/texts.jsonl", "generate.max_new_tokens=4")
        check(generated.status == 0, generated)
    refused = start(space, 1, f"model.path={whole}/model", f"data.path={whole}/texts.jsonl", "model.init=random", "output.save_model=true")
    check(refused.status != 0 and "model.init: found random" in refused.err and "vision_tower" in refused.err, refused)


@test
def a_part_of_a_fused_matrix_is_no_target(space):
    need_torch()
    folder = random_model(space, "phi3", SEED + 1)
    result = start(space, 1, f"model.path={folder}/model", f"data.path={folder}/texts.jsonl", "data.max_text_tokens=24",
                   "train.batch_size=3", "adapter.kind=lora", "adapter.targets=[q, v]")
    check(result.status != 0 and "\"q\"" in result.err and "qkv_proj" in result.err, result)


@test_each(("phi3", "olmo2", "gemma3", "granite", "glm4"))
def quantised_offloaded_and_recomputed_layers_change_no_bit(space, family):
    need_torch()
    folder = random_model(space, family, SEED + 2)
    qlora = ("adapter.kind=lora", "adapter.r=4", "adapter.targets=[all-linear]", "model.quantize=nf4",
        "train.lr=0.02")
    plain = train(space, folder, *qlora).losses()
    for more in (("train.act_ckpt=full",), ("train.act_ckpt=full", "parallel.offload=[activations]"),
                 ("parallel.offload=[parameters]",)):
        check(list(train(space, folder, *qlora, *more).losses()) == list(plain), family, more)
    check(plain[-1] != plain[0], family, plain)


@test_each(("phi3", "gemma3", "granite", "glm4"))
def two_ranks_learn_as_one(space, family):
    need_torch()
    folder = random_model(space, family, SEED + 3)
    alone = train(space, folder, "train.lr=0.01").losses()
    shared = run(space, 2, f"model.path={folder}/model", "model.init=pretrained", f"data.path={folder}/texts.jsonl",
                 "data.max_text_tokens=24", "train.batch_size=3", "train.accumulate_grad_batches=1",
                 "train.max_steps=3", "train.max_epochs=3", "train.lr=0.01", "parallel.strategy=fsdp").losses()
    for one, other in zip(alone, shared):
        check(abs(one - other) <= 1e-5 * abs(one), family, alone, shared)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(run_tests("families_program_test", Space, PROGRAM))
