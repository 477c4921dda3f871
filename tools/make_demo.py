#!/usr/bin/env python3
"""Draws a small captioned picture set and writes a small BLIP-2 model directory (without weights) for it.

    python3 tools/make_demo.py --out demo --samples 384 --seed 0

demo/data is an ImageFolder: metadata.jsonl ({"file_name", "text"} a line) and images/*.jpg, 96 to 160 pixels a side,
with one or two coloured shapes that the caption describes. demo/model is a Hugging Face directory: config.json (Blip2
with an OPT decoder, 1.8 million parameters), preprocessor_config.json and a byte-level BPE tokenizer trained on the
captions, in both forms of files, with the ids of OPT's special tokens. Needs numpy and PIL. A seed always gives the
same captions and pictures.
"""
import argparse
import collections
import json
import os
import re
import sys
import time

import own_python

if __name__ == "__main__":
    own_python.need("numpy", "PIL")

import numpy as np  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402

COLOURS = {
    "red": (214, 39, 40), "orange": (255, 140, 20), "yellow": (245, 214, 30), "green": (44, 150, 60),
    "blue": (40, 90, 205), "purple": (130, 60, 170), "pink": (245, 120, 180), "black": (25, 25, 25),
    "brown": (120, 72, 40), "cyan": (40, 190, 210),
}
BACKGROUNDS = {"white": (250, 250, 250), "grey": (205, 205, 205), "beige": (240, 228, 200)}
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross", "ring")
SIZES = {"small": 0.13, "medium-sized": 0.2, "large": 0.28}  # radius as a part of the shorter side
ROWS = {"top": 0.27, "middle": 0.5, "bottom": 0.73}
COLUMNS = {"left": 0.27, "middle": 0.5, "right": 0.73}

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # OPT's ids 0 to 3
IMAGE_SIZE, QUERY_TOKENS = 56, 8
IMAGE_MEAN, IMAGE_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def place_words(row, column):
    if row == "middle" and column == "middle":
        return "in the middle"
    if row == "middle":
        return f"on the {column}"
    if column == "middle":
        return f"at the {row}"
    return f"at the {row} {column}"


def article(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def polygon(kind, x, y, r):
    """Corners of a shape of radius r around (x, y)."""
    if kind == "square":
        half = 0.85 * r
        return [(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)]
    if kind == "cross":
        a, b = r, 0.33 * r
        return [(x + p * a if abs(p) == 1 else x + p, y + q * a if abs(q) == 1 else y + q) for p, q in
                [(-b, -1), (b, -1), (b, -b), (1, -b), (1, b), (b, b), (b, 1), (-b, 1), (-b, b), (-1, b), (-1, -b),
                 (-b, -b)]]
    corners, inner = {"triangle": (3, None), "diamond": (4, None), "star": (5, 0.42)}[kind]
    points = []
    for i in range(corners if inner is None else 2 * corners):
        step = 2 * np.pi / corners if inner is None else np.pi / corners
        radius = r if inner is None or i % 2 == 0 else inner * r
        points.append((x + radius * np.sin(i * step), y - radius * np.cos(i * step)))
    return points


def draw_shape(draw, shape, width, height, background):
    r = SIZES[shape["size"]] * min(width, height) * shape["stretch"]
    x = (COLUMNS[shape["column"]] + shape["dx"]) * width
    y = (ROWS[shape["row"]] + shape["dy"]) * height
    colour = COLOURS[shape["colour"]]
    if shape["kind"] in ("circle", "ring"):
        draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)
        if shape["kind"] == "ring":
            draw.ellipse([x - 0.55 * r, y - 0.55 * r, x + 0.55 * r, y + 0.55 * r], fill=background)
    else:
        draw.polygon(polygon(shape["kind"], x, y, r), fill=colour)


def pick(rng, options):
    return list(options)[int(rng.integers(len(options)))]


def random_shape(rng):
    dx, dy, stretch = rng.uniform(-0.04, 0.04), rng.uniform(-0.04, 0.04), rng.uniform(0.9, 1.1)
    return {"kind": pick(rng, SHAPES), "colour": pick(rng, COLOURS), "size": pick(rng, SIZES), "row": pick(rng, ROWS),
            "column": pick(rng, COLUMNS), "dx": dx, "dy": dy, "stretch": stretch}


def second_shape(rng, first):
    """A shape of another kind on the other side of the picture; both are made small enough not to touch."""
    shape = random_shape(rng)
    shape["kind"] = pick(rng, [kind for kind in SHAPES if kind != first["kind"]])
    if first["row"] == first["column"] == "middle":
        first["column"] = pick(rng, ("left", "right"))
    opposite = {"top": "bottom", "bottom": "top", "left": "right", "right": "left"}
    if first["row"] != "middle":
        shape["row"] = opposite[first["row"]]
    else:
        shape["column"] = opposite[first["column"]]
    for each in (first, shape):
        each["size"] = "small" if each["size"] == "large" else each["size"]
    return shape


def caption_of(rng, shapes, background):
    nouns = [article(f"{s['size']} {s['colour']} {s['kind']}") for s in shapes]
    places = [place_words(s["row"], s["column"]) for s in shapes]
    if len(shapes) == 1:
        form = pick(rng, ("{n} {p}", "{n} {p}", "there is {n} {p}", "{n} {p} on a {b} background", "{p} there is {n}"))
        return form.format(n=nouns[0], p=places[0], b=background)
    form = pick(rng, ("{n} {p} and {m} {q}", "{n} {p}, {m} {q}", "there's {n} {p} and {m} {q}"))
    return form.format(n=nouns[0], p=places[0], m=nouns[1], q=places[1])


def make_sample(rng):
    """A picture and its caption."""
    width, height = (int(v) for v in rng.integers(96, 161, size=2))
    background = pick(rng, BACKGROUNDS)
    shapes = [random_shape(rng)]
    if rng.random() < 0.4:
        shapes.append(second_shape(rng, shapes[0]))
    colour = BACKGROUNDS[background]
    picture = Image.new("RGB", (3 * width, 3 * height), colour)  # drawn large and reduced: smooth edges
    draw = ImageDraw.Draw(picture)
    for shape in shapes:
        draw_shape(draw, shape, 3 * width, 3 * height, colour)
    return picture.resize((width, height), Image.LANCZOS), caption_of(rng, shapes, background)


def write_data(out, samples, seed):
    images = os.path.join(out, "images")
    os.makedirs(images, exist_ok=True)
    for name in os.listdir(images):  # of an earlier, larger set
        if re.fullmatch(r"\d{6}\.jpg", name) and int(name[:6]) >= samples:
            os.remove(os.path.join(images, name))
    rng = np.random.default_rng(seed)
    captions = []
    with open(os.path.join(out, "metadata.jsonl"), "w", encoding="utf-8") as metadata:
        for index in range(samples):
            picture, caption = make_sample(rng)
            name = f"images/{index:06d}.jpg"
            picture.save(os.path.join(out, name), quality=92)
            metadata.write(json.dumps({"file_name": name, "text": caption}) + "\n")
            captions.append(caption)
            if (index + 1) % 128 == 0 or index + 1 == samples:
                print(f"  {index + 1} of {samples} pictures", flush=True)
    return captions


def byte_symbols():
    """GPT-2's printable stand-in for each byte."""
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    moved = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(moved)}}


# GPT-2's pattern for ASCII text, which the captions are.
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def train_bpe(captions, size):
    """Vocabulary (specials, 256 bytes, merged tokens) and merges: at each turn the most frequent pair is joined."""
    symbols = byte_symbols()
    counts = collections.Counter(word for caption in captions for word in WORDS.findall(caption))
    words = [([symbols[b] for b in word.encode()], count) for word, count in sorted(counts.items())]
    tokens = SPECIALS + [symbols[b] for b in sorted(symbols, key=lambda b: symbols[b])]
    merges = []
    while len(tokens) < size:
        pairs = collections.Counter()
        for parts, count in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        if not pairs:
            break
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(pair)
        if pair[0] + pair[1] not in tokens:
            tokens.append(pair[0] + pair[1])
        for parts, _ in words:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == pair:
                    parts[i:i + 2] = [pair[0] + pair[1]]
                i += 1
    return {token: index for index, token in enumerate(tokens)}, merges


def model_config(vocab_size, image_token):
    """config.json of Blip2ForConditionalGeneration; every attention head is 64 wide."""
    return {
        "architectures": ["Blip2ForConditionalGeneration"], "model_type": "blip-2", "dtype": "float32",
        "image_text_hidden_size": 256, "image_token_index": image_token, "initializer_factor": 1.0,
        "initializer_range": 0.02, "num_query_tokens": QUERY_TOKENS, "use_decoder_only_language_model": True,
        "vision_config": {
            "model_type": "blip_2_vision_model", "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 128,
            "image_size": IMAGE_SIZE, "initializer_range": 0.02, "intermediate_size": 512, "layer_norm_eps": 1e-06,
            "num_attention_heads": 2, "num_hidden_layers": 3, "patch_size": 8, "qkv_bias": True},
        "qformer_config": {
            "model_type": "blip_2_qformer", "attention_probs_dropout_prob": 0.1, "cross_attention_frequency": 2,
            "encoder_hidden_size": 128, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 128,
            "initializer_range": 0.02, "intermediate_size": 512, "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512, "num_attention_heads": 2, "num_hidden_layers": 2, "pad_token_id": 0,
            "use_qformer_text_input": False, "vocab_size": vocab_size},
        "text_config": {
            "model_type": "opt", "_remove_final_layer_norm": False, "activation_function": "relu",
            "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1,
            "enable_bias": True, "eos_token_id": 2, "ffn_dim": 512, "hidden_size": 128, "init_std": 0.02,
            "layer_norm_elementwise_affine": True, "layerdrop": 0.0, "max_position_embeddings": 128,
            "num_attention_heads": 2, "num_hidden_layers": 3, "pad_token_id": 1, "tie_word_embeddings": True,
            "use_cache": True, "vocab_size": vocab_size, "word_embed_proj_dim": 128},
    }


def preprocessor_config():
    return {"image_processor_type": "BlipImageProcessor", "processor_class": "Blip2Processor", "do_convert_rgb": True,
            "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": IMAGE_MEAN,
            "image_std": IMAGE_STD, "resample": 3, "rescale_factor": 0.00392156862745098,
            "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE}}


def tokenizer_json(vocab, merges, added):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bos = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"</s>": {"id": "</s>", "ids": [vocab["</s>"]], "tokens": ["</s>"]}}}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": index, **flags} for index, flags in added.items()], "normalizer": None,
            "pre_tokenizer": level, "post_processor": template, "decoder": {**level, "add_prefix_space": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": [" ".join(pair) for pair in merges]}}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=2, ensure_ascii=False)
        out.write("\n")


def write_model(out, captions):
    os.makedirs(out, exist_ok=True)
    vocab, merges = train_bpe(captions, 500)
    image_token = len(vocab)
    vocab_size = (image_token + 1 + 63) // 64 * 64  # whole tiles for the matrix products
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = {index: {"content": token, **flags} for token, index in
             (("<pad>", vocab["<pad>"]), ("</s>", vocab["</s>"]), ("<image>", image_token))}
    named = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    files = {
        "config.json": model_config(vocab_size, image_token),
        "generation_config.json": {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
        "preprocessor_config.json": preprocessor_config(),
        "processor_config.json": {"processor_class": "Blip2Processor", "num_query_tokens": QUERY_TOKENS},
        "tokenizer.json": tokenizer_json(vocab, merges, added),
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer", "processor_class": "Blip2Processor", "add_bos_token": True,
            "add_prefix_space": False, "clean_up_tokenization_spaces": False, "errors": "replace",
            "model_max_length": 128, **named,
            "added_tokens_decoder": {str(index): token for index, token in added.items()}},
        "special_tokens_map.json": named,
        "vocab.json": vocab,
    }
    for name, value in files.items():
        write_json(os.path.join(out, name), value)
    with open(os.path.join(out, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    print(f"  tokenizer of {image_token + 1} tokens ({len(merges)} merges), model vocabulary {vocab_size}")


def parse_arguments(doc, out, samples, what):
    """--out, --samples and --seed of a script that makes a demo; `what` are its samples."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=out, help=f"directory to write (default: {out})")
    parser.add_argument("--samples", type=int, default=samples, help=f"number of {what} (default: {samples})")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 1 <= args.samples <= 999999:
        sys.exit(f"{parser.prog}: --samples is {args.samples}; expected 1 to 999999")
    return args


def main():
    args = parse_arguments(__doc__, "demo", 384, "pictures")
    start = time.time()
    print(f"{args.out}/data: drawing {args.samples} pictures")
    captions = write_data(os.path.join(args.out, "data"), args.samples, args.seed)
    print(f"{args.out}/model: a small BLIP-2 without weights")
    write_model(os.path.join(args.out, "model"), captions)
    print(f"done in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
