"""Random tiny InstructBLIP models: loss, gradients and trained weights of blipft against those of transformers.

  tools/compare.py instructblip                                   20 models
  tools/compare.py instructblip --count 5 --seed 1000 [--keep FOLDER]

Each model has random sizes, heads, layers, weights, and a batch of random pictures, prompts and answers. blipft
(environment: BLIPFT, default ./blipft) trains a step of SGD in f32 and saves the model, from which the gradient is
known; then three steps of SGD with momentum. The truth is transformers' code in float64, from the folder as it is and from the
saved one. Checks as compare.py families does, and that the saved folder loads with both tokenizers and gives the logits
that the weights give. Ends with status 1 where something is further off than rounding explains.

Needs torch, transformers, numpy and Pillow.
"""
import json
import random
import sys

import numpy
import torch
import transformers
from PIL import Image

from blipft_golden.archive import copy_tokenizer
from blipft_golden.instructblip import InstructBlip, batch_of, make_model
from blipft_golden.reference import exact, load, loss_of

from .families import rope_of
from .runs import (BATCH, LR, MOST_GRADIENT, MOST_LOSS, MOST_ROUNDINGS, WORDS, each_model, gradients_of, parser_of, round_once,
                   run_blipft, worst_error, write_lines)

TOKENIZER, IDS, BERT, BERT_IDS = "llama3", 483, "bert", 287
TOKENS = 40
STEPS = dict(lr=0.5, momentum=0.9, weight_decay=0.01)
MOST_WEIGHT = 2e-5


class Compared(InstructBlip):
    pixel_mean, pixel_std = [0.5] * 3, [0.25] * 3


SIDE = Compared(0, [])


def sizes(pick):
    heads, patch = pick.randint(1, 4), pick.choice([5, 7, 14])
    vision = dict(hidden_size=heads * pick.randint(3, 12), num_attention_heads=heads,
                  intermediate_size=pick.randint(9, 60), num_hidden_layers=pick.randint(1, 3), image_size=patch * pick.randint(1, 4) + pick.randint(0, 2),
                  patch_size=patch, layer_norm_eps=pick.choice([1e-5, 1e-6]), qkv_bias=pick.random() < 0.7)
    heads = pick.randint(1, 4)
    qformer = dict(vocab_size=BERT_IDS + pick.randint(0, 9), hidden_size=heads * pick.randint(3, 12),
                   num_attention_heads=heads, intermediate_size=pick.randint(9, 60),
                   num_hidden_layers=pick.randint(1, 4),
                   cross_attention_frequency=pick.randint(1, 3), max_position_embeddings=pick.randint(TOKENS, 60),
                   pad_token_id=pick.choice([0, 0, 5]))
    queries, kv_heads = pick.randint(1, 9), pick.randint(1, 3)
    heads = kv_heads * pick.randint(1, 3)
    text = dict(vocab_size=IDS + pick.randint(1, 9), hidden_size=heads * pick.randint(3, 9),
                intermediate_size=pick.randint(9, 60), num_hidden_layers=pick.randint(1, 3), num_attention_heads=heads,
                num_key_value_heads=kv_heads, head_dim=2 * pick.choice([1, 3, 4, 8, 11]),
                max_position_embeddings=TOKENS + queries + pick.randint(0, 20), rms_norm_eps=pick.choice([1e-5, 1e-6]),
                tie_word_embeddings=pick.random() < 0.3, pad_token_id=pick.choice([None, 5]),
                rope_parameters=rope_of(pick), bos_token_id=480, eos_token_id=481,
                attention_bias=pick.random() < 0.2, mlp_bias=pick.random() < 0.2)
    return vision, qformer, text, queries


def make_folder(folder, seed):
    """A model, its tokenizers and samples; returns its random settings."""
    pick = random.Random(f"instructblip {seed}")
    vision, qformer, text, queries = sizes(pick)
    model = make_model(vision, qformer, text, queries, torch.Generator().manual_seed(seed),
                       tie_word_embeddings=text["tie_word_embeddings"])
    model.save_pretrained(folder / "model")
    copy_tokenizer(TOKENIZER, folder / "model")
    copy_tokenizer(BERT, folder / "model/qformer_tokenizer")
    (folder / "model/preprocessor_config.json").write_text(json.dumps(
        {"size": {"height": vision["image_size"], "width": vision["image_size"]}, "image_mean": [0.5] * 3,
         "image_std": [0.25] * 3}))
    (folder / "data").mkdir()
    pictures, samples = [], []
    # This tokenizer's file has no decoder: blipft takes it for one that puts spaces itself.
    words = lambda most: " ".join(pick.choice(WORDS) for _ in range(pick.randint(1, most)))  # noqa: E731
    for i in range(BATCH):
        side = vision["image_size"]
        pixels = numpy.frombuffer(pick.randbytes(side * side * 3), numpy.uint8).reshape(side, side, 3)
        Image.fromarray(pixels).save(folder / f"data/{i}.png")
        pictures.append(torch.tensor(pixels.copy()))
        samples.append({"file_name": f"{i}.png", "prompt": words(8), "answer": words(4)})
    write_lines(folder / "data/metadata.jsonl", samples)
    return (vision, qformer, text, queries), torch.stack(pictures), samples, pick


def ids_of(folder, samples):
    """Ids of the texts, a flag for each label, ids of the instructions."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    bert = transformers.AutoTokenizer.from_pretrained(folder / "model/qformer_tokenizer")
    texts, learnt, instructions = [], [], []
    for sample in samples:
        prompt = tokenizer(sample["prompt"]).input_ids
        answer = tokenizer(sample["answer"], add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
        texts.append((prompt + answer)[:TOKENS])
        learnt.append(([False] * len(prompt) + [True] * len(answer))[:TOKENS])
        instruction = bert(sample["prompt"]).input_ids
        instructions.append(instruction if len(instruction) <= TOKENS else instruction[:TOKENS - 1] + instruction[-1:])
    return texts, learnt, instructions


def run(folder, out, pick, *settings):
    return run_blipft(folder, pick, "data", out, TOKENS, "train.loss_normalization=tokens", *settings)


def load_model(folder, dtype):
    return load(SIDE.model_class, folder, dtype)


def transformers_side(folder, batch, dtype, rounding_seed=None):
    """Loss and gradients. With a seed, weights are off by what f32 rounds away."""
    model = load_model(folder / "model", dtype)
    if rounding_seed is not None:
        round_once(model, rounding_seed)
    loss = loss_of(SIDE.logits(model, batch), batch["labels"])
    loss.backward()
    return loss.item(), gradients_of(model)


def trained(folder, batch):
    """Weights after three steps, in float64."""
    model = load_model(folder / "model", torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), **STEPS)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(SIDE.logits(model, batch), batch["labels"]).backward()
        optimizer.step()
    return model


def compare(folder, seed):
    values, pixels, samples, pick = make_folder(folder, seed)
    batch = batch_of(pixels, *ids_of(folder, samples))
    losses, how = run(folder, "out", pick, "train.max_steps=1", f"train.lr={LR}", "train.momentum=0",
                             "train.weight_decay=0")
    _, how3 = run(folder, "out3", pick, "train.max_steps=3", "train.max_epochs=3",
                         *(f"train.{key}={value}" for key, value in STEPS.items()))
    with exact("Llama"):
        expected, truth = transformers_side(folder, batch, torch.float64)
        rounding = max(worst_error(transformers_side(folder, batch, torch.float64, s)[1], truth)[0] for s in range(2))
        model = trained(folder, batch)
        saved = load_model(folder / "out3/model", torch.float64)
        ours = dict(saved.named_parameters())
        weight, which = max(((ours[key] - p).norm().item() / max(p.norm().item(), 1e-3), key)
                            for key, p in model.named_parameters())
        logits = [SIDE.logits(m, batch) for m in (model, saved)]
    _, single = transformers_side(folder, batch, torch.float32)
    before, after = (dict(load_model(folder / place, torch.float64).named_parameters()) for place in ("model", "out/model"))
    worst, where = worst_error({key: (before[key] - after[key]).detach() / LR for key in truth}, truth)
    own, _ = worst_error(single, truth)
    off = abs(losses[0] / expected - 1)
    for name in ("qformer_tokenizer", ""):
        here, there = (transformers.AutoTokenizer.from_pretrained(folder / place / name)
                       for place in ("out3/model", "model"))
        assert here("A red Square!").input_ids == there("A red Square!").input_ids, name
    apart = ((logits[0] - logits[1]).abs().max() / logits[0].abs().max()).item()
    print(f"instructblip {seed}: loss {expected:.4f} off {off:.1e}, gradient {worst:.1e} ({where}), "
          f"transformers' {own:.1e}, a rounding's {rounding:.1e}; weights after 3 steps {weight:.1e} ({which}), "
          f"logits {apart:.1e}; {how}; {how3}; {values}", flush=True)
    allowed = max(MOST_GRADIENT, MOST_ROUNDINGS * rounding)
    return off, worst, weight, not (off <= MOST_LOSS and worst <= allowed and weight <= max(MOST_WEIGHT, allowed))


def main():
    errors = each_model(parser_of(__doc__, 20).parse_args(), "instructblip", compare)
    loss, gradient, weight = (max(error[i] for error in errors) for i in range(3))
    far = sum(error[3] for error in errors)
    print(f"== instructblip: {len(errors)} models, loss within {loss:.1e}, gradients within {gradient:.1e}, "
          f"weights after 3 steps within {weight:.1e}, {far} too far", flush=True)
    sys.exit(1 if far else 0)
