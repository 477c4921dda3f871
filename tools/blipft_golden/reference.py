"""The results of transformers for a tiny model and a batch, in float64: the golden data of the models' tests.

A set holds the model as save_pretrained writes it (config.json and safetensors), and

  golden.json         what was computed, with which versions, the normalisation of the pixels, and the measured
                      distance between float32 and float64, from which the tests take their tolerances
  golden.safetensors
    pixels            u8  [B, S, S, 3]   RGB; the model sees (pixels / 255 - pixel_mean) / pixel_std
    ids               i32 [B, T]         the text's first token and the text, padded on the right; of an encoder-decoder
                                         the decoder's, of which the first is its start
    lengths           i32 [B]            ids that are not padding
    source_ids        i32 [B, U]         what an encoder reads, with source_lengths
    instruction_ids   i32 [B, I]         what a Q-Former reads, with instruction_lengths
    learnt            u8  [B, T]         1 if an id is a label, absent if all are
    labels            i32 [B, T - 1]     what text row t must predict: ids[b, t + 1], -100 on padding
    labels_padding    i32 [B, T - 1]     labels if padding is trained too
    loss              f32 [1]            mean cross-entropy over the labels that are not -100
    loss_padding      f32 [1]            the same over labels_padding
    grad.<key>        f32                d loss / d tensor, for every key of the checkpoint
    grad_norm         f32 [1]            2-norm over all gradients
    grad_padding.<key>                   d loss_padding / d tensor, for BLIP-2's two embedding tables only
    losses            f32 [6]            before each of five AdamW steps on this batch, and after the last
    step5.<key>       f32                weights after those five steps
  Checkpoints in bfloat16 have bf16.loss too, computed by transformers with everything in bfloat16, and BLIP-2's
    bf16.loss_padding, bf16.losses (f32), bf16.grad.<key>, bf16.step5.<key> (bf16)

All but bf16.* is computed in float64 (from the stored weights, exactly upcast), with norms and softmax in float64 too, and
rounded to float32 once, so that it is nearer to the truth than any float32 run; angles of rotary positions are float32, as
transformers defines them; attention is the eager implementation, dropout is off.
"""
import contextlib
import importlib
import json

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

PIXEL_MEAN = [0.48145466, 0.4578275, 0.40821073]
PIXEL_STD = [0.26862954, 0.26130258, 0.27577711]
# Adam moves an element by lr g / (|g| + eps) in its first step: one whose gradient is below eps passes the rounding of that
# gradient on, times lr / eps. These models' gradients are about 1e-2, and f32 knows them to about 1e-7 (float32_distance):
# with torch's eps of 1e-8 rounding alone decides the moves of some elements, and which ones differs from one matrix
# product library to the next. With 1e-4 it changes a weight by about 1e-6 a step.
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-4, weight_decay=0.01)
EXACT_NORMS = {"T5": "T5LayerNorm", "OPT": None}  # of other families FAMILYRMSNorm; T5's attention is exact as it is


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
    if hasattr(module, "num_key_value_groups"):
        key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores if attention_mask is None else scores + attention_mask, dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


@contextlib.contextmanager
def replaced(attributes):
    """While open, the attribute `name` of `owner` is `value`, for each (owner, name, value)."""
    old = [getattr(owner, name) for owner, name, _ in attributes]
    for owner, name, value in attributes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(attributes, old):
            setattr(owner, name, value)


@contextlib.contextmanager
def exact(family, dtype=torch.float64):
    """While open, transformers computes norms and softmax of a family in float64 where their input is."""
    module, norm = module_of(family), EXACT_NORMS.get(family, family + "RMSNorm")
    patches = [(getattr(module, norm), "forward", exact_norm)] if norm else []
    patches += [(module, "eager_attention_forward", exact_attention)] if family != "T5" else []
    with replaced(patches if dtype == torch.float64 else []):
        yield


def fill(model, generator, norm=1):
    """Every parameter random: weights about 1/sqrt(fan in), biases 0.1, norms `norm` +- 0.2."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(norm + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embedding" in name and "patch" not in name or "embed_" in name or name == "query_tokens":
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise * (1.2 / parameter[0].numel() ** 0.5))
    return model.eval()


def converted(model, dtype):
    """The model in `dtype`, but for the rotary frequencies, which stay as transformers makes them."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers() if "inv_freq" in name}
    model = model.to(dtype).eval()
    for name, buffer in kept.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer)
    return model


def load(model_class, folder, dtype):
    """The model of a folder in `dtype`; fails where a tensor is missing or unknown."""
    model, report = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(value) for key, value in report.items() if value}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return converted(model, dtype)


def padded(rows, value, dtype=torch.int32):
    """Lists of ids as one tensor, padded on the right; and their lengths."""
    longest = max(map(len, rows))
    return (torch.tensor([list(row) + [value] * (longest - len(row)) for row in rows], dtype=dtype),
            torch.tensor([len(row) for row in rows], dtype=torch.int32))


def mask_of(ids, lengths):
    return (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()


def loss_of(logits, labels):
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten().long(), ignore_index=-100)


class TinyModel:
    """A case of the golden data: a tiny model and its batch. A family says how they are made and run."""
    family = None                              # whose norms and attention exact() replaces
    model_class = transformers.AutoModelForCausalLM
    pad, pictures, compare_padding = 0, False, True
    pixel_mean, pixel_std = PIXEL_MEAN, PIXEL_STD
    embeddings, all_of_bf16 = (), False        # what the file holds of BLIP-2 alone

    def __init__(self, seed, lengths, dtype=torch.float32, shard="5GB", **case):
        self.seed, self.lengths, self.dtype, self.shard, self.case = seed, lengths, dtype, shard, case

    def make(self, generator):
        raise NotImplementedError

    def batch(self, generator):
        raise NotImplementedError

    def inputs(self, model, batch):
        """The model's arguments; with pictures the text's rows follow the picture's."""
        ids = batch["ids"].long()
        inputs = dict(input_ids=ids, attention_mask=mask_of(ids, batch["lengths"]))
        return self.behind_a_picture(model, batch, inputs) if self.pictures else inputs

    def behind_a_picture(self, model, batch, inputs):
        image = torch.full((len(batch["ids"]), model.config.num_query_tokens), model.config.image_token_index)
        mean, std = (torch.tensor(x, dtype=torch.float64) for x in (self.pixel_mean, self.pixel_std))
        values = ((batch["pixels"].double() / 255 - mean) / std).permute(0, 3, 1, 2)
        return dict(inputs, pixel_values=values.to(next(model.parameters()).dtype),
                    input_ids=torch.cat([image, inputs["input_ids"]], 1),
                    attention_mask=torch.cat([torch.ones_like(image), inputs["attention_mask"]], 1))

    def logits(self, model, batch):
        """Logits of the text rows 0 .. T - 2: [B, T - 1, V]."""
        prefix = model.config.num_query_tokens if self.pictures else 0
        return model(**self.inputs(model, batch), use_cache=False).logits[:, prefix:-1]

    def own_loss(self, model, batch):
        """The loss that transformers itself computes from `labels`, to check that loss_of means the same."""
        inputs, labels = self.inputs(model, batch), batch["labels"].long()
        first = torch.full((len(labels), inputs["input_ids"].shape[1] - labels.shape[1]), -100)
        return model(**inputs, use_cache=False, labels=torch.cat([first, labels], 1)).loss

    def save(self, folder):
        model = self.make(torch.Generator().manual_seed(self.seed)).to(self.dtype)
        model.save_pretrained(folder, max_shard_size=self.shard)
        (folder / "generation_config.json").unlink(missing_ok=True)

    def load(self, folder, dtype):
        return load(self.model_class, folder, dtype)

    def trained(self, model):
        return dict(model.named_parameters())

    def zero_gradients(self, config):
        """[key, first, end]: biases whose gradient is 0 in exact arithmetic. In float32 it is rounding noise, which AdamW blows
        up to steps of up to lr: the tests compare those elements apart."""
        return []

    def more(self, folder, model):
        """({tensors}, {about}) that only this family has."""
        return {}, {}


def compute(tiny, folder, batch, dtype):
    """Everything the golden files hold, in one dtype, from the checkpoint as stored."""
    with exact(tiny.family, dtype):
        model = tiny.load(folder, dtype)
        trained = tiny.trained(model)

        def loss_now(labels="labels"):
            return loss_of(tiny.logits(model, batch), batch[labels])

        def gradients(loss):
            model.zero_grad(set_to_none=True)
            loss.backward()
            return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in trained.items()}
        loss = loss_now()
        result = dict(loss=loss.item(), grad=gradients(loss))
        result["grad_norm"] = sum(g.double().square().sum() for g in result["grad"].values()).sqrt().item()
        padding = loss_now("labels_padding" if "labels_padding" in batch else "labels")
        result["loss_padding"] = padding.item()
        result["grad_padding"] = gradients(padding) if tiny.embeddings else {}
        if dtype == torch.float32:
            own = tiny.own_loss(model, batch).item()
            assert abs(own - result["loss"]) < 1e-5, (own, result["loss"])
        optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
        result["losses"] = []
        for _ in range(5):
            loss = loss_now()
            result["losses"].append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        result["losses"].append(loss_now().item())
        result["step5"] = {name: p.detach().clone() for name, p in trained.items()}
    return result


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


def checkpoint_keys(folder):
    keys = []
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as stored:
            keys += stored.keys()
    return sorted(keys)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float32)


def tensors_of(batch, keys, double, half, tiny):
    tensors = dict(batch, losses=numbers(*double["losses"]))
    for key in ("loss", "loss_padding", "grad_norm"):
        tensors[key] = numbers(double[key])
    for key in keys:
        tensors["grad." + key] = double["grad"][key].float().contiguous()
        tensors["step5." + key] = double["step5"][key].float().contiguous()
    for key in tiny.embeddings:
        tensors["grad_padding." + key] = double["grad_padding"][key].float().contiguous()
    if half:
        tensors["bf16.loss"] = numbers(half["loss"])
    if half and tiny.all_of_bf16:
        tensors.update({"bf16.loss_padding": numbers(half["loss_padding"]), "bf16.losses": numbers(*half["losses"])})
        for key in keys:
            tensors["bf16.grad." + key] = half["grad"][key].contiguous()
            tensors["bf16.step5." + key] = half["step5"][key].contiguous()
    return tensors


def make(tiny, folder):
    """Writes the files of one case."""
    torch.set_num_threads(1)                   # the models are tiny: threads would only wait for each other
    tiny.save(folder)
    batch = tiny.batch(torch.Generator().manual_seed(100 + tiny.seed))
    single, double = (compute(tiny, folder, batch, dtype) for dtype in (torch.float32, torch.float64))
    half = compute(tiny, folder, batch, torch.bfloat16) if tiny.dtype == torch.bfloat16 else None
    model = tiny.load(folder, torch.float32)
    keys, zero = sorted(tiny.trained(model)), tiny.zero_gradients(model.config)
    tensors, about = tiny.more(folder, model)
    save_file({**tensors_of(batch, keys, double, half, tiny), **tensors}, folder / "golden.safetensors")
    about = dict(made_by="tools/golden.py", torch=torch.__version__, transformers=transformers.__version__,
                 computed_in="float64, rounded to float32 (bf16.*: bfloat16)", attention="eager", dropout=False,
                 **(dict(pixel_mean=PIXEL_MEAN, pixel_std=PIXEL_STD) if tiny.pictures else {}), pad_token_id=tiny.pad,
                 compare_padding=tiny.compare_padding, optimizer=dict(name="AdamW", steps=5, **ADAMW), tensors=len(keys),
                 zero_gradient=zero, float32_distance=distances(single, double, zero), **about)
    if half:
        about["bf16_distance"] = bf16_distances(half, double)
    with open(folder / "golden.json", "w") as file:
        json.dump(about, file, indent=2)
        file.write("\n")
    for path in folder.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    print(f"{folder.name}: {len(keys)} tensors, loss {double['loss']:.4f}, gradient norm {double['grad_norm']:.3f}, "
          f"float32: {about['float32_distance']} {about.get('bf16_distance', '')}")
