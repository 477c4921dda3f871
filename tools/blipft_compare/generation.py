"""Compares generated tokens with transformers' generate(), on random tiny models, which transformers runs on the CPU.

    tools/compare.py generation --blipft build/cpu/blipft [--families llama t5 instructblip] [--models 20] [--seed 1]
        [--device cuda] [--bf16]

Each model has a random configuration and random weights, each run some random prompts and random settings: greedy, with
processors, or beams. Ends with "N texts the same or near ties, N different", and exits 1 where any differs but by a near tie:
scores closer than f32 can tell apart, each printed. With --bf16 both compute in bf16, without beams, and a near tie is two
logits that lie two steps of bf16 apart at most, or no farther than twice what transformers' own logits are off by in bf16 (then
both are printed, in steps); the weights are smaller then, as no layer is to make a rounding larger. Needs torch, transformers and tokenizers.
"""
import argparse
import copy
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from blipft_golden.archive import copy_tokenizer
from blipft_golden.reference import load
from blipft_golden.t5 import CLASSES, write_model

from .encoder_decoders import of_t5, write_blip

# Sums of f32 in another order, through the layers: 2^-24 for each of some hundred roundings.
NEAR = {"32-true": 1e-5, "bf16-true": 2}

BYTES = pre_tokenizers.ByteLevel.alphabet()
WITH_PICTURES = ("blip2", "instructblip", "blip2_t5", "instructblip_t5")


class PenaltyOfTexts(transformers.RepetitionPenaltyLogitsProcessor):
    """Positions of a picture are no text, but transformers counts their id as an earlier token."""

    image_token = None                     # of the model that generates

    def __call__(self, input_ids, scores):
        if self.image_token is not None:
            places = input_ids == self.image_token
            places &= torch.arange(input_ids.shape[1]) < self.count
            input_ids = input_ids.masked_fill(places, self.begin)
        return super().__call__(input_ids, scores)


transformers.generation.utils.RepetitionPenaltyLogitsProcessor = PenaltyOfTexts


def save_tokenizer(folder, bos):
    """The tokens are <pad>, <s>, </s> and all bytes. Texts begin with <s>, or end with </s>."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2}
    for token in sorted(BYTES):
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    from tokenizers.processors import TemplateProcessing
    tokenizer.post_processor = (TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]) if bos
                                else TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)]))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(folder)
    return fast


def text_config(rng, family):
    heads = rng.choice([1, 2, 4, 6])
    kv = rng.choice([k for k in (1, 2, 3, 4, 6) if heads % k == 0])
    size = rng.choice([8, 16, 24, 32])
    common = dict(vocab_size=259 + rng.choice([0, 5, 61]), hidden_size=rng.choice([h for h in (32, 36, 48, 64, 96) if h % heads == 0]), num_hidden_layers=rng.choice([1, 2, 3]),
                  num_attention_heads=heads, intermediate_size=rng.choice([40, 96]), max_position_embeddings=128,
                  tie_word_embeddings=rng.random() < 0.5, initializer_range=run.spread, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if family == "opt":
        common["hidden_size"] = heads * size
        del common["intermediate_size"]
        return transformers.OPTConfig(ffn_dim=96, word_embed_proj_dim=heads * size, init_std=run.spread, dropout=0, **common)
    name = {"llama": "LlamaConfig", "mistral": "MistralConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config",
            "smollm3": "SmolLM3Config", "olmo2": "Olmo2Config", "phi3": "Phi3Config", "gemma2": "Gemma2Config",
            "gemma3": "Gemma3TextConfig", "granite": "GraniteConfig", "glm4": "Glm4Config"}[family]
    common["num_key_value_heads"] = kv
    if family in ("qwen2", "phi3", "granite"):  # no head_dim
        common["hidden_size"] = heads * size
    else:
        common["head_dim"] = size
    if family == "olmo2":
        del common["head_dim"]
        common["hidden_size"] = heads * size
    if family == "granite":
        common.update(embedding_multiplier=rng.choice([1.0, 12.0]), residual_multiplier=rng.choice([0.22, 0.7]),
                      attention_multiplier=rng.choice([0.05, 0.3]), logits_scaling=rng.choice([1.0, 8.0]))
    if family == "mistral":
        common["sliding_window"] = rng.choice([None, 7, 64])
    if family in ("gemma2", "gemma3"):
        common["sliding_window"] = rng.choice([5, 64])
        common["query_pre_attn_scalar"] = rng.choice([8, 24])
        common["num_hidden_layers"] = rng.choice([2, 7])
    return getattr(transformers, name)(**common)


def make_t5(rng, folder):
    values, own_head = of_t5(rng, 259)
    values.update(eos_token_id=2, decoder_start_token_id=0)
    values.pop("num_decoder_layers", None)  # transformers' cache has as many layers as the encoder
    write_model(pathlib.Path(folder), values, own_head, torch.Generator().manual_seed(rng.randrange(1 << 30)))
    return load(transformers.T5ForConditionalGeneration, folder, torch.float32)


def make_model(rng, family, folder):
    tokenizer = save_tokenizer(folder, bos=not family.endswith("t5"))
    if family == "t5":
        return make_t5(rng, folder), tokenizer
    if family in ("blip2_t5", "instructblip_t5"):
        kind = family.removesuffix("_t5")
        write_blip(kind, pathlib.Path(folder), rng, 259, torch.Generator().manual_seed(rng.randrange(1 << 30)),
                   eos_token_id=2, decoder_start_token_id=0, num_decoder_layers=None)
        if kind == "instructblip":
            copy_tokenizer("bert", os.path.join(folder, "qformer_tokenizer"))
        return load(CLASSES[kind][1], folder, torch.float32), tokenizer
    if family == "blip2":
        vision = transformers.Blip2VisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                                                image_size=28, patch_size=14, initializer_range=run.spread)
        qformer = transformers.Blip2QFormerConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
                                                  encoder_hidden_size=32, initializer_range=run.spread, vocab_size=100)
        text = text_config(rng, "opt")
        config = transformers.Blip2Config(vision_config=vision.to_dict(), qformer_config=qformer.to_dict(),
                                          text_config=text.to_dict(), num_query_tokens=rng.choice([3, 8]))
        config.image_token_index = text.vocab_size - 1
        model = transformers.Blip2ForConditionalGeneration(config)
    elif family == "instructblip":
        vision = transformers.InstructBlipVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                                       num_attention_heads=2, image_size=28, patch_size=14,
                                                       initializer_range=run.spread)
        qformer = transformers.InstructBlipQFormerConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                         intermediate_size=40, encoder_hidden_size=32,
                                                         initializer_range=run.spread, vocab_size=290, max_position_embeddings=64)
        text = text_config(rng, "llama")
        config = transformers.InstructBlipConfig(vision_config=vision.to_dict(), qformer_config=qformer.to_dict(),
                                                 text_config=text.to_dict(), num_query_tokens=rng.choice([3, 8]),
                                                 image_token_index=text.vocab_size - 1)
        model = transformers.InstructBlipForConditionalGeneration(config)
        copy_tokenizer("bert", os.path.join(folder, "qformer_tokenizer"))
    else:
        model = transformers.AutoModelForCausalLM.from_config(text_config(rng, family))
    # The form that all versions compute as the model's code says: 5.17's default leaves out Gemma 2's cap of the scores.
    model.set_attn_implementation("eager")
    model = model.float().eval()
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    for parameter in model.parameters():   # biases and norms too
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    if family in WITH_PICTURES:
        with open(os.path.join(folder, "preprocessor_config.json"), "w") as f:
            json.dump({"size": {"height": 28, "width": 28}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, f)
    return model, tokenizer


def keep_to_letters(model, tokenizer, folder):
    """No logits for what leaves no trace in a text that tells which token it was: bytes of half a letter, blanks, ids that the
    tokenizer does not have. Zeros: the largest of some hundred others is above."""
    rows = torch.tensor([tokenizer.convert_tokens_to_ids(token) for token in BYTES
                         if tokenizer.backend_tokenizer.decoder.decode([token]) in "\ufffd \t\n\r\x0b\x0c"], dtype=torch.long)
    heads = ("embed_tokens.weight", "lm_head.weight", "shared.weight")
    def clear(name, tensor):
        if name.endswith(heads) and tensor.shape[0] > len(BYTES):
            tensor[rows] = 0
            tensor[:2] = 0                 # <pad> and <s>
            tensor[len(BYTES) + 3:] = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            clear(name, parameter)
    for file in pathlib.Path(folder).glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            clear(name, tensor)
        save_file(tensors, file, {"format": "pt"})


def settings_of(rng, bf16):
    settings = {"max_new_tokens": rng.choice([1, 5, 12, 20]), "do_sample": False}
    if rng.random() < 0.3:
        settings["repetition_penalty"] = rng.choice([0.8, 1.3])
    if rng.random() < 0.3:
        settings["min_new_tokens"] = rng.choice([2, 6])
    if rng.random() < 0.5 and not bf16:
        settings["num_beams"] = rng.choice([2, 3, 5])
        settings["length_penalty"] = rng.choice([-1.0, 0.0, 1.0, 2.0])
        settings["early_stopping"] = rng.choice([False, True, "never"])
    return settings


def run(blipft, folder, data, output, settings):
    keys = [f"generate.{k}={json.dumps(v) if isinstance(v, bool) else v}" for k, v in settings.items()]
    with open(output + ".yaml", "w") as f:
        f.write(f"model: {{path: {folder}}}\ndata: {{path: {data}}}\ntrain: {{precision: {run.precision}}}\noutput: {{path: {output}}}\n")
    done = subprocess.run([blipft, "--generate", output + ".yaml", "parallel.device=" + run.device, "parallel.threads=1", *keys],
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{keys}\n{done.stdout}\n{done.stderr}")
    lines = [json.loads(line) for line in open(output + "/generated-0001/generated.jsonl")]
    return sorted(lines, key=lambda line: line["sample"])


def own_error(model, inputs, out, begin, place):
    """The largest difference of transformers' logits in bf16 and in f32, with the same weights and tokens."""
    exact = copy.deepcopy(model).float()
    inputs = {key: value.float() if value.is_floating_point() else value for key, value in inputs.items()}
    ids = out.sequences[:, :begin + place]
    with torch.no_grad():
        logits = exact(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0, -1]
    return (logits - out.logits[place][0].float()).abs().max().item()


def gap_of(model, inputs, tokenizer, out, begin, ours, settings):
    """How far apart the two choices are, in transformers' own scores: of beams the scores of the two texts; else those of the
    two tokens at the first place that differs, relative to the largest score there; in bf16 in steps of the larger one. None
    if that cannot be determined."""
    if settings.get("num_beams", 1) > 1:
        theirs = out.sequences_scores[0].item()
        return abs(theirs - ours["score"]) / max(1.0, abs(theirs))
    tokens = tokenizer(ours["text"], add_special_tokens=False).input_ids + [2]
    for place, (a, b) in enumerate(zip(out.sequences[0, begin:].tolist(), tokens)):
        if a != b:
            scores = out.scores[place][0]
            if run.precision == "bf16-true":
                penalty = settings.get("repetition_penalty", 1)  # which grows a rounding with its logit
                step = max(penalty, 1 / penalty) * 2.0 ** (math.floor(math.log2(max(scores[a].abs().item(), scores[b].abs().item()))) - 7)
                gap = (scores[a] - scores[b]).abs().item() / step
                if gap > NEAR[run.precision]:
                    return gap, own_error(model, inputs, out, begin, place) * max(penalty, 1 / penalty) / step
                return gap
            return (scores[a] - scores[b]).abs().item() / scores[scores.isfinite()].abs().max().item()
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blipft", required=True)
    parser.add_argument("--families", nargs="+",
                        default=["llama", "mistral", "qwen2", "blip2", "instructblip", "t5", "blip2_t5", "instructblip_t5"])
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where blipft computes (default: cpu)")
    parser.add_argument("--bf16", action="store_true", help="both compute in bf16")
    args = parser.parse_args()
    run.device, run.precision = args.device, "bf16-true" if args.bf16 else "32-true"
    # Larger weights make texts odder, and grow each rounding from layer to layer: f32 has the digits for it.
    run.spread = 0.1 if args.bf16 else 0.3
    same = different = 0
    for family in args.families:
        PenaltyOfTexts.image_token = None
        for number in range(args.models):
            rng = random.Random(f"{args.seed} {family} {number}")
            torch.manual_seed(rng.randrange(1 << 30))
            with tempfile.TemporaryDirectory() as space:
                folder = os.path.join(space, "model")
                model, tokenizer = make_model(rng, family, folder)
                keep_to_letters(model, tokenizer, folder)
                if args.bf16:
                    model = model.bfloat16()
                settings = settings_of(rng, args.bf16)
                a, b = compare(args.blipft, family, model, tokenizer, folder, space, rng, settings)
                same, different = same + a, different + b
        print(f"{family}: {same} texts the same or near ties, {different} different so far", flush=True)
    print(f"{same} texts the same or near ties, {different} different")
    sys.exit(different > 0)


def compare(blipft, family, model, tokenizer, folder, space, rng, settings):
    prompts = ["".join(rng.choice("abcdefgh xyz.,!?") for _ in range(rng.randrange(1, 30))) for _ in range(6)]
    # A blank has no row (keep_to_letters): behind blanks alone all logits are 0, and which of equal ones comes first is nobody's rule.
    prompts = [prompt if prompt.strip() else prompt + "a" for prompt in prompts]
    data = os.path.join(space, "data")
    os.makedirs(data)
    pictures = []
    if family in WITH_PICTURES:
        import numpy
        from PIL import Image
        with open(os.path.join(data, "metadata.jsonl"), "w") as f:
            for i in range(6):
                pixels = numpy.frombuffer(rng.randbytes(28 * 28 * 3), numpy.uint8).reshape(28, 28, 3)
                Image.fromarray(pixels).save(os.path.join(data, f"{i}.png"))
                pictures.append(torch.tensor(pixels.copy()).permute(2, 0, 1)[None] / 255.0 * 2 - 1)
                asked = {"text": "x"} if family == "blip2" else {"prompt": prompts[i], "answer": "x"}
                f.write(json.dumps({"file_name": f"{i}.png", **asked}) + "\n")
        if family == "blip2":
            prompts = [""] * 6
    else:
        with open(os.path.join(data, "p.jsonl"), "w") as f:
            for prompt in prompts:
                f.write(json.dumps({"prompt": prompt, "completion": "x"}) + "\n")
        data = os.path.join(data, "p.jsonl")
    ours = run(blipft, folder, data, os.path.join(space, "out"), settings)
    same = different = 0
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([tokenizer(prompt).input_ids])
        inputs = {}
        if family in WITH_PICTURES:
            q = model.config.num_query_tokens
            ids = torch.cat([torch.full((1, q), model.config.image_token_index), ids], 1)
            inputs["pixel_values"] = pictures[i].to(model.dtype)
            PenaltyOfTexts.image_token, PenaltyOfTexts.count = model.config.image_token_index, q
            PenaltyOfTexts.begin = ids[0, q].item()
        if family.startswith("instructblip"):
            bert = transformers.AutoTokenizer.from_pretrained(os.path.join(folder, "qformer_tokenizer"))
            asked = bert(prompt, return_tensors="pt")
            inputs.update(qformer_input_ids=asked.input_ids, qformer_attention_mask=asked.attention_mask)
        with torch.no_grad():
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, output_scores=True,
                                 output_logits=True, return_dict_in_generate=True, **inputs, **settings)
        begin = 1 if family.endswith("t5") else ids.shape[1]  # of an encoder-decoder they begin with the decoder's start
        theirs = tokenizer.decode(out.sequences[0, begin:], skip_special_tokens=True).strip(" \t\r\n")
        if theirs == ours[i]["text"]:
            same += 1
            continue
        gap = gap_of(model, inputs, tokenizer, out, begin, ours[i], settings)
        # Beyond two steps: both programs may be off by what transformers itself is.
        near = gap is not None and (gap[0] <= 2 * gap[1] if isinstance(gap, tuple) else gap <= NEAR[run.precision])
        same, different = same + near, different + (not near)
        print("NEAR TIE" if near else "DIFFERENT", gap, family, settings, repr(prompt), repr(theirs), repr(ours[i]["text"]))
    return same, different

