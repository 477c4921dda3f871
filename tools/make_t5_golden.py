#!/usr/bin/env python3
"""Makes the golden files of the T5 tests: test/golden/t5_<name>/, from transformers itself, as tools/make_llama_golden.py
makes LLaMA's. ids are the decoder's, of which the first is its start; source_ids [B, U] and source_lengths [B] are what the
encoder reads. One is the language model of an InstructBLIP: pixels u8 [B, P, P, 3], and what the Q-Former reads, instruction_ids
[B, I] and instruction_lengths [B], stand beside.

Needs torch and transformers:  python3 tools/make_t5_golden.py [--out test/golden] [--only NAME]
"""
import json
import os
import pathlib

import torch
import transformers
from safetensors.torch import save_file

import encoder_decoders
import make_golden
from encoder_decoders import exact
from instructblip_model import zero_gradients
from make_golden import ADAMW, PIXEL_MEAN, PIXEL_STD, bf16_distances, checkpoint_keys, distances, gradients, loss_of

PAD = 0
SIZES = dict(vocab_size=48, d_model=20, d_kv=6, d_ff=28, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
             relative_attention_max_distance=9, dropout_rate=0.1, layer_norm_epsilon=1e-6, is_encoder_decoder=True,
             pad_token_id=PAD, eos_token_id=1, decoder_start_token_id=0)
CASES = {
    # T5 v1.1 and flan-T5: gated with the form of GELU with tanh, a head of its own, fewer decoder layers.
    "v11": dict(seed=1, lengths=[7, 4, 12], sources=[9, 12, 3], own_head=True, config=dict(
        SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=1)),
    # The original: ReLU without a gate, one matrix at both ends, which the head reads scaled.
    "original": dict(seed=2, lengths=[5, 11, 8], sources=[2, 7, 11], own_head=False, config=dict(
        SIZES, feed_forward_proj="relu", num_heads=2, d_kv=13, vocab_size=41)),
    # As inside of a BLIP-2: GELU in the exact form, weights stored in bfloat16.
    "erf_bf16": dict(seed=3, lengths=[7, 4, 12], sources=[9, 12, 3], own_head=True, dtype=torch.bfloat16, config=dict(
        SIZES, feed_forward_proj="gated-gelu", dense_act_fn="gelu", d_model=32, d_kv=16, d_ff=48, num_heads=2,
        tie_word_embeddings=False)),
    # Instructions longer and shorter than the prompts, cross attention in every second layer of the Q-Former. Of the seeds 4 to 12
    # this one's weights are the least sensitive to rounding (float32_distance).
    "instructblip": dict(seed=7, lengths=[7, 4, 12], sources=[9, 12, 3], instructions=[4, 12, 7], own_head=True, config=dict(
        SIZES, feed_forward_proj="gated-gelu", dense_act_fn="gelu", tie_word_embeddings=False, model_type="t5"), around=dict(
            vision_config=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                               patch_size=14),
            qformer_config=dict(vocab_size=37, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                max_position_embeddings=20),
            num_query_tokens=5, image_token_index=47)),
}


def save_model(case, directory):
    directory, generator = pathlib.Path(directory), torch.Generator().manual_seed(case["seed"])
    if "around" in case:
        settings = dict(case["around"], text_config=case["config"])
        encoder_decoders.write_blip_of("instructblip", directory, settings, case["own_head"], generator)
        (directory / "preprocessor_config.json").unlink()
    else:
        encoder_decoders.write_model(directory, case["config"], case["own_head"], generator, case.get("dtype", torch.float32))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def make_batch(case):
    generator = torch.Generator().manual_seed(100 + case["seed"])
    def rows(lengths, first):
        ids = torch.full((len(lengths), max(lengths)), PAD, dtype=torch.int32)
        for b, length in enumerate(lengths):
            ids[b, :length] = torch.randint(2, case["config"]["vocab_size"], (length,), generator=generator, dtype=torch.int32)
            if first is not None:
                ids[b, 0] = first
            ids[b, length - 1] = 1
        return ids
    ids, sources = rows(case["lengths"], case["config"]["decoder_start_token_id"]), rows(case["sources"], None)
    labels = torch.full((ids.shape[0], ids.shape[1] - 1), -100, dtype=torch.int32)
    for b, length in enumerate(case["lengths"]):
        labels[b, :length - 1] = ids[b, 1:length]
    batch = dict(ids=ids, lengths=torch.tensor(case["lengths"], dtype=torch.int32), labels=labels,
                 labels_padding=ids[:, 1:].contiguous(), source_ids=sources,
                 source_lengths=torch.tensor(case["sources"], dtype=torch.int32))
    if "around" in case:
        side, samples = case["around"]["vision_config"]["image_size"], len(case["lengths"])
        batch.update(pixels=torch.randint(0, 256, (samples, side, side, 3), generator=generator, dtype=torch.uint8),
                     instruction_ids=rows(case["instructions"], None).clamp(max=36),
                     instruction_lengths=torch.tensor(case["instructions"], dtype=torch.int32))
    return batch


def mask_of(ids, lengths):
    return (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()


def inputs_of(model, batch):
    """What the encoder reads, behind a picture where there is one."""
    sources = batch["source_ids"].long()
    inputs = dict(input_ids=sources, attention_mask=mask_of(sources, batch["source_lengths"]))
    if "pixels" not in batch:
        return inputs
    image = torch.full((len(sources), model.config.num_query_tokens), model.config.image_token_index)
    mean, std = (torch.tensor(x, dtype=torch.float64) for x in (PIXEL_MEAN, PIXEL_STD))
    values = ((batch["pixels"].double() / 255 - mean) / std).permute(0, 3, 1, 2)
    asked = batch["instruction_ids"].long()
    return dict(input_ids=torch.cat([image, sources], 1), attention_mask=torch.cat([torch.ones_like(image), inputs["attention_mask"]], 1),
                pixel_values=values.to(next(model.parameters()).dtype), qformer_input_ids=asked,
                qformer_attention_mask=mask_of(asked, batch["instruction_lengths"]))


def load(directory, dtype):
    config = json.loads((pathlib.Path(directory) / "config.json").read_text())
    if config["model_type"] == "t5":
        return encoder_decoders.load(directory, dtype)
    return encoder_decoders.load_blip(config["model_type"], directory, dtype)


def run_model(model, batch):
    """Logits of the rows 0 .. T - 2: [B, T - 1, V]."""
    return model(**inputs_of(model, batch), decoder_input_ids=batch["ids"].long(), use_cache=False).logits[:, :-1]


def transformers_loss(model, batch):
    """The loss that transformers itself computes from `labels`, to check that loss_of means the same."""
    return model(**inputs_of(model, batch), labels=batch["labels"].long()).loss


def train(model, batch, steps=5):
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for _ in range(steps):
        loss = loss_of(run_model(model, batch), batch["labels"])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss_of(run_model(model, batch), batch["labels"]).item())
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


def compute(directory, batch, dtype):
    """Everything the golden files hold, in one dtype, from the checkpoint as stored."""
    with exact(dtype):
        model = load(directory, dtype)
        loss = loss_of(run_model(model, batch), batch["labels"])
        result = dict(loss=loss.item(), grad=gradients(model, loss))
        result["loss_padding"] = loss_of(run_model(model, batch), batch["labels_padding"]).item()
        result["grad_norm"] = sum(g.double().square().sum() for g in result["grad"].values()).sqrt().item()
        if dtype == torch.float32:
            own = transformers_loss(model, batch).item()
            assert abs(own - result["loss"]) < 1e-5, (own, result["loss"])
        result["losses"], result["step5"] = train(model, batch)
    return result


def make_case(name, case, out):
    directory = os.path.join(out, "t5_" + name)
    save_model(case, directory)
    keys, batch = checkpoint_keys(directory), make_batch(case)
    single, double = (compute(directory, batch, dtype) for dtype in (torch.float32, torch.float64))
    zero = zero_gradients(load(directory, torch.float32).config) if "around" in case else []
    assert sorted(double["grad"]) == keys, set(keys) ^ set(double["grad"])
    half = compute(directory, batch, torch.bfloat16) if case.get("dtype") == torch.bfloat16 else None
    tensors = make_golden.tensors_of(batch, keys, double)
    if half:
        tensors["bf16.loss"] = torch.tensor([half["loss"]], dtype=torch.float32)
    save_file(tensors, os.path.join(directory, "golden.safetensors"))
    about = dict(made_by="tools/make_t5_golden.py", torch=torch.__version__, transformers=transformers.__version__,
                 computed_in="float64, rounded to float32", attention="eager", pad_token_id=PAD, compare_padding=False,
                 optimizer=dict(name="AdamW", steps=5, **ADAMW), parameters=sum(t.numel() for t in double["grad"].values()),
                 tensors=len(keys), zero_gradient=zero, float32_distance=distances(single, double, zero))
    if "around" in case:
        about.update(pixel_mean=PIXEL_MEAN, pixel_std=PIXEL_STD)
    if half:
        about["bf16_distance"] = bf16_distances(half, double)
    make_golden.finish_case(case, directory, about, double)


if __name__ == "__main__":
    make_golden.run(__doc__, CASES, make_case)
