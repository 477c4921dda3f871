#!/usr/bin/env python3
"""The whole program under mpirun on CPU ranks: what it writes, whether it repeats itself, and how it fails.

    python3 test/program_test.py [PART-OF-A-NAME...]

A small BLIP-2 and a small captioned picture set are made by tools/make_demo.py. BLIPFT names the program (default
./blipft). Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import time

from script_tests import check, run_tests, test

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("BLIPFT", str(ROOT / "blipft"))
try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED program_test ({missing})")
    sys.exit(0)

SAMPLES = 48
SECONDS_TO_FAIL = 20  # an error must end all ranks within this; reading and starting included


class Space:
    """The folder of this run of the tests: the demo's files, and whatever the tests make."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        subprocess.run([sys.executable, str(ROOT / "tools/make_demo.py"), "--out", str(self.folder / "demo"), "--samples",
                        str(SAMPLES), "--seed", "3"], check=True, stdout=subprocess.DEVNULL)
        self.model, self.data = self.folder / "demo/model", self.folder / "demo/data"
        self.shrink()
        self.count = 0
        self.config = self.folder / "run.yaml"
        self.config.write_text(
            f"model:\n  path: {self.model}\n  init: random\n"
            f"data:\n  path: {self.data}\n  max_text_tokens: 32\n  num_workers: 1\n"
            "train:\n  lr: 1.0e-3\n  batch_size: 4\n  precision: 32-true\n  dropout: false\n"
            "parallel:\n  device: cpu\n")

    def shrink(self):
        """Fewer and thinner layers: the tests start the program dozens of times."""
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        config["vision_config"].update(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
        config["qformer_config"].update(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                        encoder_hidden_size=32)
        config["text_config"].update(hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=2,
                                     word_embed_proj_dim=32)
        path.write_text(json.dumps(config))

    def new(self, name="out"):
        self.count += 1
        return self.folder / f"{name}{self.count}"

    def copy(self, what):
        """A copy of a folder, to be spoilt."""
        target = self.new(what.name)
        shutil.copytree(what, target)
        return target


class Result:
    def __init__(self, status, out, err, seconds, output):
        self.status, self.out, self.err, self.seconds, self.output = status, out, err, seconds, output

    def steps(self, rank=0):
        return read_table(self.output, rank, "steps")

    def losses(self):
        return self.steps()["loss"]

    def __str__(self):
        return f"status {self.status}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


def environment(ranks):
    values = dict(os.environ, OMP_NUM_THREADS=str(max(1, (os.cpu_count() or 1) // max(ranks, 1))))
    values.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    return values


def command_line(ranks, arguments):
    command = [str(a) for a in arguments]
    if not ranks:
        return command
    options = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *options, *command]


def mpirun(ranks, arguments, seconds=180):
    begin = time.monotonic()
    done = subprocess.run(command_line(ranks, arguments), cwd=ROOT, env=environment(ranks), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=seconds)
    return done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"), time.monotonic() - begin


def start(space, ranks, *overrides, config=None):
    """Runs the program; ranks 0: without mpirun."""
    output = space.new()
    if not any(o.startswith("output.path=") for o in overrides):
        overrides = (f"output.path={output}", *overrides)
    return Result(*mpirun(ranks, [PROGRAM, config or space.config, *overrides]), output)


def run(space, ranks, *overrides):
    result = start(space, ranks, *overrides)
    check(result.status == 0, result)
    return result


def read_table(folder, rank, name):
    with h5py.File(pathlib.Path(folder) / f"trace.rank{rank:04d}.h5", "r") as file:
        return file[name][:]


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of one file, parsed by hand."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        check(begin == end, path, name, "leaves a gap or overlaps")
        end = stop
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[8 + length + begin:8 + length + stop])
    check(end == len(data) - 8 - length, path, "has bytes that belong to no tensor")
    return tensors


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))


_saved = {}


def saved_model(space):
    """A model directory with weights: what three steps on two ranks left behind. Made once."""
    if space not in _saved:
        result = run(space, 2, "train.max_steps=3", "output.save_model=true", "parallel.strategy=fsdp")
        _saved[space] = result.output / "model"
    return _saved[space]


@test
def trains_to_the_end_and_the_loss_falls(space):
    result = run(space, 4, "parallel.strategy=fsdp", "train.batch_size=2", "train.max_epochs=6")
    losses = result.losses()
    check(len(losses) == SAMPLES // 8 * 6, "steps:", len(losses))
    check(np.isfinite(losses).all(), losses)
    check(losses[-6:].mean() < losses[:6].mean() - 0.5, "losses of the first and last epoch:", losses[:6], losses[-6:])
    check("[done] train time" in result.out and "rank(s), fsdp" in result.out, result)


@test
def every_rank_leaves_a_trace(space):
    result = run(space, 3, "parallel.strategy=fsdp", "train.max_steps=4", "train.accumulate_grad_batches=2",
                 "train.batch_size=2", "train.gradient_clip_val=1", "data.text_padding=max")
    check(sorted(p.name for p in result.output.iterdir()) == [f"trace.rank{r:04d}.h5" for r in range(3)], "files:", list(result.output.iterdir()))
    for rank in range(3):
        steps = result.steps(rank)
        check(steps["step"].tolist() == [0, 1, 2, 3], steps["step"])
        check((steps["loss"] == result.steps(0)["loss"]).all(), "losses of rank", rank)
        check((steps["grad_norm"] == result.steps(0)["grad_norm"]).all(), "norms of rank", rank)
        check((steps["end_ns"] > steps["begin_ns"]).all() and (np.diff(steps["begin_ns"].astype(np.int64)) > 0).all(), "times of the steps")
        with h5py.File(result.output / f"trace.rank{rank:04d}.h5", "r") as file:
            check(file.attrs["rank"] == rank and file.attrs["world_size"] == 3, dict(file.attrs))
            check("accumulate_grad_batches: 2" in str(file.attrs["config"]), file.attrs["config"])
            spans, memory, plan = file["spans"][:], file["memory"][:], file["plan"][:]
            phases = h5py.check_enum_dtype(spans.dtype["phase"])
        check(set(spans["step"].tolist()) == {0, 1, 2, 3} and set(spans["micro_batch"].tolist()) >= {0, 1}, "spans' steps")
        for name in ("forward", "backward", "gather", "reduce_scatter"):
            check((spans["phase"] == phases[name]).sum() > 0, "no spans of", name, "in", phases)
        check((spans["end_ns"] >= spans["begin_ns"]).all(), "spans end before they begin")
        check(len(memory) > 0 and len(plan) > 0, "memory and plan are empty")
        check_rates(steps, 4)
        step = spans[spans["phase"] == phases["step"]]
        check((step["begin_ns"] == steps["begin_ns"]).all() and (step["end_ns"] == steps["end_ns"]).all(), "the step and its span")
        wait = spans[spans["phase"] == phases["data_wait"]]  # of the host's clock; the others are of the device's
        check((wait["end_ns"] < steps["begin_ns"] + 1e6).all() and (wait["begin_ns"][1:] > steps["end_ns"][:-1] - 1e6).all(),
              "the clocks of host and device:", wait, steps)
        last = memory[memory["step"] == 1]
        last = last.reshape(-1, len(set(last["owner"].tolist())))  # a moment of a micro-batch, owners
        held = last["bytes"].sum(axis=1)
        check((last["phase"] == last["phase"][:, :1]).all() and len(held) == 4 * 2, last["phase"])
        check(last["phase"][-1, 0] == b"peak" and held[-1] == held.max(), last["phase"], held)
        # memory that no tensor of a step holds
        gaps = np.char.startswith(plan["name"], b"gaps") | np.char.startswith(plan["name"], b"room to load")
        check(held[-1] == plan["bytes"][~gaps].sum(), held, plan)
        for owner, size in zip(last["owner"][-1], last["bytes"][-1]):
            check(size == plan["bytes"][(plan["owner"] == owner) & ~gaps].sum(), owner, size, plan)


def check_rates(steps, samples):
    """What a step is counted to take: from the end of the one before to its own end, the first from its begin."""
    ends = steps["end_ns"].astype(np.float64)
    seconds = np.diff(ends, prepend=float(steps["begin_ns"][0])) * 1e-9
    # Durations are of the device's clock, times are led along the host's: at most 1e-3 apart.
    check(np.allclose(steps["samples_per_second"] * seconds, samples, rtol=2e-3), steps["samples_per_second"], samples / seconds)
    flops = steps["tflops"] * seconds
    check((flops > 0).all() and (len(set(steps["text_tokens"])) > 1 or np.ptp(flops) < 4e-3 * flops.max()), flops)


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
            pattern = rf"memory step {step} +{phase} +Params [\d.]+ .*Grads [\d.]+ .*Optim [\d.]+ .*Allocated [\d.]+ \(peak [\d.]+\)"
            check(re.search(pattern, result.out), "no line", pattern, result)
    progress = re.findall(r"^step (\d+)/3  epoch \d+  loss [\d.]+  lr \S+  grad norm \S+  ([\d.]+) samples/s ", result.out, re.M)
    check([step for step, _ in progress] == ["1", "2", "3"], progress, result)
    rates = 2 * result.steps()["samples_per_second"]  # of two ranks; of the first steps there is no average
    check(np.allclose([float(rate) for _, rate in progress], rates, rtol=1e-3, atol=0.05), progress, rates)
    check("memory of a rank at the peak of a step" in result.out, "no plan table")
    check(result.out.count("blipft ") <= 2 and result.out.count("[done]") == 1, "said by more than one rank:", result)


@test
def progress_on_a_terminal_stays_on_one_line(space):
    for ranks in (0, 2):
        mine, theirs = pty.openpty()
        process = subprocess.Popen(command_line(ranks, [PROGRAM, space.config, "train.max_steps=3", f"output.path={space.new()}"]),
                                   cwd=ROOT, env=environment(ranks), stdin=subprocess.DEVNULL, stdout=theirs)
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
    for ranks, strategy, precision in ((1, "single", "32-true"), (2, "fsdp", "32-true"), (2, "ddp", "bf16-mixed"), (2, "fsdp", "bf16-true")):
        common = (*same_batch, f"train.batch_size={16 // ranks}", f"parallel.strategy={strategy}", f"train.precision={precision}")
        whole = run(space, ranks, *common, "train.max_steps=4")
        first = run(space, ranks, *common, "train.max_steps=3", "output.save_model=true")
        check((first.losses() == whole.losses()[:3]).all(), "the first three steps:", first.losses(), whole.losses())
        second = run(space, ranks, *common, "train.max_steps=1", f"model.path={first.output / 'model'}", "model.init=pretrained")
        check(second.losses()[0] == whole.losses()[3], strategy, precision, second.losses(), "after", whole.losses())
        tensors = read_safetensors(first.output / "model/model.safetensors")
        check({t[0] for t in tensors.values()} == {"BF16" if precision == "bf16-true" else "F32"}, "dtypes of", precision)


@test
def a_model_saved_in_bf16_is_the_rounded_one(space):
    common = ("train.max_steps=2", "output.save_model=true")
    exact = read_safetensors(run(space, 2, *common).output / "model/model.safetensors")
    rounded = read_safetensors(run(space, 2, *common, "output.save_dtype=bf16").output / "model/model.safetensors")
    check(list(exact) == list(rounded), "other tensors")
    for name in exact:
        bits = np.frombuffer(exact[name][2], np.uint32).astype(np.uint64)
        wanted = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
        check(rounded[name][0] == "BF16" and (np.frombuffer(rounded[name][2], np.uint16) == wanted).all(), name)


@test
def the_same_seed_gives_the_same_bits(space):
    common = ("train.max_steps=5", "train.dropout=true", "train.gradient_clip_val=1", "output.save_model=true", "data.num_workers=3")
    for strategy in ("ddp", "fsdp"):
        a, b = (run(space, 2, *common, f"parallel.strategy={strategy}") for _ in range(2))
        check((a.losses() == b.losses()).all() and (a.steps()["grad_norm"] == b.steps()["grad_norm"]).all(), a.losses(), b.losses())
        check((a.output / "model/model.safetensors").read_bytes() == (b.output / "model/model.safetensors").read_bytes(), "weights differ")
    c = run(space, 2, *common, "train.seed=1")
    check((c.losses() != b.losses()).any(), "another seed gives the same losses")


@test
def strategies_and_world_sizes_have_one_loss_curve(space):
    # 8 samples a step in all. f32 sums in another order: 2^-24 times the root of some hundred terms, a few ulps more each
    # step (Adam divides small gradients by themselves); 1e-4 is far below the 1e-2 by which the steps differ.
    common = ("train.max_steps=6", "train.dropout=true", "train.gradient_clip_val=1", "train.eps=1e-4")
    single = run(space, 1, *common, "train.batch_size=8", "parallel.strategy=single").losses()
    for ranks, accumulate, strategy, more in ((1, 2, "single", ()), (2, 1, "ddp", ()), (4, 2, "ddp", ()), (2, 2, "fsdp", ()),
                                              (4, 1, "fsdp", ("parallel.reshard=step",)), (4, 1, "fsdp", ("train.act_ckpt=full",))):
        result = run(space, ranks, *common, f"train.batch_size={8 // ranks // accumulate}", f"parallel.strategy={strategy}",
                     f"train.accumulate_grad_batches={accumulate}", *more)
        distance = np.abs(result.losses() - single).max()
        check(distance < 1e-4, ranks, strategy, more, distance, result.losses(), single)
    check(np.abs(np.diff(single)).max() > 1e-2, "the loss does not move:", single)


@test
def runs_without_mpirun_and_without_a_trace(space):
    result = run(space, 0, "train.max_steps=2", "trace.enabled=false")
    check("rank(s), single" in result.out, result)
    check(not list(result.output.glob("*.h5")), "a trace was written")


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
    status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--gpu-memory", "0.001", space.config])
    check(status == 1 and "does not fit" in out, status, out, err)


# Bad inputs. Each must be told once, by one rank, within seconds, leaving nothing under a final name.

def fails(space, ranks, patterns, *overrides, config=None, output=None):
    result = start(space, ranks, *overrides, config=config)
    check(result.status != 0, "did not fail:", result)
    check(result.seconds < SECONDS_TO_FAIL, "took", result.seconds, "s", result)
    messages = [line for line in result.err.splitlines() if line.startswith("blipft: ")]
    check(len(messages) == 1, "messages:", messages, result)
    for pattern in patterns:
        check(re.search(pattern, messages[0]), "no", repr(pattern), "in", messages[0])
    check("check failed" not in result.err and ".cpp" not in result.err, "not a message for users:", messages[0])
    folder = output or result.output
    left = [p.name for p in folder.iterdir() if not re.fullmatch(r"trace\.rank\d{4}\.h5", p.name)] if folder.is_dir() else []
    check(not left, "left behind:", left)
    return result


@test
def bad_configuration(space):
    fails(space, 2, [r"train\.batchsize", r"batch_size"], "train.batchsize=3")
    config = space.new("bad")
    config.write_text(space.config.read_text().replace("  lr: 1.0e-3\n", "  lr: fast\n"))
    fails(space, 2, [re.escape(str(config)) + r":\d+", r"train\.lr|lr", r"fast"], config=config)
    config.write_text(space.config.read_text() + "oven:\n  heat: 3\n")
    fails(space, 2, [re.escape(str(config)) + r":\d+", r"oven"], config=config)
    fails(space, 2, [r"absent\.yaml"], config=space.folder / "absent.yaml")
    fails(space, 2, [r"parallel\.devices", r"3", r"2"], "parallel.devices=3")
    fails(space, 2, [r"parallel\.strategy", r"single", r"2"], "parallel.strategy=single")
    fails(space, 1, [r"train\.optim", r"adamw"], "train.optim=adamv")


@test
def bad_model_directory(space):
    fails(space, 2, [r"nowhere/config\.json|nowhere"], f"model.path={space.folder / 'nowhere'}")
    model = space.copy(space.model)
    (model / "config.json").unlink()
    fails(space, 2, [r"config\.json"], f"model.path={model}")
    (model / "config.json").write_text('{"model_type": "blip-2", ')
    fails(space, 2, [r"config\.json"], f"model.path={model}")
    config = json.loads((space.model / "config.json").read_text())
    config["model_type"] = "parrot"
    (model / "config.json").write_text(json.dumps(config))
    fails(space, 2, [r"config\.json", r"model_type", r"parrot", r"blip-2"], f"model.path={model}")
    fails(space, 2, [r"model\.safetensors"], "model.init=pretrained")


@test
def bad_tokenizer_and_preprocessor(space):
    model = space.copy(space.model)
    for name in ("tokenizer.json", "vocab.json"):
        (model / name).unlink()
    fails(space, 2, [r"tokenizer\.json|vocab\.json"], f"model.path={model}")
    model = space.copy(space.model)
    (model / "tokenizer.json").write_text("{")
    fails(space, 2, [r"tokenizer\.json"], f"model.path={model}")
    model = space.copy(space.model)
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = model / name
        path.write_text(path.read_text().replace(": 56", ": 64"))
    fails(space, 2, [r"size", r"64", r"56"], f"model.path={model}")


@test
def bad_weights(space):
    good = saved_model(space)
    pretrained = "model.init=pretrained"

    model = space.copy(good)
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:len(data) * 2 // 3])
    fails(space, 2, [r"model\.safetensors", r"truncated|bytes|ends"], f"model.path={model}", pretrained)
    weights.write_bytes(data[:100])
    fails(space, 2, [r"model\.safetensors"], f"model.path={model}", pretrained)
    weights.write_bytes(struct.pack("<Q", 1 << 60) + data[8:])
    fails(space, 2, [r"model\.safetensors"], f"model.path={model}", pretrained)
    weights.write_bytes(b"")
    fails(space, 2, [r"model\.safetensors"], f"model.path={model}", pretrained)

    config = json.loads((good / "config.json").read_text())
    config["vision_config"]["intermediate_size"] = 64
    weights.write_bytes(data)
    (model / "config.json").write_text(json.dumps(config))
    fails(space, 2, [r"model\.safetensors", r"vision_model\.encoder\.layers\.0\.mlp", r"\[48, 32\]|\[48\]", r"\[64, 32\]|\[64\]"], f"model.path={model}", pretrained)

    model = space.copy(good)
    tensors = read_safetensors(good / "model.safetensors")
    write_safetensors(model / "model.safetensors", tensors)
    run(space, 2, f"model.path={model}", pretrained, "train.max_steps=1")  # what is written here can be read
    missing = {n: t for n, t in tensors.items() if n != "qformer.layernorm.weight"}
    check(len(missing) + 1 == len(tensors), "no qformer.layernorm.weight")
    write_safetensors(model / "model.safetensors", missing)
    fails(space, 2, [r"model\.safetensors|" + re.escape(str(model)), r"qformer\.layernorm\.weight"], f"model.path={model}", pretrained)


@test
def bad_data(space):
    fails(space, 2, [r"nothing_here"], f"data.path={space.folder / 'nothing_here'}")
    data = space.copy(space.data)
    lines = (data / "metadata.jsonl").read_text().splitlines()
    entry = json.loads(lines[7])
    entry["file_name"] = "images/absent.jpg"
    (data / "metadata.jsonl").write_text("\n".join(lines[:7] + [json.dumps(entry)] + lines[8:]) + "\n")
    fails(space, 2, [r"metadata\.jsonl", r"8", r"absent\.jpg"], f"data.path={data}")
    (data / "metadata.jsonl").write_text("\n".join(lines[:5] + ["{not json"] + lines[6:]) + "\n")
    fails(space, 2, [r"metadata\.jsonl", r"6"], f"data.path={data}")
    fails(space, 2, [r"48", r"100|200"], "train.batch_size=100")


@test
def a_corrupt_picture_met_while_training_ends_all_ranks(space):
    data = space.copy(space.data)
    lines = (data / "metadata.jsonl").read_text().splitlines()
    # In order, with 4 a rank and 8 a step: sample 21 belongs to step 2 and to rank 1 alone.
    name = json.loads(lines[21])["file_name"]
    picture = data / name
    picture.write_bytes(picture.read_bytes()[:200])
    result = start(space, 2, f"data.path={data}", "data.shuffle=false", "output.save_model=true", "parallel.strategy=fsdp")
    check(result.status != 0 and result.seconds < SECONDS_TO_FAIL, result.seconds, result)
    messages = [line for line in result.err.splitlines() if line.startswith("blipft: ")]
    check(len(messages) == 1 and "rank 1" in messages[0] and pathlib.Path(name).name in messages[0], messages, result)
    check(sorted(p.name for p in result.output.iterdir()) == ["trace.rank0000.h5", "trace.rank0001.h5"], list(result.output.iterdir()))
    for rank in range(2):  # what was recorded until then can be read
        with h5py.File(result.output / f"trace.rank{rank:04d}.h5", "r", libver="latest", swmr=True) as file:
            check(file["steps"].shape[0] <= 2, file["steps"].shape)


@test
def a_trace_that_one_rank_cannot_write_ends_all_ranks(space):
    for rank in range(3):
        output = space.new("output")
        (output / f"trace.rank{rank:04d}.h5").mkdir(parents=True)
        fails(space, 3, [rf"trace\.rank{rank:04d}\.h5"], f"output.path={output}", output=output)


@test
def an_output_folder_that_cannot_be_made(space):
    obstacle = space.new("file")
    obstacle.write_text("a file\n")
    fails(space, 2, [r"output\.path", re.escape(str(obstacle))], f"output.path={obstacle}/run", output=obstacle)
    check(obstacle.read_text() == "a file\n", "the file changed")


if __name__ == "__main__":
    sys.exit(run_tests("program_test", Space, PROGRAM))
