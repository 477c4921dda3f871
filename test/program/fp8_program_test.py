#!/usr/bin/env python3
"""train.matmul: fp8 in the whole program: the same bits however weights are held, recomputed and resumed; losses beside those
without it; a frozen base that is stored in fp8; the trace's rows of factors; the lines of --plan; refusals."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import h5py
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (DEVICE, PROGRAM, ROOT, TwoModels, model_of, ranks_up_to, read_safetensors, start,  # noqa: E402
                          steps_of, trained, write_safetensors)
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
        ("parallel.strategy=ddp", "train.act_ckpt=full", "train.fp8_keep_weights=all"),
        ("parallel.strategy=ddp", "train.fp8_keep_inputs=all"),
        ("parallel.strategy=fsdp", "parallel.reshard=step", "train.act_ckpt=half", "train.fp8_keep_inputs=all")))
    # Ranks that gather for each micro-batch add up its gradients first: the same sums where there is but one, up to a matrix
    # that is used twice in it (the embedding that is the head).
    compared(space, kind, (*settings, "train.accumulate_grad_batches=1"), (
        ("parallel.strategy=ddp",), ("parallel.strategy=fsdp", "parallel.reshard=always", "train.fp8_keep_inputs=all"),
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
    check("stored in fp8 and used as they are" in plan(IN_FP8, *FP8), plan(IN_FP8, *FP8))
    refused = subprocess.run([PROGRAM, "--plan", str(space.configs["text"]), *LORA, IN_FP8, "model.double_quantize=true"], cwd=ROOT,
                             capture_output=True, text=True)
    check(refused.returncode != 0 and "model.double_quantize: is true, but model.quantize is fp8. Remove it" in refused.stderr, refused)


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


X, W, DY = range(3)
TRACED = ("trace.fp8_every=2",)


def fp8_of(output, rank=0):
    """The names of the matrices, and the rows of /fp8."""
    with h5py.File(output / f"trace.rank{rank:04d}.h5", "r") as file:
        return [name.decode() for name in file["fp8_matrices"][:]], file["fp8"][:]


def rows_of_weights(rows):
    return rows[rows["factor"] == W]


@test
def the_trace_tells_of_each_factor_and_changes_no_bit(space):
    ranks = ranks_up_to(2)
    plain = trained(space, "text", ranks, *FP8)
    traced = trained(space, "text", ranks, *FP8, *TRACED)
    check(steps_of(plain.output) == steps_of(traced.output) and weights_of(plain.output) == weights_of(traced.output),
          "the trace changed the training")
    check(len(fp8_of(plain.output)[1]) == 0, fp8_of(plain.output))
    names, first = fp8_of(traced.output)
    check(names[:4] == ["model.layers.0.self_attn.q_proj, k_proj, v_proj", "model.layers.0.self_attn.o_proj",
                        "model.layers.0.mlp.gate_proj, up_proj", "model.layers.0.mlp.down_proj"] and len(names) == 8, names)
    for rank in range(ranks):
        rows = fp8_of(traced.output, rank)[1]
        check([(row["step"], row["matrix"], row["factor"]) for row in rows]
              == [(step, matrix, factor) for step in (0, 2) for matrix in range(8) for factor in (X, W, DY)], rows)
        check((rows["amax"] > 0).all() and (rows["underflows"] < rows["elements"]).all() and not rows["not_finite"].any(), rows)
        # Rows of all micro-batches are as many in x [rows, in] and dy [rows, out]; the weight [out, in] is counted once.
        sizes = [(64, 192), (64, 64), (64, 192), (96, 64)] * 2
        for step in (0, 2):
            of_step = rows[rows["step"] == step]["elements"].reshape(8, 3)
            for (wide, high), (x, w, dy) in zip(sizes, of_step.tolist(), strict=True):
                check(w in (wide * high, wide * high * 2 // 3) and x % wide == 0 and x > 0, of_step)
                check(dy % (x // wide) == 0 and dy // (x // wide) * wide == w, of_step)
        check((rows_of_weights(rows) == rows_of_weights(first)).all(), "ranks have other weights")
        if rank > 0:
            check((rows[rows["factor"] == X]["amax"] != first[first["factor"] == X]["amax"]).any(), "ranks have the same x")


@test
def rows_are_the_same_however_the_run_holds_and_recomputes(space):
    ranks = ranks_up_to(2)
    expected = None
    for kind in ("text", "picture"):
        for how in ((), ("train.fp8_keep_weights=all",), ("train.fp8_keep_weights=none", "train.act_ckpt=full"),
                    ("parallel.strategy=fsdp", "parallel.reshard=step", "train.act_ckpt=full")):
            how = tuple(one for one in how if ranks > 1 or not one.startswith("parallel."))
            found = trained(space, kind, ranks, *FP8, *TRACED, "train.max_steps=3", *how)
            rows = [fp8_of(found.output, rank)[1] for rank in range(ranks)]
            expected = rows if not how else expected
            check(all((one == other).all() for one, other in zip(rows, expected, strict=True)), kind, how)
            check(rows[0]["elements"].min() > 0, rows)


@test
def a_weight_has_the_magnitude_and_the_underflows_that_the_saved_model_says(space):
    # Most numbers of every other row start so small that steps of SGD leave thousands of all sizes around the least code.
    model = space.copy(trained(space, "text", 1, "train.max_steps=1").output / "model")
    tensors = read_safetensors(model / "model.safetensors")
    for key, (dtype, shape, data) in tensors.items():
        if len(shape) == 2 and "embed" not in key and "lm_head" not in key:
            w = numpy.frombuffer(data, "<f4").reshape(shape).copy()
            w[1::2] *= 1e-9
            tensors[key] = (dtype, shape, w.tobytes())
    write_safetensors(model / "model.safetensors", tensors)
    settings = (*FP8, "model.init=pretrained", f"model.path={model}", "train.optim=sgd", "train.lr=0.03", "train.lr_schedule=constant")
    names, rows = fp8_of(trained(space, "text", 1, *settings, "train.max_steps=4", "trace.fp8_every=3").output)
    model = model_of(trained(space, "text", 1, *settings, "train.max_steps=3").output)
    for name, row in zip(names, rows_of_weights(rows[rows["step"] == 3]), strict=True):
        first, *others = name.split(", ")
        modules = [first, *(first[:first.rfind(".") + 1] + other for other in others)]
        w = numpy.abs(numpy.concatenate([numpy.frombuffer(model[f"{module}.weight"][2], "<f4") for module in modules]))
        scale = 2.0 ** numpy.ceil(numpy.log2(w.max().astype(numpy.float64) / 448))
        lost = ((w > 0) & (w / scale <= 2.0 ** -10)).sum()  # half of the least code of e4m3, which is rounded to even
        check((row["amax"], row["elements"], row["underflows"]) == (w.max(), w.size, lost), name, row, w.max(), lost)
    check(rows_of_weights(rows)["underflows"].sum() > 0, rows)


def first_not_finite(names, rows):
    """"x of MATRIX": of a step's rows, as forward and then backward come to them."""
    check(len(rows) == 3 * len(names), rows)
    found = []
    for row in rows[~numpy.isfinite(rows["amax"])]:
        backward = row["factor"] == DY
        found.append((backward, -row["matrix"] if backward else row["matrix"], row["factor"], names[row["matrix"]]))
    _, _, factor, name = min(found)
    return f"{('x', 'w', 'dy')[factor]} of {name}"


@test
def a_factor_that_is_not_finite_is_named(space):
    result = start(space, 1, *FP8, "train.lr=1e30", config=space.configs["text"])
    found = re.search(r"train\.on_nonfinite: stop: step (\d+): .* not finite; the first factor in fp8 that is not: "
                      r"((?:x|w|dy) of \S.*?); no model was saved", result.err)
    check(result.status == 1 and found, result)
    names, rows = fp8_of(result.output)
    check(found.group(2) == first_not_finite(names, rows), found.group(2), rows)
    # trace.fp8_every is 0: there are rows of the bad step alone, and nothing was counted.
    check((rows["step"] == int(found.group(1))).all() and not rows["elements"].any(), rows)
    summary = subprocess.run([sys.executable, str(ROOT / "tools/trace.py"), "summary", str(result.output)], capture_output=True,
                             text=True)
    check(f"first {found.group(2)} in step {found.group(1)} on rank 0" in summary.stdout, summary)
    # Without such products nothing is said of them.
    plain = start(space, 1, "train.lr=1e30", config=space.configs["text"])
    check(plain.status == 1 and "not finite" in plain.err and "factor" not in plain.err, plain)


@test
def a_factor_that_is_not_finite_on_one_rank_is_named_by_rank_0(space):
    ranks = ranks_up_to(2)
    model = space.copy(trained(space, "text", 1, "train.max_steps=1").output / "model")
    tensors = read_safetensors(model / "model.safetensors")
    key = next(key for key in tensors if key.endswith("embed_tokens.weight"))
    dtype, shape, data = tensors[key]
    table = numpy.frombuffer(data, "<f4").reshape(shape).copy()
    vocabulary = json.loads((space.text / "model/tokenizer.json").read_text())["model"]["vocab"]
    table[vocabulary["@"]] = numpy.inf
    write_safetensors(model / "model.safetensors", {**tensors, key: (dtype, shape, table.tobytes())})
    lines = [json.dumps({"instruction": f"What is {i} + 1?", "input": "", "output": str(i + 1)}) for i in range(24 * ranks)]
    # One of a step's first and last samples is not rank 0's. The step changes nothing: the two behind it are as ever.
    told = []
    for sample in {0, 8 * ranks - 1}:
        data = space.new("at")
        data.mkdir()
        (data / "at.jsonl").write_text("\n".join(line.replace("What is", "@ What is") if i == sample else line
                                                 for i, line in enumerate(lines)))
        result = start(space, ranks, *FP8, "model.init=pretrained", f"model.path={model}", f"data.path={data / 'at.jsonl'}",
                       "data.shuffle=false", "train.on_nonfinite=skip", "train.max_steps=3", config=space.configs["text"])
        check(result.status == 0 and re.search("^warning: step 0: .* not finite; the first factor in fp8 that is not: x of "
                                               r"model\.layers\.0\.self_attn\.q_proj, k_proj, v_proj, the step changes no weight",
                                               result.out, re.M), result)
        of_ranks = [fp8_of(result.output, rank)[1] for rank in range(ranks)]
        check(all((rows["step"] == 0).all() and len(rows) == 24 for rows in of_ranks), of_ranks)
        told.append([bool(numpy.isfinite(rows[0]["amax"])) for rows in of_ranks])
    check(ranks == 1 or [True, False] in told, "rank 0 had it each time", told)


@test
def the_plan_names_what_is_in_fp8_and_why_the_rest_is_not(space):
    def lines(*overrides):
        done = subprocess.run([PROGRAM, "--plan", str(space.configs["text"]), *overrides], cwd=ROOT, capture_output=True, text=True)
        return done.stdout + done.stderr

    text = lines(*FP8, "train.matmul_exclude=[down_proj]", "train.fp8_least_size=30")
    check("products in fp8: 2 of 128 x 64, 2 of 192 x 64, 2 of 64 x 64; quantized weights stay over a step for" in text, text)
    check("products as train.precision says: 2 of 64 x 96 (train.matmul_exclude)\n" in text, text)
    check("products as train.precision says: 2 of 64 x 64 (too small)\n" in lines("train.matmul=fp8", "train.fp8_least_size=35"), text)
    check("are made at each use" in lines(*FP8, "train.fp8_keep_weights=none"), text)
    check("quantized inputs stay" not in lines(*FP8, "train.fp8_keep_inputs=none"), text)
    kept = lines(*FP8, "train.fp8_keep_inputs=all")
    check("; quantized inputs stay for backward\n" in kept and "inputs in fp8 (activations)" in kept, kept)
    for given, why in (("trace.fp8_every=5", "Set train.matmul: fp8, or remove trace.fp8_every"),
                       ("trace.fp8_every=-1", "trace.fp8_every")):
        check("trace.fp8_every" in lines(given) and why in lines(given), lines(given))
    alone = lines("train.fp8_gradients=e5m2")
    check("train.fp8_gradients" in alone and "train.matmul is default" in alone and "Set train.matmul: fp8" in alone, alone)


if __name__ == "__main__":
    sys.exit(run_tests("fp8_program_test", lambda folder: TwoModels(folder, REST), PROGRAM))
