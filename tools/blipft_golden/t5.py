"""Tiny models with a T5: T5 itself, and one that is the language model of an InstructBLIP."""
import json
import math

import torch
import transformers
from safetensors.torch import save_file

from .blip2 import key_biases
from .reference import TinyModel, mask_of

PAD = 0
CLASSES = {"blip2": (transformers.Blip2Config, transformers.Blip2ForConditionalGeneration),
           "instructblip": (transformers.InstructBlipConfig, transformers.InstructBlipForConditionalGeneration)}
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
    # Instructions longer and shorter than the prompts, cross attention in every second layer of the Q-Former. Among the seeds 4 to 12
    # this one's weights are the least sensitive to rounding (float32_distance).
    "instructblip": dict(seed=7, lengths=[7, 4, 12], sources=[9, 12, 3], instructions=[4, 12, 7], own_head=True, config=dict(
        SIZES, feed_forward_proj="gated-gelu", dense_act_fn="gelu", tie_word_embeddings=False, model_type="t5"), around=dict(
            vision_config=dict(hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                               patch_size=14),
            qformer_config=dict(vocab_size=37, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                max_position_embeddings=20),
            num_query_tokens=5, image_token_index=47)),
}


def fill_t5(model, generator):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif "relative_attention_bias" in name:
                parameter.copy_(0.7 * noise)
            elif name.endswith("shared.weight"):
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * (1.2 / math.sqrt(parameter.shape[1])))
            if name.endswith(".q.weight"):       # whose scores are not scaled down
                parameter.mul_(1.5 / math.sqrt(model.config.d_kv))
    return model


def write_model(folder, values, own_head, generator, dtype=torch.float32):
    """A checkpoint as the hub has them: config.json with what is given, and the head where it has one of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    model = fill_t5(transformers.T5ForConditionalGeneration(transformers.T5Config(**values)), generator)
    tensors = {key: value.clone() for key, value in model.state_dict().items()
               if key != "lm_head.weight" and "embed_tokens" not in key}
    if own_head:
        tensors["lm_head.weight"] = torch.randn(tensors["shared.weight"].shape, generator=generator) / math.sqrt(values["d_model"])
    tensors = {key: value.to(dtype) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(values, model_type="t5", architectures=["T5ForConditionalGeneration"])))


def write_blip_of(kind, folder, settings, own_head, generator, dtype=torch.float32):
    """One of such settings, with random weights, as the hub has them."""
    config_class, model_class = CLASSES[kind]
    values, side = settings["text_config"], settings["vision_config"]["image_size"]
    qformer = dict(settings["qformer_config"], encoder_hidden_size=settings["vision_config"]["hidden_size"])
    config = config_class(**dict(settings, qformer_config=qformer))
    model = model_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if not name.startswith("language_model."):
                norm = "norm" in name.lower() and name.endswith("weight")
                parameter.copy_(1 + 0.2 * noise if norm else 0.1 * noise if parameter.dim() == 1
                                else noise * (1.2 / math.sqrt(parameter[0].numel())))
    fill_t5(model.language_model, generator)
    tensors = {key: value.clone() for key, value in model.state_dict().items()
               if not key.endswith("lm_head.weight") and ".embed_tokens." not in key}
    if own_head:
        shape = tensors["language_model.shared.weight"].shape
        tensors["language_model.lm_head.weight"] = torch.randn(shape, generator=generator) / math.sqrt(values["d_model"])
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.to(dtype) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = config.to_dict()
    written["text_config"] = values
    (folder / "config.json").write_text(json.dumps(dict(written, architectures=[model_class.__name__])))
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))


class T5(TinyModel):
    family, model_class, pad, compare_padding = "T5", transformers.T5ForConditionalGeneration, PAD, False

    def __init__(self, **case):
        super().__init__(**case)
        if "around" in case:
            self.model_class, self.pictures = CLASSES["instructblip"][1], True

    def save(self, folder):
        generator = torch.Generator().manual_seed(self.seed)
        if self.pictures:
            settings = dict(self.case["around"], text_config=self.case["config"])
            write_blip_of("instructblip", folder, settings, self.case["own_head"], generator)
            (folder / "preprocessor_config.json").unlink()
        else:
            write_model(folder, self.case["config"], self.case["own_head"], generator, self.dtype)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")

    def batch(self, generator):
        def rows(lengths, first):
            ids = torch.full((len(lengths), max(lengths)), PAD, dtype=torch.int32)
            for b, length in enumerate(lengths):
                ids[b, :length] = torch.randint(2, self.case["config"]["vocab_size"], (length,), generator=generator, dtype=torch.int32)
                if first is not None:
                    ids[b, 0] = first
                ids[b, length - 1] = 1
            return ids
        ids, sources = rows(self.lengths, self.case["config"]["decoder_start_token_id"]), rows(self.case["sources"], None)
        labels = torch.full((ids.shape[0], ids.shape[1] - 1), -100, dtype=torch.int32)
        for b, length in enumerate(self.lengths):
            labels[b, :length - 1] = ids[b, 1:length]
        batch = dict(ids=ids, lengths=torch.tensor(self.lengths, dtype=torch.int32), labels=labels,
                     labels_padding=ids[:, 1:].contiguous(), source_ids=sources,
                     source_lengths=torch.tensor(self.case["sources"], dtype=torch.int32))
        if "around" in self.case:
            side, samples = self.case["around"]["vision_config"]["image_size"], len(self.lengths)
            batch.update(pixels=torch.randint(0, 256, (samples, side, side, 3), generator=generator, dtype=torch.uint8),
                         instruction_ids=rows(self.case["instructions"], None).clamp(max=36),
                         instruction_lengths=torch.tensor(self.case["instructions"], dtype=torch.int32))
        return batch

    def inputs(self, model, batch):
        """The encoder's input, after the picture if there is one."""
        sources = batch["source_ids"].long()
        inputs = dict(input_ids=sources, attention_mask=mask_of(sources, batch["source_lengths"]))
        if not self.pictures:
            return inputs
        asked = batch["instruction_ids"].long()
        return dict(self.behind_a_picture(model, batch, inputs), qformer_input_ids=asked,
                    qformer_attention_mask=mask_of(asked, batch["instruction_lengths"]))

    def logits(self, model, batch):
        return model(**self.inputs(model, batch), decoder_input_ids=batch["ids"].long(), use_cache=False).logits[:, :-1]

    def own_loss(self, model, batch):
        return model(**self.inputs(model, batch), labels=batch["labels"].long()).loss

    def zero_gradients(self, config):
        return key_biases(config) if self.pictures else []


MODELS = {f"t5_{name}": T5(**case) for name, case in CASES.items()}
