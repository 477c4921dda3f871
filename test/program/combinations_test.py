#!/usr/bin/env python3
"""Random combinations of strategy, precision, optimizer, adapters, quantisation and checkpointing: each trains and saves,
and with any of its memory in the host it ends with the same losses and the same files, byte by byte.

BLIPFT_COMBINATIONS (default 10): how many; BLIPFT_COMBINATIONS_SEED: of the choices (default: the clock, printed).
"""
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, Space, ranks_up_to, start  # noqa: E402
from script_tests import check, run_tests, test_each  # noqa: E402

COUNT = int(os.environ.get("BLIPFT_COMBINATIONS", "10"))
SEED = int(os.environ.get("BLIPFT_COMBINATIONS_SEED", time.time_ns() % 1_000_000))


def combination(choose):
    """(ranks, overrides, what may lie in the host)."""
    ranks = ranks_up_to(choose.choice((0, 2, 2, 3, 4)))
    strategy = choose.choice(("fsdp", "ddp")) if ranks else "single"
    optim, precision = choose.choice(("adamw", "adamw8bit", "lion", "sgd")), choose.choice(
        ("32-true", "bf16-true", "bf16-mixed"))
    act_ckpt, lora = choose.choice(("none", "half", "full")), choose.random() < 0.5
    overrides = [f"parallel.strategy={strategy}", f"train.optim={optim}", f"train.precision={precision}",
                 f"train.act_ckpt={act_ckpt}"]

    def perhaps(*more):
        if choose.random() < 0.5:
            overrides.extend(more)
            return True
        return False

    if strategy == "fsdp":
        overrides.append("parallel.reshard=always")  # parameters in the host are never held; step adds up in another order
    if strategy == "fsdp" and ranks == 4:
        perhaps("parallel.shard_ranks=2")
    if lora:
        overrides.extend(("adapter.kind=lora", "adapter.targets=[q, v, mlp]"))
    held = choose.choice(("nf4", "int8", "fp8"))
    if perhaps(f"model.quantize={held}", *(() if lora else ("model.freeze=[vision]",))):
        if held != "fp8":
            perhaps("model.double_quantize=true")
        perhaps("model.quantize_groups=[vision]")
    for more in ("train.gradient_clip_val=0.5", "train.accumulate_grad_batches=2", "train.dropout=true"):
        perhaps(more)
    # Adapters keep f32 masters whatever the precision, but in 32-true.
    masters = precision == "bf16-mixed" or (lora and precision == "bf16-true")
    movable = ["parameters"] + ["optimizer"] * (optim != "sgd" or masters) + ["activations"] * (act_ckpt != "none")
    return ranks, overrides, movable


def saved(output):
    return {path.relative_to(output): path.read_bytes() for path in output.rglob("*.safetensors")}


@test_each(range(COUNT))
def whatever_is_combined_trains_alike_with_memory_in_the_host(space, number):
    print(f"note: BLIPFT_COMBINATIONS_SEED={SEED}")
    choose = random.Random(f"{SEED} {number}")
    ranks, overrides, movable = combination(choose)
    moved = choose.sample(movable, choose.randint(1, len(movable)))
    common = (*overrides, "train.max_steps=2", "output.save_model=true")
    here = start(space, ranks, *common)
    there = start(space, ranks, *common, f"parallel.offload=[{', '.join(moved)}]")
    check(here.status == 0, ranks, overrides, here)
    check(there.status == 0, ranks, overrides, moved, there)
    check(list(here.losses()) == list(there.losses()), ranks, overrides, moved, here.losses(), there.losses())
    check(saved(here.output) and saved(here.output) == saved(there.output), ranks, overrides, moved, "saved files")


if __name__ == "__main__":
    sys.exit(run_tests("combinations_test", Space, PROGRAM))
