"""A tiny InstructBLIP with a LLaMA, as transformers saves it, and what transformers makes of a batch; shared by
make_instructblip_golden.py, compare_instructblip.py and compare_generation.py. Needs torch and transformers."""
import contextlib

import torch
import transformers
from transformers.models.llama import modeling_llama

from make_golden import PIXEL_MEAN, PIXEL_STD
from make_modern_golden import exact_attention, exact_norm


def make_model(vision, qformer, text, queries, generator, **more):
    """Every parameter random: weights about 1/sqrt(fan in), biases 0.1, norms 1 +- 0.2."""
    config = transformers.InstructBlipConfig(
        vision_config=transformers.InstructBlipVisionConfig(**vision).to_dict(),
        qformer_config=transformers.InstructBlipQFormerConfig(encoder_hidden_size=vision["hidden_size"],
                                                              **qformer).to_dict(),
        text_config=transformers.LlamaConfig(**text).to_dict(), num_query_tokens=queries,
        image_token_index=text["vocab_size"] - 1, **more)
    model = transformers.InstructBlipForConditionalGeneration(config)
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
                parameter.copy_(noise * (1.2 / parameter[0].numel() ** 0.5))
    return model.eval()


@contextlib.contextmanager
def exact():
    """While open, LLaMA's norms and softmax are computed in the dtype of their input, and not in float32."""
    norm = modeling_llama.LlamaRMSNorm.forward
    attention = modeling_llama.eager_attention_forward
    modeling_llama.LlamaRMSNorm.forward = exact_norm
    modeling_llama.eager_attention_forward = exact_attention
    try:
        yield
    finally:
        modeling_llama.LlamaRMSNorm.forward = norm
        modeling_llama.eager_attention_forward = attention


def load(folder, dtype):
    """The model of a folder in `dtype`, but for the rotary frequencies; fails where a tensor is missing or unknown."""
    model, report = transformers.InstructBlipForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(value) for key, value in report.items() if value}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    kept = {name: buffer.clone() for name, buffer in model.named_buffers() if "inv_freq" in name}
    model = model.to(dtype).eval()
    for name, buffer in kept.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer)
    return model


def padded(rows, value):
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), value, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, :len(row)] = torch.tensor(row)
        mask[b, :len(row)] = 1
    return ids, mask


def run_model(model, pixels, texts, instructions, dtype, mean=PIXEL_MEAN, std=PIXEL_STD):
    """Logits of the text rows [B, T, V]. `pixels` u8 [B, S, S, 3]; `texts` and `instructions` lists of ids."""
    mean, std = (torch.tensor(x, dtype=torch.float64) for x in (mean, std))
    values = ((pixels.double() / 255 - mean) / std).permute(0, 3, 1, 2).to(dtype)
    ids, mask = padded(texts, 0)
    qformer_ids, qformer_mask = padded(instructions, 0)
    queries = model.config.num_query_tokens
    image = torch.full((len(texts), queries), model.config.image_token_index)
    out = model(pixel_values=values, input_ids=torch.cat([image, ids], 1),
                attention_mask=torch.cat([torch.ones_like(image), mask], 1), qformer_input_ids=qformer_ids,
                qformer_attention_mask=qformer_mask, use_cache=False)
    return out.logits[:, queries:]


def loss_of(logits, texts, learnt):
    """Mean cross-entropy of the ids that are learnt; each row predicts the next."""
    labels, _ = padded([[i if keep else -100 for i, keep in zip(row, keeps)] for row, keeps in zip(texts, learnt)],
                       -100)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def zero_gradients(config):
    """[key, first, end]: biases of attention keys, whose gradient is 0 in exact arithmetic."""
    rows = [[f"vision_model.encoder.layers.{i}.self_attn.qkv.bias", config.vision_config.hidden_size,
             2 * config.vision_config.hidden_size] for i in range(config.vision_config.num_hidden_layers)]
    qformer = config.qformer_config
    for i in range(qformer.num_hidden_layers):
        kinds = ["attention"] + (["crossattention"] if i % qformer.cross_attention_frequency == 0 else [])
        rows += [[f"qformer.encoder.layer.{i}.{kind}.attention.key.bias", 0, qformer.hidden_size] for kind in kinds]
    return rows


