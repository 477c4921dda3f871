#!/usr/bin/env python3
"""Makes the golden files of the tests of LLaMA's younger relatives and of Gemma: test/golden/modern_<name>/, from
transformers itself, as tools/make_llama_golden.py makes LLaMA's.

Needs torch and transformers:  python3 tools/make_modern_golden.py [--out test/golden] [--only NAME]
"""
import importlib
import math
import os

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import make_golden
from make_golden import ADAMW, bf16_distances, checkpoint_keys, distances, gradients, loss_of
from make_llama_golden import PAD, make_batch, run_model, train, transformers_loss

PLAIN = dict(rope_type="default", rope_theta=100.0)

CASES = {
    # Norms of each head of queries and keys, heads wider together than the hidden size; a window in the second layer.
    "qwen3": dict(seed=1, family="Qwen3", lengths=[7, 4, 12], hidden_size=28, intermediate_size=44, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=18, vocab_size=64, max_position_embeddings=32,
                  tie_word_embeddings=True, use_sliding_window=True, sliding_window=5, max_window_layers=1,
                  rope_parameters=PLAIN),
    # Every second layer without rotary positions, biases everywhere.
    "smollm3": dict(seed=2, family="SmolLM3", lengths=[9, 3, 11], hidden_size=24, intermediate_size=40,
                    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=58,
                    max_position_embeddings=24, attention_bias=True, mlp_bias=True, no_rope_layer_interval=2,
                    pads_inside=True, pad_token_id=PAD, rope_parameters=PLAIN),
    # Norms after the branches, norms of all queries and of all keys.
    "olmo2": dict(seed=3, family="Olmo2", lengths=[6, 10, 5], hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, vocab_size=60, max_position_embeddings=32,
                  pad_token_id=None, rope_parameters=PLAIN),
    # Fused matrices, a part of each head that turns, factors of the short texts and a magnitude; a window.
    "phi3": dict(seed=4, family="Phi3", lengths=[12, 5, 8], hidden_size=32, intermediate_size=36, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, vocab_size=62, max_position_embeddings=64,
                 original_max_position_embeddings=16, sliding_window=6, pad_token_id=None, tie_word_embeddings=True,
                 rope_parameters=dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.75,
                                      short_factor=[1.0, 1.25, 2.0], long_factor=[1.0, 3.0, 9.0])),
    # Four norms a layer, both caps where they bend, a window in every other layer, heads of size 20.
    "gemma2": dict(seed=5, family="Gemma2", lengths=[11, 4, 8], pads_inside=True, hidden_size=30, intermediate_size=42,
                   num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=20, vocab_size=57,
                   max_position_embeddings=32, query_pre_attn_scalar=9, sliding_window=4, pad_token_id=PAD,
                   attn_logit_softcapping=1.5, final_logit_softcapping=2.0, rope_parameters=PLAIN),
    # Norms of queries and keys beside the four, two bases of rotary positions, one of them scaled.
    "gemma3": dict(seed=6, family="Gemma3", lengths=[10, 12, 3], hidden_size=24, intermediate_size=40,
                   num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=24, vocab_size=55,
                   max_position_embeddings=32, query_pre_attn_scalar=12, sliding_window=5, pad_token_id=None,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                   rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=4.0),
                                        sliding_attention=dict(rope_type="default", rope_theta=100.0))),
    # Factors of embedded tokens, branches, scores and logits.
    "granite": dict(seed=9, family="Granite", lengths=[8, 5, 11], hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, vocab_size=61, max_position_embeddings=32,
                    tie_word_embeddings=True, pad_token_id=None, embedding_multiplier=3.0, residual_multiplier=0.22,
                    attention_multiplier=0.2, logits_scaling=0.75, rope_parameters=PLAIN),
    # Norms before and after, gate and up as one matrix, half of each head turns, pairs of neighbours, biases of q, k and v.
    "glm4": dict(seed=10, family="Glm4", lengths=[10, 4, 7], hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=12, vocab_size=59, max_position_embeddings=32,
                 pad_token_id=None, eos_token_id=2, attention_bias=True,
                 rope_parameters=dict(PLAIN, partial_rotary_factor=0.5)),
    # Weights stored in bfloat16: norms of heads, and what is rounded once.
    "qwen3_bf16": dict(seed=7, family="Qwen3", lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                       intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       head_dim=16, vocab_size=72, max_position_embeddings=16),
    "gemma3_bf16": dict(seed=8, family="Gemma3", lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                        intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                        head_dim=16, vocab_size=72, max_position_embeddings=16, sliding_window=4, pad_token_id=None,
                        query_pre_attn_scalar=16,
                        layer_types=["sliding_attention", "full_attention"]),
    "granite_bf16": dict(seed=11, family="Granite", lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                         intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                         vocab_size=72, max_position_embeddings=16, pad_token_id=None, embedding_multiplier=3.0,
                         residual_multiplier=0.22, attention_multiplier=0.2, logits_scaling=0.5),
}
NOT_OF_CONFIG = ("seed", "family", "lengths", "dtype", "pads_inside")


def config_class(family):
    return getattr(transformers, family + ("TextConfig" if family == "Gemma3" else "Config"))


def module_of(family):
    name = family.lower()
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def exact_norm(self, x):
    """RMSNorm without the cast to float32, which would spoil a float64 run."""
    gemma = hasattr(self, "eps")
    eps = self.eps if gemma else self.variance_epsilon
    return (1 + self.weight if gemma else self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def exact_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, softcap=None, **kwargs):
    """The eager attention without its cast of the scores to float32."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores + attention_mask, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Exact:
    """While open, transformers computes norms and softmax of a family in the dtype of their input."""

    def __init__(self, family):
        self.module = module_of(family)
        self.norm = getattr(self.module, family + "RMSNorm")

    def __enter__(self):
        self.old = self.module.eager_attention_forward, self.norm.forward
        self.module.eager_attention_forward, self.norm.forward = exact_attention, exact_norm

    def __exit__(self, *_):
        self.module.eager_attention_forward, self.norm.forward = self.old


def fill(model, family, generator):
    """Every parameter random: weights about 1/sqrt(fan in), biases 0.1, norms 1 +- 0.2 (Gemma stores them less 1)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_((0 if family.startswith("Gemma") else 1) + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embed" in name:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise * (1.2 / math.sqrt(parameter.shape[1])))
    return model


def make_model(case):
    config = config_class(case["family"])(**{k: v for k, v in case.items() if k not in NOT_OF_CONFIG})
    model = fill(AutoModelForCausalLM.from_config(config), case["family"],
                 torch.Generator().manual_seed(case["seed"]))
    return model.to(case.get("dtype", torch.float32)).eval()


def converted(model, dtype):
    """The model in `dtype`, but for the rotary frequencies, which stay as transformers makes them."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers() if "inv_freq" in name}
    model = model.to(dtype).eval()
    for name, buffer in kept.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer)
    return model


def compute(directory, batch, dtype):
    """Everything the golden files hold, in one dtype, from the checkpoint as stored."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model = converted(model, dtype)
    loss = loss_of(run_model(model, batch), batch["labels"])
    result = dict(loss=loss.item(), grad=gradients(model, loss))
    result["loss_padding"] = loss_of(run_model(model, batch), batch["labels_padding"]).item()
    result["grad_norm"] = sum(g.double().square().sum() for g in result["grad"].values()).sqrt().item()
    if dtype == torch.float32:
        own = transformers_loss(model, batch).item()
        assert abs(own - result["loss"]) < 1e-5, (own, result["loss"])
    result["losses"], result["step5"] = train(model, batch)
    return result


def zero_gradients(config):
    """Where layers do not turn keys, all keys of a query's scores get the same from the bias: softmax ignores it."""
    if config.model_type == "glm4" and config.attention_bias:
        size = config.head_dim
        turned = int(size * config.rope_parameters["partial_rotary_factor"])
        return [(f"model.layers.{i}.self_attn.k_proj.bias", head * size + turned, (head + 1) * size)
                for i in range(config.num_hidden_layers) for head in range(config.num_key_value_heads)]
    if config.model_type != "smollm3" or not config.attention_bias:
        return []
    width = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    return [(f"model.layers.{i}.self_attn.k_proj.bias", 0, width)
            for i, turns in enumerate(config.no_rope_layers) if not turns]


def has_windows(config):
    """Then padding may see padding alone, of which transformers makes what its attention implementation makes of it."""
    types = getattr(config, "layer_types", None) or ["sliding_attention"]
    return bool(getattr(config, "sliding_window", None)) and "sliding_attention" in types


def make_case(name, case, out):
    directory = os.path.join(out, "modern_" + name)
    model = make_model(case)
    make_golden.save_model(case, model, directory)
    keys, batch = checkpoint_keys(directory), make_batch(case)
    single = compute(directory, batch, torch.float32)
    with Exact(case["family"]):
        double = compute(directory, batch, torch.float64)
    assert sorted(double["grad"]) == keys, set(keys) ^ set(double["grad"])
    half = compute(directory, batch, torch.bfloat16) if case.get("dtype") == torch.bfloat16 else None
    tensors, zero = make_golden.tensors_of(batch, keys, double), zero_gradients(model.config)
    if half:
        tensors["bf16.loss"] = torch.tensor([half["loss"]], dtype=torch.float32)
    save_file(tensors, os.path.join(directory, "golden.safetensors"))
    about = dict(made_by="tools/make_modern_golden.py", torch=torch.__version__, transformers=transformers.__version__,
                 computed_in="float64, rounded to float32", attention="eager", pad_token_id=PAD,
                 compare_padding=not has_windows(model.config),
                 optimizer=dict(name="AdamW", steps=5, **ADAMW), parameters=sum(p.numel() for p in model.parameters()),
                 tensors=len(keys), zero_gradient=zero, float32_distance=distances(single, double, zero))
    if half:
        about["bf16_distance"] = bf16_distances(half, double)
    make_golden.finish_case(case, directory, about, double)


if __name__ == "__main__":
    make_golden.run(__doc__, CASES, make_case)
