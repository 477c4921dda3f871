"""Folders of random tiny models that read pictures in texts, as transformers loads them, and random records with random
pictures in the forms of docs/data.md."""
import json
import random

import numpy
import torch
import transformers
from PIL import Image, ImageOps
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from blipft_golden.vision_cases import GOLDEN_CASES
from blipft_golden.vision_models import CLASSES, fill

from .runs import BATCH, WORDS, write_lines

# The templates of the published models, without videos and tools.
PARTS = ("{% for part in message.content %}{% if part.type == 'image' %}IMAGE{% elif part.type == 'text' %}"
         "{{ part.text TRIM }}{% endif %}{% endfor %}")
QWEN_PARTS = PARTS.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>").replace(" TRIM", "")
QWEN = ("{% for message in messages %}DEFAULT{{ '<|im_start|>' + message.role + '\\n' }}"
        "{% if message.content is string %}{{ message.content }}{% else %}" + QWEN_PARTS + "{% endif %}"
        "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
DEFAULT = ("{% if loop.first and message.role != 'system' %}"
           "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}")
GEMMA_PARTS = PARTS.replace("IMAGE", "<start_of_image>").replace("TRIM", "| trim")
GEMMA = ("{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}"
         "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
         "{% for message in turns %}{% set role = 'model' if message.role == 'assistant' else message.role %}"
         "{{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}"
         "{% if message.content is string %}{{ message.content | trim }}{% else %}" + GEMMA_PARTS + "{% endif %}"
         "{{ '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}")
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
               "<|video_pad|>"]
GEMMA_TOKENS = ["<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>",
                "<image_soft_token>"]
MERGES = [("Ċ", "Ċ"), ("ĊĊ", "Ċ"), ("ĊĊ", "ĊĊ"), ("t", "h"), ("th", "e"), ("Ġ", "a"), ("a", "r"), ("r", "e"), ("Ġ", "Ġ"), ("e", "d")]
FORMS = ("llava", "sharegpt", "openai", "trl", "completion")
PROCESSORS = {"qwen3_vl": "Qwen3VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "gemma3": "Gemma3Processor"}


def write_tokenizer(folder, pick, family):
    """Bytes, some merges and the family's tokens; returns the number of ids."""
    gemma = family == "gemma3"
    tokens = GEMMA_TOKENS if gemma else QWEN_TOKENS
    vocabulary = {}
    for token in [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]:
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pick.random() < 0.5)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens)
    if gemma:
        bos = tokenizer.token_to_id("<bos>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    more = dict(bos_token="<bos>", pad_token="<pad>", eos_token="<end_of_turn>",
                extra_special_tokens=dict(image_token=tokens[-1], boi_token=tokens[4], eoi_token=tokens[5])) if gemma else dict(
                    pad_token="<|endoftext|>", eos_token="<|im_end|>")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **more)
    fast.save_pretrained(folder)
    return len(fast), fast


def write_processor(folder, pick, family, config, mean, std):
    vision = config["vision_config"]
    common = dict(image_mean=mean, image_std=std, processor_class=PROCESSORS[family], do_resize=True, do_rescale=True,
                  do_normalize=True, do_convert_rgb=True, rescale_factor=1 / 255)
    if family == "gemma3":
        side = vision["image_size"]
        common.update(image_processor_type="Gemma3ImageProcessor", size=dict(height=side, width=side), resample=2,
                      image_seq_length=config["mm_tokens_per_image"], do_pan_and_scan=None)
        (folder / "processor_config.json").write_text(json.dumps(
            dict(processor_class=PROCESSORS[family], image_seq_length=config["mm_tokens_per_image"])))
    else:
        cell = (vision["patch_size"] * vision["spatial_merge_size"]) ** 2
        common.update(image_processor_type="Qwen2VLImageProcessorFast", patch_size=vision["patch_size"], resample=3,
                      merge_size=vision["spatial_merge_size"], temporal_patch_size=vision["temporal_patch_size"],
                      size=dict(shortest_edge=cell * pick.randint(1, 4), longest_edge=cell * pick.randint(5, 50)))
    (folder / "preprocessor_config.json").write_text(json.dumps(common))


def write_model(folder, family, seed, pick):
    """Returns the settings and the tokens that stand for turns and pictures."""
    case = GOLDEN_CASES[family](random.Random(f"pictures {family} {seed}"), seed + 1)
    config = case["config"]
    folder.mkdir()
    ids, tokenizer = write_tokenizer(folder, pick, family)
    config["text_config"].update(vocab_size=ids + pick.randint(0, 9), max_position_embeddings=16384)
    tokens = GEMMA_TOKENS if family == "gemma3" else QWEN_TOKENS
    names = ("boi_token_index", "eoi_token_index", "image_token_index") if family == "gemma3" else (
        "vision_start_token_id", "vision_end_token_id", "image_token_id")
    numbers = tokenizer.convert_tokens_to_ids(tokens)
    config.update(zip(names, numbers[4:] if family == "gemma3" else numbers[3:]))
    if family != "gemma3":
        config["video_token_id"] = numbers[6]
    end = numbers[3] if family == "gemma3" else numbers[2]
    kind = CLASSES[family]
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(getattr(transformers, f"{kind}Config")(**config))
    fill(model, dict(model.named_parameters()), family == "gemma3")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    model.generation_config = transformers.GenerationConfig(eos_token_id=end, pad_token_id=numbers[0])
    model.save_pretrained(folder)
    write_processor(folder, pick, family, config, case["mean"], case["std"])
    template = GEMMA if family == "gemma3" else QWEN.replace("DEFAULT", DEFAULT if family == "qwen2_5_vl" else "")
    (folder / "chat_template.jinja").write_text(template)
    return config, case["lora"]


def write_picture(folder, pick, number):
    """A picture of random size, colours and format; returns its name."""
    sizes = [(1, 1), (1500, 40), (40, 1500), (2, 9), (37, 64), (300, 200)]
    width, height = pick.choice(sizes + [(pick.randint(1, 90), pick.randint(1, 90)) for _ in range(2)])
    kind = pick.choice(["RGB", "L", "1", "RGBA", "LA", "palette", "transparent palette", "jpeg", "turned", "grey jpeg", "webp",
                        "webp alpha"])
    draw = numpy.random.default_rng(pick.randrange(1 << 30))
    small = Image.fromarray(draw.integers(0, 256, (1 + height // 7, 1 + width // 7, 4), dtype=numpy.uint8), "RGBA")
    image = small.resize((width, height), Image.Resampling.BICUBIC) if pick.random() < 0.5 else Image.fromarray(
        draw.integers(0, 256, (height, width, 4), dtype=numpy.uint8), "RGBA")
    if kind in ("jpeg", "turned", "grey jpeg"):
        name, exif = f"p{number}.jpg", Image.Exif()
        exif[0x0112] = pick.randint(2, 8) if kind == "turned" else 1
        image.convert("L" if kind == "grey jpeg" else "RGB").save(folder / name, quality=pick.choice([40, 75, 95]), exif=exif)
    elif kind.startswith("webp"):
        name = f"p{number}.webp"
        image.convert("RGBA" if kind == "webp alpha" else "RGB").save(folder / name, lossless=pick.random() < 0.5, quality=70)
    elif kind in ("palette", "transparent palette"):
        name = f"p{number}.png"
        more = dict(transparency=pick.randrange(16)) if kind == "transparent palette" else {}
        image.convert("RGB").quantize(16).save(folder / name, **more)
    else:
        name = f"p{number}.png"
        image.convert(kind).save(folder / name)
    return name


def opened(path):
    """As it is to be seen; the processors put transparent pictures on white themselves."""
    return ImageOps.exif_transpose(Image.open(path))


def words(pick, low, high):
    return " ".join(pick.choice(WORDS) for _ in range(pick.randint(low, high)))


def conversation(folder, pick, number, most):
    """Messages in parts, as templates read them, and the names of the pictures."""
    count = pick.choice([count for count in (0, 1, 1, 2, 3, 4) if count <= most])
    names = [write_picture(folder, pick, f"{number}_{i}") for i in range(count)]
    turns = pick.randint(1, 3)
    places = sorted(pick.randrange(turns) for _ in names)
    messages = [dict(role="system", content=words(pick, 1, 5))] if pick.random() < 0.3 else []
    for turn in range(turns):
        begins = pick.random() < 0.7 or turn not in places
        parts = [dict(type="text", text="Q" + words(pick, 0, 6))] if begins else []
        for _ in range(places.count(turn)):
            parts.insert(pick.randint(0, len(parts)), dict(type="image"))
            if pick.random() < 0.4:
                parts.append(dict(type="text", text=" and " + words(pick, 0, 4)))
        joined = []                        # a text form has no border between two texts
        for part in parts:
            if joined and joined[-1]["type"] == part["type"] == "text":
                joined[-1] = dict(type="text", text=joined[-1]["text"] + part["text"])
            else:
                joined.append(part)
        messages += [dict(role="user", content=joined), dict(role="assistant", content="A" + words(pick, 1, 6).rstrip())]
    return messages, names


def text_of(content):
    return content if isinstance(content, str) else "".join(part.get("text", "<image>") for part in content)


def record_of(form, messages, names, pick):
    """The conversation as a record of a form."""
    if form == "llava":
        roles = dict(system="system", user="human", assistant="gpt")
        turns = [{"from": roles[m["role"]], "value": text_of(m["content"])} for m in messages]
        return dict(id="x", **({"image": names[0] if len(names) == 1 else names} if names else {}), conversations=turns)
    if form == "sharegpt":
        return dict(messages=[dict(m, content=text_of(m["content"])) for m in messages], images=names)
    if form == "openai":
        left = iter(names)

        def part(value):
            if value["type"] == "text":
                return value
            name = next(left)
            return pick.choice([dict(type="image_url", image_url=dict(url=name)), dict(type="image", image=name)])
        return dict(messages=[dict(m, content=m["content"] if isinstance(m["content"], str) else list(map(part, m["content"])))
                              for m in messages])
    if form == "trl":
        return dict(messages=messages, images=names)
    return dict(prompt=messages[:-1], completion=messages[-1:], images=names)


def write_data(folder, pick, limits=(4,) * BATCH):
    """Records of one form, each with up to its limit of pictures; returns file, form, and conversations with pictures."""
    folder.mkdir()
    form = pick.choice(FORMS)
    samples = [conversation(folder, pick, i, most) for i, most in enumerate(limits)]
    if form == "llava" and pick.random() < 0.5:
        (folder / "data.json").write_text(json.dumps([record_of(form, *sample, pick) for sample in samples]))
        return folder / "data.json", form, samples
    write_lines(folder / "data.jsonl", [record_of(form, *sample, pick) for sample in samples])
    return folder / "data.jsonl", form, samples
