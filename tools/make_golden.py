#!/usr/bin/env python3
"""Makes the golden files of the BLIP-2 tests: test/golden/blip2_<name>/, from transformers itself.

Each directory holds a tiny Blip2ForConditionalGeneration with OPT as save_pretrained writes it (config.json and
safetensors), one batch, and what transformers makes of it:

  golden.json         what was computed, with which versions, the normalisation of the pixels, and the measured
                      distance between float32 and float64, from which the tests take their tolerances
  golden.safetensors
    pixels            u8  [B, S, S, 3]   RGB; the model sees (pixels / 255 - pixel_mean) / pixel_std
    ids               i32 [B, T]         </s> (2) + text, padded on the right with 1
    lengths           i32 [B]            ids that are not padding
    labels            i32 [B, T - 1]     what text row t must predict: ids[b, t + 1], -100 on padding
    labels_padding    i32 [B, T - 1]     the same, where padding is learnt too
    loss              f32 [1]            mean cross-entropy over the labels that are not -100
    loss_padding      f32 [1]            the same over labels_padding
    grad.<key>        f32                d loss / d tensor, for every key of the checkpoint
    grad_norm         f32 [1]            2-norm over all gradients
    grad_padding.<key>                   d loss_padding / d tensor, for the two embedding tables only
    losses            f32 [6]            before each of five AdamW steps on this batch, and after the last
    step5.<key>       f32                weights after those five steps
  Checkpoints in bfloat16 have these too, computed by transformers with everything in bfloat16:
    bf16.loss, bf16.loss_padding, bf16.losses (f32), bf16.grad.<key>, bf16.step5.<key> (bf16)

All but bf16.* is computed in float64 (from the stored weights, exactly upcast) and rounded to float32 once, so that it
is nearer to the truth than any float32 run; attention is the eager implementation, dropout is off.

Needs torch and transformers:  python3 tools/make_golden.py [--out test/golden] [--only NAME]
"""
import argparse
import json
import os
import shutil

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2QFormerConfig, Blip2VisionConfig, OPTConfig
from transformers.models.opt import modeling_opt

PIXEL_MEAN = [0.48145466, 0.4578275, 0.40821073]
PIXEL_STD = [0.26862954, 0.26130258, 0.27577711]
# Adam moves an element by lr g / (|g| + eps) in its first step: one whose gradient is below eps passes the rounding of that
# gradient on, times lr / eps. These models' gradients are about 1e-2, and f32 knows them to about 1e-7 (float32_distance):
# with torch's eps of 1e-8 rounding alone decides the moves of some elements, and which ones differs from one matrix
# product library to the next. With 1e-4 it changes a weight by about 1e-6 a step.
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-4, weight_decay=0.01)
PAD, BOS = 1, 2
EMBEDDINGS = ("language_model.model.decoder.embed_tokens.weight", "language_model.model.decoder.embed_positions.weight")

CASES = {
    # Ordinary: two heads, head sizes 16 and 8, every size of one tower different from the others'.
    "ordinary": dict(
        seed=1, queries=5, lengths=[7, 4, 6], vision=dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, image_size=28, patch_size=7),
        qformer=dict(hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2),
        text=dict(hidden_size=32, ffn_dim=56, num_hidden_layers=2, num_attention_heads=2, vocab_size=64,
                  max_position_embeddings=24)),
    # Odd: three heads everywhere, sizes that no vector width divides, a third Q-Former layer, the old vision epsilon.
    "odd": dict(
        seed=2, queries=3, lengths=[5, 9, 2], vision=dict(hidden_size=36, intermediate_size=38, num_hidden_layers=2,
        num_attention_heads=3, image_size=28, patch_size=7, layer_norm_eps=1e-5),
        qformer=dict(hidden_size=24, intermediate_size=30, num_hidden_layers=3, num_attention_heads=3,
                     cross_attention_frequency=2),
        text=dict(hidden_size=48, ffn_dim=54, num_hidden_layers=1, num_attention_heads=3, vocab_size=61,
                  max_position_embeddings=17)),
    # Weights stored in bfloat16.
    "bf16": dict(
        seed=3, queries=4, lengths=[7, 4, 6], dtype=torch.bfloat16,
        vision=dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32,
                    patch_size=8),
        qformer=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=3),
        text=dict(hidden_size=32, ffn_dim=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=72,
                  max_position_embeddings=16)),
    # Pictures that the patches do not fill: 3 pixels of each row and column are left over.
    "cut": dict(
        seed=5, queries=3, lengths=[4, 6], vision=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, image_size=17, patch_size=7),
        qformer=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2),
        text=dict(hidden_size=16, ffn_dim=24, num_hidden_layers=1, num_attention_heads=2, vocab_size=40,
                  max_position_embeddings=16)),
    # A head of its own, two shards with an index, head sizes 22 and 20 as 88 and 80 in the large models.
    "untied": dict(
        seed=4, queries=4, lengths=[3, 8, 5], tied=False, shard="170KB",
        vision=dict(hidden_size=44, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                    patch_size=7),
        qformer=dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
                     cross_attention_frequency=1),
        text=dict(hidden_size=40, ffn_dim=44, num_hidden_layers=2, num_attention_heads=2, vocab_size=56,
                  max_position_embeddings=16)),
}


def eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """OPT's eager attention without its cast of the scores to float32, which would spoil a float64 run."""
    weights = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = torch.softmax(weights, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def make_model(case):
    """The case's model with every parameter random: weights about 1/sqrt(fan in), biases 0.1, norms 1 +- 0.2."""
    tied = case.get("tied", True)
    text = OPTConfig(tie_word_embeddings=tied, word_embed_proj_dim=case["text"]["hidden_size"], **case["text"])
    config = Blip2Config(vision_config=Blip2VisionConfig(**case["vision"]).to_dict(),
                         qformer_config=Blip2QFormerConfig(**case["qformer"]).to_dict(), text_config=text.to_dict(),
                         num_query_tokens=case["queries"], image_token_index=case["text"]["vocab_size"] - 3,
                         tie_word_embeddings=tied)
    model = Blip2ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(case["seed"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embedding" in name and "patch" not in name or "embed_" in name or name == "query_tokens":
                parameter.copy_(0.2 * noise)
            else:
                fan_in = parameter[0].numel()
                parameter.copy_(noise * (1.2 / fan_in ** 0.5))
    return model.to(case.get("dtype", torch.float32)).eval()


def make_batch(case):
    generator = torch.Generator().manual_seed(100 + case["seed"])
    size, lengths = case["vision"]["image_size"], case["lengths"]
    batch, tokens = len(lengths), max(lengths)
    pixels = torch.randint(0, 256, (batch, size, size, 3), generator=generator, dtype=torch.uint8)
    ids = torch.full((batch, tokens), PAD, dtype=torch.int32)
    labels = torch.full((batch, tokens - 1), -100, dtype=torch.int32)
    for b, length in enumerate(lengths):
        ids[b, 0] = BOS
        # From 4 on: no special token; below the image token, which is third from the end of the vocabulary.
        ids[b, 1:length] = torch.randint(4, case["text"]["vocab_size"] - 3, (length - 1,), generator=generator,
                                         dtype=torch.int32)
        labels[b, :length - 1] = ids[b, 1:length]
    return dict(pixels=pixels, ids=ids, lengths=torch.tensor(lengths, dtype=torch.int32), labels=labels,
                labels_padding=ids[:, 1:].contiguous())


def run_model(model, batch, dtype):
    """Logits of the text rows 0 .. T - 2: [B, T - 1, V]."""
    mean, std = (torch.tensor(x, dtype=torch.float64) for x in (PIXEL_MEAN, PIXEL_STD))
    pixels = ((batch["pixels"].double() / 255 - mean) / std).permute(0, 3, 1, 2).to(dtype)
    ids = batch["ids"].long()
    queries = model.config.num_query_tokens
    image = torch.full((ids.shape[0], queries), model.config.image_token_id)
    valid = torch.arange(ids.shape[1])[None] < batch["lengths"][:, None]
    mask = torch.cat([torch.ones_like(image), valid.long()], 1)
    out = model(pixel_values=pixels, input_ids=torch.cat([image, ids], 1), attention_mask=mask, use_cache=False)
    return out.logits[:, queries:-1]


def loss_of(logits, labels):
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten().long(), ignore_index=-100)


def transformers_loss(model, batch, dtype):
    """The loss that transformers itself computes from `labels`, to check that loss_of means the same."""
    mean, std = torch.tensor(PIXEL_MEAN), torch.tensor(PIXEL_STD)
    pixels = ((batch["pixels"].float() / 255 - mean) / std).permute(0, 3, 1, 2).to(dtype)
    ids = batch["ids"].long()
    image = torch.full((ids.shape[0], model.config.num_query_tokens), model.config.image_token_id)
    first = torch.full((ids.shape[0], 1), -100)
    valid = torch.arange(ids.shape[1])[None] < batch["lengths"][:, None]
    return model(pixel_values=pixels, input_ids=torch.cat([image, ids], 1),
                 attention_mask=torch.cat([torch.ones_like(image), valid.long()], 1), use_cache=False,
                 labels=torch.cat([torch.full_like(image, -100), first, batch["labels"].long()], 1)).loss


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: (torch.zeros_like(p) if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}


def train(model, batch, dtype, steps=5):
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for _ in range(steps):
        loss = loss_of(run_model(model, batch, dtype), batch["labels"])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss_of(run_model(model, batch, dtype), batch["labels"]).item())
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


def compute(directory, batch, dtype):
    """Everything the golden files hold, in one dtype, from the checkpoint as stored."""
    model = Blip2ForConditionalGeneration.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model = model.to(dtype).eval()
    original = modeling_opt.eager_attention_forward
    if dtype == torch.float64:
        modeling_opt.eager_attention_forward = eager_attention
    try:
        loss = loss_of(run_model(model, batch, dtype), batch["labels"])
        result = dict(loss=loss.item(), grad=gradients(model, loss))
        padding = loss_of(run_model(model, batch, dtype), batch["labels_padding"])
        result["loss_padding"], result["grad_padding"] = padding.item(), gradients(model, padding)
        result["grad_norm"] = sum(g.double().square().sum() for g in result["grad"].values()).sqrt().item()
        if dtype == torch.float32:
            own = transformers_loss(model, batch, dtype).item()
            assert abs(own - result["loss"]) < 1e-5, (own, result["loss"])
        result["losses"], result["step5"] = train(model, batch, dtype)
    finally:
        modeling_opt.eager_attention_forward = original
    return result


def zero_gradients(config):
    """[key, first, end]: biases of attention keys, whose gradient is 0 in exact arithmetic (softmax ignores them).

    In float32 it is rounding noise, which AdamW blows up to steps of up to lr: compare those elements apart."""
    hidden, rows = config.vision_config.hidden_size, []
    for i in range(config.vision_config.num_hidden_layers):
        rows.append([f"vision_model.encoder.layers.{i}.self_attn.qkv.bias", hidden, 2 * hidden])
    for i in range(config.qformer_config.num_hidden_layers):
        rows.append([f"qformer.encoder.layer.{i}.attention.attention.key.bias", 0, config.qformer_config.hidden_size])
        if i % config.qformer_config.cross_attention_frequency == 0:
            rows.append([f"qformer.encoder.layer.{i}.crossattention.attention.key.bias", 0,
                         config.qformer_config.hidden_size])
    for i in range(config.text_config.num_hidden_layers):
        rows.append([f"language_model.model.decoder.layers.{i}.self_attn.k_proj.bias", 0,
                     config.text_config.hidden_size])
    return rows


def distances(single, double, zero):
    """How far float32 is from float64: gradients relative to each tensor's largest element, weights absolute."""
    skip = {(key, first): end for key, first, end in zero}

    def without_zero(key, tensor):
        for (name, first), end in sorted(skip.items(), reverse=True):
            if name == key:
                tensor = torch.cat([tensor.flatten()[:first], tensor.flatten()[end:]])
        return tensor
    gradient = weight = noise = 0.0
    for key, truth in double["grad"].items():
        delta = without_zero(key, single["grad"][key].double() - truth)
        if delta.numel():
            gradient = max(gradient, (delta.abs().max() / truth.abs().max()).item())
            step = without_zero(key, single["step5"][key].double() - double["step5"][key])
            weight = max(weight, step.abs().max().item())
    for key, first, end in zero:
        noise = max(noise, single["grad"][key].flatten()[first:end].abs().max().item())
    return dict(loss=abs(single["loss"] - double["loss"]), gradient_relative_to_tensor_maximum=gradient,
                step5_absolute=weight, losses=max(abs(a - b) for a, b in zip(single["losses"], double["losses"])),
                zero_gradient_noise=noise)


def bf16_distances(half, double):
    """How far transformers' own bfloat16 is from float64: losses absolute, gradients by 2-norm, tensor by tensor."""
    relative = sorted((half["grad"][k].double() - g).norm().item() / g.norm().item() for k, g in double["grad"].items()
                      if g.norm() > 1e-6 * double["grad_norm"])
    both = sum((half["grad"][k].double() - g).square().sum() for k, g in double["grad"].items()).sqrt().item()
    return dict(loss=abs(half["loss"] - double["loss"]), gradient_median_tensor=relative[len(relative) // 2],
                gradient_worst_tensor=relative[-1], gradient_all_tensors=both / double["grad_norm"],
                losses=max(abs(a - b) for a, b in zip(half["losses"], double["losses"])))


def checkpoint_keys(directory):
    keys = []
    for file in sorted(os.listdir(directory)):
        if file.startswith("model") and file.endswith(".safetensors"):
            with safe_open(os.path.join(directory, file), "pt") as stored:
                keys += stored.keys()
    return sorted(keys)


def save_model(case, model, directory):
    """The model alone in a directory that is new."""
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory, max_shard_size=case.get("shard", "5GB"))
    generation = os.path.join(directory, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)


def tensors_of(batch, keys, double):
    """What every golden.safetensors holds: the batch, and what float64 makes of it."""
    tensors = dict(batch)
    for key in ("loss", "loss_padding", "grad_norm"):
        tensors[key] = torch.tensor([double[key]], dtype=torch.float32)
    tensors["losses"] = torch.tensor(double["losses"], dtype=torch.float32)
    for key in keys:
        tensors["grad." + key] = double["grad"][key].float().contiguous()
        tensors["step5." + key] = double["step5"][key].float().contiguous()
    return tensors


def finish_case(case, directory, about, double):
    """Writes golden.json and prints what the directory holds."""
    with open(os.path.join(directory, "golden.json"), "w") as file:
        json.dump(about, file, indent=2)
        file.write("\n")
    files = [os.path.join(directory, file) for file in os.listdir(directory)]
    files = [file for file in files if os.path.isfile(file)]
    for file in files:
        os.chmod(file, 0o644)
    zero = [name for name, _, _ in about["zero_gradient"]]
    norms = sorted((gradient.norm().item(), key) for key, gradient in double["grad"].items() if key not in zero)
    assert len([f for f in files if os.path.basename(f).startswith("model-")]) == (2 if "shard" in case else 0)
    size = sum(os.path.getsize(file) for file in files)
    print(f"{directory}: {about['tensors']} tensors, {size >> 10} KiB, loss {double['loss']:.4f}, "
          f"gradient norm {double['grad_norm']:.3f}, smallest {norms[0][0]:.1e} {norms[0][1]}, "
          f"float32: {about['float32_distance']} {about.get('bf16_distance', '')}")


def make_case(name, case, out):
    directory = os.path.join(out, "blip2_" + name)
    model = make_model(case)
    save_model(case, model, directory)
    keys, batch = checkpoint_keys(directory), make_batch(case)
    double, single = compute(directory, batch, torch.float64), compute(directory, batch, torch.float32)
    assert sorted(double["grad"]) == keys, set(keys) ^ set(double["grad"])
    zero = zero_gradients(model.config)
    tensors, bf16 = tensors_of(batch, keys, double), None
    for key in EMBEDDINGS:
        tensors["grad_padding." + key] = double["grad_padding"][key].float().contiguous()
    if case.get("dtype") == torch.bfloat16:
        half = compute(directory, batch, torch.bfloat16)
        for key in ("loss", "loss_padding"):
            tensors["bf16." + key] = torch.tensor([half[key]], dtype=torch.float32)
        tensors["bf16.losses"] = torch.tensor(half["losses"], dtype=torch.float32)
        for key in keys:
            tensors["bf16.grad." + key] = half["grad"][key].contiguous()
            tensors["bf16.step5." + key] = half["step5"][key].contiguous()
        bf16 = bf16_distances(half, double)
    save_file(tensors, os.path.join(directory, "golden.safetensors"))
    about = dict(made_by="tools/make_golden.py", torch=torch.__version__, transformers=transformers.__version__,
                 computed_in="float64, rounded to float32 (bf16.*: bfloat16)", attention="eager", dropout=False,
                 pixel_mean=PIXEL_MEAN, pixel_std=PIXEL_STD, image_token_id=model.config.image_token_id,
                 pad_token_id=PAD, optimizer=dict(name="AdamW", steps=5, **ADAMW),
                 parameters=sum(p.numel() for p in model.parameters()), tensors=len(keys), zero_gradient=zero,
                 float32_distance=distances(single, double, zero))
    if bf16:
        about["bf16_distance"] = bf16
    finish_case(case, directory, about, double)


def run(doc, cases, make_case):
    """The command line of a script that makes golden files: `doc` tells what it does, make_case(name, case, out)."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    parser.add_argument("--out", default=os.path.relpath(os.path.join(root, "test", "golden")))
    parser.add_argument("--only", choices=sorted(cases))
    arguments = parser.parse_args()
    torch.set_num_threads(1)      # the models are tiny: threads would only wait for each other
    for name, case in cases.items():
        if arguments.only in (None, name):
            make_case(name, case, arguments.out)


if __name__ == "__main__":
    run(__doc__, CASES, make_case)
