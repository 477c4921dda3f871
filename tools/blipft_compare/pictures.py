"""Random tiny models that read pictures in texts, and random records with random pictures: blipft against transformers.

  tools/compare.py pictures                                       40 of each family
  tools/compare.py pictures --families gemma3 --count 5 --seed 1000 [--keep FOLDER]

Each model has random sizes, heads, windows, DeepStack layers, rotary sections, patches, ties, tokens and limits of pixels,
and six conversations with 0 to 4 pictures each: 1 x 1 to 1,500 x 40 pixels; grey, transparent, with a palette, turned by
EXIF; in LLaVA's, ShareGPT's, OpenAI's or TRL's records; some are cut. The reference is transformers' template, processor
(of Pillow or torchvision) and model in float64, except for rotary angles. blipft (environment: BLIPFT, default ./blipft)
computes on the CPU in f32:

  one step of SGD      loss, norm of the gradient, every gradient (from the saved model, as in compare.py families)
  each sample alone    in micro-batches of one, its loss equals that of the packed batch
  three AdamW steps    some parts frozen: losses; the saved folder's loss in transformers and in a validation
  an adapter of PEFT   loss and norm of the gradient; the folder that is saved behind three steps has the same loss in PEFT
  --generate           six greedy tokens from each prompt, unless two logits of transformers are closer than 1e-4
  ranks                (every fourth model) ddp on 2, fsdp on 3, 6 with parallel.shard_ranks 2, one of two without
                       pictures, a checkpoint of 3 resumed on 1

Prints one line a model and one a family. Ends with status 1 where something is further off than rounding explains.

Needs torch, torchvision, transformers, peft, numpy and Pillow.
"""
import json
import os
import random
import subprocess
import sys

import peft
import torch
import transformers

from blipft_golden.reference import ADAMW, converted, load
from blipft_golden.vision_models import CLASSES, exact

from .picture_samples import GEMMA_TOKENS, PROCESSORS, QWEN_TOKENS, opened, write_data, write_model
from .runs import (BATCH, LR, MOST_GRADIENT, MOST_LOSS, MOST_ROUNDINGS, ROOT, each_model, gradients_of, parser_of, round_once,
                   worst_error)

STEPS, NEW_TOKENS, NEAR = 3, 6, 1e-4
BLIPFT = os.environ.get("BLIPFT", str(ROOT / "blipft"))
PILLOW = {"qwen3_vl": "Qwen2VLImageProcessorPil", "qwen2_5_vl": "Qwen2VLImageProcessorPil",
          "gemma3": "Gemma3ImageProcessorPil"}


class Reference:
    """transformers' processor, and the inputs and labels of conversations."""

    def __init__(self, folder, family, library, pixels):
        self.folder, self.family = folder, family
        self.model_class = getattr(transformers, f"{CLASSES[family]}ForConditionalGeneration")
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        kind = getattr(transformers, PILLOW[family]) if library == "pillow" else type(self.processor.image_processor)
        self.processor.image_processor = kind.from_pretrained(folder, **pixels)
        tokenizer = self.processor.tokenizer
        gemma = family == "gemma3"
        self.image, self.end = tokenizer.convert_tokens_to_ids(
            [GEMMA_TOKENS[6], GEMMA_TOKENS[3]] if gemma else [QWEN_TOKENS[5], QWEN_TOKENS[2]])
        self.head = tokenizer.encode("<start_of_turn>model\n" if gemma else "<|im_start|>assistant\n", add_special_tokens=False)
        self.kinds = "token_type_ids" if gemma else "mm_token_type_ids"

    def inputs(self, messages, names, dtype, **more):
        """The model's arguments. A text without pictures has none of the processor's."""
        text = self.processor.apply_chat_template(messages, tokenize=False, **more)
        pictures = [opened(self.data / name) for name in names]
        found = self.processor(text=[text], images=pictures or None, return_tensors="pt", add_special_tokens=False)
        kept = {key: found[key] for key in ("input_ids", "pixel_values", "image_grid_thw") if key in found}
        if "pixel_values" in kept:
            kept["pixel_values"] = kept["pixel_values"].to(dtype)
        ids = kept["input_ids"]
        return {**kept, "attention_mask": torch.ones_like(ids), self.kinds: (ids == self.image).int()}

    def cut(self, inputs, max_tokens):
        """Keeps the first max_tokens that stand for no picture, and the pictures before the cut."""
        image = inputs["input_ids"][0] == self.image
        kept = (~image).cumsum(0) - (~image).int() < max_tokens
        for key in ("input_ids", "attention_mask", self.kinds):
            inputs[key] = inputs[key][:, kept]
        rows = int((inputs["input_ids"] == self.image).sum())
        if "image_grid_thw" in inputs:
            merge = self.processor.image_processor.merge_size ** 2
            counts = inputs["image_grid_thw"].prod(1)
            inputs["image_grid_thw"] = inputs["image_grid_thw"][(counts // merge).cumsum(0) <= rows]
            inputs["pixel_values"] = inputs["pixel_values"][:rows * merge]
        elif "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"][:rows // self.processor.image_seq_length]
        pictures = () if rows else ("pixel_values", "image_grid_thw")
        return {key: value for key, value in inputs.items() if key not in pictures}

    def labels(self, ids, last):
        """Answers and the tokens that end them, of all turns or of the last."""
        spans, n = [], len(self.head)
        for begin in range(n, len(ids) + 1):
            if ids[begin - n:begin] == self.head:
                spans.append((begin, ids.index(self.end, begin) + 1))
        labels = [-100] * len(ids)
        for begin, end in spans[-1:] if last else spans:
            labels[begin:end] = ids[begin:end]
        return labels

    def prepare(self, data, form, samples, pick):
        """Returns how many tokens of a text are read: all, or at least one label of each."""
        self.data, self.batch, shortest = data, [], 0
        for messages, names in samples:
            inputs = self.inputs(messages, names, torch.float64)
            ids = inputs["input_ids"][0]
            labels = torch.tensor(self.labels(ids.tolist(), form == "completion"))
            shortest = max(shortest, int((ids[:(labels >= 0).nonzero()[0]] != self.image).sum()) + 1)
            self.batch.append((inputs, labels))
        max_tokens = shortest + pick.randint(0, 30) if pick.random() < 0.4 else 4096
        self.batch = [(self.cut(inputs, max_tokens), labels) for inputs, labels in self.batch]
        self.batch = [(inputs, labels[:inputs["input_ids"].shape[1]]) for inputs, labels in self.batch]
        return max_tokens

    def sums(self, model):
        """The loss of each sample, summed over its labels, and their number."""
        for inputs, labels in self.batch:
            logits, labels = model(**inputs, use_cache=False).logits[0, :-1], labels[1:]
            loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
            yield loss, (labels >= 0).sum()

    def loss(self, model):
        total, count = zip(*self.sums(model))
        return sum(total) / sum(count)

    def load(self, folder, dtype=torch.float64):
        return load(self.model_class, folder, dtype)

    def gradients(self, model):
        loss = self.loss(model)
        loss.backward()
        return loss.item(), gradients_of(model)

    def trained(self, model):
        """Losses before each of the steps, the first norm of the gradient, and the last loss."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, **ADAMW)
        losses, norm = [], None
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = self.loss(model)
            loss.backward()
            norm = norm or torch.sqrt(sum(p.grad.square().sum() for p in parameters if p.grad is not None)).item()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            return losses, norm, self.loss(model).item()


class Runs:
    """Runs of blipft in a folder."""

    def __init__(self, folder, family, data, library, pixels, max_tokens, pick):
        self.folder, self.count = folder, 0
        (folder / "run.yaml").write_text("train:\n  lr: 1\n")
        self.common = [f"model.path={folder}/model", f"data.path={data}", f"data.max_text_tokens={max_tokens}",
                       "data.shuffle=false", "data.num_workers=1", f"data.pixel_library={library}",
                       *(f"data.{key}={value}" for key, value in pixels.items()), "train.precision=32-true",
                       "train.dropout=false", f"train.act_ckpt={pick.choice(['none', 'half', 'full'])}",
                       "parallel.device=cpu", "parallel.threads=1",
                       *(["model.pictures=true"] if family == "gemma3" else [])]

    def start(self, ranks, *arguments):
        launch = ["mpirun", "-np", str(ranks), "--allow-run-as-root", "--oversubscribe"] if ranks > 1 else []
        done = subprocess.run([*launch, BLIPFT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd=self.folder, env=dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive"))
        if done.returncode:
            raise RuntimeError(f"{self.folder}: {arguments}: status {done.returncode}\n{done.stdout[-2500:]}")

    def train(self, *settings, ranks=1, batch=BATCH, padding="packed"):
        """The steps (loss, norm of the gradient), the last validation's loss, and the folder."""
        self.count += 1
        out = self.folder / f"out{self.count}"
        self.start(ranks, str(self.folder / "run.yaml"), *self.common, f"data.text_padding={padding}",
                   f"train.batch_size={batch}", f"output.path={out}", "output.save_dtype=f32", *settings)
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [(record["loss"], record["grad_norm"]) for record in records if record["event"] == "step"]
        validations = [record["validation_loss"] for record in records if record["event"] == "validation"]
        return steps, validations[-1] if validations else None, out

    def generate(self):
        out = self.folder / "generated"
        self.start(1, "--generate", str(self.folder / "run.yaml"), *self.common, f"output.path={out}", "generate.weights=base",
                   f"generate.max_new_tokens={NEW_TOKENS}", "generate.do_sample=false", "generate.batch_size=4")
        lines = [json.loads(line) for line in (out / "generated-0001/generated.jsonl").read_text().splitlines()]
        return [line["text"] for line in sorted(lines, key=lambda line: line["sample"])]


def adamw(steps=STEPS):
    betas = ADAMW["betas"]
    return (f"train.max_steps={steps}", f"train.max_epochs={steps}", f"train.lr={ADAMW['lr']}", f"train.beta1={betas[0]}",
            f"train.beta2={betas[1]}", f"train.eps={ADAMW['eps']}", f"train.weight_decay={ADAMW['weight_decay']}")


def relative(found, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


class Comparison:
    """The worst of what was compared, and what was further off than allowed."""

    def __init__(self):
        self.off, self.wrong = {}, []

    def add(self, what, found, allowed):
        self.off[what] = found
        if not found <= allowed:
            self.wrong.append(f"{what} {found:.2e} (allowed {allowed:.1e})")


def compare_gradients(reference, runs, pick, to):
    padding, micro = pick.choice(["packed", "longest"]), pick.choice([1, 2, 3])
    sgd = ("train.optim=sgd", "train.max_steps=1", f"train.lr={LR}", "train.momentum=0", "train.weight_decay=0")
    [(loss, norm)], _, out = runs.train(*sgd, f"train.accumulate_grad_batches={micro}", "output.save_model=true",
                                        batch=BATCH // micro, padding=padding)
    model = reference.load(runs.folder / "model")
    expected, truth = reference.gradients(model)
    moved = reference.load(runs.folder / "model")
    round_once(moved, 1)
    rounding, _ = worst_error(reference.gradients(moved)[1], truth)
    allowed = max(MOST_GRADIENT, MOST_ROUNDINGS * rounding)
    after = dict(reference.load(out / "model").named_parameters())
    worst, where = worst_error({key: ((p - after[key]) / LR).detach() for key, p in model.named_parameters()}, truth)
    total = torch.sqrt(sum(g.square().sum() for g in truth.values())).item()
    to.add("loss", abs(loss / expected - 1), MOST_LOSS)
    to.add("norm", abs(norm / total - 1), allowed)
    to.add(f"gradient ({where})", worst, allowed)
    sizes = runs.train(*sgd, f"train.accumulate_grad_batches={BATCH}", batch=1)[0]
    packed = runs.train(*sgd)[0]
    to.add("alone", relative(sizes[0][:1], packed[0][:1]), 2e-6)
    to.add("alone, norm", relative(sizes[0][1:], packed[0][1:]), allowed)
    return expected, allowed


def part_of(name):
    """The group of a parameter, as model.freeze names it."""
    if "merger" in name or "multi_modal_projector" in name:
        return "merger"
    return "vision" if "visual." in name or "vision_tower." in name else "language"


def compare_steps(reference, runs, data, allowed, pick, to):
    frozen = pick.choice([[], [], ["vision"], ["merger"], ["language"], ["vision", "language"]])
    steps, validation, out = runs.train(*adamw(), "output.save_model=true", f"data.val_path={data}",
                                        f"model.freeze=[{', '.join(frozen)}]")
    model = reference.load(runs.folder / "model")
    for name, parameter in model.named_parameters():
        parameter.requires_grad = part_of(name) not in frozen
    losses, norm, last = reference.trained(model)
    to.add("steps, norm", abs(steps[0][1] - norm) / max(norm, 1e-9), allowed)  # 0: no label sees a picture
    to.add("steps", relative([loss for loss, _ in steps], losses), max(MOST_LOSS, allowed))
    with torch.no_grad():
        saved = reference.loss(reference.load(out / "model")).item()
    to.add("saved", abs(validation / saved - 1), MOST_LOSS)
    to.add("behind steps", abs(validation / last - 1), max(MOST_LOSS, allowed))
    transformers.AutoProcessor.from_pretrained(out / "model")


def compare_lora(reference, runs, lora, data, to):
    def loaded(folder):
        base = load(reference.model_class, runs.folder / "model", torch.float32)
        return peft.PeftModel.from_pretrained(base, folder, is_trainable=True)
    model = peft.get_peft_model(load(reference.model_class, runs.folder / "model", torch.float32), peft.LoraConfig(**lora))
    with torch.no_grad():                  # matrices of PEFT's begin are zero
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    model.save_pretrained(runs.folder / "adapter")
    targets = lora["target_modules"]
    keys = ("adapter.kind=lora", f"adapter.r={lora['r']}", f"adapter.alpha={lora['lora_alpha']}",
            f"adapter.targets=[{targets if isinstance(targets, str) else ', '.join(targets)}]")
    steps, validation, out = runs.train(*adamw(), *keys, f"adapter.path={runs.folder}/adapter", "output.save_model=true",
                                        f"data.val_path={data}")
    losses, norm, _ = reference.trained(converted(loaded(runs.folder / "adapter"), torch.float64))
    moved = converted(loaded(runs.folder / "adapter"), torch.float64)
    round_once(moved, 1)
    moved_losses, moved_norm, _ = reference.trained(moved)
    to.add("LoRA", relative([steps[0][0]], losses[:1]), MOST_LOSS)
    to.add("LoRA, norm", abs(steps[0][1] / norm - 1), max(MOST_GRADIENT, MOST_ROUNDINGS * abs(moved_norm / norm - 1)))
    to.add("LoRA, steps", relative([loss for loss, _ in steps], losses),
           max(MOST_GRADIENT, MOST_ROUNDINGS * relative(moved_losses, losses)))
    with torch.no_grad():
        saved = reference.loss(converted(loaded(out / "adapter"), torch.float64)).item()
    to.add("LoRA, saved", abs(validation / saved - 1), MOST_LOSS)


def compare_texts(reference, runs, samples, to):
    """Returns the number of texts that were compared."""
    model, ours, count = reference.load(runs.folder / "model"), runs.generate(), 0
    for (messages, names), text in zip(samples, ours, strict=True):
        inputs = reference.inputs(messages[:-1], names, torch.float64, add_generation_prompt=True)
        settings = transformers.GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=reference.end,
                                                 pad_token_id=0)
        with torch.no_grad():
            out = model.generate(**inputs, generation_config=settings, output_logits=True, return_dict_in_generate=True)
        best = [logits[0].topk(2).values for logits in out.logits]
        tokens = out.sequences[0, inputs["input_ids"].shape[1]:]
        if reference.image in tokens or min((a - b) / a.abs() for a, b in best) < NEAR:
            continue
        count += 1
        expected = reference.processor.tokenizer.decode(tokens, skip_special_tokens=True)
        if expected.strip() != text.strip():
            to.wrong.append(f"text {text!r}, expected {expected!r}, {len(names)} pictures")
    return count


def compare_ranks(folder, family, processing, runs, pick, to):
    losses = [loss for loss, _ in runs.train(*adamw())[0]]
    for ranks, *settings in ((2, "parallel.strategy=ddp"), (6, "parallel.strategy=fsdp", "parallel.shard_ranks=2"),
                             (3, "parallel.strategy=fsdp", "checkpoint.every_steps=2")):
        steps, _, out = runs.train(*adamw(), *settings, ranks=ranks, batch=BATCH // ranks)
        to.add(f"{ranks} ranks", relative([loss for loss, _ in steps], losses), MOST_LOSS)
    steps, _, _ = runs.train(*adamw(), f"checkpoint.resume={out}/checkpoints/step-00000002")
    to.add("resumed", relative([loss for loss, _ in steps], losses[-1:]), MOST_LOSS)
    data, form, samples = write_data(folder / "one", pick, (4, 0))
    reference = Reference(folder / "model", family, *processing)
    one = Runs(folder, family, data, *processing, reference.prepare(data.parent, form, samples, pick), pick)
    one.count = 100
    expected, norm, _ = reference.trained(reference.load(folder / "model"))
    for strategy in ("ddp", "fsdp"):
        steps, _, _ = one.train(*adamw(), f"parallel.strategy={strategy}", ranks=2, batch=1)
        to.add(f"one of two ranks, {strategy}", relative([loss for loss, _ in steps], expected), 3 * MOST_LOSS)
        to.add(f"one of two ranks, {strategy}, norm", abs(steps[0][1] / norm - 1), 1e-3)


def pixels_of(config, family, pick):
    """Limits of pixels beside those of the processor's file."""
    if family == "gemma3" or pick.random() < 0.6:
        return {}
    cell = (config["vision_config"]["patch_size"] * config["vision_config"]["spatial_merge_size"]) ** 2
    return dict(min_pixels=cell * pick.randint(1, 6), max_pixels=cell * pick.randint(7, 30))


def compare(folder, family, seed):
    pick, to = random.Random(f"{family} {seed}"), Comparison()
    library, max_tokens = pick.choice(["pillow", "torchvision"]), 0
    config, lora = write_model(folder / "model", family, seed, pick)
    data, form, samples = write_data(folder / "data", pick)
    pixels, texts, about = pixels_of(config, family, pick), 0, 0
    processing = (library, pixels)
    try:
        reference = Reference(folder / "model", family, *processing)
        max_tokens = reference.prepare(data.parent, form, samples, pick)
        runs = Runs(folder, family, data, *processing, max_tokens, pick)
        with exact(family):
            about, allowed = compare_gradients(reference, runs, pick, to)
            compare_steps(reference, runs, data, allowed, pick, to)
            compare_lora(reference, runs, lora, data, to)
            texts = compare_texts(reference, runs, samples, to)
            if seed % 4 == 0:
                compare_ranks(folder, family, processing, runs, pick, to)
    except (RuntimeError, SystemExit) as error:
        to.wrong.append(str(error))
    pictures = sum(len(names) for _, names in samples)
    print(f"{family} {seed}: loss {about:.4f}, {pictures} pictures, {form}, {library} {pixels}, {max_tokens} tokens; "
          f"{', '.join(f'{key} {value:.1e}' for key, value in to.off.items())}; {texts} texts", flush=True)
    for line in to.wrong:
        print(f"  TOO FAR: {line}", flush=True)
    if to.wrong:
        print(f"  {config} {lora}", flush=True)
    return to, texts, pictures


def main():
    parser = parser_of(__doc__, 40)
    parser.add_argument("--families", default=",".join(PROCESSORS))
    arguments = parser.parse_args()
    far = 0
    for family in arguments.families.split(","):
        found = each_model(arguments, family, lambda folder, seed, family=family: compare(folder, family, seed))
        keys = {key.split(" (")[0] for to, _, _ in found for key in to.off}
        worst = {key: max(value for to, _, _ in found for name, value in to.off.items() if name.split(" (")[0] == key)
                 for key in keys}
        wrong = sum(bool(to.wrong) for to, _, _ in found)
        far += wrong
        print(f"== {family}: {len(found)} models, {sum(pictures for _, _, pictures in found)} pictures, "
              f"{sum(texts for _, texts, _ in found)} texts; within "
              f"{', '.join(f'{key} {worst[key]:.1e}' for key in sorted(keys))}; {wrong} too far", flush=True)
    sys.exit(1 if far else 0)
