#!/usr/bin/env python3
"""The whole program on small models of Qwen-VL and Gemma 3: texts with pictures, from records to losses and answers, beside
transformers.
Prints ok, FAILED or SKIPPED for each test.

    test/program/pictures_program_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft). The comparison with transformers needs torch; without it, it is skipped.
"""
import json
import os
import pathlib
import random
import re
import subprocess
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
from picture_models import FAMILIES, Gemma, Qwen, write_model  # noqa: E402
from program_runs import DEVICE, PROGRAM, Space, command_line, environment, mpirun, model_of, run, start, steps_of  # noqa: E402

SIZES = ((13, 7), (40, 25), (1, 1), (64, 48), (90, 9), (33, 50))  # width, height


class Pictures(Space):
    """A small Qwen3-VL and records with 0 to 3 pictures of odd sizes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.model, self.data = self.folder / "qwen", self.folder / "records"
        write_model(self.model, Qwen)
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
    # On another number of ranks the same samples make up each step; sums are in another order.
    alone = run(space, 1, f"checkpoint.resume={whole.output}/checkpoints/step-00000005")
    check(numpy.allclose(losses(alone), losses(whole)[5:], rtol=1e-4), losses(alone), losses(whole))


class Reference:
    """A small random model in a folder, and transformers' model with its processor of PIL."""

    def __init__(self, space, family, scale):
        if torch is None:
            raise Skip(why)
        self.space, self.family, self.folder = space, family, space.new("model")
        write_model(self.folder, family)
        torch.manual_seed(3)
        config, model, processor = (getattr(transformers, name) for name in family.classes)
        self.model = model(config(**family.config)).eval()
        self.model.set_attn_implementation("eager")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name.endswith("mm_input_projection_weight"):
                    parameter.normal_(0, 0.2)            # it is 0 as initialised
                elif parameter.dim() > 1:
                    parameter.mul_(scale)
        self.model.save_pretrained(self.folder / "saved")
        (self.folder / "saved/model.safetensors").rename(self.folder / "model.safetensors")
        self.processor = processor(**family.processor)
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(self.folder / "tokenizer.json"))
        self.settings = (f"model.path={self.folder}", "model.init=pretrained", "data.pixel_library=pillow", *family.settings)

    def inputs(self, record):
        """The ids of a record's prompt, and its pictures."""
        pictures = [Image.open(self.space.data / name).convert("RGB") for name in record["images"]]
        inputs = dict(self.processor(pictures, return_tensors="pt")) if pictures else {}
        inputs.pop("num_crops", None)
        prompt = self.family.prompt.format(self.family.written(record["conversations"][0]["value"]))
        for text in self.family.texts(inputs):
            prompt = prompt.replace("<image>", text, 1)
        return self.tokenizer.encode(prompt), inputs

    def loss(self, record):
        """The loss and the number of labels: the answer with its end token."""
        prompt, inputs = self.inputs(record)
        answer = self.tokenizer.encode(self.family.written(record["conversations"][1]["value"]) + self.family.end)
        ids, labels = torch.tensor([prompt + answer]), torch.tensor([[-100] * len(prompt) + answer])
        with torch.no_grad():
            loss = self.model(input_ids=ids, labels=labels, attention_mask=torch.ones_like(ids), **self.family.types(ids), **inputs).loss
        return float(loss), len(answer)

    def answer(self, record, **more):
        prompt, inputs = self.inputs(record)
        ids = torch.tensor([prompt])
        with torch.no_grad():
            found = self.model.generate(input_ids=ids, max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(ids),
                                        **self.family.types(ids), **inputs, **more)
        return self.tokenizer.decode(found[0][len(prompt):], skip_special_tokens=True)


@test_each([(family, padding) for family in FAMILIES for padding in ("packed", "longest")])
def losses_are_those_of_transformers(space, case):
    family, padding = case
    reference = Reference(space, FAMILIES[family], 1)
    expected = [reference.loss(record) for record in space.records]
    result = run(space, 1, *reference.settings, "data.shuffle=false", "train.lr=1e-30", "train.max_epochs=1",
                 "train.accumulate_grad_batches=1", f"data.text_padding={padding}")
    for i, loss in enumerate(losses(result)):
        pair = expected[2 * i:2 * i + 2]
        mean = sum(one * count for one, count in pair) / sum(count for _, count in pair)
        check(abs(loss - mean) < 3e-6 * mean, i, loss, mean)  # f32: sums in another order


@test
def a_gemma_3_without_its_tower_refuses_pictures(space):
    write_model(space.folder / "gemma", Gemma)
    result = start(space, 1, f"model.path={space.folder}/gemma")
    check(result.status != 0 and "llava.json:1 (record 2): found a picture" in result.err and "Set model.pictures: true" in result.err, result)


@test
def prompts_whose_picture_stands_nowhere_are_refused(space):
    records = space.folder / "prompts.jsonl"
    for record in ({"prompt": "<image>what?", "completion": "a"}, {"instruction": "what?", "output": "a"}, {"text": "what?"}):
        records.write_text(json.dumps({**record, "image": "p3.png"}) + "\n")
        for action in ((), ("--generate", "model.init=random", f"generate.path={records}")):
            status, _, err, _ = mpirun(0, [PROGRAM, *action[:1], space.config, *action[1:], f"data.path={records}", f"output.path={space.new()}"])
            check(status == 1 and "prompts.jsonl:1: found a picture, expected one only in a record of messages" in err, record, action, err)


@test
def a_chat_takes_the_largest_pictures_and_forgets_those_of_an_earlier_conversation(space):
    Image.fromarray(numpy.zeros((64, 64, 3), dtype=numpy.uint8)).save(space.data / "large.png")

    def chat(*lines):
        # A picture of this area has up to 16 cells: it is scaled up, and both sides are rounded up.
        done = subprocess.run([PROGRAM, "--generate", "--chat", space.config, "model.init=random", f"output.path={space.new()}",
                               "data.min_pixels=704", "data.max_pixels=704", "generate.max_new_tokens=8"], capture_output=True,
                              input="".join(f"{line}\n" for line in lines).encode(), timeout=60, env=environment(0))
        check(done.returncode == 0 and done.stderr.count(b"tokens/s") == sum(line[0] != "/" for line in lines), done)
        return done.stdout

    large, small = (f"/picture {space.data}/{name}.png" for name in ("large", "p0"))
    chat(large, "what?", "/new", small, "what?")
    check(chat(large, "/new", "what?") == chat("what?"), "/new kept a picture")


@test
def ranks_whose_pictures_have_other_sizes_are_refused(space):
    other = space.copy(space.data)
    Image.fromarray(numpy.zeros((80, 24, 3), dtype=numpy.uint8)).save(other / "p3.png")
    common = [PROGRAM, space.config, f"output.path={space.new()}", "parallel.strategy=ddp"]
    command = [*command_line(1, [*common, f"data.path={space.file}"]), ":", "-np", "1", *common, f"data.path={other / space.file.name}"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, env=environment(2))
    check(done.returncode == 1 and "the sizes of the pictures at data.path" in done.stderr, done)


@test_each([(family, beams) for family in FAMILIES for beams in (1, 3)])
def answers_to_prompts_with_pictures_are_those_of_transformers(space, case):
    family, beams = case
    reference = Reference(space, FAMILIES[family], 10)
    expected = [reference.answer(record, num_beams=beams) for record in space.records]
    check(len(set(expected)) > 5, expected)
    for ranks in (1, 2):
        lines, _, _ = generate(space, ranks, *reference.settings, "generate.max_new_tokens=8", f"generate.num_beams={beams}",
                               "generate.batch_size=3")
        check([line["text"].strip() for line in lines] == [text.strip() for text in expected], case, lines, expected)


@test
def prompts_and_validations_with_pictures(space):
    reference = Reference(space, Qwen, 10)
    record = {"images": ["p3.png"], "conversations": [{"value": "<image>what is it?"}]}
    model = (*reference.settings, "generate.max_new_tokens=8")
    status, out, err, _ = mpirun(0, [PROGRAM, "--generate", space.config, *model, f"output.path={space.new()}", "--image",
                                     space.data / "p3.png", "--prompt", "what is it?"])
    check(status == 0 and reference.answer(record).strip() == out.strip(), out, err, reference.answer(record))
    done = subprocess.run([PROGRAM, "--generate", "--chat", space.config, *model, f"output.path={space.new()}"],
                          input=f"/picture {space.data}/p3.png\nwhat is it?\n".encode(), capture_output=True, timeout=60, env=environment(0))
    check(done.returncode == 0 and done.stdout.decode(errors="replace").strip() == out.strip(), done, out)
    result = run(space, 2, *model, f"data.val_path={space.file}", "evaluate.samples=6", "evaluate.metrics=[exact_match]", "train.max_steps=2",
                 "parallel.strategy=fsdp")
    check("exact_match" in result.out, result)
    _, _, out = generate(space, 2, *model, "data.val_split_fraction=0.25", action="--evaluate")
    check("perplexity" in out, out)


@test
def captions_and_questions_train_as_conversations(space):
    for prompt in (False, True):
        captions = [(f"p{i % len(SIZES)}.png", f"what {i}?" if prompt else "", f"text {i}") for i in range(8)]
        records = [{"image": name, "conversations": [{"from": "human", "value": "<image>" + question},
                                                     {"from": "gpt", "value": answer}]} for name, question, answer in captions]
        (space.data / "same.json").write_text(json.dumps(records))
        keys = ("file_name", "prompt", "answer") if prompt else ("file_name", "", "text")
        lines = [json.dumps({key: value for key, value in zip(keys, row) if key}) for row in captions]
        (space.data / "metadata.jsonl").write_text("\n".join(lines))
        found = [losses(run(space, 1, f"data.path={path}", "data.max_text_tokens=64"))
                 for path in (space.data / "same.json", space.data)]
        check(len(found[0]) == 4 and found[0] == found[1], found)
        _, folder, out = generate(space, 1, "model.init=random", f"generate.path={space.data}", "generate.max_new_tokens=3")
        check("captions   " in out and b"data:image/jpeg;base64," in (folder / "page.html").read_bytes(), out)
        (space.data / "metadata.jsonl").unlink()


@test
def a_damaged_picture_is_named_or_skipped(space):
    """The header is whole, so that the survey takes the sample."""
    whole = (space.data / "p3.png").read_bytes()
    (space.data / "cut.png").write_bytes(whole[:len(whole) // 2])
    records = [{**record, "images": ["cut.png"] * len(record["images"])} if i == 5 else record for i, record in enumerate(space.records)]
    (space.data / "damaged.json").write_text(json.dumps(records))
    result = start(space, 1, f"data.path={space.data}/damaged.json")
    check(result.status != 0 and "damaged.json:1 (record 6): " in result.err and "cut.png" in result.err, result)
    skipped = run(space, 2, f"data.path={space.data}/damaged.json", "data.on_bad_sample=skip")
    check(all(numpy.isfinite(losses(skipped))) and "cut.png" in skipped.out + skipped.err, skipped)


@test
def show_prints_the_pictures_and_their_rows(space):
    status, out, err, _ = mpirun(0, [PROGRAM, "--show", "3", str(space.config)])
    check(status == 0, out, err)
    check("<|vision_start|><|image_pad|> x " in out and f"{Qwen.image} x " in out and "read as " in out, out)


@test
def a_plan_that_does_not_fit_names_the_pixels_that_do(space):
    def plan(pixels):
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--gpu-memory", "2GiB", space.config, "data.path=absent",
                                         f"data.max_pixels={pixels}"])
        check("assumed: " in out and status == (0 if "fits: " in out else 1), out, err)
        return out
    largest = re.search(r"the run fits with data.max_pixels=(\d+) \(now 16777216\)", plan(1 << 24))
    check(largest and "fits: " in plan(largest[1]) and "does not fit: " in plan(int(int(largest[1]) * 1.2)), largest)


@test
def limits_of_pixels_and_pictures(space):
    small = run(space, 1, "data.max_pixels=256", "train.max_steps=2")
    check("of 4 rows on average" in small.out, small)
    for words, line in (("data.text_padding=max", "data.text_padding: found max, expected auto, packed or longest"),
                        ("data.max_pictures=2", "found 3 pictures, expected at most 2 (data.max_pictures)"),
                        ("data.max_pixels=20", "data.max_pixels: found 20, expected at least 64"),
                        ("data.min_pixels=5000", "data.min_pixels: found 5000, expected at most 4096")):
        result = start(space, 1, words)
        check(result.status != 0 and line in result.err, words, result)


if __name__ == "__main__":
    sys.exit(run_tests("pictures_program_test", Pictures, PROGRAM))
