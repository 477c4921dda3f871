#!/usr/bin/env python3
"""Compares two builds of blipft that are to compute the same: what --plan prints, and the losses of the demos.

  tools/compare_builds.py OLD NEW [--models FOLDER] [--quick]

OLD and NEW are programs. --models has a folder with a config.json for each of blip2, tiny, 3b, 7b, 13b and chess (default:
share/models' names of them); a recipe whose model is missing there is left out, visibly. Prints a line for each recipe and
variant whose planned bytes differ, and each step whose loss differs; exits with 1 where the new plan needs over 0.1 % more or
a loss has other bits.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What recipes are varied by, beside their own settings.
VARIANTS = [
    [],
    ["train.act_ckpt=full"],
    ["train.act_ckpt=half"],
    ["parallel.strategy=fsdp", "parallel.reshard=always", "--ranks", "4"],
    ["train.act_ckpt=full", "parallel.offload=[optimizer,parameters,activations]"],
]
UNITS = {"GiB": 2 ** 30, "MiB": 2 ** 20, "KiB": 2 ** 10, "B": 1}


def model_of(recipe):
    name = os.path.basename(recipe)
    for key in ("tiny", "3b", "7b", "13b", "chess"):
        if name.startswith(key):
            return key
    return "blip2"


def run(program, arguments):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    return subprocess.run([program] + arguments, capture_output=True, text=True, cwd=ROOT, env=environment)


def planned_bytes(text):
    """The totals of a plan, of the GPU and of the host, in bytes."""
    return [float(number) * UNITS[unit] for number, unit in re.findall(r"^ *total +([0-9.]+) (\w+)$", text, re.M)]


def compare_plans(options, worst):
    for recipe in sorted(glob.glob(os.path.join(ROOT, "inputs", "*.yaml")) + glob.glob(os.path.join(ROOT, "inputs/llama/*.yaml"))):
        name = os.path.relpath(recipe, ROOT)
        folder = os.path.join(options.models, model_of(recipe))
        if "demo" in name:
            continue
        if not os.path.exists(os.path.join(folder, "config.json")):
            print(f"SKIPPED: {name} ({folder} has no config.json)")
            continue
        for variant in VARIANTS[:1] if options.quick else VARIANTS:
            arguments = ["--plan", recipe, f"model.path={folder}", "model.init=random", "data.path=/nonexistent",
                         "--gpu-memory", "140"] + variant
            old, new = run(options.old, arguments), run(options.new, arguments)
            before, after = planned_bytes(old.stdout), planned_bytes(new.stdout)
            if not before and not after and old.stderr == new.stderr:
                continue                             # refused by both, for the same reason
            same = old.stdout == new.stdout
            print(f"{'same' if same else 'OTHER'} {name} {' '.join(variant)}" +
                  ("" if same else f": {before} -> {after} bytes {new.stderr.strip()[:200]}"), flush=True)
            if len(before) != len(after):
                worst.append(f"{name} {variant}: one of the two was refused")
            for b, a in zip(before, after):
                if a > b * 1.001 + 0.02 * 2 ** 20:
                    worst.append(f"{name} {variant}: {b:.0f} -> {a:.0f} bytes")


def losses(program, arguments):
    with tempfile.TemporaryDirectory() as folder:
        done = run(program, arguments + [f"output.path={folder}/run", "output.progress_seconds=0"])
        if done.returncode != 0:
            return [done.stderr.strip()[-300:]]
        import h5py
        with h5py.File(os.path.join(folder, "run", "trace.rank0000.h5"), "r") as file:
            return [(float(row["loss"]).hex(), float(row["grad_norm"]).hex()) for row in file["steps"][:]]


def compare_losses(options, worst):
    for recipe in ("inputs/demo.yaml", "inputs/demo-llama.yaml"):
        for extra in ([], ["train.act_ckpt=full"], ["train.precision=bf16-true"],
                      ["adapter.kind=lora", "adapter.dropout=0.1"]):
            arguments = [recipe, "parallel.strategy=single", "parallel.devices=1", "train.max_steps=8",
                         "train.warmup_steps=0", "output.save_model=false"] + extra
            old, new = losses(options.old, arguments), losses(options.new, arguments)
            print(f"{'same' if old == new else 'OTHER'} {len(old)} losses: {recipe} {' '.join(extra)}", flush=True)
            if old != new:
                worst.append(f"{recipe} {extra}: {old[:2]} -> {new[:2]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--models", default=os.path.join(ROOT, "share", "models"))
    parser.add_argument("--quick", action="store_true", help="the recipes alone, without variants and losses")
    options = parser.parse_args()
    options.old, options.new = os.path.abspath(options.old), os.path.abspath(options.new)
    worst = []
    compare_plans(options, worst)
    if not options.quick:
        compare_losses(options, worst)
    for line in worst:
        print("worse:", line)
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
