"""Vision-language models at full size on one GPU, one photo a sample; the same step in PyTorch (transformers and PEFT)."""
import json

import numpy as np
from PIL import Image

import make_demo

from . import blipft, families, generate, inputs, table
from .machine import ROOT, say

LORA = families.LORA
PHOTO, SMALL_PHOTO = (1024, 768), (64, 32)   # width, height
# A sample: one photo, a prompt of 4 tokens and an answer of `tokens`. Other keys as in families.ROWS.
ROWS = [
    dict(name="qwen3-vl-8b-lora", expected=(1.0, 1.6), shape="qwen3-vl-8b", batch=4, tokens=120, accumulate=4, lora=16,
         torch=[(4, False), (2, False), (4, True)]),
    dict(name="qwen3-vl-2b-full", expected=(0.8, 1.4), shape="qwen3-vl-2b", batch=8, tokens=120, accumulate=4,
         torch=[(8, False), (4, False), (8, True)]),
    dict(name="qwen2.5-vl-7b-lora", expected=(1.2, 2.0), shape="qwen2.5-vl-7b", batch=4, tokens=120, accumulate=4, lora=16,
         torch=[(4, False), (2, False), (4, True)]),
    dict(name="gemma-3-4b-photo-lora", expected=(0.8, 1.4), shape="gemma-3-4b", batch=4, tokens=120, accumulate=4, lora=16,
         keys=["model.pictures=true"],
         torch=[(4, False), (2, False), (4, True)]),
]
NAMES = [row["name"] for row in ROWS]
QWEN = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
GEMMA = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<image_soft_token>", "<end_of_image>")
# Turns as the families write them, for records of text and pictures.
TEMPLATE = """{%% for message in messages %%}{{ '%s' + message.role + '\\n' }}
{%%- if message.content is string %%}{{ message.content }}{%% else %%}{%% for part in message.content %%}
{%%- if part.type == 'image' %%}{{ '%s' }}{%% else %%}{{ part.text }}{%% endif %%}{%% endfor %%}{%% endif %%}
{{- '%s\\n' }}{%% endfor %%}{%% if add_generation_prompt %%}{{ '%sassistant\\n' }}{%% endif %%}"""
SMALL = {"qwen3_vl": dict(depth=2, hidden_size=64, intermediate_size=96, num_heads=2, out_hidden_size=64, deepstack_visual_indexes=[0]),
         "qwen2_5_vl": dict(depth=2, hidden_size=64, intermediate_size=96, num_heads=2, out_hidden_size=64, fullatt_block_indexes=[1]),
         "gemma3": dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, image_size=56)}
SECTIONS = {"qwen3_vl": [6, 5, 5], "qwen2_5_vl": [4, 6, 6]}


def add_tokens(folder, names):
    """Adds special tokens to the small tokenizer; returns their ids by name."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    first = 1 + max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])])
    ids = {name: first + i for i, name in enumerate(names)}
    tokenizer["added_tokens"] += [dict(id=id, content=name, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                                  for name, id in ids.items()]
    make_demo.write_json(str(path), tokenizer)
    return ids


def write_model(bench, row, small):
    folder = generate.write_llama(bench.out / "models" / row["name"], small)   # only for its tokenizer
    shape = ROOT / "share/models" / row["shape"]
    config = json.loads((shape / "config.json").read_text())
    family, text = config["model_type"], families.text_part(config)
    start, end, before, picture, after = names = GEMMA if family == "gemma3" else QWEN
    ids = add_tokens(folder, names)
    if family == "gemma3":
        config.update(image_token_index=ids[picture], boi_token_index=ids[before], eoi_token_index=ids[after])
    else:
        config.update(image_token_id=ids[picture], vision_start_token_id=ids[before], vision_end_token_id=ids[after])
    config["dtype"] = "bfloat16"
    if small:
        text.update({key: value for key, value in families.SMALL_TEXT.items() if value is not None and key != "rope_scaling"})
        text.get("rope_scaling", {}).update({"mrope_section": SECTIONS[family]} if family in SECTIONS else {})
        config["vision_config"].update(SMALL[family])
        config.update({"mm_tokens_per_image": 16} if family == "gemma3" else {})
    make_demo.write_json(str(folder / "config.json"), config)
    pixels = json.loads((shape / "preprocessor_config.json").read_text())
    if small and family == "gemma3":
        pixels["size"] = dict(height=SMALL[family]["image_size"], width=SMALL[family]["image_size"])
    make_demo.write_json(str(folder / "preprocessor_config.json"), pixels)
    mark = before if family == "gemma3" else before + picture + after
    (folder / "chat_template.jinja").write_text(TEMPLATE % (start, mark, end, start))
    return folder


def write_data(folder, source, count, tokens, small):
    """Conversations about photos, enlarged to one size: those of `source`, or drawn ones. A token a digit, so that lengths are known."""
    pictures = sorted(source.rglob("*.jpg")) if source else []
    if not pictures:
        inputs.write_data(folder / "drawn", count, inputs.SMOKE_PICTURE_SIZE)
        pictures = sorted((folder / "drawn").rglob("*.jpg"))
    rng, size = np.random.default_rng(3), SMALL_PHOTO if small else PHOTO
    with open(folder / "conversations.jsonl", "w", encoding="utf-8") as file:
        for index in range(count):
            name = f"{index:04d}.jpg"
            Image.open(pictures[index % len(pictures)]).convert("RGB").resize(size).save(folder / name, quality=92)
            digits = "".join(rng.choice(list("0123456789"), size=tokens))
            user = [{"type": "image"}, {"type": "text", "text": digits[:4]}]
            file.write(json.dumps({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": digits}],
                                   "images": [name]}) + "\n")
    return folder / "conversations.jsonl"


def fitted_sides(row, sides):
    """The sides to which a processor of patches scales a picture."""
    pixels = json.loads((ROOT / "share/models" / row["shape"] / "preprocessor_config.json").read_text())
    cell = pixels.get("patch_size", 1) * pixels.get("merge_size", 1)
    return [cell * round(side / cell) for side in sides]


def run(bench, chosen):
    small = bench.arguments.cpu_smoke
    width, height = SMALL_PHOTO if small else PHOTO

    def measure_row(row, entry):
        folder = blipft.fresh_folder(bench.out / row["name"])
        model = write_model(bench, row, small)
        source = ROOT / bench.arguments.data if bench.arguments.data else None
        data = write_data(folder, source, row["batch"] * row["accumulate"], blipft.tokens_of(row, small), small)
        keys = ["data.text_padding=packed", "data.max_text_tokens=4096", *(LORA if row.get("lora") else []), *row.get("keys", [])]
        entry["run"] = blipft.run_rows(bench, row, folder, model, data, keys)
        say(f"{row['name']}: {blipft.line_of(entry['run'])}")

    def measure_torch(row, entry):
        if bench.torch and "run" in entry:
            photo = dict(row, options=["--photo", "x".join(str(side) for side in fitted_sides(row, (height, width)))])
            entry["torch"] = families.measure_torch(bench, photo, bench.out / "models" / row["name"])
            say(f"{row['name']}: torch {' '.join(str(entry['torch'].get(key, '')) for key in ('step_s', 'error', 'skipped'))}")

    if bench.each(chosen, measure_row, bench.measure_ceilings):   # all rows of blipft run first, because PyTorch compiles for a long time
        bench.each(chosen, measure_torch)
    entries = bench.record["rows"]
    lines = [families.cells(row, entry, bench.record.get("gemm_tflops")) for row, entry in zip(chosen, entries) if "run" in entry]
    return table.print_results(bench.record, families.TITLES, lines, "run")
