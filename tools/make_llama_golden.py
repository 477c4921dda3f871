#!/usr/bin/env python3
"""Makes the golden files of the LLaMA tests: test/golden/llama_<name>/, from transformers itself.

Each directory holds a tiny LlamaForCausalLM, MistralForCausalLM or Qwen2ForCausalLM as save_pretrained writes it, one
batch of texts, and what transformers makes of it. golden.json and golden.safetensors are those of tools/make_golden.py,
without pictures; ids begin with <s> (1), and golden.json's pad_token_id is behind a text.

All but bf16.* is computed in float64 from the stored weights, with norms and softmax in float64 too; angles of the
rotary positions are float32, as transformers defines them.

Needs torch and transformers:  python3 tools/make_llama_golden.py [--out test/golden] [--only NAME]
"""
import os

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2

import make_golden
from make_golden import ADAMW, bf16_distances, checkpoint_keys, distances, gradients, loss_of

BOS, PAD = 1, 3

CASES = {
    # As many heads of keys and values as of queries, of size 16; an own head.
    "mha": dict(seed=1, config=LlamaConfig, lengths=[7, 4, 12], hidden_size=32, intermediate_size=56,
                num_hidden_layers=2, num_attention_heads=2, vocab_size=64, max_position_embeddings=24),
    # 8 heads over 4, of size 64, wider together than the hidden size; tied; LLaMA 3's scaling, in which the wavelengths
    # of 32 frequencies fall below, between and above the bounds.
    "gqa": dict(seed=2, config=LlamaConfig, lengths=[5, 12, 3], hidden_size=24, intermediate_size=40,
                num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, head_dim=64, vocab_size=61,
                max_position_embeddings=128, tie_word_embeddings=True,
                rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                     high_freq_factor=4.0, original_max_position_embeddings=32)),
    # 6 heads over 2, of size 22; linear scaling; biases everywhere; two shards.
    "odd": dict(seed=3, config=LlamaConfig, lengths=[9, 2, 6, 11], shard="100KB", hidden_size=30, intermediate_size=38,
                num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=22, vocab_size=53,
                max_position_embeddings=16, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5,
                rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=2.5)),
    # Biases of q, k and v; tied; a padding token that also stands in the texts, where its embedding gets no gradient.
    # A small base: pairs that hardly turn have key biases whose gradient all but vanishes, and AdamW divides by it.
    "qwen2": dict(seed=4, config=Qwen2Config, lengths=[8, 10, 5], pads_inside=True, hidden_size=32,
                  intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  vocab_size=67, max_position_embeddings=32, tie_word_embeddings=True, pad_token_id=PAD,
                  rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    # Heads of size 100; a sliding window that the longest text just fits.
    "mistral": dict(seed=5, config=MistralConfig, lengths=[12, 6], hidden_size=20, intermediate_size=36,
                    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=100, vocab_size=50,
                    max_position_embeddings=64, sliding_window=12),
    # Weights stored in bfloat16.
    "bf16": dict(seed=6, config=LlamaConfig, lengths=[7, 4, 12], dtype=torch.bfloat16, hidden_size=32,
                 intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=72, max_position_embeddings=16),
}
NOT_OF_CONFIG = ("seed", "config", "lengths", "dtype", "shard", "pads_inside")
MODULES = (modeling_llama, modeling_mistral, modeling_qwen2)


def exact_norm(self, x):
    """RMSNorm without the cast to float32, which would spoil a float64 run."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def exact_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """The eager attention without its cast of the scores to float32."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    weights = torch.softmax(query @ key.transpose(2, 3) * scaling + attention_mask, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Exact:
    """While open, transformers computes norms and softmax in the dtype of their input."""

    def __enter__(self):
        self.norms = [next(getattr(m, n) for n in dir(m) if n.endswith("RMSNorm")) for m in MODULES]
        self.old = [(m.eager_attention_forward, norm.forward) for m, norm in zip(MODULES, self.norms)]
        for module, norm in zip(MODULES, self.norms):
            module.eager_attention_forward, norm.forward = exact_attention, exact_norm

    def __exit__(self, *_):
        for module, norm, (attention, forward) in zip(MODULES, self.norms, self.old):
            module.eager_attention_forward, norm.forward = attention, forward


def make_model(case):
    """The case's model with every parameter random: weights about 1/sqrt(fan in), biases 0.1, norms 1 +- 0.2."""
    config = case["config"](**{key: value for key, value in case.items() if key not in NOT_OF_CONFIG})
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(case["seed"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embed" in name:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise * (1.2 / parameter.shape[1] ** 0.5))
    return model.to(case.get("dtype", torch.float32)).eval()


def make_batch(case):
    generator = torch.Generator().manual_seed(100 + case["seed"])
    lengths, first = case["lengths"], PAD if case.get("pads_inside") else PAD + 1
    batch, tokens = len(lengths), max(lengths)
    ids = torch.full((batch, tokens), PAD, dtype=torch.int32)
    labels = torch.full((batch, tokens - 1), -100, dtype=torch.int32)
    for b, length in enumerate(lengths):
        ids[b, 0] = BOS
        ids[b, 1:length] = torch.randint(first, case["vocab_size"], (length - 1,), generator=generator,
                                         dtype=torch.int32)
        if case.get("pads_inside"):
            ids[b, 2] = PAD
        labels[b, :length - 1] = ids[b, 1:length]
    return dict(ids=ids, lengths=torch.tensor(lengths, dtype=torch.int32), labels=labels,
                labels_padding=ids[:, 1:].contiguous())


def run_model(model, batch):
    """Logits of the rows 0 .. T - 2: [B, T - 1, V]."""
    ids = batch["ids"].long()
    mask = (torch.arange(ids.shape[1])[None] < batch["lengths"][:, None]).long()
    return model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]


def transformers_loss(model, batch):
    """The loss that transformers itself computes from `labels`, to check that loss_of means the same."""
    first = torch.full((batch["ids"].shape[0], 1), -100)
    return model(input_ids=batch["ids"].long(), use_cache=False,
                 labels=torch.cat([first, batch["labels"].long()], 1)).loss


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
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype).eval()
    model.model.rotary_emb.inv_freq = frequencies
    loss = loss_of(run_model(model, batch), batch["labels"])
    result = dict(loss=loss.item(), grad=gradients(model, loss), frequencies=frequencies)
    padding = loss_of(run_model(model, batch), batch["labels_padding"])
    result["loss_padding"] = padding.item()
    result["grad_norm"] = sum(g.double().square().sum() for g in result["grad"].values()).sqrt().item()
    if dtype == torch.float32:
        own = transformers_loss(model, batch).item()
        assert abs(own - result["loss"]) < 1e-5, (own, result["loss"])
    result["losses"], result["step5"] = train(model, batch)
    return result


def make_case(name, case, out):
    directory = os.path.join(out, "llama_" + name)
    model = make_model(case)
    make_golden.save_model(case, model, directory)
    keys, batch = checkpoint_keys(directory), make_batch(case)
    single = compute(directory, batch, torch.float32)
    with Exact():
        double = compute(directory, batch, torch.float64)
    assert sorted(double["grad"]) == keys, set(keys) ^ set(double["grad"])
    half = compute(directory, batch, torch.bfloat16) if case.get("dtype") == torch.bfloat16 else None
    tensors = make_golden.tensors_of(batch, keys, double)
    tensors["frequencies"] = double["frequencies"]
    if half:
        tensors["bf16.loss"] = torch.tensor([half["loss"]], dtype=torch.float32)
    save_file(tensors, os.path.join(directory, "golden.safetensors"))
    about = dict(made_by="tools/make_llama_golden.py", torch=torch.__version__, transformers=transformers.__version__,
                 computed_in="float64, rounded to float32", attention="eager", pad_token_id=PAD,
                 optimizer=dict(name="AdamW", steps=5, **ADAMW), parameters=sum(p.numel() for p in model.parameters()),
                 tensors=len(keys), zero_gradient=[], float32_distance=distances(single, double, []))
    if half:
        about["bf16_distance"] = bf16_distances(half, double)
    make_golden.finish_case(case, directory, about, double)


if __name__ == "__main__":
    make_golden.run(__doc__, CASES, make_case)
