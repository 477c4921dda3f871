#!/usr/bin/env python3
"""Makes the golden files of the LoRA tests: test/golden/lora_<name>/, from PEFT and transformers.

Each directory holds a tiny model, `adapter/` as PEFT's save_pretrained writes it (all matrices random, so that none is
zero), one batch, and what PEFT makes of it in float64, with dropout off. golden.json and golden.safetensors are those of
tools/make_llama_golden.py; gradients and weights after five AdamW steps are the adapters', under PEFT's keys, and
merged.<key> are the weights that merge_and_unload leaves of the first adapted module.

Needs torch, transformers and peft:  python3 tools/make_lora_golden.py [--out test/golden] [--only NAME]
"""
import os

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Blip2ForConditionalGeneration, LlamaConfig
from transformers.models.opt import modeling_opt

import make_golden
import make_llama_golden
from make_golden import ADAMW, distances, loss_of
from make_llama_golden import Exact, PAD

LLAMA = dict(config=LlamaConfig, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=64, max_position_embeddings=24)
CASES = {
    # Everything, the head too, which its targets name as the lab's script does.
    "all": dict(LLAMA, seed=11, lengths=[7, 4, 12], lora=dict(r=4, lora_alpha=6, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"])),
    # Some parts of packed layers, a scale of its own, a tied head.
    "some": dict(LLAMA, seed=12, lengths=[5, 9], tie_word_embeddings=True, lora=dict(
        r=3, lora_alpha=2, use_rslora=True, target_modules=["k_proj", "up_proj"])),
    # The language model of BLIP-2.
    "blip2": dict(make_golden.CASES["ordinary"], blip2=True, seed=13, lora=dict(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])),
}


def make_base(case):
    if case.get("blip2"):
        return make_golden.make_model(case)
    return make_llama_golden.make_model({key: value for key, value in case.items() if key != "lora"})


def load(case, directory, dtype):
    if case.get("blip2"):
        model = Blip2ForConditionalGeneration.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        return model.to(dtype).eval()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype).eval()
    model.model.rotary_emb.inv_freq = frequencies
    return model


def make_adapter(case, directory):
    """PEFT's adapters of the model with random numbers, saved."""
    config = peft.LoraConfig(**case["lora"])
    model = peft.get_peft_model(load(case, directory, torch.float32), config)
    generator = torch.Generator().manual_seed(case["seed"] + 1000)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
    model.save_pretrained(os.path.join(directory, "adapter"))
    readme = os.path.join(directory, "adapter", "README.md")
    if os.path.exists(readme):
        os.remove(readme)


def with_adapter(case, directory, dtype):
    model = peft.PeftModel.from_pretrained(load(case, directory, dtype), os.path.join(directory, "adapter"),
                                           is_trainable=True)
    return model.to(dtype).eval() if dtype == torch.float64 and case.get("blip2") else to_exact(model, dtype)


def to_exact(model, dtype):
    """All weights in `dtype`, frequencies of rotary positions in f32 as they were."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model.eval()


def key_of(name):
    """A parameter's key in adapter_model.safetensors."""
    return name.replace(".default.", ".")


def run(case, model, batch, dtype):
    if case.get("blip2"):
        return make_golden.run_model(model, batch, dtype)
    return make_llama_golden.run_model(model, batch)


def compute(case, directory, batch, dtype):
    model = with_adapter(case, directory, dtype)
    trained = {key_of(name): p for name, p in model.named_parameters() if "lora_" in name}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    loss = loss_of(run(case, model, batch, dtype), batch["labels"])
    gradients = torch.autograd.grad(loss, list(trained.values()))
    result = dict(loss=loss.item(), grad=dict(zip(trained, (g.detach() for g in gradients))))
    result["loss_padding"] = loss_of(run(case, model, batch, dtype), batch["labels_padding"]).item()
    result["grad_norm"] = sum(g.double().square().sum() for g in gradients).sqrt().item()
    optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
    losses = []
    for _ in range(5):
        loss = loss_of(run(case, model, batch, dtype), batch["labels"])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss_of(run(case, model, batch, dtype), batch["labels"]).item())
    result.update(losses=losses, step5={key: p.detach().clone() for key, p in trained.items()})
    return result


def merged_weight(case, directory):
    """(key, weight) of the first adapted module after merge_and_unload, in float64."""
    model = with_adapter(case, directory, torch.float64)
    first = next(name for name, _ in model.named_parameters() if "lora_A" in name)
    key = first.replace("base_model.model.", "").replace(".lora_A.default", "")
    return key, dict(model.merge_and_unload().named_parameters())[key].detach().float().contiguous()


def make_case(name, case, out):
    directory = os.path.join(out, "lora_" + name)
    make_golden.save_model(case, make_base(case), directory)
    make_adapter(case, directory)
    batch = make_golden.make_batch(case) if case.get("blip2") else make_llama_golden.make_batch(case)
    single = compute(case, directory, batch, torch.float32)
    modeling_opt.eager_attention_forward = make_golden.eager_attention
    with Exact():
        double = compute(case, directory, batch, torch.float64)
        key, merged = merged_weight(case, directory)
    keys = sorted(double["grad"])
    saved = load_file(os.path.join(directory, "adapter", "adapter_model.safetensors"))
    assert set(keys) <= set(saved), set(keys) - set(saved)
    tensors = make_golden.tensors_of(batch, keys, double)
    tensors["merged." + key] = merged
    save_file(tensors, os.path.join(directory, "golden.safetensors"))
    about = dict(made_by="tools/make_lora_golden.py", torch=torch.__version__, transformers=transformers.__version__,
                 peft=peft.__version__, computed_in="float64, rounded to float32",
                 pad_token_id=make_golden.PAD if case.get("blip2") else PAD,
                 optimizer=dict(name="AdamW", steps=5, **ADAMW), tensors=len(keys), zero_gradient=[],
                 float32_distance=distances(single, double, []), lora=case["lora"], merged=key)
    if case.get("blip2"):
        about.update(pixel_mean=make_golden.PIXEL_MEAN, pixel_std=make_golden.PIXEL_STD)
    make_golden.finish_case(case, directory, about, double)


if __name__ == "__main__":
    make_golden.run(__doc__, CASES, make_case)
