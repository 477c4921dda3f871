#!/usr/bin/env python3
"""Makes the golden files of the InstructBLIP tests: test/golden/instructblip_<name>/, from transformers itself.

As tools/make_golden.py makes BLIP-2's (what is in them is told there), with a LLaMA that learns the answers alone, and
beside ids and lengths:

    learnt              u8  [B, T]   whether an id is to be predicted
    instruction_ids     i32 [B, I]   of the Q-Former's text, padded on the right with 0
    instruction_lengths i32 [B]

Needs torch and transformers:  python3 tools/make_instructblip_golden.py [--out test/golden] [--only NAME]
"""
import os

import torch
import transformers
from safetensors.torch import save_file

import make_golden
from instructblip_model import exact, load, loss_of, make_model, run_model, zero_gradients
from make_golden import ADAMW, PIXEL_MEAN, PIXEL_STD, bf16_distances, checkpoint_keys, distances, gradients

CASES = {
    # Cross attention in every second layer, instructions of other lengths than the texts, grouped heads.
    "ordinary": dict(
        seed=1, queries=5, lengths=[9, 5, 7], prompts=[4, 3, 6], instructions=[6, 9, 2],
        vision=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                    patch_size=14),
        qformer=dict(vocab_size=37, hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
                     max_position_embeddings=20),
        text=dict(vocab_size=53, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=24, pad_token_id=0)),
    # Three heads, one query, sizes that no vector width divides, an instruction as long as its positions, a tied head.
    "odd": dict(
        seed=2, queries=1, lengths=[4, 11], prompts=[2, 6], instructions=[11, 3], tied=True,
        vision=dict(hidden_size=21, intermediate_size=26, num_hidden_layers=1, num_attention_heads=3, image_size=17,
                    patch_size=7),
        qformer=dict(vocab_size=31, hidden_size=27, intermediate_size=22, num_hidden_layers=2, num_attention_heads=3,
                     max_position_embeddings=11, cross_attention_frequency=1),
        text=dict(vocab_size=47, hidden_size=30, intermediate_size=34, num_hidden_layers=1, num_attention_heads=3,
                  max_position_embeddings=16, pad_token_id=0)),
    # Weights stored in bfloat16.
    "bf16": dict(
        seed=3, queries=4, lengths=[9, 5, 7], prompts=[4, 3, 6], instructions=[6, 9, 2], dtype=torch.bfloat16,
        vision=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                    patch_size=14),
        qformer=dict(vocab_size=37, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                     max_position_embeddings=20),
        text=dict(vocab_size=53, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4,
                  max_position_embeddings=24, pad_token_id=0)),
}


def make_batch(case):
    generator = torch.Generator().manual_seed(100 + case["seed"])

    def draw(count, below):
        return torch.randint(3, below, (count,), generator=generator).tolist()
    side, samples = case["vision"]["image_size"], len(case["lengths"])
    pixels = torch.randint(0, 256, (samples, side, side, 3), generator=generator, dtype=torch.uint8)
    texts = [draw(length, case["text"]["vocab_size"] - 1) for length in case["lengths"]]
    learnt = [[t >= prompt for t in range(length)] for length, prompt in zip(case["lengths"], case["prompts"])]
    instructions = [draw(length, case["qformer"]["vocab_size"]) for length in case["instructions"]]
    return pixels, texts, learnt, instructions


def compute(directory, batch, dtype):
    pixels, texts, learnt, instructions = batch
    model = load(directory, dtype)

    def loss_now():
        return loss_of(run_model(model, pixels, texts, instructions, dtype), texts, learnt)
    loss = loss_now()
    result = dict(loss=loss.item(), loss_padding=loss.item(), grad=gradients(model, loss))
    result["grad_norm"] = sum(g.double().square().sum() for g in result["grad"].values()).sqrt().item()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    result["losses"] = []
    for _ in range(5):
        loss = loss_now()
        result["losses"].append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    result["losses"].append(loss_now().item())
    result["step5"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    return result


def tensors_of(batch):
    pixels, texts, learnt, instructions = batch

    def padded(rows, value, dtype=torch.int32):
        longest = max(map(len, rows))
        return torch.tensor([list(row) + [value] * (longest - len(row)) for row in rows], dtype=dtype)
    labels = [[i if keep else -100 for i, keep in zip(row[1:], keeps[1:])] for row, keeps in zip(texts, learnt)]
    lengths = [torch.tensor([len(row) for row in rows], dtype=torch.int32) for rows in (texts, instructions)]
    return dict(pixels=pixels, ids=padded(texts, 0), lengths=lengths[0], labels=padded(labels, -100),
                learnt=padded(learnt, 0, torch.uint8), instruction_ids=padded(instructions, 0),
                instruction_lengths=lengths[1])


def own_loss(directory, batch):
    """The loss that transformers itself computes from `labels`, to check that loss_of means the same."""
    pixels, texts, learnt, instructions = batch
    model, captured = load(directory, torch.float32), {}
    tensors = tensors_of(batch)
    forward = model.forward

    def with_labels(**inputs):
        queries, valid = model.config.num_query_tokens, tensors["labels"].long()
        first = torch.full((len(texts), queries + 1), -100)
        captured["out"] = forward(labels=torch.cat([first, valid], 1), **inputs)
        return captured["out"]
    model.forward = with_labels
    run_model(model, pixels, texts, instructions, torch.float32)
    return captured["out"].loss.item()


def make_case(name, case, out):
    directory = os.path.join(out, "instructblip_" + name)
    tied = case.get("tied", False)
    model = make_model(case["vision"], case["qformer"], {**case["text"], "tie_word_embeddings": tied}, case["queries"],
                       torch.Generator().manual_seed(case["seed"]), tie_word_embeddings=tied)
    make_golden.save_model(case, model.to(case.get("dtype", torch.float32)), directory)
    keys, batch = checkpoint_keys(directory), make_batch(case)
    with exact():
        double = compute(directory, batch, torch.float64)
    single = compute(directory, batch, torch.float32)
    assert abs(own_loss(directory, batch) - single["loss"]) < 1e-5
    assert sorted(double["grad"]) == keys, set(keys) ^ set(double["grad"])
    zero = zero_gradients(model.config)
    tensors = {**make_golden.tensors_of(tensors_of(batch), keys, double)}
    about = dict(made_by="tools/make_instructblip_golden.py", torch=torch.__version__,
                 transformers=transformers.__version__, computed_in="float64, rounded to float32", attention="eager",
                 dropout=False, pixel_mean=PIXEL_MEAN, pixel_std=PIXEL_STD, pad_token_id=0, compare_padding=False,
                 optimizer=dict(name="AdamW", steps=5, **ADAMW), parameters=sum(p.numel() for p in model.parameters()),
                 tensors=len(keys), zero_gradient=zero, float32_distance=distances(single, double, zero))
    if case.get("dtype") == torch.bfloat16:
        about["bf16_distance"] = bf16_distances(compute(directory, batch, torch.bfloat16), double)
    save_file(tensors, os.path.join(directory, "golden.safetensors"))
    make_golden.finish_case(case, directory, about, double)


if __name__ == "__main__":
    make_golden.run(__doc__, CASES, make_case)
