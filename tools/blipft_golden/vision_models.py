"""Tiny vision-language models in transformers: Qwen3-VL, Qwen2.5-VL and Gemma 3, one set a family.

cases.json holds one case in each line. The first case of a set is fixed, the others are drawn. Weights and pictures follow
from names (formula(), picture()), which a test draws alike: no weights are stored.

    config             config.json, as save_pretrained writes it
    tensors            of the checkpoint: [name in the file, name in the module tree, shape]; the formula takes the latter
    mean, std          of the pixels: (x / 255 - mean) / std in float32
    samples            ids; label: 1 where an id is predicted; pictures: [name, height, width], not resized; logits: the first
                       four of the last row
    loss, losses       mean cross-entropy over all labels of the samples; before each of three AdamW steps, and after
    gradients, steps   {name in the module tree: [2-norm, probe()]} of the gradient and of the change after three steps
    gradient_norm      over all tensors
    bf16_loss          weights and pixels in bfloat16
    lora               config (adapter_config.json), tensors [name in the adapter, shape], loss, losses, gradients, steps: of an adapter
                       whose matrices follow from the formula too
    generated          [sample, beams, tokens]: what generate() continues the ids before the first label with, where rounding
                       does not change it
    float32_distance   how far a float32 run is from the above: the loss, and the largest relative error of a gradient

Samples are run one by one, in float64 but for the rotary angles; of Qwen a packed run gives the same loss (checked here).
A fixed case has `published`, the numbers that it must reproduce, and `mistakes`, [what is wrong, loss]: what an independent
implementation gives with one mistake.

Needs torch, transformers and peft.
"""
import contextlib
import copy
import importlib
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open

from .reference import ADAMW, converted, exact_attention, exact_norm, replaced
from .vision_cases import CASES, GOLDEN_CASES, picture_rows

GOLDEN_RATIO, BASES = 0x9E3779B97F4A7C15, 1 << 64
NORMS = {"qwen3_vl": "Qwen3VLTextRMSNorm", "qwen2_5_vl": "Qwen2_5_VLRMSNorm", "gemma3": "Gemma3RMSNorm"}
CLASSES = {"qwen3_vl": "Qwen3VL", "qwen2_5_vl": "Qwen2_5_VL", "gemma3": "Gemma3"}
STEPS, NEW_TOKENS = 3, 6


def words(name, count):
    """splitmix64's finaliser of FNV-1a-64(name) + i * GOLDEN_RATIO."""
    start = 0xCBF29CE484222325
    for byte in name.encode():
        start = (start ^ byte) * 0x100000001B3 % BASES
    z = np.arange(count, dtype=np.uint64) * np.uint64(GOLDEN_RATIO) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name, count):
    return (words(name, count) >> np.uint64(40)).astype(np.float64) * 2.0 ** -23 - 1


def formula(name, shape, stored_less_one=False):
    """The weights of a parameter: about 1/sqrt(fan in); norms 1 +- 0.1 (Gemma's, stored less 1: 0 +- 0.1), biases +- 0.1."""
    count = int(np.prod(shape))
    u = uniform(name, count)
    if len(shape) >= 2:
        u = u * np.sqrt(3 * shape[0] / count)
    else:
        u = 0.1 * u + (1 if name.endswith(".weight") and not stored_less_one else 0)
    return torch.from_numpy(u.astype(np.float32).reshape(shape))


def fill(model, named, gemma=False):
    with torch.no_grad():
        for name, parameter in named.items():
            less_one = gemma and ("language_model" in name or "mm_soft_emb_norm" in name)
            parameter.copy_(formula(name, tuple(parameter.shape), less_one))
    return model.eval()


def picture(name, height, width):
    """u8 [height, width, 3]."""
    return (words(name, height * width * 3) >> np.uint64(56)).astype(np.uint8).reshape(height, width, 3)


def probe(name, tensor):
    """The dot product with uniform numbers: with the norm, it finds any error that is not small beside the norm."""
    return float(np.dot(tensor.detach().double().flatten().numpy(), uniform("probe." + name, tensor.numel())))


def short(value):
    return float(f"{value:.10g}")


def measured(tensors):
    return {name: [short(t.double().norm().item()), short(probe(name, t))] for name, t in tensors.items()}


@contextlib.contextmanager
def exact(family):
    """While open, norms, softmax and the towers' rotary embedding stay in float64 where their input is."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    siglip = importlib.import_module("transformers.models.siglip.modeling_siglip")

    def rotary(q, k, cos, sin):
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        return q * cos + module.rotate_half(q) * sin, k * cos + module.rotate_half(k) * sin
    patches = [(getattr(module, NORMS[family]), "forward", exact_norm), (module, "eager_attention_forward", exact_attention),
               (siglip, "eager_attention_forward", exact_attention)]
    patches += [(module, "apply_rotary_pos_emb_vision", rotary)] if family != "gemma3" else []
    with replaced(patches):
        yield


class Case:
    def __init__(self, family, name, config, samples, lora, mean, std, published=None, mistakes=None):
        self.family, self.name, self.samples, self.lora = family, name, samples, lora
        self.mean, self.std, self.published, self.mistakes = mean, std, published, mistakes
        kind = CLASSES[family]
        self.model_class = getattr(transformers, f"{kind}ForConditionalGeneration")
        self.config = getattr(transformers, f"{kind}Config")(**copy.deepcopy(config))
        self.image_id = config.get("image_token_id", config.get("image_token_index"))

    def model(self, dtype=torch.float32):
        config = copy.deepcopy(self.config)
        config._attn_implementation = "eager"
        model = self.model_class(config)
        fill(model, dict(model.named_parameters()), self.family == "gemma3")
        return converted(model, dtype)

    def inputs(self, sample, dtype, ids=None):
        """Arguments of the model. `ids`: the beginning of the sample's."""
        ids = torch.tensor([sample["ids"] if ids is None else ids])
        is_image = (ids == self.image_id).int()
        inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
        inputs["token_type_ids" if self.family == "gemma3" else "mm_token_type_ids"] = is_image
        rows, grids, left = [], [], int(is_image.sum())
        for name, height, width in sample["pictures"]:
            if not left:
                break
            values = ((torch.from_numpy(picture(name, height, width)).float() / 255 - torch.tensor(self.mean)) /
                      torch.tensor(self.std)).permute(2, 0, 1)
            values, grid, tokens = picture_rows(self.family, self.config, values)
            left -= tokens
            rows.append(values)
            grids.append(grid)
        if rows:
            inputs["pixel_values"] = torch.cat(rows).to(dtype)
            if self.family != "gemma3":
                inputs["image_grid_thw"] = torch.tensor(grids)
        return inputs

    def sum_and_logits(self, model, sample, dtype):
        logits = model(**self.inputs(sample, dtype), use_cache=False).logits[0]
        logits = logits if dtype == torch.float64 else logits.float()
        labels = torch.tensor([i if l else -100 for i, l in zip(sample["ids"], sample["label"])])
        return torch.nn.functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum"), logits[-1, :4]

    def loss(self, model, dtype):
        return sum(self.sum_and_logits(model, s, dtype)[0] for s in self.samples) / sum(sum(s["label"]) for s in self.samples)

    def trained(self, model, trained, dtype):
        """Loss, gradients, and what three steps change."""
        def step():
            model.zero_grad(set_to_none=True)
            loss = self.loss(model, dtype)
            loss.backward()
            return loss.item()
        losses = [step()]
        gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in trained.items()}
        before = {n: p.detach().clone() for n, p in trained.items()}
        optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
        for _ in range(STEPS):
            optimizer.step()
            losses.append(step())
        return losses, gradients, {n: p.detach() - before[n] for n, p in trained.items()}

    def adapted(self, dtype):
        """(model, {name in adapter_model.safetensors: parameter})"""
        import peft
        model = peft.get_peft_model(self.model(), peft.LoraConfig(**self.lora))
        named = {n.replace(".default.", "."): p for n, p in model.named_parameters() if "lora_" in n}
        fill(model, named)
        model = converted(model, dtype)
        return model, {n.replace(".default.", "."): p for n, p in model.named_parameters() if "lora_" in n}

    def generated(self, model, sample, beams, dtype):
        ids = sample["ids"][:sample["label"].index(1)]
        settings = transformers.GenerationConfig(max_new_tokens=NEW_TOKENS, num_beams=beams, do_sample=False, pad_token_id=0,
                                                 eos_token_id=None, length_penalty=1.0)
        with torch.no_grad():
            out = model.generate(**self.inputs(sample, dtype, ids), generation_config=settings)
        return out[0, len(ids):].tolist()

    def all_generated(self, f32, f64):
        moved = copy.deepcopy(f64)
        generator = torch.Generator().manual_seed(1)
        for parameter in moved.parameters():
            parameter.data *= 1 + 1e-5 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        kept = []
        for number, sample in enumerate(self.samples):
            # transformers fails where beams expand the rows of a model without DeepStack.
            taps = getattr(self.config.vision_config, "deepstack_visual_indexes", True)
            beams = 1 if number % 2 == 0 or not taps else 3
            texts = [self.generated(model, sample, beams, dtype)
                     for model, dtype in ((f32, torch.float32), (f64, torch.float64), (moved, torch.float64))]
            if 1 in sample["label"] and sample["label"].index(1) > 0 and texts.count(texts[0]) == 3:
                kept.append([number, beams, texts[0]])
        return kept

    def packed_loss(self, model, dtype):
        """Packs all samples of a Qwen model into one row. The first of the four rows of positions separates samples."""
        each = [self.inputs(s, dtype) for s in self.samples]
        positions = []
        for inputs in each:
            count = inputs["input_ids"].shape[1]
            three = model.model.get_rope_index(inputs["input_ids"], inputs["mm_token_type_ids"],
                                               image_grid_thw=inputs.get("image_grid_thw"))[0]
            positions.append(torch.cat([torch.arange(count).view(1, 1, -1), three]))
        more = {key: torch.cat([i[key] for i in each if key in i]) for key in ("pixel_values", "image_grid_thw")
                if any(key in i for i in each)}
        ids, kinds = (torch.cat([i[key] for i in each], 1) for key in ("input_ids", "mm_token_type_ids"))
        model.config.text_config.use_cache = False
        logits = model(input_ids=ids, mm_token_type_ids=kinds, position_ids=torch.cat(positions, 2), use_cache=False, **more).logits
        labels = [[i if l and n else -100 for n, (i, l) in enumerate(zip(s["ids"], s["label"]))] for s in self.samples]
        return torch.nn.functional.cross_entropy(logits[0, :-1], torch.tensor(sum(labels, []))[1:], ignore_index=-100).item()

    def checkpoint(self, model):
        """[name in the file, name in the module tree, shape], and config.json."""
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tree = {n: p for n, p in model.named_parameters()}
            with safe_open(Path(folder) / "model.safetensors", "pt") as stored:
                found = {key: stored.get_tensor(key) for key in stored.keys()}
            config = json.loads((Path(folder) / "config.json").read_text())
        by_value = {(tuple(p.shape), p.detach().flatten()[:8].numpy().tobytes()): n for n, p in tree.items()}
        tensors = [[key, by_value[tuple(t.shape), t.flatten()[:8].numpy().tobytes()], list(t.shape)] for key, t in found.items()]
        assert sorted(t[1] for t in tensors) == sorted(tree), set(tree) ^ {t[1] for t in tensors}
        return tensors, config

    def computed(self):
        f32, f64 = self.model(), self.model(torch.float64)
        tensors, config = self.checkpoint(f32)
        generated = []
        with exact(self.family):
            generated = self.all_generated(self.model(), f64)
            for sample in self.samples:
                with torch.no_grad():
                    sample["logits"] = [short(x) for x in self.sum_and_logits(f64, sample, torch.float64)[1].tolist()]
            losses, gradients, steps = self.trained(f64, dict(f64.named_parameters()), torch.float64)
        single = self.trained(f32, dict(f32.named_parameters()), torch.float32)
        half = self.model(torch.bfloat16)
        with torch.no_grad():
            half_loss = self.loss(half, torch.bfloat16).item()
            if self.family != "gemma3":
                packed, alone = self.packed_loss(self.model(), torch.float32), single[0][0]
                assert abs(packed - alone) < 1e-5, (packed, alone)
        total = sum(g.square().sum() for g in gradients.values()).sqrt().item()
        distance = max((single[1][n] - g).norm().item() / g.norm().item() for n, g in gradients.items()
                       if g.norm() > 1e-5 * total)
        result = dict(name=self.name, config=config, tensors=tensors, mean=self.mean, std=self.std, samples=self.samples,
                      loss=short(losses[0]), losses=[short(x) for x in losses], gradient_norm=short(total),
                      gradients=measured(gradients), steps=measured(steps), bf16_loss=short(half_loss),
                      generated=generated, float32_distance=[abs(single[0][0] - losses[0]), distance])
        result["lora"] = self.lora_computed()
        if self.published:
            result.update(published=self.published, mistakes=self.mistakes)
            self.check_published(result)
        return result

    def lora_computed(self):
        with exact(self.family):
            model, trained = self.adapted(torch.float64)
            losses, gradients, steps = self.trained(model, trained, torch.float64)
        # As save_pretrained writes it: names of modules in place of "all-linear".
        config = {**model.peft_config["default"].to_dict(), "base_model_name_or_path": self.name, "inference_mode": True}
        return dict(config=json.loads(json.dumps(config, default=sorted)), tensors=[[n, list(p.shape)] for n, p in trained.items()], loss=short(losses[0]),
                    losses=[short(x) for x in losses], gradients=measured(gradients), steps=measured(steps))

    def check_published(self, result):
        found = dict(loss=result["loss"], logits=result["samples"][0]["logits"], gradient_norm=result["gradient_norm"],
                     bf16_loss=result["bf16_loss"], **{n: result["gradients"][n][0] for n in self.published["gradients"]})
        expected = {**self.published, **self.published["gradients"]}
        for key, value in found.items():
            error = np.abs(np.array(value) - np.array(expected[key])).max()
            assert error <= 2e-5 * max(1, np.abs(expected[key]).max()), (self.name, key, value, expected[key])


def make(folder, options):
    torch.set_num_threads(1)
    family = folder.name.removeprefix("vision_")
    lines = []
    for number in range(CASES):
        case = Case(family, **GOLDEN_CASES[family](random.Random(f"{family} {number}"), number))
        made = case.computed()
        lines.append(json.dumps(made, separators=(",", ":")))
        print(f"{folder.name}/{case.name}: {len(case.samples)} samples, {len(made['tensors'])} tensors, loss {made['loss']:.6f}, "
              f"{len(made['generated'])} generated, lora {len(made['lora']['tensors'])}, f32 {made['float32_distance']}", flush=True)
    (folder / "cases.json").write_text("\n".join(lines) + "\n")
