#!/usr/bin/env python3
"""Adapters that the program trained, in PEFT itself: loaded, they mean what the program means, and so does the merged
model, whose head is untied where it was tied. Prints ok, FAILED or SKIPPED for each test.

    test/program/peft_program_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). Needs torch, transformers and peft; without them the tests are skipped.
"""
import json
import os
import random
import sys

from llama_program_test import LR, STEPS, blipft_side, make_model, near, transformers_side
from script_tests import Skip, check, run_tests, test  # noqa: E402
from program_runs import PROGRAM, Space  # noqa: E402

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


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(run_tests("peft_program_test", Space, PROGRAM))
