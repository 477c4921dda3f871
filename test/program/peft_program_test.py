#!/usr/bin/env python3
"""Adapters that the program trained, in PEFT itself: loaded, they mean what the program means, and so does the merged
model, whose head is untied where it was tied. Prints ok, FAILED or SKIPPED for each test.

    test/program/peft_program_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). Needs torch, transformers and peft; without them the tests are skipped.
"""
import contextlib
import json
import os
import random
import shutil
import sys

from llama_program_test import LR, STEPS, blipft_side, make_model, near, transformers_side
from script_tests import Skip, check, run_tests, test  # noqa: E402
from program_runs import PROGRAM, ROOT, Space, run, saved_model  # noqa: E402

try:
    import peft
    import torch
    import transformers
except ImportError as missing:
    peft, why = None, str(missing)

LORA = ("adapter.kind=lora", "adapter.r=4", "adapter.alpha=6", "adapter.targets=[q, v, mlp, head]")


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def check_adapters(space, seed, tied):
    model, about = make_model(space, seed)
    check((", tied," in about) == tied, about)
    result = blipft_side(space, model, random.Random(seed), STEPS, *LORA, f"train.lr={10 * LR}",
                         "output.save_model=true", "output.save_merged=true", "output.save_dtype=f32")
    adapter, merged = result.output / "adapter", result.output / "model"
    base, alone = load(model), load(merged)
    ids = torch.randint(3, base.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(seed))
    expected = logits_of(alone, ids)
    before = logits_of(base, ids)
    embeddings = base.get_input_embeddings().weight.detach().clone()
    found = logits_of(peft.PeftModel.from_pretrained(base, str(adapter)), ids)
    largest = expected.abs().max()
    # f32 on both sides: products in another order.
    check((found - expected).abs().max() <= 1e-5 * largest, about, "PEFT's logits differ from the merged model's")
    check((expected - before).abs().max() >= 1e-3 * largest, about, "the adapters change nothing")
    config = json.loads((merged / "config.json").read_text())
    check(config["tie_word_embeddings"] is False or not tied, about, config)
    check(torch.equal(alone.get_input_embeddings().weight, embeddings), about, "merging changed the embeddings")
    if tied:
        check(not torch.equal(alone.lm_head.weight, embeddings), about, "the head is as it was")
    # The program goes on from what PEFT has read, and from the merged model, with transformers' loss of that.
    truth = transformers_side(merged, space.data)["loss"]
    again = blipft_side(space, model, random.Random(1), 1, *LORA, f"adapter.path={adapter}")
    near(again.losses()[0], truth, 1e-5, about)
    near(blipft_side(space, merged, random.Random(1), 1).losses()[0], truth, 1e-5, about)
    print(f"   {about}: logits within {(found - expected).abs().max() / largest:.1e}, loss {truth:.4f}", flush=True)


@test
def adapters_load_in_peft_and_merge_to_the_same_model(space):
    if peft is None:
        raise Skip(why)
    check_adapters(space, 5, tied=False)


@test
def an_adapter_of_a_tied_head_loads_in_peft_and_merges_into_a_head_of_its_own(space):
    if peft is None:
        raise Skip(why)
    check_adapters(space, 0, tied=True)


@contextlib.contextmanager
def working_in(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@test
def an_adapter_loads_from_any_folder_by_its_name_alone(space):
    """The run names its model by a relative path; AutoPeftModelForCausalLM gets only the adapter's path."""
    if peft is None:
        raise Skip(why)
    model, about = make_model(space, 5)
    result = blipft_side(space, model, random.Random(5), 1, *LORA, f"train.lr={10 * LR}", "output.save_model=true",
                         "output.save_merged=true", "output.save_dtype=f32",
                         f"model.path={os.path.relpath(model, ROOT)}/")
    config = json.loads((result.output / "adapter/adapter_config.json").read_text())
    check(config["task_type"] == "CAUSAL_LM", config)
    check(config["base_model_name_or_path"] == str(model), "found", config["base_model_name_or_path"], "for", model)
    elsewhere = space.new("elsewhere")
    elsewhere.mkdir()
    shutil.copytree(result.output / "adapter", elsewhere / "mine")
    with working_in(elsewhere):
        adapted = peft.AutoPeftModelForCausalLM.from_pretrained("mine", dtype=torch.float32,
                                                                attn_implementation="eager")
    ids = torch.randint(3, adapted.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(5))
    found, expected = logits_of(adapted, ids), logits_of(load(result.output / "model"), ids)
    check((found - expected).abs().max() <= 1e-5 * expected.abs().max(), about, "differs from the merged model")


@test
def an_adapter_of_blip2_loads_from_any_folder(space):
    """It is no causal language model to transformers: PEFT writes its class in place of the task."""
    if peft is None:
        raise Skip(why)
    result = run(space, 1, f"model.path={saved_model(space)}", "model.init=pretrained", "train.max_steps=2",
                 "adapter.kind=lora", "train.lr=0.02", "output.save_model=true", "output.save_merged=true",
                 "output.save_dtype=f32")
    folder = result.output / "adapter"
    config = json.loads((folder / "adapter_config.json").read_text())
    peft_writes = {"base_model_class": "Blip2ForConditionalGeneration",
                   "parent_library": transformers.Blip2ForConditionalGeneration.__module__}
    check(config["task_type"] is None and config["auto_mapping"] == peft_writes, config)
    elsewhere = space.new("elsewhere")
    elsewhere.mkdir()
    with working_in(elsewhere):
        adapted = peft.AutoPeftModel.from_pretrained(str(folder), dtype=torch.float32)
    merged, base = (transformers.Blip2ForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
                    for path in (result.output / "model", saved_model(space)))
    generator = torch.Generator().manual_seed(5)
    side = merged.config.vision_config.image_size
    prefix = torch.full((1, merged.config.num_query_tokens), merged.config.image_token_index)
    inputs = {"pixel_values": torch.randn(1, 3, side, side, generator=generator),
              "input_ids": torch.cat([prefix, torch.randint(3, 90, (1, 7), generator=generator)], 1)}
    with torch.no_grad():
        found, expected, before = (model.eval()(**inputs).logits for model in (adapted, merged, base))
    largest = expected.abs().max()
    check((found - expected).abs().max() <= 1e-5 * largest, "differs from the merged model")
    check((before - expected).abs().max() >= 1e-4 * largest, "the adapters change nothing")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(run_tests("peft_program_test", Space, PROGRAM))
