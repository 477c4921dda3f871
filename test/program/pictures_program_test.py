#!/usr/bin/env python3
"""The whole program on a small Qwen3-VL and a small Gemma 3: texts with pictures of any size, from records to losses, beside transformers.
Prints ok, FAILED or SKIPPED for each test.

    test/program/pictures_program_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). The comparison with transformers needs torch; without it, it is skipped.
"""
import json
import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import Skip, check, run_tests, test, test_each  # noqa: E402

try:
    import numpy
    from PIL import Image
    import h5py  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED pictures_program_test ({missing})")
    sys.exit(0)
try:
    import torch
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
except ImportError as missing:
    torch, why = None, str(missing)
from generation_runs import generate  # noqa: E402
from program_runs import DEVICE, PROGRAM, Space, mpirun, model_of, run, start, steps_of  # noqa: E402

TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}{%- if message.content is string %}"
    "{{- message.content }}{%- else %}{%- for content in message.content %}"
    "{%- if content.type == 'image' or 'image' in content or 'image_url' in content %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- elif 'text' in content %}{{- content.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
IMAGE = 256 + SPECIAL.index("<|image_pad|>")
CONFIG = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": IMAGE,
    "video_token_id": 270, "vision_start_token_id": 259, "vision_end_token_id": 260, "tie_word_embeddings": True,
    "text_config": {"model_type": "qwen3_vl_text", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48,
                    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 5000000.0,
                    "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
    "vision_config": {"model_type": "qwen3_vl", "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
                      "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
                      "num_position_embeddings": 25, "out_hidden_size": 32, "deepstack_visual_indexes": [0],
                      "hidden_act": "gelu_pytorch_tanh"}}
PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 256, "longest_edge": 4096},
             "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
GEMMA_TEMPLATE = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>")
GEMMA_SPECIAL = [*SPECIAL[:3], "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "image_token_index": IMAGE, "mm_tokens_per_image": 9,
    "text_config": {"model_type": "gemma3_text", "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48,
                    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                    "query_pre_attn_scalar": 16, "sliding_window": 8, "sliding_window_pattern": 2, "max_position_embeddings": 4096},
    "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
                      "num_attention_heads": 2, "patch_size": 4, "image_size": 24}}
GEMMA_PROCESSOR = {"size": {"height": 24, "width": 24}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
                   "do_pan_and_scan": None}
SIZES = ((13, 7), (40, 25), (1, 1), (64, 48), (90, 9), (33, 50))  # width, height


def byte_letters():
    """The letter of each byte, as byte-level tokenizers write it."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte if byte in kept else 256 + others.index(byte)) for byte in range(256)}


def write_model(folder, config=CONFIG, processor=PROCESSOR, special=SPECIAL, template=TEMPLATE):
    folder.mkdir()
    letters = byte_letters()
    added = [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, name in enumerate(special)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    files = {
        "config.json": config,
        "preprocessor_config.json": processor,
        "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                                  "chat_template": template},
        "tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                           "pre_tokenizer": level, "post_processor": None, "decoder": level,
                           "model": {"type": "BPE", "vocab": {letters[b]: b for b in range(256)}, "merges": []}}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


class Pictures(Space):
    """A small Qwen3-VL and records with 0 to 3 pictures of odd sizes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.model, self.data = self.folder / "qwen", self.folder / "records"
        write_model(self.model)
        self.data.mkdir()
        for i, (width, height) in enumerate(SIZES):
            colours = numpy.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=numpy.uint8)
            Image.fromarray(colours).save(self.data / f"p{i}.png")
        draw = random.Random(4)
        self.records = []
        for i in range(24):
            names = [f"p{draw.randrange(len(SIZES))}.png" for _ in range(i % 4)]
            text = "".join(f"<image>{'x' * draw.randrange(9)}" for _ in names)
            self.records.append({"id": i, "images": names, "conversations": [
                {"from": "human", "value": f"{text} question {i}"}, {"from": "gpt", "value": "answer " * draw.randrange(1, 5)}]})
        self.file = self.data / "llava.json"
        self.file.write_text(json.dumps(self.records))
        self.config.write_text(
            f"model:\n  path: {self.model}\n  init: random\ndata:\n  path: {self.file}\n  num_workers: 2\n"
            "train:\n  lr: 1.0e-2\n  batch_size: 2\n  accumulate_grad_batches: 2\n  precision: 32-true\n  max_epochs: 2\n"
            f"parallel:\n  device: {DEVICE}\n  threads: 1\n")


def losses(result):
    return [loss for _, loss, _ in steps_of(result.output)]


@test
def texts_with_pictures_train_packed_padded_and_on_several_ranks(space):
    one = run(space, 1, "parallel.strategy=single")
    check("with 36 pictures" in one.out and "of their rows from pictures" in one.out, one)
    found = losses(one)
    check(len(found) == 12 and all(numpy.isfinite(found)) and found[-1] < found[0], found)
    padded = losses(run(space, 1, "data.text_padding=longest"))
    # f32: the same samples in each step, sums in another order.
    check(numpy.allclose(found, padded, rtol=1e-4), found, padded)
    for strategy in ("ddp", "fsdp"):
        several = losses(run(space, 2, "train.accumulate_grad_batches=1", f"parallel.strategy={strategy}"))
        check(numpy.allclose(found, several, rtol=1e-4), strategy, found, several)


@test
def a_resumed_run_has_the_same_bits(space):
    settings = ("parallel.strategy=fsdp", "train.accumulate_grad_batches=1", "output.save_model=true")
    whole = run(space, 2, *settings, "checkpoint.every_steps=5", "checkpoint.keep=9")
    part = run(space, 2, *settings, f"checkpoint.resume={whole.output}/checkpoints/step-00000005")
    check(steps_of(part.output) == steps_of(whole.output)[5:] and model_of(part.output) == model_of(whole.output))


class Reference:
    """A small random model in a folder, and transformers' model with its processor of PIL."""

    def __init__(self, space, scale):
        if torch is None:
            raise Skip(why)
        self.space, self.folder = space, space.new("model")
        write_model(self.folder)
        torch.manual_seed(3)
        self.model = transformers.Qwen3VLForConditionalGeneration(transformers.Qwen3VLConfig(**CONFIG)).eval()
        self.model.set_attn_implementation("eager")
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(scale if parameter.dim() > 1 else 1)
        self.model.save_pretrained(self.folder / "saved")
        (self.folder / "saved/model.safetensors").rename(self.folder / "model.safetensors")
        self.processor = transformers.Qwen2VLImageProcessorPil(**{**PROCESSOR, "image_processor_type": None})
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(self.folder / "tokenizer.json"))

    def inputs(self, record):
        """The ids of a record's prompt, and its pictures."""
        pictures = [Image.open(self.space.data / name).convert("RGB") for name in record["images"]]
        inputs = dict(self.processor(pictures, return_tensors="pt")) if pictures else {}
        prompt = f"<|im_start|>user\n{record['conversations'][0]['value']}<|im_end|>\n<|im_start|>assistant\n"
        for grid in inputs.get("image_grid_thw", []):
            rows = "<|image_pad|>" * int(grid.prod() // 4)
            prompt = prompt.replace("<image>", f"<|vision_start|>{rows}<|vision_end|>", 1)
        return self.tokenizer.encode(prompt), inputs

    def loss(self, record):
        """The loss and the number of labels: the answer with its end token."""
        prompt, inputs = self.inputs(record)
        answer = self.tokenizer.encode(record["conversations"][1]["value"] + "<|im_end|>")
        ids, labels = torch.tensor([prompt + answer]), torch.tensor([[-100] * len(prompt) + answer])
        with torch.no_grad():
            loss = self.model(input_ids=ids, labels=labels, mm_token_type_ids=(ids == IMAGE).int(), **inputs).loss
        return float(loss), len(answer)

    def answer(self, record, **more):
        prompt, inputs = self.inputs(record)
        ids = torch.tensor([prompt])
        with torch.no_grad():
            found = self.model.generate(input_ids=ids, mm_token_type_ids=(ids == IMAGE).int(), max_new_tokens=8, do_sample=False,
                                        attention_mask=torch.ones_like(ids), **inputs, **more)
        return self.tokenizer.decode(found[0][len(prompt):], skip_special_tokens=True)


@test_each(("packed", "longest"))
def losses_are_those_of_transformers(space, padding):
    reference = Reference(space, 1)
    expected = [reference.loss(record) for record in space.records]
    result = run(space, 1, f"model.path={reference.folder}", "model.init=pretrained", "data.shuffle=false", "data.pixel_library=pillow",
                 "train.lr=1e-30", "train.max_epochs=1", "train.accumulate_grad_batches=1", f"data.text_padding={padding}")
    for i, loss in enumerate(losses(result)):
        pair = expected[2 * i:2 * i + 2]
        mean = sum(one * count for one, count in pair) / sum(count for _, count in pair)
        check(abs(loss - mean) < 2e-6 * mean, i, loss, mean)  # f32: sums in another order


@test_each((1, 3))
def answers_to_prompts_with_pictures_are_those_of_transformers(space, beams):
    reference = Reference(space, 10)
    expected = [reference.answer(record, num_beams=beams) for record in space.records]
    check(len(set(expected)) > 12, expected)
    for ranks in (1, 2):
        lines, _, _ = generate(space, ranks, f"model.path={reference.folder}", "model.init=pretrained", "data.pixel_library=pillow",
                               "generate.max_new_tokens=8", f"generate.num_beams={beams}", "generate.batch_size=3")
        check([line["text"].strip() for line in lines] == [text.strip() for text in expected], beams, lines, expected)


@test
def prompts_and_validations_with_pictures(space):
    reference = Reference(space, 10)
    record = {"images": ["p3.png"], "conversations": [{"value": "<image>what is it?"}]}
    model = (f"model.path={reference.folder}", "model.init=pretrained", "data.pixel_library=pillow", "generate.max_new_tokens=8")
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", space.config, *model, f"output.path={space.new()}", "--image",
                                     space.data / "p3.png", "--prompt", "what is it?"])
    check(status == 0 and reference.answer(record).strip() == out.strip(), out, err, reference.answer(record))
    result = run(space, 2, *model, f"data.val_path={space.file}", "evaluate.samples=6", "evaluate.metrics=[exact_match]", "train.max_steps=2",
                 "parallel.strategy=fsdp")
    check("exact_match" in result.out, result)
    _, _, out = generate(space, 2, *model, "data.val_split_fraction=0.25", action="--evaluate")
    check("perplexity" in out, out)


@test
def gemma3_reads_pictures_of_one_size(space):
    folder = space.new("gemma")
    write_model(folder, GEMMA, GEMMA_PROCESSOR, GEMMA_SPECIAL, GEMMA_TEMPLATE)
    model = (f"model.path={folder}", "model.pictures=true")
    one = run(space, 1, *model, "parallel.strategy=single", "output.save_model=true")
    found = losses(one)
    check("of 9 rows on average" in one.out and len(found) == 12 and found[-1] < found[0], one, found)
    for ranks, *settings in ((1, "data.text_padding=longest"), (2, "train.accumulate_grad_batches=1", "parallel.strategy=fsdp")):
        check(numpy.allclose(found, losses(run(space, ranks, *model, *settings)), rtol=1e-4), settings)
    trained = (f"model.path={one.output}/model", *model[1:], "model.init=pretrained", "generate.max_new_tokens=8")
    texts = [[line["text"] for line in generate(space, ranks, *trained, f"generate.batch_size={size}")[0]]
             for ranks, size in ((1, 3), (1, 1), (2, 4))]
    check(len(texts[0]) == 24 and texts[0] == texts[1] == texts[2], texts)
    texts_alone = run(space, 1, f"model.path={folder}", "train.max_steps=2")
    check("images (24)" in texts_alone.out + texts_alone.err, texts_alone)


@test
def show_prints_the_pictures_and_their_rows(space):
    status, out, err, _ = mpirun(0, [PROGRAM, "--show", "3", str(space.config)])
    check(status == 0, out, err)
    check("<|vision_start|><|image_pad|> x " in out and f"{IMAGE} x " in out and "read as " in out, out)


@test
def limits_of_pixels_and_pictures(space):
    small = run(space, 1, "data.max_pixels=256", "train.max_steps=2")
    check("of 4 rows on average" in small.out, small)
    for words, line in (("data.max_pictures=2", "found 3 pictures, expected at most 2 (data.max_pictures)"),
                        ("data.max_pixels=20", "data.max_pixels: found 20, expected at least 64"),
                        ("data.min_pixels=5000", "data.min_pixels: found 5000, expected at most 4096")):
        result = start(space, 1, words)
        check(result.status != 0 and line in result.err, words, result)


if __name__ == "__main__":
    sys.exit(run_tests("pictures_program_test", Pictures, PROGRAM))
