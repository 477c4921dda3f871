"""Inputs of the runs: a model directory without weights, and drawn pictures with captions."""
import contextlib
import io
import json
import pathlib
import shutil

import numpy as np

import make_demo

from .commands import BenchError
from .machine import say, shown

PICTURES, PICTURE_SIZE = 256, 256
SMOKE_PICTURES, SMOKE_PICTURE_SIZE = 32, 64


def blip2_config():
    """config.json of BLIP-2 opt-2.7b: the differences from the small model of make_demo.py."""
    config = make_demo.model_config(50304, 50265)
    config["num_query_tokens"] = 32
    config["vision_config"].update(hidden_size=1408, intermediate_size=6144, num_hidden_layers=39,
                                   num_attention_heads=16, image_size=224, patch_size=14)
    config["qformer_config"].update(hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                                    num_attention_heads=12, encoder_hidden_size=1408, vocab_size=30522)
    config["text_config"].update(hidden_size=2560, ffn_dim=10240, num_hidden_layers=32, num_attention_heads=32,
                                 word_embed_proj_dim=2560, max_position_embeddings=2048)
    return config


def write_model(folder, tokenizer, captions, small):
    """A model directory without weights; `tokenizer` is a directory to copy, None: one is trained on the captions."""
    with contextlib.redirect_stdout(io.StringIO()):  # it reports the small model
        make_demo.write_model(str(folder), captions)
    if small and tokenizer:
        make_demo.write_json(folder / "config.json", make_demo.model_config(50304, 50265))
    if not small:
        make_demo.write_json(folder / "config.json", blip2_config())
        preprocessor = make_demo.preprocessor_config()
        preprocessor["size"] = {"height": 224, "width": 224}
        make_demo.write_json(folder / "preprocessor_config.json", preprocessor)
    if tokenizer:
        copy_tokenizer(pathlib.Path(tokenizer), folder)


def copy_tokenizer(source, folder):
    if not (source / "tokenizer.json").exists() and not (source / "merges.txt").exists():
        raise BenchError(f"--tokenizer {source}: holds neither tokenizer.json nor vocab.json with merges.txt")
    named = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    for name in ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    config = dict(tokenizer_class="GPT2Tokenizer", add_bos_token=True, add_prefix_space=False, **named)
    if (source / "tokenizer_config.json").exists():
        config = json.loads((source / "tokenizer_config.json").read_text())
    make_demo.write_json(folder / "tokenizer_config.json", config)


def write_data(folder, count, size):
    """Drawn pictures of size x size with captions; drawn once, because a seed always gives the same ones."""
    metadata = folder / "metadata.jsonl"
    if metadata.exists():
        captions = [json.loads(line)["text"] for line in metadata.read_text().splitlines()]
        if len(captions) == count:
            return captions
    (folder / "images").mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    entries = []
    for index in range(count):
        picture, caption = make_demo.make_sample(generator)
        name = f"images/{index:06d}.jpg"
        picture.resize((size, size)).save(folder / name, quality=92)
        entries.append({"file_name": name, "text": caption})
    metadata.write_text("".join(json.dumps(entry) + "\n" for entry in entries))  # written last: it shows that all exist
    return [entry["text"] for entry in entries]


def write_long_texts(path, count, tokens):
    """Texts that are longer than rows of `tokens` tokens; all tokens are labels."""
    rng = np.random.default_rng(2)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            digits = "".join(rng.choice(list("0123456789"), size=tokens + 8))  # a token each
            file.write(json.dumps({"prompt": digits[:4], "completion": digits[4:]}) + "\n")


def prepare(model, data, tokenizer, small, out):
    """Paths of the model and the data, written into `out` where none is given."""
    captions = []
    if not data or not model:
        say(f"pictures in {shown(out / 'data')}")
        count, size = (SMOKE_PICTURES, SMOKE_PICTURE_SIZE) if small else (PICTURES, PICTURE_SIZE)
        captions = write_data(out / "data", count, size)
    if not model:
        say(f"model without weights in {shown(out / 'model')}")
        write_model(out / "model", tokenizer, captions, small)
    return shown(model or out / "model"), shown(data or out / "data")
