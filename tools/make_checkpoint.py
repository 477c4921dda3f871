#!/usr/bin/env python3
"""Writes a model directory with random weights, BLIP-2 or LLaMA: for benchmarks and tests without a download.

The architecture is the official one (Blip2ForConditionalGeneration with OPT; LlamaForCausalLM), saved by transformers'
own save_pretrained: config.json, safetensors in shards with an index, BLIP-2's preprocessor_config.json, and, with
--tokenizer, the tokenizer's files. The weights are not those that transformers would start from: BLIP-2's vision tower
begins at std 1e-10 and its query tokens at 0, which leaves most of the network without signal. Here every weight has
std 0.02, every bias std 0.02 and every norm's scale 1 +- 0.1, so that a mistake anywhere shows in the loss and in the
gradients.

  make_checkpoint.py --out models/blip2-opt-2.7b-random --size opt-2.7b --dtype bf16 --device cuda --tokenizer data/opt
  make_checkpoint.py --out models/tiny --size tiny --dtype fp32 --tokenizer data/opt
  make_checkpoint.py --out models/tinyllama-random --size tinyllama --dtype bf16 --tokenizer data/tinyllama

Needs torch and transformers. On a GPU opt-2.7b takes seconds, and the host holds one shard at a time.
"""
import argparse
import json
import os
import shutil
import time

import own_python

if __name__ == "__main__":
    own_python.need("torch", "transformers")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import (Blip2Config, Blip2ForConditionalGeneration, Blip2QFormerConfig, Blip2VisionConfig,  # noqa: E402
                          LlamaConfig, LlamaForCausalLM, OPTConfig)

# vision, qformer: what differs from the official tower; text: OPT's sizes; queries: image positions before the text.
SIZES = {
    "opt-2.7b": dict(vision={}, qformer={}, queries=32,
                     text=dict(hidden_size=2560, ffn_dim=10240, num_hidden_layers=32, num_attention_heads=32)),
    "opt-6.7b": dict(vision={}, qformer={}, queries=32,
                     text=dict(hidden_size=4096, ffn_dim=16384, num_hidden_layers=32, num_attention_heads=32)),
    # All of OPT's vocabulary and positions, so that real captions work; everything else as small as is sensible.
    "tiny": dict(vision=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                             image_size=56, patch_size=14),
                 qformer=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2),
                 queries=8, text=dict(hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2)),
}
# layers, hidden, heads, key/value heads, inner, epsilon of the norms, positions, vocabulary, base of the rotation
LLAMA_SIZES = {
    "tinyllama": (22, 2048, 32, 4, 5632, 1e-5, 2048, 32000, 1e4),
    "openllama-3b": (26, 3200, 32, 32, 8640, 1e-6, 2048, 32000, 1e4),
    "openllama-7b": (32, 4096, 32, 32, 11008, 1e-6, 2048, 32000, 1e4),
    "openllama-13b": (40, 5120, 40, 40, 13824, 1e-6, 2048, 32000, 1e4),
    "codellama-7b": (32, 4096, 32, 32, 11008, 1e-5, 16384, 32016, 1e6),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
IMAGE_TOKEN = 50265


def make_config(size, vocab):
    sizes = SIZES[size]
    text = OPTConfig(vocab_size=vocab, word_embed_proj_dim=sizes["text"]["hidden_size"], max_position_embeddings=2048,
                     do_layer_norm_before=True, **sizes["text"])
    return Blip2Config(vision_config=Blip2VisionConfig(**sizes["vision"]).to_dict(),
                       qformer_config=Blip2QFormerConfig(**sizes["qformer"]).to_dict(), text_config=text.to_dict(),
                       num_query_tokens=sizes["queries"], image_token_index=IMAGE_TOKEN, tie_word_embeddings=True)


def make_llama_config(size):
    layers, hidden, heads, kv_heads, inner, eps, positions, vocab, base = LLAMA_SIZES[size]
    return LlamaConfig(vocab_size=vocab, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                       num_attention_heads=heads, num_key_value_heads=kv_heads, rms_norm_eps=eps,
                       max_position_embeddings=positions, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
                       rope_parameters={"rope_type": "default", "rope_theta": base})


def make_model(config, dtype, device, seed):
    """The model in `dtype` on `device`; drawn in float32 from `seed`, so that both dtypes hold the same numbers."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        # Construction without transformers' own initialisation: every parameter is drawn below.
        with torch.device("meta"):
            model = (LlamaForCausalLM if config.model_type == "llama" else Blip2ForConditionalGeneration)(config)
        model = model.to_empty(device=device)
        model.tie_weights()
    finally:
        torch.set_default_dtype(default)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, device=device)
            scale = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(noise.mul_(0.1).add_(1) if scale else noise.mul_(0.02))
    return model.eval()


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def write_preprocessor(out, image_size):
    write_json(os.path.join(out, "preprocessor_config.json"), {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "BlipImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711], "processor_class": "Blip2Processor", "resample": 3,
        "rescale_factor": 0.00392156862745098, "size": {"height": image_size, "width": image_size}})


def copy_tokenizer(out, source):
    """A LLaMA's: the files as they are."""
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
             "added_tokens.json", "chat_template.jinja")
    there = [name for name in names if os.path.exists(os.path.join(source, name))]
    if not set(there) & {"tokenizer.json", "tokenizer.model"}:
        raise SystemExit(f"{source}: --tokenizer needs a directory with tokenizer.json or tokenizer.model")
    for name in there:
        shutil.copyfile(os.path.join(source, name), os.path.join(out, name))


def write_tokenizer(out, source):
    """OPT's: vocab.json and merges.txt as they are; the special tokens as OPT has them: </s> starts every text."""
    for name in ("vocab.json", "merges.txt"):
        path = os.path.join(source, name)
        if not os.path.exists(path):
            raise SystemExit(f"{path}: not there; --tokenizer needs a directory with vocab.json and merges.txt")
        shutil.copyfile(path, os.path.join(out, name))

    def token(content):
        return {"content": content, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    special = {"bos_token": token("</s>"), "eos_token": token("</s>"), "pad_token": token("<pad>"),
               "unk_token": token("</s>")}
    write_json(os.path.join(out, "special_tokens_map.json"), special)
    write_json(os.path.join(out, "tokenizer_config.json"), {
        "add_bos_token": True, "add_prefix_space": False, "errors": "replace", "bos_token": "</s>",
        "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>", "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": 1000000000000000019884624838656, "clean_up_tokenization_spaces": False})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="directory to write; replaced if it is a model directory")
    parser.add_argument("--size", choices=[*sorted(SIZES), *LLAMA_SIZES], default="tiny")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    parser.add_argument("--vocab", type=int, default=50304, help="of BLIP-2: 50304 (with image token) or 50272")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokenizer", help="directory with OPT's vocab.json and merges.txt, or LLaMA's tokenizer.*")
    parser.add_argument("--shard", default="5GB", help="largest shard, as save_pretrained takes it")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.vocab <= IMAGE_TOKEN:
        raise SystemExit(f"--vocab {arguments.vocab}: must be larger than the image token's id, {IMAGE_TOKEN}")
    if os.path.isdir(arguments.out) and os.listdir(arguments.out) and \
            not os.path.exists(os.path.join(arguments.out, "config.json")):
        raise SystemExit(f"{arguments.out}: not empty and not a model directory; will not replace it")
    start = time.perf_counter()
    shutil.rmtree(arguments.out, ignore_errors=True)
    os.makedirs(arguments.out)
    llama = arguments.size in LLAMA_SIZES
    config = make_llama_config(arguments.size) if llama else make_config(arguments.size, arguments.vocab)
    model = make_model(config, DTYPES[arguments.dtype], arguments.device, arguments.seed)
    drawn = time.perf_counter()
    model.save_pretrained(arguments.out, max_shard_size=arguments.shard)
    if not llama:
        write_preprocessor(arguments.out, config.vision_config.image_size)
    if arguments.tokenizer:
        (copy_tokenizer if llama else write_tokenizer)(arguments.out, arguments.tokenizer)
    for name in os.listdir(arguments.out):
        os.chmod(os.path.join(arguments.out, name), 0o644)
    size = sum(os.path.getsize(os.path.join(arguments.out, name)) for name in os.listdir(arguments.out))
    print(json.dumps(dict(out=arguments.out, parameters=sum(p.numel() for p in model.parameters()), bytes=size,
                          dtype=arguments.dtype, draw_seconds=round(drawn - start, 2),
                          save_seconds=round(time.perf_counter() - drawn, 2), transformers=transformers.__version__)))


if __name__ == "__main__":
    main()
