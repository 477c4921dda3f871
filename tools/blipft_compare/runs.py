"""Runs of blipft on random tiny models, and how far apart two results are; shared by the comparisons."""
import argparse
import json
import math
import os
import pathlib
import subprocess
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORDS = ("two red circles beside one green square Knights! on f6, 17 naïve cafés \n (why?) x=3; "
         "über - den Wald.").split(" ")
BATCH, LR = 6, 64.0
MOST_LOSS, MOST_GRADIENT, MOST_ROUNDINGS = 1e-5, 3e-5, 20  # of f32 sums in another order


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def run_blipft(folder, pick, data, out, tokens, *settings):
    """The losses of a run's steps and of its validation, if there is one, and how it computed."""
    act_ckpt, padding = pick.choice(["none", "half", "full"]), pick.choice(["packed", "longest"])
    micro_batches = pick.choice([1, 2])
    (folder / "run.yaml").write_text("train:\n  lr: 1\n")
    arguments = [f"model.path={folder}/model", f"data.path={folder}/{data}", f"data.max_text_tokens={tokens}",
                 "data.shuffle=false", f"data.text_padding={padding}", "data.num_workers=1",
                 f"train.batch_size={BATCH // micro_batches}", f"train.accumulate_grad_batches={micro_batches}",
                 "train.optim=sgd", "train.precision=32-true", "train.dropout=false", f"train.act_ckpt={act_ckpt}",
                 "parallel.strategy=single", "parallel.device=cpu", "parallel.threads=1", f"output.path={folder}/{out}",
                 "output.save_model=true", "output.save_dtype=f32", *settings]
    done = subprocess.run([os.environ.get("BLIPFT", str(ROOT / "blipft")), str(folder / "run.yaml"), *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode != 0:
        raise SystemExit(f"{folder}: status {done.returncode}\n{done.stdout[-3000:]}")
    records = [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["event"] == "step"]
    losses += [record["validation_loss"] for record in records if record["event"] == "validation"][-1:]
    return losses, f"{act_ckpt} {padding} x{micro_batches}"


def round_once(model, seed):
    """Moves the weights by what f32 rounds away."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 2 ** -24 * torch.randn(p.shape, generator=generator, dtype=p.dtype))


def gradients_of(model):
    return {key: (torch.zeros_like(p) if p.grad is None else p.grad).double() for key, p in model.named_parameters()}


def worst_error(found, truth):
    """The largest error of a tensor's gradient, and the tensor's name."""
    norm = math.sqrt(sum(g.square().sum().item() for g in truth.values()))
    errors = [((found[key] - g).norm().item() / max(g.norm().item(), 0.01 * norm), key) for key, g in truth.items()]
    return max(errors, key=lambda error: error[0] if error[0] == error[0] else math.inf)


def parser_of(doc, count):
    """The options of a comparison of random models."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--keep", help="a folder for what is made, instead of one that is removed")
    return parser


def each_model(arguments, name, compare):
    """The results of compare(folder, seed) for each of the models."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    found = []
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(arguments.keep or temporary).resolve() / f"{name}{seed}"
            folder.mkdir(parents=True)
            found.append(compare(folder, seed))
    return found
