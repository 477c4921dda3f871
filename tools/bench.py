#!/usr/bin/env python3
"""Times blipft's configurations on this machine's GPUs, with PyTorch beside them where it is there; prints one table.

    tools/bench.py                               every configuration, on four GPUs at most
    tools/bench.py --only single-16x4,ddp-64x1   these alone
    tools/bench.py --cpu-smoke                   tests this script with a tiny model on two CPU ranks

A configuration is named STRATEGY-BxA: micro-batches of B samples, A of them a step, on each GPU. The model is BLIP-2
opt-2.7b with random weights in bf16, the texts are always 50 tokens; no file has to be there, but --model and --data
take your own. A step's time is the median distance between the beginnings of consecutive steps on the device's clock,
the first three left out, of the slowest rank. Measured memory is what nvidia-smi reports, less what was in use before.
PyTorch runs the same step through --torch-script, plain ("eager") and compiled, fused, with FSDP2: "best" is the
fastest that ran, ratio its time divided by blipft's. That is most of the bench's time; --torch none leaves it out.

Progress goes to stderr, the table (Markdown) to stdout, everything else to OUT/bench.json: command lines, versions, the
times of all steps. Needs python3 with numpy and h5py, and PIL where it draws the pictures itself. Exit status: 0 when
every configuration that was tried has run, 1 when one failed or none ran, 2 for a wrong call or a machine without GPU.
"""
import argparse
import contextlib
import datetime
import io
import json
import math
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

import make_demo
from blipft_trace.files import TraceError, open_run

ROOT = pathlib.Path(__file__).resolve().parent.parent
GIB = 2.0 ** 30
TEXT_TOKENS = 50
WARMUP = 3       # steps left out: the first ones capture the graph and fill the queues
PICTURES, PICTURE_SIZE = 256, 256
SMOKE_RANKS, SMOKE_SHRINK = 2, 8  # --cpu-smoke divides batch sizes by this

# torch: arguments of torch_bench.py, plain and in the fastest variant known for the row.
COMPILED = ["--compile", "--fused"]
CONFIGURATIONS = [
    dict(name="single-16x4", strategy="single", batch=16, accumulate=4, eager=["single"], best=["single", *COMPILED]),
    dict(name="single-64x1", strategy="single", batch=64, accumulate=1, eager=["single"], best=["single", *COMPILED]),
    dict(name="ddp-16x4", strategy="ddp", batch=16, accumulate=4, eager=["ddp"], best=["ddp", *COMPILED]),
    dict(name="ddp-64x1", strategy="ddp", batch=64, accumulate=1, eager=["ddp"], best=["ddp", *COMPILED]),
    dict(name="fsdp-16x4", strategy="fsdp", batch=16, accumulate=4, keys=["parallel.reshard=always"], eager=["fsdp1"],
         best=["fsdp2", *COMPILED, "--no-sync", "--reshard", "0"]),
    dict(name="fsdp-64x1", strategy="fsdp", batch=64, accumulate=1, keys=["parallel.reshard=always"], eager=["fsdp1"],
         best=["fsdp2", *COMPILED]),
    dict(name="fsdp-16x4-ckpt", strategy="fsdp", batch=16, accumulate=4,
         keys=["parallel.reshard=always", "train.act_ckpt=full"], eager=["fsdp1", "--ckpt"],
         best=["fsdp2", "--fused", "--ckpt"]),
    dict(name="fsdp-16x4-auto", strategy="fsdp", batch=16, accumulate=4, keys=["parallel.reshard=auto"],
         eager=["fsdp1"], best=["fsdp2", *COMPILED, "--no-sync", "--reshard", "0"]),
]
NAMES = [configuration["name"] for configuration in CONFIGURATIONS]


class BenchError(Exception):
    """A run that failed; its text has the last lines that it printed."""


def say(*words):
    print(f"[{time.monotonic() - say.start:7.1f} s]", *words, file=sys.stderr, flush=True)


say.start = time.monotonic()


def output_of(command, timeout=60):
    """Standard output of a short command, None where it cannot be had."""
    try:
        result = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


# The GPUs.

def find_gpus():
    """[{id, name, driver}] of the GPUs that programs see, in the order of their ids."""
    listed = output_of(["nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader"])
    gpus = []
    for line in (listed or "").splitlines():
        index, uuid, name, driver = (field.strip() for field in line.split(","))
        gpus.append(dict(id=index, uuid=uuid, name=name, driver=driver))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    wanted = [word.strip() for word in visible.split(",") if word.strip()]
    found = [next((g for g in gpus if w == g["id"] or g["uuid"].startswith(w)), None) for w in wanted]
    return [gpu for gpu in found if gpu]


class MemoryPoll:
    """Polls the GPUs' used memory while a command runs; peak_bytes is the most on any, less what was used before."""

    def __init__(self, gpus, seconds=0.2):
        self.ids, self.seconds = ",".join(gpu["id"] for gpu in gpus), seconds
        self.stopped, self.thread = threading.Event(), threading.Thread(target=self.poll, daemon=True)
        self.before = self.read()
        self.peak = list(self.before)

    def read(self):
        """MiB of each GPU; empty where nvidia-smi does not say."""
        listed = output_of(["nvidia-smi", f"--id={self.ids}", "--query-gpu=memory.used",
                            "--format=csv,noheader,nounits"], timeout=10) if self.ids else None
        try:
            return [float(line) for line in (listed or "").splitlines()]
        except ValueError:  # [N/A]
            return []

    def poll(self):
        while not self.stopped.wait(self.seconds):
            now = self.read()
            if len(now) == len(self.peak):
                self.peak = [max(pair) for pair in zip(self.peak, now)]

    def __enter__(self):
        if self.before:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        if self.before:
            self.thread.join()

    @property
    def peak_bytes(self):
        return max(p - b for p, b in zip(self.peak, self.before)) * 2 ** 20 if self.before else None


# Running a command.

def end_process(process):
    """mpirun and torchrun end their ranks when they get a SIGTERM; what is left of the session is killed."""
    for number, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def last_lines(log, count=12):
    lines = log.read_text(errors="replace").splitlines()
    if "Primary job  terminated normally, but 1 process returned" in lines:  # mpirun's words; the program's come before
        lines = lines[:lines.index("Primary job  terminated normally, but 1 process returned") - 1]
    return "\n".join("    " + line for line in lines[-count:]) or "    (it printed nothing)"


def run_command(command, log, gpus, timeout):
    """{start_ns, seconds, measured_bytes}; output goes to `log`. Raises BenchError when it fails or takes too long."""
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # containers often forbid it; Open MPI warns each time
           "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}     # nvidia-smi's order
    with MemoryPoll(gpus) as memory, open(log, "w") as out:
        start_ns, start = time.time_ns(), time.monotonic()
        try:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            raise BenchError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            end_process(process)
            raise BenchError(f"ended after {timeout:.0f} s; its last lines ({log}):\n{last_lines(log)}") from None
        except BaseException:  # interrupted: leave no rank behind
            end_process(process)
            raise
        seconds = time.monotonic() - start
    if status != 0:
        raise BenchError(f"exit status {status}; its last lines ({log}):\n{last_lines(log)}")
    return dict(start_ns=start_ns, seconds=seconds, measured_bytes=memory.peak_bytes)


# What blipft is given.

def blip2_config():
    """config.json of BLIP-2 opt-2.7b: what differs from the small model of make_demo.py."""
    config = make_demo.model_config(50304, 50265)
    config["num_query_tokens"] = 32
    config["vision_config"].update(hidden_size=1408, intermediate_size=6144, num_hidden_layers=39,
                                   num_attention_heads=16, image_size=224, patch_size=14)
    config["qformer_config"].update(hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                                    num_attention_heads=12, encoder_hidden_size=1408, vocab_size=30522)
    config["text_config"].update(hidden_size=2560, ffn_dim=10240, num_hidden_layers=32, num_attention_heads=32,
                                 word_embed_proj_dim=2560, max_position_embeddings=2048)
    return config


def write_model(folder, tokenizer, captions, small):
    """A model directory without weights; `tokenizer` is a directory to copy, None: one is made from the captions."""
    with contextlib.redirect_stdout(io.StringIO()):  # it reports the small model
        make_demo.write_model(str(folder), captions)
    if small and tokenizer:
        make_demo.write_json(folder / "config.json", make_demo.model_config(50304, 50265))
    if not small:
        make_demo.write_json(folder / "config.json", blip2_config())
        preprocessor = make_demo.preprocessor_config()
        preprocessor["size"] = {"height": 224, "width": 224}
        make_demo.write_json(folder / "preprocessor_config.json", preprocessor)
    if not tokenizer:
        return
    source = pathlib.Path(tokenizer)
    if not (source / "tokenizer.json").exists() and not (source / "merges.txt").exists():
        raise BenchError(f"--tokenizer {source}: holds neither tokenizer.json nor vocab.json with merges.txt")
    named = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    for name in ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    config = dict(tokenizer_class="GPT2Tokenizer", add_bos_token=True, add_prefix_space=False, **named)
    if (source / "tokenizer_config.json").exists():
        config = json.loads((source / "tokenizer_config.json").read_text())
    make_demo.write_json(folder / "tokenizer_config.json", config)


def write_data(folder, count, size):
    """Drawn pictures of size x size and their captions; drawn once, since the same seed gives the same."""
    metadata = folder / "metadata.jsonl"
    if metadata.exists():
        captions = [json.loads(line)["text"] for line in metadata.read_text().splitlines()]
        if len(captions) == count:
            return captions
    (folder / "images").mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    entries = []
    for index in range(count):
        picture, caption = make_demo.make_sample(generator)
        name = f"images/{index:06d}.jpg"
        picture.resize((size, size)).save(folder / name, quality=92)
        entries.append({"file_name": name, "text": caption})
    metadata.write_text("".join(json.dumps(entry) + "\n" for entry in entries))  # last: it says that all are there
    return [entry["text"] for entry in entries]


def shown(path):
    """A path as commands name it: from the repository's root where it lies below."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def prepare_inputs(arguments, out):
    """Model and data paths, written into `out` where none were given."""
    small = arguments.cpu_smoke
    data, model = arguments.data, arguments.model
    captions = []
    if not data or not model:
        count, size = (32, 64) if small else (PICTURES, PICTURE_SIZE)
        say(f"pictures in {shown(out / 'data')}")
        captions = write_data(out / "data", count, size)
    if not model:
        say(f"model without weights in {shown(out / 'model')}")
        write_model(out / "model", arguments.tokenizer, captions, small)
    return shown(model or out / "model"), shown(data or out / "data")


# blipft.

class Bench:
    """What all rows share: arguments, GPUs, inputs, the time that is left, and the record that bench.json holds."""

    def __init__(self, arguments, gpus, ranks, out):
        self.arguments, self.gpus, self.ranks, self.out = arguments, gpus, ranks, out
        self.smoke, self.program = arguments.cpu_smoke, shown(arguments.blipft)
        self.deadline = say.start + arguments.budget if arguments.budget else math.inf
        self.torch, self.torch_results, self.gemm_tflops = None, {}, None
        self.record = dict(rows=[], gpus=[gpu["name"] for gpu in gpus], ranks=ranks, arguments=sys.argv[1:],
                           date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"))

    def seconds_left(self, limit):
        """Time for the next command, 0 where the budget is spent."""
        return max(0.0, min(limit, self.deadline - time.monotonic()))

    def write(self):
        path = self.out / "bench.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self.record, indent=1) + "\n")
        partial.replace(path)

    def blipft_command(self, configuration, ranks, folder):
        strategy, batch, accumulate = (configuration[key] for key in ("strategy", "batch", "accumulate"))
        if self.smoke:
            batch = max(1, batch // SMOKE_SHRINK)
        arguments = self.arguments
        samples = arguments.steps * batch * accumulate * ranks
        init = "pretrained" if list((ROOT / self.model).glob("*.safetensors")) else "random"
        options = ["-np", str(ranks), "--bind-to", "none"]
        options += ["--oversubscribe"] if self.smoke else []
        options += ["--allow-run-as-root"] if os.getuid() == 0 else []
        return ["mpirun", *options, self.program, f"inputs/{strategy}.yaml", f"model.path={self.model}",
                f"model.init={init}", f"data.path={self.data}", f"data.num_train_samples={samples}",
                "data.text_padding=max", f"data.max_text_tokens={TEXT_TOKENS}", f"train.batch_size={batch}",
                f"train.accumulate_grad_batches={accumulate}", "train.max_epochs=1",
                f"train.max_steps={arguments.steps}", f"parallel.devices={ranks}",
                f"parallel.device={'cpu' if self.smoke else 'cuda'}",
                *configuration.get("keys", []), f"output.path={shown(folder)}"]

    def run_blipft(self, configuration, ranks, repeat, limit):
        """One run's measurements."""
        folder = self.out / (configuration["name"] + (f".{repeat + 1}" if repeat else ""))
        for old in folder.glob("trace.rank*.h5"):
            old.unlink()
        command = self.blipft_command(configuration, ranks, folder)
        result = dict(command=" ".join(command))
        result.update(run_command(command, folder / "blipft.log", self.gpus[:ranks], limit))
        result.update(read_traces(folder, ranks, self.arguments.steps, result.pop("start_ns")))
        return result

    def run_torch(self, configuration, variant, ranks):
        """torch_bench.py's RESULT, or {error}; equal commands run once."""
        if not self.torch:
            return None
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [self.torch["python"], *launch, self.torch["script"], "--strategy", *configuration[variant],
                   "--bs", str(configuration["batch"]), "--accum", str(configuration["accumulate"]),
                   "--seq", str(TEXT_TOKENS), "--steps", str(max(3, self.arguments.steps // 2))]
        line = " ".join(command)
        if line in self.torch_results:
            return self.torch_results[line]
        limit = self.seconds_left(self.arguments.torch_timeout)
        if limit == 0:
            return dict(command=line, skipped="the budget is spent")
        log = self.out / configuration["name"] / f"torch-{variant}.log"
        result = dict(command=line)
        try:
            outcome = run_command(command, log, self.gpus[:ranks], limit)
            results = [row[7:] for row in log.read_text(errors="replace").splitlines() if row.startswith("RESULT ")]
            if not results:
                raise BenchError(f"printed no RESULT line; its last lines ({log}):\n{last_lines(log)}")
            result.update(json.loads(results[-1]), seconds=outcome["seconds"], measured_bytes=outcome["measured_bytes"])
            say(f"{configuration['name']}: torch {variant} {result['step_s']:.4f} s/step")
        except BenchError as error:
            result["error"] = str(error)
            say(f"{configuration['name']}: torch {variant} FAILED: {error}")
        self.torch_results[line] = result
        return result


def read_traces(folder, ranks, steps, command_ns):
    """Times of the steps and what the trace says of the run; the slowest rank counts."""
    try:
        traces = open_run(folder)
    except TraceError as error:
        raise BenchError(str(error)) from error
    if len(traces) != ranks:
        raise BenchError(f"{folder}: has the traces of {len(traces)} ranks, expected {ranks}")
    periods, waits, first, driver = [], [], [], []
    for trace in traces:
        rows = trace.steps()
        if len(rows) != steps:
            raise BenchError(f"{trace.path}: has {len(rows)} steps, expected {steps}")
        periods.append((np.diff(rows["begin_ns"]) * 1e-9).tolist())
        waits.append((rows["data_wait_ns"] * 1e-9).tolist())
        first.append((float(trace.attributes()["start_unix_ns"]) + float(rows["end_ns"][0]) - command_ns) * 1e-9)
        if trace.rows("driver_memory"):
            driver.append(int(trace.read("driver_memory")["total_bytes"].max()))
    seconds = max(statistics.median(rank[WARMUP:]) for rank in periods)
    about = {key: (value.item() if isinstance(value, np.generic) else value)
             for key, value in traces[0].attributes().items()}
    for trace in traces:
        trace.file.close()
    return dict(
        step_s=seconds, samples_s=about["samples_per_step"] * ranks / seconds,
        tflops_gpu=about["flops_per_step"] / seconds * 1e-12, first_step_s=max(first),
        data_wait_s=max(statistics.median(rank[WARMUP:]) for rank in waits),
        planned_bytes=about.get("planned_total_bytes", about["planned_bytes"]),
        driver_bytes=max(driver) if driver else None, periods_s=periods, data_waits_s=waits,
        attributes={key: about[key] for key in sorted(about) if key not in ("config", "rank")})


# The rest of the machine's numbers.

def gemm_rate(bench):
    """TFLOP/s of the 8192^3 bf16 product; None where op_bench is not built."""
    program = pathlib.Path(bench.arguments.op_bench).resolve()
    if bench.smoke or not os.access(program, os.X_OK):
        if not bench.smoke:
            say(f"no {shown(program)} (make op_bench builds it): the share of the GEMM rate is left out")
        return None
    path = bench.out / "gemm.json"
    path.unlink(missing_ok=True)
    try:  # op_bench measures its ceilings first, whatever the filter lets through
        run_command([str(program), "--filter", "(only the ceilings)", "--json", str(path)],
                    bench.out / "op_bench.log", [], bench.seconds_left(120))
        rate = float(json.loads(path.read_text())["gemm_tflop_s"])
    except (BenchError, OSError, ValueError, KeyError) as error:
        say(f"op_bench FAILED: {error}")
        return None
    say(f"bf16 product of 8192 x 8192 x 8192: {rate:.0f} TFLOP/s")
    return rate


def find_torch(arguments):
    """{python, script, versions} to compare with, or None, having said why."""
    if arguments.torch == "none" or arguments.cpu_smoke:
        return None
    script = pathlib.Path(arguments.torch_script).resolve()
    if not script.exists():
        say(f"no {script.name}: no comparison with PyTorch (--torch-script names one)")
        return None
    ask = "import torch, transformers as t; print(torch.__version__, torch.version.cuda, t.__version__)"
    for python in [arguments.torch_python] if arguments.torch_python else [sys.executable, "python3"]:
        versions = output_of([python, "-c", ask], timeout=120)
        if versions:
            torch, cuda, transformers = versions.splitlines()[-1].split()
            return dict(python=python, script=str(script), torch=torch, cuda=cuda, transformers=transformers)
    say("no python3 here has torch and transformers: no comparison with PyTorch (--torch-python names one)")
    return None


def versions_of(bench):
    changed = output_of(["git", "status", "--porcelain", "--untracked-files=no"])
    cache = pathlib.Path(os.environ.get("HOME", "/")) / ".cache/blipft/gemm_algorithms.txt"
    return dict(
        driver=bench.gpus[0]["driver"] if bench.gpus else None, commit=output_of(["git", "rev-parse", "HEAD"]),
        changed_files=len(changed.splitlines()) if changed else 0, torch=bench.torch,
        blipft=output_of([ROOT / bench.program, "--version"], timeout=10), mpirun=output_of(["mpirun", "--version"]),
        python=platform.python_version(), kernel=platform.release(), host_cores=os.cpu_count(),
        gemm_algorithms_were_cached=cache.exists())


# Rows and table.

def measure_row(bench, configuration):
    """Fills one row of the record: the runs, their medians, PyTorch's."""
    name, arguments = configuration["name"], bench.arguments
    row = dict(name=name, runs=[])
    ranks = 1 if configuration["strategy"] == "single" else bench.ranks
    if configuration["strategy"] != "single" and ranks < 2:
        row["skipped"] = "needs two GPUs or more"
    for repeat in range(0 if "skipped" in row else arguments.repeat):
        limit = bench.seconds_left(arguments.timeout)
        if limit == 0:
            if not row["runs"]:
                row["skipped"] = "the budget is spent"
            break
        try:
            row["runs"].append(bench.run_blipft(configuration, ranks, repeat, limit))
        except BenchError as error:
            row["error"] = str(error)
            say(f"{name}: FAILED: {error}")
            break
        say(f"{name}: {run_line(row['runs'][-1])}")
    if "skipped" in row:
        say(f"{name}: skipped: {row['skipped']}")
        return row
    for key in ("step_s", "samples_s", "tflops_gpu", "first_step_s", "seconds", "data_wait_s", "planned_bytes",
                "measured_bytes", "driver_bytes"):
        values = [run[key] for run in row["runs"] if run[key] is not None]
        row[key] = statistics.median(values) if values else None
    for variant in ("eager", "best"):
        if arguments.torch == "all" or arguments.torch == variant:
            row["torch_" + variant] = bench.run_torch(configuration, variant, ranks)
    return row


def run_line(run):
    memory = f", measured {run['measured_bytes'] / GIB:.1f} GiB" if run["measured_bytes"] is not None else ""
    return (f"{run['step_s']:.4f} s/step, {run['tflops_gpu']:.3g} TFLOP/s a rank, first step after "
            f"{run['first_step_s']:.1f} s, prompt after {run['seconds']:.1f} s, waited for data "
            f"{run['data_wait_s'] * 1e3:.2f} ms/step, planned {run['planned_bytes'] / GIB:.2f} GiB{memory}")


def number(value, form):
    return "-" if value is None else format(value, form)


def torch_seconds(result):
    return result.get("step_s") if result else None


def torch_cell(result):
    if not result:
        return "-"
    return f"{result['step_s']:.3f}" if "step_s" in result else "failed" if "error" in result else "skipped"


def table_row(bench, row):
    if "skipped" in row or not row["runs"]:
        return [row["name"], "skipped" if "skipped" in row else "failed"] + ["-"] * 9
    gib = [None if row[key] is None else row[key] / GIB for key in ("planned_bytes", "measured_bytes")]
    share = row["tflops_gpu"] / bench.gemm_tflops if bench.gemm_tflops else None
    # The best is the fastest of what was measured: compiling does not pay in every row.
    eager, best = row.get("torch_eager"), row.get("torch_best")
    known = [result for result in (eager, best) if torch_seconds(result)]
    fastest = min(known, key=torch_seconds) if known else best
    ratio = torch_seconds(fastest) / row["step_s"] if known else None
    return [row["name"], number(row["step_s"], ".4f"), number(row["samples_s"], ".1f"),
            number(row["tflops_gpu"], ".3g" if row["tflops_gpu"] < 1 else ".0f"), number(share, ".0%"),
            number(gib[0], ".2f"), number(gib[1], ".2f"), number(row["first_step_s"], ".1f"), torch_cell(eager),
            torch_cell(fastest), number(ratio, ".2f")]


def print_table(bench):
    record = bench.record
    titles = ["configuration", "s/step", "samples/s", "TFLOP/s per GPU", "of GEMM rate", "planned GiB", "measured GiB",
              "command to first step s", "torch eager s", "torch best s", "ratio"]
    lines = [titles] + [table_row(bench, row) for row in record["rows"]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    lines.insert(1, ["-" * widths[0]] + ["-" * (width - 1) + ":" for width in widths[1:]])
    for line in lines:
        cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("| " + " | ".join(cells) + " |")
    print()
    where = f"{len(bench.gpus)} x {bench.gpus[0]['name']}" if bench.gpus else f"{bench.ranks} CPU ranks, a tiny model"
    gemm = f", 8192^3 bf16 product {bench.gemm_tflops:.0f} TFLOP/s" if bench.gemm_tflops else ""
    versions = record["versions"]
    torch = f", torch {versions['torch']['torch']}" if versions["torch"] else ""
    driver = f", driver {versions['driver']}" if versions["driver"] else ""
    changed = f" and {versions['changed_files']} changed files" if versions["changed_files"] else ""
    print(f"{where}{gemm}{driver}{torch}, commit {(versions['commit'] or 'unknown')[:12]}{changed}; "
          f"{bench.arguments.steps} steps a run, {bench.arguments.repeat} run(s) a row; GEMM algorithms were "
          f"{'' if versions['gemm_algorithms_were_cached'] else 'not '}cached before")
    for row in record["rows"]:
        for what, part in (("", row), (" torch eager", row.get("torch_eager")), (" torch best", row.get("torch_best"))):
            note = part and (part.get("error") or part.get("skipped"))
            if note:
                print(f"\n{row['name']}{what} {'failed' if 'error' in part else 'skipped'}: {note}")
    print(f"\nEverything measured: {shown(bench.out / 'bench.json')}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", help="configurations to run, separated by commas: " + ", ".join(NAMES))
    add("--ranks", type=int, help="GPUs of ddp and fsdp (default: those there are, 4 at most)")
    add("--steps", type=int, default=10, help="optimizer steps of a run (default 10)")
    add("--repeat", type=int, default=1, help="runs of each configuration, the table has their medians (default 1)")
    add("--model", help="model directory (default: BLIP-2 opt-2.7b without weights, written into OUT)")
    add("--tokenizer", help="directory whose tokenizer the written model gets (default: one made from the captions)")
    add("--data", help="dataset (default: drawn pictures, written into OUT)")
    add("--out", default=ROOT / "runs/bench", help="folder for results, logs and traces (default runs/bench)")
    add("--budget", type=float, help="seconds after which the remaining rows are skipped")
    add("--timeout", type=float, default=300, help="seconds that one run of blipft may take (default 300)")
    add("--torch", choices=("none", "best", "all"), default="all", help="what to run of PyTorch (default all)")
    add("--torch-script", default=ROOT / "../shared/anchors/torch_bench.py",
        help="the same step in PyTorch (default ../shared/anchors/torch_bench.py, where it is)")
    add("--torch-python", help="the python3 that has torch and transformers")
    add("--torch-timeout", type=float, default=300, help="seconds that one run of it may take (default 300)")
    add("--blipft", default=ROOT / "blipft", help="the program (default ./blipft)")
    add("--op-bench", default=ROOT / "build/cuda/op_bench", help="measures the GEMM rate (default build/cuda/op_bench)")
    add("--cpu-smoke", action="store_true", help="a tiny model on two CPU ranks: tests this script, measures nothing")
    arguments = parser.parse_args()
    wrong = [name for name in (arguments.only or "").split(",") if name and name not in NAMES]
    if wrong:
        parser.error(f"--only: there is no {wrong[0]}; expected some of {', '.join(NAMES)}")
    if arguments.steps < WARMUP + 2:
        parser.error(f"--steps is {arguments.steps}; at least {WARMUP + 2} are needed, since {WARMUP} are left out")
    if arguments.repeat < 1 or arguments.ranks is not None and arguments.ranks < 1:
        parser.error("--repeat and --ranks must be 1 or more")
    return arguments


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an interrupt: ends the ranks, prints the table
    gpus = [] if arguments.cpu_smoke else find_gpus()
    if not gpus and not arguments.cpu_smoke:
        print("bench.py: nvidia-smi finds no GPU here and the bench needs one; --cpu-smoke tests this script without",
              file=sys.stderr)
        return 2
    ranks = arguments.ranks or (SMOKE_RANKS if arguments.cpu_smoke else min(4, len(gpus)))
    if gpus and ranks > len(gpus):
        print(f"bench.py: --ranks is {ranks}, but there are {len(gpus)} GPUs", file=sys.stderr)
        return 2
    out = pathlib.Path(arguments.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments, gpus, ranks, out)
    try:
        bench.model, bench.data = prepare_inputs(arguments, out)
    except BenchError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    bench.torch = find_torch(arguments)
    bench.record["versions"] = versions_of(bench)
    rows = bench.record["rows"]
    try:
        bench.gemm_tflops = bench.record["gemm_tflops"] = gemm_rate(bench)
        for configuration in CONFIGURATIONS:
            if not arguments.only or configuration["name"] in arguments.only.split(","):
                rows.append(measure_row(bench, configuration))
                bench.write()
    except KeyboardInterrupt:
        say("interrupted: the table has what was measured until then")
    bench.write()
    print_table(bench)
    return 0 if any(row["runs"] for row in rows) and not any("error" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
