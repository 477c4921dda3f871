"""Texts of transformers' generate() for prompts with the golden models.

Greedy texts and beams in f32. Only cases that no rounding changes are kept: those that come out
the same in f64, and with weights that were moved by 1e-5 of themselves. Needs torch and transformers.
"""
import copy
import json
import os
import random

import torch
import transformers

from .archive import golden_path

MODELS = ("llama_gqa", "llama_mha", "llama_mistral", "llama_qwen2", "llama_odd", "modern_qwen3", "modern_smollm3", "modern_olmo2",
          "modern_phi3", "modern_gemma2", "modern_gemma3", "modern_granite", "modern_glm4", "blip2_ordinary", "blip2_odd")
CASES, TOKENS = 6, 7


def load(folder, dtype):
    name = transformers.AutoConfig.from_pretrained(folder).model_type
    kind = transformers.Blip2ForConditionalGeneration if name == "blip-2" else transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def moved(model):
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data *= 1 + 1e-5 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def generated(model, ids, pixels, beams, tokens, dtype):
    prompt, more = torch.tensor([ids]), {}
    if pixels is not None:
        image = torch.full((1, model.config.num_query_tokens), model.config.image_token_index)
        prompt, more = torch.cat([image, prompt], 1), {"pixel_values": pixels.to(dtype)}
    settings = transformers.GenerationConfig(max_new_tokens=tokens, num_beams=beams, do_sample=False, pad_token_id=0,
                                             eos_token_id=None, length_penalty=1.0)
    with torch.no_grad():
        out = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), generation_config=settings, **more)
    return out[0, prompt.shape[1]:].tolist()


def cases_of(name):
    folder = golden_path(name)
    f32, f64 = load(folder, torch.float32), load(folder, torch.float64)
    models = ((f32, torch.float32), (f64, torch.float64), (moved(f64), torch.float64))
    text = getattr(f32.config, "text_config", f32.config)
    rng, cases, tried = random.Random(name), [], 0
    room = text.max_position_embeddings - getattr(f32.config, "num_query_tokens", 0)
    tokens = min(TOKENS, room - 2)
    while len(cases) < CASES and tried < 100:
        tried += 1
        beams = 1 if len(cases) % 2 == 0 else 3
        ids = [rng.randrange(3, text.vocab_size - 2) for _ in range(rng.randrange(1, min(9, room - tokens + 1)))]
        pixels, case = None, {"beams": beams, "ids": ids}
        if name.startswith("blip2"):
            size = f32.config.vision_config.image_size
            case["seed"] = seed = rng.randrange(1 << 20)
            # The test makes the same pixels: a linear congruence.
            values = [(seed + 7919 * i) * 104729 % 251 for i in range(size * size * 3)]
            pixels = torch.tensor(values, dtype=torch.float64).reshape(1, size, size, 3).permute(0, 3, 1, 2)
            pixels = (pixels / 255 - 0.5) / 0.5
        texts = [generated(model, ids, pixels, beams, tokens, dtype) for model, dtype in models]
        if all(one == texts[0] for one in texts):
            cases.append({**case, "new": texts[0]})
    print(f"{name}: {len(cases)} of {tried} cases")
    return cases


def make(folder, options):
    with open(os.path.join(folder, "models.json"), "w") as out:
        out.write("{\n" + ",\n".join(f' "{name}": [\n  ' + ",\n  ".join(json.dumps(case) for case in cases_of(name)) + "]"
                                     for name in MODELS) + "\n}\n")
