#!/usr/bin/env python3
"""The whole program under mpirun on CPU ranks: what it prints and writes, and whether it repeats itself.

    python3 test/program/program_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED program_test ({missing})")
    sys.exit(0)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (  # noqa: E402
    PROGRAM, ROOT, SAMPLES, RECORD_FILES, Space, command_line, environment, mpirun, model_of, on_machines, read_safetensors,
    read_table, run, saved_model)
from script_tests import Skip, check, run_tests, test  # noqa: E402


@test
def trains_to_the_end_and_the_loss_falls(space):
    result = run(space, 4, "parallel.strategy=fsdp", "train.batch_size=2", "train.max_epochs=6")
    losses = result.losses()
    check(len(losses) == SAMPLES // 8 * 6, "steps:", len(losses))
    check(np.isfinite(losses).all(), losses)
    check(losses[-6:].mean() < losses[:6].mean() - 0.5, "losses of the first and last epoch:", losses[:6], losses[-6:])
    check("[done] train time" in result.out and "rank(s), fsdp" in result.out, result)


@test
def the_header_tells_where_the_start_went(space):
    for overrides, shapes in (((), True), (("parallel.cuda_graph=false",), False)):
        result = run(space, 2, "train.max_steps=2", *overrides)
        line = re.search(r"^start      ([^(]*)(?: \(beside them: (.*)\))?, ready after ([0-9.]+) s$", result.out, re.M)
        check(line, result)
        told, beside = ({name: float(seconds) for name, seconds in
                         re.findall(r"(\w+) ([0-9.]+) s", text or "")} for text in line.groups()[:2])
        names = ["launch", "model", "device", "data", "communication", "plan", "memory", "peers", "connections", "weights",
                 "graphs", "products", "trace"]
        check(list(told) == [name for name in names if name in told] and "launch" in told, told)
        check(all(seconds >= 0.01 for seconds in (*told.values(), *beside.values())), "parts that take no time:", line[0])
        check(set(beside) <= {"data", "plan"} | ({"looking_ahead"} if shapes else set()), beside)
        parts = {name: told.get(name, 0.005) for name in names}
        ready = float(line[3])
        check(abs(sum(parts.values()) - ready) < 0.1, "parts", parts, "together", ready)
        end = re.search(r"^total      ([0-9.]+) s from start to end \(start ([0-9.]+) s, training ([0-9.]+) s, "
                        r"end ([0-9.]+) s\)$", result.out, re.M)
        check(end, result)
        total, start, training, rest = (float(seconds) for seconds in end.groups())
        check(abs(start - ready) < 0.06 and abs(start + training + rest - total) < 0.21, end[0])
        check(total <= result.seconds + 0.1, end[0], "but it took", result.seconds)
        for rank in range(2):
            with h5py.File(result.output / f"trace.rank{rank:04d}.h5", "r") as file:
                for name, seconds in parts.items() if rank == 0 else ():
                    if name != "trace":
                        check(abs(file.attrs[f"start_{name}_seconds"] - seconds) < 0.006, name, seconds)
                # The total is printed in tenths.
                check(0 < file.attrs["start_seconds"] < total + 0.05, file.attrs["start_seconds"])


@test
def every_rank_leaves_a_trace(space):
    result = run(space, 3, "parallel.strategy=fsdp", "train.max_steps=4", "train.accumulate_grad_batches=2",
                 "train.batch_size=2", "train.gradient_clip_val=1", "data.text_padding=max")
    files = sorted(p.name for p in result.output.iterdir() if p.name not in RECORD_FILES)
    check(files == [f"trace.rank{r:04d}.h5" for r in range(3)], "files:", files)
    for rank in range(3):
        steps = result.steps(rank)
        check(steps["step"].tolist() == [0, 1, 2, 3], steps["step"])
        check((steps["loss"] == result.steps(0)["loss"]).all(), "losses of rank", rank)
        check((steps["grad_norm"] == result.steps(0)["grad_norm"]).all(), "norms of rank", rank)
        check((steps["end_ns"] > steps["begin_ns"]).all(), "ends of the steps")
        check((np.diff(steps["begin_ns"].astype(np.int64)) > 0).all(), "begins of the steps")
        with h5py.File(result.output / f"trace.rank{rank:04d}.h5", "r") as file:
            check(file.attrs["rank"] == rank and file.attrs["world_size"] == 3, dict(file.attrs))
            check("accumulate_grad_batches: 2" in str(file.attrs["config"]), file.attrs["config"])
            spans, memory, plan = file["spans"][:], file["memory"][:], file["plan"][:]
            phases = h5py.check_enum_dtype(spans.dtype["phase"])
        check(set(spans["step"].tolist()) == {0, 1, 2, 3}, "spans' steps")
        check(set(spans["micro_batch"].tolist()) >= {0, 1}, "spans' micro-batches")
        for name in ("forward", "backward", "gather", "reduce_scatter"):
            check((spans["phase"] == phases[name]).sum() > 0, "no spans of", name, "in", phases)
        check((spans["end_ns"] >= spans["begin_ns"]).all(), "spans end before they begin")
        check(len(memory) > 0 and len(plan) > 0, "memory and plan are empty")
        check_rates(steps, 4)
        step = spans[spans["phase"] == phases["step"]]
        for end in ("begin_ns", "end_ns"):
            check((step[end] == steps[end]).all(), "the step and its span:", end)
        wait = spans[spans["phase"] == phases["data_wait"]]  # of the host's clock; the others are of the device's
        check((wait["end_ns"] < steps["begin_ns"] + 1e6).all()
              and (wait["begin_ns"][1:] > steps["end_ns"][:-1] - 1e6).all(),
              "the clocks of host and device:", wait, steps)
        last = memory[memory["step"] == 1]
        last = last.reshape(-1, len(set(last["owner"].tolist())))  # a moment of a micro-batch, owners
        held = last["bytes"].sum(axis=1)
        check((last["phase"] == last["phase"][:, :1]).all() and len(held) == 4 * 2, last["phase"])
        check(last["phase"][-1, 0] == b"peak" and held[-1] == held.max(), last["phase"], held)
        plan = plan[~np.char.startswith(plan["name"], b"room to load")]  # no part of a step
        check(held[-1] == plan["bytes"].sum(), held, plan)
        for owner, size in zip(last["owner"][-1], last["bytes"][-1]):
            check(size == plan["bytes"][plan["owner"] == owner].sum(), owner, size, plan)


@test
def room_to_load_and_save_counts_in_plan_and_measurement_alike(space):
    model = saved_model(space)
    for options, moments in (((f"model.path={model}", "model.init=pretrained"), [(-1, b"loading")]),
                             (("output.save_model=true",), [(-1, b"loading"), (1, b"saving")]),
                             ((f"model.path={model}", "model.init=pretrained", "output.save_model=true"),
                              [(-1, b"loading"), (1, b"saving")])):
        result = run(space, 2, "parallel.strategy=fsdp", "train.max_steps=2", *options)
        for rank in range(2):
            memory, plan = (read_table(result.output, rank, table) for table in ("memory", "plan"))
            outside = memory[np.isin(memory["phase"], (b"loading", b"saving"))]
            check(sorted({(row["step"], row["phase"]) for row in outside}) == moments, options, outside)
            held = [memory["bytes"][(memory["step"] == step) & (memory["phase"] == phase)].sum()
                    for step, phase in [*moments, (1, b"peak")]]
            check(max(held) == plan["bytes"].sum(), options, held, plan)
            if "model.init=pretrained" in options:  # a model so small that reading it takes more than a step
                check(held[0] == max(held) and np.char.startswith(plan["name"], b"room to load").any(), held, plan)


def check_rates(steps, samples):
    """The seconds of each step: from the end of the previous step to its own end, the first from its begin."""
    ends = steps["end_ns"].astype(np.float64)
    seconds = np.diff(ends, prepend=float(steps["begin_ns"][0])) * 1e-9
    # Durations are of the device's clock, times are led along the host's: at most 1e-3 apart.
    rates = steps["samples_per_second"]
    check(np.allclose(rates * seconds, samples, rtol=2e-3), rates, samples / seconds)
    flops = steps["tflops"] * seconds
    check((flops > 0).all() and (len(set(steps["text_tokens"])) > 1 or np.ptp(flops) < 4e-3 * flops.max()), flops)


@test
def packing_keeps_the_steps(space):
    """Other micro-batches of a step's samples give the same numbers except for the order of sums, with less work."""
    options = ("train.max_steps=6", "train.accumulate_grad_batches=3", "train.batch_size=2", "train.dropout=true",
               "output.save_model=true")
    results = [run(space, 2, *options, f"data.text_padding={value}") for value in ("longest", "packed")]
    plain, packed = (result.steps() for result in results)
    for name in ("loss", "grad_norm"):
        check(np.allclose(plain[name], packed[name], rtol=1e-4), name, plain[name], packed[name])
    check((plain["text_tokens"] > packed["text_tokens"]).all(), plain["text_tokens"], packed["text_tokens"])
    work = [steps["tflops"] * np.diff(steps["end_ns"].astype(float), prepend=float(steps["begin_ns"][0]))
            for steps in (plain, packed)]
    check(work[1].sum() < 0.99 * work[0].sum(), "work:", *work)
    weights = [model_of(result.output) for result in results]
    for name, (_, _, data) in weights[0].items():
        one, other = (np.frombuffer(w[name][2], np.float32) for w in weights)
        check(np.abs(one - other).max() < 1e-3, name, np.abs(one - other).max())


@test
def rates_need_no_spans(space):
    result = run(space, 2, "trace.spans=none", "train.max_steps=4")
    steps = result.steps()
    check((steps["end_ns"] > steps["begin_ns"]).all() and len(read_table(result.output, 0, "spans")) == 0, steps)
    check_rates(steps, 4)


@test
def memory_lines_and_plain_progress(space):
    result = run(space, 2, "parallel.strategy=ddp", "train.max_steps=3")
    check("\r" not in result.out and "\x1b" not in result.out, "control characters:", repr(result.out))
    for phase in ("before forward", "after forward", "after backward", "after optimizer"):
        for step in (0, 1):
            pattern = (rf"memory step {step} +{phase} +Params [\d.]+ .*Grads [\d.]+ .*Optim [\d.]+ "
                       r".*Allocated [\d.]+ \(peak [\d.]+\)")
            check(re.search(pattern, result.out), "no line", pattern, result)
    progress = re.findall(r"^step (\d+)/3  epoch \d+  loss [\d.]+  lr \S+  grad norm \S+  ([\d.]+) samples/s ",
                          result.out, re.M)
    check([step for step, _ in progress] == ["1", "2", "3"], progress, result)
    rates = 2 * result.steps()["samples_per_second"]  # of two ranks; of the first steps there is no average
    check(np.allclose([float(rate) for _, rate in progress], rates, rtol=1e-3, atol=0.05), progress, rates)
    # On CPUs the total alone; the owners' shares are the plan's and the trace's.
    check(re.search(r"^memory of a rank at the peak of a step \(ddp\)\n  total +[\d.]+ MiB\ndata ", result.out, re.M), result)
    # Unchanged memory of these phases is not printed again.
    again = run(space, 1, "train.max_steps=4", "output.memory_every=1", "data.text_padding=max")
    check(set(re.findall(r"memory step (\d+)", again.out)) == {"0", "1"}, again)
    # The buffers are in the trace.
    check("largest buffers" not in result.out and "\n\n" not in result.out, "more than is needed", result)
    check(result.out.count("blipft ") <= 2 and result.out.count("[done]") == 1, "said by more than one rank:", result)


@test
def progress_on_a_terminal_stays_on_one_line(space):
    for ranks in (0, 2):
        try:
            mine, theirs = pty.openpty()
        except OSError as error:  # a container without /dev/pts
            raise Skip(f"no pseudo-terminal: {error}") from error
        command = command_line(ranks, [PROGRAM, space.config, "train.max_steps=3", f"output.path={space.new()}"])
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=theirs)
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(mine, 65536):
                text += piece
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(mine)
        check(process.wait(60) == 0 and text.count(b"\r\x1b[Kstep ") == 3, ranks, text.decode())


@test
def the_saved_model_is_a_model_directory(space):
    model = saved_model(space)
    names = {p.name for p in model.iterdir()}
    check(names >= {"config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"}, names)
    for name in ("tokenizer.json", "preprocessor_config.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        check((model / name).read_bytes() == (space.model / name).read_bytes(), name, "differs")
    before, after = (json.loads((p / "config.json").read_text()) for p in (space.model, model))
    check(after.get("dtype", after.get("torch_dtype")) == "float32", after.get("dtype"))
    for config in (before, after):
        for section in (config, config["text_config"], config["vision_config"], config["qformer_config"]):
            section.pop("dtype", None), section.pop("torch_dtype", None)
    check(before == after, "config.json differs in more than its dtype")
    tensors = read_safetensors(model / "model.safetensors")
    for name, shape in {"query_tokens": (1, 8, 32), "language_projection.weight": (32, 32),
                        "vision_model.embeddings.class_embedding": (1, 1, 32)}.items():
        check(tensors[name][:2] == ("F32", shape), name, tensors[name][:2])
    for name, (dtype, shape, data) in tensors.items():
        check(len(data) == 4 * int(np.prod(shape)), name, shape, len(data))
        check(np.isfinite(np.frombuffer(data, np.float32)).all(), name, "is not finite")
    check(not list(model.parent.glob("*.partial")), "a partial folder is left")


@test
def a_saved_model_goes_on_where_it_stopped(space):
    # One step sees all samples in order, so each step has the same batch.
    same_batch = ("data.shuffle=false", "data.num_train_samples=16", "train.max_epochs=9")
    for ranks, strategy, precision in ((1, "single", "32-true"), (2, "fsdp", "32-true"), (2, "ddp", "bf16-mixed"),
                                       (2, "fsdp", "bf16-true")):
        common = (*same_batch, f"train.batch_size={16 // ranks}", f"parallel.strategy={strategy}",
                  f"train.precision={precision}")
        whole = run(space, ranks, *common, "train.max_steps=4")
        first = run(space, ranks, *common, "train.max_steps=3", "output.save_model=true")
        check((first.losses() == whole.losses()[:3]).all(), "the first three steps:", first.losses(), whole.losses())
        second = run(space, ranks, *common, "train.max_steps=1", f"model.path={first.output / 'model'}",
                     "model.init=pretrained")
        check(second.losses()[0] == whole.losses()[3], strategy, precision, second.losses(), "after", whole.losses())
        tensors = model_of(first.output)
        dtypes = {t[0] for t in tensors.values()}
        check(dtypes == {"BF16" if precision == "bf16-true" else "F32"}, "dtypes of", precision, dtypes)


@test
def a_model_saved_in_bf16_is_the_rounded_one(space):
    common = ("train.max_steps=2", "output.save_model=true")
    exact = model_of(run(space, 2, *common).output)
    rounded = model_of(run(space, 2, *common, "output.save_dtype=bf16").output)
    check(list(exact) == list(rounded), "other tensors")
    for name in exact:
        bits = np.frombuffer(exact[name][2], np.uint32).astype(np.uint64)
        wanted = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
        check(rounded[name][0] == "BF16" and (np.frombuffer(rounded[name][2], np.uint16) == wanted).all(), name)


@test
def the_same_seed_gives_the_same_bits(space):
    common = ("train.max_steps=5", "train.dropout=true", "train.gradient_clip_val=1", "output.save_model=true",
              "data.num_workers=3")
    for strategy in ("ddp", "fsdp"):
        a, b = (run(space, 2, *common, f"parallel.strategy={strategy}") for _ in range(2))
        for column in ("loss", "grad_norm"):
            check((a.steps()[column] == b.steps()[column]).all(), column, a.steps()[column], b.steps()[column])
        weights = [(one.output / "model/model.safetensors").read_bytes() for one in (a, b)]
        check(weights[0] == weights[1], "weights differ")
    c = run(space, 2, *common, "train.seed=1")
    check((c.losses() != b.losses()).any(), "another seed gives the same losses")


@test
def strategies_and_world_sizes_have_one_loss_curve(space):
    # 8 samples a step in all. f32 sums in another order: 2^-24 times the root of some hundred terms, a few ulps more
    # each step (Adam divides small gradients by themselves); 1e-4 is far below the 1e-2 by which the steps differ.
    common = ("train.max_steps=6", "train.dropout=true", "train.gradient_clip_val=1", "train.eps=1e-4")
    single = run(space, 1, *common, "train.batch_size=8", "parallel.strategy=single").losses()
    for ranks, accumulate, strategy, more in ((1, 2, "single", ()), (2, 1, "ddp", ()), (4, 2, "ddp", ()),
                                              (2, 2, "fsdp", ()), (4, 1, "fsdp", ("parallel.reshard=step",)),
                                              (4, 1, "fsdp", ("train.act_ckpt=full",))):
        result = run(space, ranks, *common, f"train.batch_size={8 // ranks // accumulate}",
                     f"parallel.strategy={strategy}", f"train.accumulate_grad_batches={accumulate}", *more)
        distance = np.abs(result.losses() - single).max()
        check(distance < 1e-4, ranks, strategy, more, distance, result.losses(), single)
    check(np.abs(np.diff(single)).max() > 1e-2, "the loss does not move:", single)


@test
def ranks_connect_within_the_planned_memory(space):
    # The gradients are held, and the largest is larger than all that a step takes beside them.
    model = space.new("model")
    shutil.copytree(space.model, model)
    config = json.loads((model / "config.json").read_text())
    config["text_config"].update(vocab_size=120000)
    (model / "config.json").write_text(json.dumps(config))
    for more in ([], ["parallel.offload=[parameters]"]):
        run(space, 2, "parallel.strategy=ddp", f"model.path={model}", "train.gradient_clip_val=1", "train.batch_size=1",
            "data.max_text_tokens=4", "train.max_steps=1", *more)


@test
def a_reader_of_the_log_that_goes_does_not_end_the_run(space):
    output = space.new()
    process = subprocess.Popen([PROGRAM, space.config, f"output.path={output}", "output.save_model=true",
                                "output.progress_seconds=0", "train.max_epochs=3"], cwd=ROOT, env=environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    check(process.wait(timeout=60) == 0 and (output / "model/model.safetensors").exists(), process.returncode, err)


@test
def shard_groups_are_machines(space):
    # 2 ranks of each of 2 machines, both of them this one. The tolerance is that of the test above.
    common = ("parallel.strategy=fsdp", "train.max_steps=4", "train.accumulate_grad_batches=2", "train.eps=1e-4",
              "train.gradient_clip_val=1", "train.batch_size=1")
    whole = run(space, 4, *common)
    node = run(space, 4, *common, "parallel.shard_ranks=node", "output.save_model=true",
               before=on_machines(space, "0,0,1,1"))
    check("4 rank(s), fsdp, 2 groups of 2 ranks, reshard always, mpi" in node.out, node)
    check("peak of a step (fsdp, 2 groups of 2 ranks)" in node.out, node)
    check(np.abs(node.losses() - whole.losses()).max() < 1e-4, node.losses(), whole.losses())
    check((node.output / "model/model.safetensors").exists(), "no model was saved")
    for rank in range(4):
        check((node.steps(rank)["grad_norm"] == node.steps(0)["grad_norm"]).all(), "norms of rank", rank)
        with h5py.File(node.output / f"trace.rank{rank:04d}.h5", "r") as file:
            groups = [file.attrs[f"{name}_group"] for name in ("gather", "reduce_scatter", "all_reduce")]
            check(groups == [rank // 2, rank // 2, rank % 2] and file.attrs["shard_ranks"] == 2, rank, groups)
            spans = file["spans"][:]
            phases = h5py.check_enum_dtype(spans.dtype["phase"])
        sums = spans[(spans["phase"] == phases["all_reduce"]) & (spans["step"] == 1)]
        check(len(sums) > 0 and (sums["micro_batch"] == 1).all(), "not in the last micro-batch alone:", sums)
        check(len(np.unique(sums["unit"])) == len(sums), "a unit is summed twice", sums)
        for span in sums:  # a shard of the gradient, behind the last reduce-scatter of the whole of it
            scattered = spans[(spans["phase"] == phases["reduce_scatter"]) & (spans["step"] == 1) &
                              (spans["unit"] == span["unit"])]
            check((scattered["bytes"] == 2 * span["bytes"]).all() and len(scattered) >= 2, span, scattered)
            check(scattered["end_ns"].max() <= span["begin_ns"], "summed too early:", span, scattered)
    # One machine for all: nothing is replicated.
    check("fsdp, reshard always, mpi" in run(space, 2, *common, "parallel.shard_ranks=node").out, "one machine")
    plan = [PROGRAM, "--plan", "--ranks", "4", space.config, "parallel.strategy=fsdp", "parallel.shard_ranks=node"]
    status, out, err, _ = mpirun(0, [*plan, "--node-ranks", "2"])
    check(status == 0 and "strategy fsdp, 2 groups of 2 ranks, reshard" in out, out, err)
    status, out, err, _ = mpirun(0, [*plan, "--node-ranks", "3"])
    check(status != 0 and "a machine has 3 ranks, which does not divide the 4 ranks" in err, out, err)


@test
def runs_without_mpirun_and_without_a_trace(space):
    result = run(space, 0, "train.max_steps=2", "trace.enabled=false")
    check("rank(s), single" in result.out, result)
    check(not list(result.output.glob("*.h5")), "a trace was written")
    check("warning: the trained weights will be discarded" in result.out, result)
    for keeps in ("output.save_model=true", "checkpoint.every_steps=1"):
        result = run(space, 0, "train.max_steps=1", keeps)
        check("will be discarded" not in result.out, result)


@test
def answers_that_need_no_mpi(space):
    status, out, _, _ = mpirun(0, [PROGRAM, "--help"])
    check(status == 0 and "Usage" in out or "usage" in out, out)
    status, out, _, _ = mpirun(0, [PROGRAM, "--print-config", space.config, "train.lr=0.25"])
    check(status == 0 and "0.25" in out, out)
    effective = space.new("effective")
    effective.write_text(out)
    status, again, _, _ = mpirun(0, [PROGRAM, "--print-config", effective])
    check(status == 0 and again == out, "the printed configuration reads back differently")
    status, out, err, _ = mpirun(0, [PROGRAM, "--plan", space.config])
    check(status == 0 and "total" in out and "fits" in out, out, err)
    check("computes on CPUs" not in out, "a second plan of a strategy that has one:", out)
    status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--gpu-memory", "0.001", space.config])
    check(status == 1 and "does not fit" in out, status, out, err)


@test
def what_lies_in_the_host_trains_and_saves_alike(space):
    for strategy, offload in (("fsdp", "optimizer"), ("ddp", "parameters"),
                              ("fsdp", "optimizer, parameters, activations")):
        common = ("train.max_steps=2", "train.precision=bf16-mixed", "train.optim=adamw8bit", "train.act_ckpt=full",
                  f"parallel.strategy={strategy}", "output.save_model=true")
        here, there = (run(space, 2, *common, *more) for more in ((), (f"parallel.offload=[{offload}]",)))
        check(list(here.losses()) == list(there.losses()), offload, here.losses(), there.losses())
        check((here.output / "model/model.safetensors").read_bytes() ==
              (there.output / "model/model.safetensors").read_bytes(), offload, "saved weights differ")
        check("page-locked host memory of a rank" in there.out and "page-locked" not in here.out, there)
        check(("parameters from the host" in there.out) == ("parameters" in offload), offload, there)
        for name in ("activations", "parameters", "optimizer"):
            check(re.search(rf"\({name}, host\)", there.out) or name not in offload, name, there)
        with h5py.File(there.output / "trace.rank0000.h5", "r") as file:
            check(file.attrs["planned_host_bytes"] > 0, dict(file.attrs))
            check(file.attrs.get("gathers", "") == "from the host" or "parameters" not in offload, dict(file.attrs))
        status, out, err, _ = mpirun(0, [sys.executable, ROOT / "tools/trace.py", "summary", there.output])
        check(status == 0, out, err)


@test
def settings_that_fit_are_proposed_and_can_be_pasted(space):
    fit = [PROGRAM, "--plan", "--fit"]
    status, out, err, _ = mpirun(0, [*fit, "24GiB", "--ranks", "2", space.config, "train.accumulate_grad_batches=2"])
    check(status == 0 and "these fit a GPU of 24.00 GiB" in out and "H200's measured rates" in out, out, err)
    row = re.search(r"^ +[0-9.]+ +[0-9.]+ [GM]iB +(?:-|[0-9.]+ [GM]iB) +((?:'?\S+=\S+ ?)+)$", out, re.M)
    check(row, out)
    overrides = row[1].replace("'", "").split()
    run(space, 2, "train.accumulate_grad_batches=2", "train.max_steps=1", *overrides)
    status, out, err, _ = mpirun(0, [*fit, "0.1GiB", space.config])
    check(status == 1 and "none fits a GPU of 102.40 MiB; this comes nearest:" in out, out, err)


@test
def the_plan_tells_a_gpu_and_these_cpus_apart(space):
    fsdp = ("parallel.strategy=fsdp", "train.accumulate_grad_batches=2", "train.max_steps=1")
    for reshard, on_gpu, on_cpu in (("auto", "step", "always"), ("always", "always", "always"),
                                    ("step", "step", "step")):
        more = (*fsdp, f"parallel.reshard={reshard}")
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--ranks", "2", space.config, *more])
        check(status == 0 and re.search(rf"^fits: .* strategy fsdp, reshard {on_gpu}$", out, re.M), out, err)
        here = re.search(r"computes on CPUs: there it takes (\S+ [GM]iB) a rank, strategy fsdp, reshard (\w+)$",
                         out, re.M)
        check(here and here[2] == on_cpu, "planned for CPUs:", out)
        result = run(space, 2, *more)
        check(re.search(rf"^  total +{re.escape(here[1])}$", result.out, re.M), "planned", here[1], result)
        with h5py.File(result.output / "trace.rank0000.h5", "r") as file:
            check(file.attrs["reshard"] in (on_cpu, on_cpu.encode()), "the run took", file.attrs["reshard"])


if __name__ == "__main__":
    sys.exit(run_tests("program_test", Space, PROGRAM))
