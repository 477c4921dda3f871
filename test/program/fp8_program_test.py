#!/usr/bin/env python3
"""train.matmul: fp8 in the whole program: the same bits however weights are held, recomputed and resumed; losses beside those
without it; a frozen base that is stored in fp8; what --plan says; what is refused."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import DEVICE, PROGRAM, ROOT, TwoModels, ranks_up_to, steps_of, trained  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

FP8 = ("train.matmul=fp8", "train.fp8_least_size=1")
LORA = ("adapter.kind=lora", "adapter.targets=[q, v, mlp]")
REST = (f"train:\n  lr: 1.0e-3\n  batch_size: 4\n  accumulate_grad_batches: 2\n  precision: 32-true\n  max_steps: 4\n"
        f"parallel:\n  device: {DEVICE}\n  threads: 1\noutput:\n  save_model: true\n")


def weights_of(output):
    return {path.name: path.read_bytes() for path in sorted(output.rglob("*.safetensors"))}


def compared(space, kind, settings, ways, saved=True):
    """The first way's steps, after all ways were found to have their bits; norms are summed up in another order."""
    ranks = ranks_up_to(2)
    expected = None
    for how in ways:
        if ranks == 1:
            how = tuple(one for one in how if not one.startswith("parallel."))
        found = trained(space, kind, ranks, *FP8, *settings, *how)
        check("products in fp8: " in found.out and "products in fp8: none" not in found.out, found)
        steps, weights = steps_of(found.output), weights_of(found.output)
        check(len(steps) >= 3 and weights, steps)
        expected = expected or (steps, weights)
        for (step, loss, norm), (_, other, other_norm) in zip(steps, expected[0], strict=True):
            check(loss == other and abs(norm / other_norm - 1) < 1e-5, how, "step", step, loss, other, norm, other_norm)
        check(weights == expected[1] or not saved, how, "saves other weights")
    return expected[0]


def same_bits(space, kind, *settings):
    """However a run holds, gathers, keeps and recomputes: scales are those of whole tensors, and so are the codes."""
    steps = compared(space, kind, settings, (
        ("parallel.strategy=ddp", "train.fp8_keep_weights=none"), ("parallel.strategy=ddp", "train.fp8_keep_weights=all"),
        ("parallel.strategy=fsdp", "parallel.reshard=step", "train.fp8_keep_weights=all"),
        ("parallel.strategy=ddp", "train.act_ckpt=full", "train.fp8_keep_weights=all")))
    # Ranks that gather for each micro-batch add up its gradients first: the same sums where there is but one, up to a matrix
    # that is used twice in it (the embedding that is the head).
    compared(space, kind, (*settings, "train.accumulate_grad_batches=1"), (
        ("parallel.strategy=ddp",), ("parallel.strategy=fsdp", "parallel.reshard=always"),
        ("parallel.strategy=fsdp", "parallel.reshard=always", "train.act_ckpt=full", "train.fp8_keep_weights=all")), saved=kind == "text")
    plain = steps_of(trained(space, kind, ranks_up_to(2), *settings).output)
    check(plain != steps, "fp8 changed nothing")
    # Each product is off by some 3 % of its factors' rounding, at random: losses by far less, gradients by some percent.
    for (step, loss, norm), (_, other, other_norm) in zip(steps, plain, strict=True):
        check(abs(loss / other - 1) < 0.02 and abs(norm / other_norm - 1) < 0.2, "step", step, loss, other, norm, other_norm)


@test
def a_llama_has_the_same_bits_however_it_is_held(space):
    same_bits(space, "text")


@test
def adapters_have_the_same_bits_however_the_base_is_held(space):
    same_bits(space, "text", *LORA)


@test
def a_picture_model_has_the_same_bits_however_it_is_held(space):
    same_bits(space, "picture", "train.max_steps=3")


IN_FP8 = "model.quantize=fp8"


@test
def a_base_in_fp8_has_the_bits_of_one_that_is_cast(space):
    compared(space, "text", LORA, (
        ("parallel.strategy=ddp",), ("parallel.strategy=ddp", IN_FP8, "train.fp8_keep_weights=none"),
        ("parallel.strategy=ddp", IN_FP8, "train.fp8_keep_weights=all"),
        ("parallel.strategy=fsdp", "parallel.reshard=step", IN_FP8, "train.fp8_keep_weights=all"),
        ("parallel.strategy=ddp", IN_FP8, "train.act_ckpt=full")))
    compared(space, "text", (*LORA, "train.accumulate_grad_batches=1"), (
        ("parallel.strategy=ddp",), ("parallel.strategy=fsdp", "parallel.reshard=always", IN_FP8),
        ("parallel.strategy=fsdp", "parallel.reshard=always", IN_FP8, "train.act_ckpt=full", "train.fp8_keep_weights=none"),
        ("parallel.strategy=fsdp", "parallel.reshard=always", IN_FP8, "parallel.offload=[parameters]")))


@test
def adapters_over_a_base_in_fp8_are_merged_into_the_checkpoint(space):
    """Whatever held the base, merged weights are the checkpoint's own and the adapters' product."""
    first = trained(space, "text", 1, "train.max_steps=1").output / "model"
    merged = [weights_of(trained(space, "text", ranks_up_to(2), *FP8, *LORA, f"model.path={first}", "model.init=pretrained",
                                 "output.save_merged=true", *how).output / "model") for how in ((), (IN_FP8,), (IN_FP8, "parallel.strategy=fsdp"))]
    check(merged[0] and merged[0] == merged[1], "merged to other weights")
    check(merged[2].keys() == merged[0].keys(), merged[2].keys())


@test
def frozen_groups_of_a_picture_model_in_fp8_too(space):
    freeze = "model.freeze=[vision, language]"
    compared(space, "picture", (freeze, "train.max_steps=3", "train.accumulate_grad_batches=1"), (
        ("parallel.strategy=ddp",), ("parallel.strategy=ddp", IN_FP8), ("parallel.strategy=fsdp", "parallel.reshard=always", IN_FP8)),
        saved=False)


@test
def products_that_take_no_fp8_have_the_values_of_the_codes(space):
    """With matmul default, and with it in fp8 for none of the layers: each decodes at another place."""
    steps = {}
    for how in ((), ("train.matmul=fp8", "train.fp8_least_size=1000000"), ("parallel.strategy=fsdp", "train.accumulate_grad_batches=2")):
        steps[how] = steps_of(trained(space, "text", ranks_up_to(2), *LORA, IN_FP8, *how).output)
    expected = steps.pop(())
    for how, found in steps.items():
        for (step, loss, norm), (_, other, other_norm) in zip(found, expected, strict=True):
            check(abs(loss / other - 1) < 1e-6 and abs(norm / other_norm - 1) < 1e-4, how, step, loss, other, norm, other_norm)
    plain = steps_of(trained(space, "text", ranks_up_to(2), *LORA).output)
    check(plain != expected, "codes have changed nothing")
    for (step, loss, _), (_, other, _) in zip(plain, expected, strict=True):
        check(abs(loss / other - 1) < 0.02, step, loss, other)


@test
def a_base_in_fp8_takes_half_of_bf16(space):
    def plan(*more):
        done = subprocess.run([PROGRAM, "--plan", str(space.configs["text"]), "train.precision=bf16-true", *LORA, *more], cwd=ROOT,
                              capture_output=True, text=True)
        check(done.returncode == 0, done)
        return done.stdout

    def size(name, text):
        line = re.search(rf"^ +{name} \(parameters\) +([0-9.]+) MiB$", text, re.M)
        check(line, name, text)
        return float(line[1])

    plain, stored = plan(), plan(IN_FP8)
    codes = size("parameters as fp8: codes", stored)
    less = size("parameters", plain) - size("parameters", stored)
    check(codes > 0.05 and abs(less - 2 * codes) < 0.02, codes, less, plain, stored)  # two digits behind the point
    check("stored in fp8, and taken so" in plan(IN_FP8, *FP8), plan(IN_FP8, *FP8))
    refused = subprocess.run([PROGRAM, "--plan", str(space.configs["text"]), *LORA, IN_FP8, "model.double_quantize=true"], cwd=ROOT,
                             capture_output=True, text=True)
    check(refused.returncode != 0 and "model.double_quantize" in refused.stderr and "one scale for a matrix" in refused.stderr, refused)


@test
def a_stopped_run_goes_on_to_the_same_bits(space):
    stopped_goes_on(space)


@test
def a_stopped_run_over_a_base_in_fp8_goes_on_to_the_same_bits(space):
    stopped_goes_on(space, *LORA, IN_FP8)


def stopped_goes_on(space, *settings):
    whole = trained(space, "text", 1, *FP8, *settings, "train.max_steps=8")
    output = space.new("stopped")
    command = [PROGRAM, str(space.configs["text"]), *FP8, *settings, "train.max_steps=8", "checkpoint.every_steps=2", "checkpoint.resume=auto",
               f"output.path={output}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None and not list(pathlib.Path(output).glob("checkpoints/step-*/checkpoint.json")):
        time.sleep(0.01)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    check(again.returncode == 0, again)
    saved = weights_of(output / ("adapter" if settings else "model"))
    check(saved and saved == weights_of(whole.output / ("adapter" if settings else "model")), "another model")


@test
def the_plan_names_what_is_in_fp8_and_why_the_rest_is_not(space):
    def lines(*overrides):
        done = subprocess.run([PROGRAM, "--plan", str(space.configs["text"]), *overrides], cwd=ROOT, capture_output=True, text=True)
        return done.stdout + done.stderr

    text = lines(*FP8, "train.matmul_exclude=[down_proj]", "train.fp8_least_size=30")
    check("products in fp8: 2 of 128 x 64, 2 of 192 x 64, 2 of 64 x 64; weights' codes stay over a step for" in text, text)
    check("products as train.precision says: 2 of 64 x 96 (train.matmul_exclude)\n" in text, text)
    check("products as train.precision says: 2 of 64 x 64 (too small)\n" in lines("train.matmul=fp8", "train.fp8_least_size=35"), text)
    check("are made at each use" in lines(*FP8, "train.fp8_keep_weights=none"), text)
    alone = lines("train.fp8_gradients=e4m3")
    check("train.fp8_gradients" in alone and "train.matmul is default" in alone and "set train.matmul: fp8" in alone, alone)


if __name__ == "__main__":
    sys.exit(run_tests("fp8_program_test", lambda folder: TwoModels(folder, REST), PROGRAM))
