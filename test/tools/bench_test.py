#!/usr/bin/env python3
"""tools/bench.py without a GPU: its smoke run, and its GPU path on stand-ins for nvidia-smi, torch and op_bench.

    python3 test/tools/bench_test.py [PART-OF-A-NAME...]

BLIPFT names the program (default ./blipft); BLIPFT_TORCH_PYTHON a python3 that has torch and transformers. Prints
"ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import Skip, check, run_tests, test

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.path.abspath(os.environ.get("BLIPFT", ROOT / "blipft"))
try:
    import h5py
    import numpy as np
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED bench_test ({missing})")
    sys.exit(0)
sys.path.insert(0, str(ROOT / "tools"))

GIB = 2 ** 30
STEPS = 5


class Result:
    """A call of bench.py: status, output, the table's cells by row name, and bench.json."""

    def __init__(self, space, *arguments, program=PROGRAM, path=None, env=None):
        space.count += 1
        self.out_folder = space.folder / f"out{space.count}"
        # No GPU of this machine is used: what the tests see, they bring along.
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **(env or {})}
        if path:
            env["PATH"] = f"{path}:{env['PATH']}"
            del env["CUDA_VISIBLE_DEVICES"]
        command = [sys.executable, str(ROOT / "tools/bench.py"), "--out", str(self.out_folder), "--steps", str(STEPS),
                   "--blipft", str(program), *arguments]
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.out.splitlines()
                 if line.startswith("|")]
        lines = lines[:len(lines) if "\nAs the README" not in self.out else self.out.split("\nAs the README")[0].count("\n|") + 1]
        self.rows = {line[0]: dict(zip(lines[0], line)) for line in lines[2:]}
        name = next((name for name in ("ops", "auto") if "--" + name in arguments), "bench")
        path = self.out_folder / (name + ".json")
        self.json = json.loads(path.read_text()) if path.exists() else None

    def __str__(self):
        return f"status {self.status}\n{self.out}\n{self.err}"


def close(a, b):
    return abs(a - b) <= 1e-9 * abs(b)  # the same doubles, in another order of operations


def has_ended(pid_file, patience=10):
    """Whether the process whose number is in the file is gone; a zombie, which only waits to be collected, is."""
    stat, deadline = pathlib.Path(f"/proc/{pid_file.read_text().strip()}/stat"), time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


class Space:
    def __init__(self, folder):
        self.folder, self.count = pathlib.Path(folder), 0

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def failing(self, name, text):
        """A stand-in for blipft that does not train, but says its version."""
        return self.program(name, '#!/bin/bash\n[ "$1" = --version ] && exit\n' + text)

    def stand_ins(self):
        """A machine with two GPUs: 100 MiB are used on each before a run, 100 + 1536 on the second while it runs."""
        # Each run asks once before it starts; the file "running" is there while the program runs.
        running = self.folder / "running"
        self.program("bin/nvidia-smi", f"""#!/bin/bash
case "$*" in
  *driver_version*) echo "0, GPU-aa, Stand-in, 1.2.3"; echo "1, GPU-bb, Stand-in, 1.2.3" ;;
  *memory.used*) echo 100; case "$*" in *=0,1*) if [ -e {running} ]; then echo 1636; else echo 100; fi ;; esac ;;
  *) exit 1 ;;
esac
""")
        sizes = dict(name="vit", batch=1, heads=2, queries=3, keys=3, head_size=4, causal=True, dropout=0)
        times = (("forward", "memory", 4.0), ("forward", "L2", 3.0), ("backward", "memory", 5.0))
        ops = [{"op": "attention_" + phase, "shape": "vit 1", "from": source, "us": us, "attention": sizes}
               for phase, source, us in times]
        (self.folder / "ops.json").write_text(json.dumps(dict(gemm_tflop_s=0.5, copy_tb_s=4.5, ops=ops)))
        self.program("op_bench", f"""#!/bin/bash
echo "op_bench: all of it"; cp {self.folder}/ops.json "${{@: -1}}"
""")
        other = dict(sizes, flash=dict(forward=2.0, backward=8.0), cudnn=dict(error="no"))
        (self.folder / "attention.json").write_text(json.dumps(dict(shapes=[other])))
        self.program("python", f"""#!/bin/bash
case "$*" in
  "-c "*transformers*) echo 9.9 8.8 ;;
  "-c "*) echo 9.9 ;;
  *bench_attention*) cp {self.folder}/attention.json "${{@: -1}}" ;;
  *fsdp2*--bs?64*) echo "torch.OutOfMemoryError: out of luck"; echo "[rank0]: goodbye"; exit 1 ;;
  *--compile*) echo 'RESULT {{"step_s": 2.0}}' ;;
  *) echo 'RESULT {{"step_s": 2.5}}' ;;
esac
""")
        self.program("torch_step.py", "")
        return self.program("on_cpu", f"""#!/bin/bash
touch {running}; trap 'rm -f {running}' EXIT
{PROGRAM} "${{@/parallel.device=cuda/parallel.device=cpu}}" train.batch_size=1 && sleep 1.3
""")


def traced(folder):
    """[rank] rows of /steps and attributes, read without the project's own reader."""
    ranks = []
    for path in sorted(folder.glob("trace.rank*.h5")):
        with h5py.File(path, "r", libver="latest", swmr=True) as file:
            ranks.append((file["steps"][:], dict(file.attrs)))
    return ranks


@test
def smoke_run(space):
    result = Result(space, "--cpu-smoke", "--rows", "single-16x4,fsdp-16x4-ckpt")
    check(result.status == 0, result)
    check(list(result.rows) == ["single-16x4", "fsdp-16x4-ckpt"], result)
    for name, ranks in (("single-16x4", 1), ("fsdp-16x4-ckpt", 2)):
        row = next(row for row in result.json["rows"] if row["name"] == name)
        files = traced(result.out_folder / name)
        check(len(files) == ranks, name, len(files))
        periods = [np.diff(steps["begin_ns"]) * 1e-9 for steps, _ in files]
        wanted = max(float(np.median(p[3:])) for p in periods)
        check(close(row["step_s"], wanted), name, row["step_s"], wanted)
        check(close(row["samples_s"], 2 * 4 * ranks / wanted), name, row["samples_s"])
        check(close(row["tflops_gpu"], files[0][1]["flops_per_step"] / wanted * 1e-12), name, row["tflops_gpu"])
        check(row["planned_bytes"] >= files[0][1]["planned_bytes"] > 0 and row["measured_bytes"] is None, row)
        check(0 < row["first_step_s"] < row["seconds"], name, row["first_step_s"], row["seconds"])
        check(all((steps["text_tokens"] == 50).all() and len(steps) == STEPS for steps, _ in files), name, "steps")
        check(result.rows[name]["blipft"] == f"{wanted:.4f} s" and result.rows[name]["ratio"] == "-", result)
    command = result.json["rows"][1]["runs"][0]["command"]
    check("-np 2" in command and "train.act_ckpt=full" in command and "parallel.reshard=always" in command, command)
    check("--cpu-smoke" in result.json["command"] and result.json["date"].startswith("20"), result.json["command"])


@test
def auto_beside_what_fit_lists(space):
    result = Result(space, "--cpu-smoke", "--auto", "--rows", "tiny-full,blip2-lora")
    check(result.status == 0, result)
    for row in result.json["rows"]:
        runs = row["runs"]
        check(2 <= len(runs) <= 4 and [run["what"] for run in runs].count("auto") == 1, row)
        check("train.batch_size=auto" in runs[0]["command"] and "micro-batch" in runs[0]["choice"], runs[0])
        for run in runs:
            check(close(run["step_s"], float(np.median(run["periods_s"][0][3:]))), run)
        check(len({(run["config"].split("batch_size: ")[1].split()[0], run["choice"]) for run in runs}) == len(runs), row)
    lines = [line for line in result.out.splitlines() if "**auto**" in line]
    check(len(lines) == 2 and "1.000" in result.out, result)


@test
def generation(space):
    result = Result(space, "--cpu-smoke", "--generate", "--rows", "7b-1,7b-nf4-1,captions-beam5,prefill")
    check(result.status == 0, result)
    for row in result.json["rows"]:
        run, cells = row["run"], row["cells"]
        check("--generate" in run["command"] and run["texts"] == (1 if row["name"].startswith("7b") else 2), row)
        check(close(cells["texts/s"], run["texts"] / run["seconds"]), row)
        check((row["name"] == "prefill") == ("TFLOP/s" in cells), row)
    check("model.quantize=nf4" in result.json["rows"][1]["run"]["command"], result.json["rows"][1])
    check(result.out.count("|") > 40 and "bound ms" in result.out, result)


@test
def products_in_fp8(space):
    result = Result(space, "--cpu-smoke", "--fp8", "--rows", "8b-lora-4096,blip2-64x1", "--steps", "5")
    check(result.status == 0, result)
    for row in result.json["rows"]:
        check("train.matmul=fp8" in row["fp8"]["command"] and "train.matmul" not in row["bf16"]["command"], row)
        check(row["fp8"]["codes"] and not row["bf16"]["codes"], row)
    check(result.out.count("\n| ") == 3 and "bf16 tokens/s" in result.out, result)


@test
def llama_on_several_ranks(space):
    result = Result(space, "--cpu-smoke", "--llama", "--rows", "7b-ddp,7b-hybrid,7b-qlora,chess")
    check(result.status == 0 and len(result.json["rows"]) == 4, result)
    for row, ranks, keys in zip(result.json["rows"], (2, 2, 1, 2), ("", "parallel.shard_ranks=2", "model.quantize=nf4", "")):
        check(len(row["run"]["periods_s"]) == ranks and keys in row["run"]["command"], row)
    check("precision: bf16-mixed" in (result.out_folder / "chess/run.yaml").read_text(), "chess trains in bf16-mixed")
    line = next(line for line in result.out.splitlines() if line.startswith("| LLaMA 7B, DDP, 4 "))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    tokens = result.json["rows"][0]["run"]["samples_s"] * 32
    check(cells[1:3] == ["32", "2 x CPU"] and cells[6] == f"{tokens:,.0f} tokens", cells)


MODES = {"generate": "7b-1,7b-64", "families": "qwen3-8b-lora,gemma-3-4b-lora", "fp8": "7b-512,7b-1024", "llama": "7b-lora,7b-full",
         "auto": "tiny-full,3b-full"}


@test
def every_mode_keeps_its_budget(space):
    """The program sleeps: the budget ends it, and the row after it is not started."""
    program = space.failing("slow", "exec sleep 200\n")
    for mode, names in MODES.items():
        begin = time.monotonic()
        result = Result(space, "--cpu-smoke", f"--{mode}", "--rows", names, "--budget", "6", program=program)
        first, second = names.split(",")
        check(time.monotonic() - begin < 40, mode, "took", time.monotonic() - begin, "s")
        check(f"{first} skipped: the budget was spent while it ran" in result.out, mode, result)
        check(f"{second} skipped: the budget is spent" in result.out and result.status == 1, mode, result)


@test
def every_mode_prints_its_table_when_interrupted(space):
    """The second row's program sleeps until bench.py is interrupted: the table has the first row."""
    for mode, names in MODES.items():
        first, second = names.split(",")
        out, pid = space.folder / mode, space.folder / f"{mode}-pid"
        program = space.program("sleepy", f"""#!/bin/bash
case "$*" in *{mode}/{second}*|*{mode}/runs/{second}*) echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 200 ;; esac
exec {PROGRAM} "$@"
""")
        command = [sys.executable, str(ROOT / "tools/bench.py"), "--out", str(out), "--steps", str(STEPS), "--blipft", str(program),
                   "--cpu-smoke", f"--{mode}", "--rows", names]
        bench = subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while not pid.exists() and bench.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        bench.send_signal(signal.SIGINT)
        printed, said = bench.communicate(timeout=60)
        check(f"| {first} " in printed and f"{second} skipped: interrupted" in printed, mode, printed, said)
        check("interrupted: the table has what was measured until then" in said and "Traceback" not in said, mode, said)
        check(bench.returncode == 0 and has_ended(pid), mode, bench.returncode, "or the program still runs")


@test
def families_at_full_size(space):
    result = Result(space, "--cpu-smoke", "--families", "--rows", "gemma-3-4b-lora,blip2-flan-t5-xl,instructblip-vicuna-7b", "--steps", "5")
    check(result.status == 0 and len(result.json["rows"]) == 3, result)
    for row in result.json["rows"]:
        check("error" not in row and row["run"]["step_s"] > 0, row)
        check(("adapter.kind=lora" in row["run"]["command"]) == ("blip" not in row["name"]), row)
    check(result.out.count("\n| ") == 4 and "used / planned" in result.out, result)


@test
def repeats_give_medians(space):
    result = Result(space, "--cpu-smoke", "--rows", "single-64x1", "--repeats", "3")
    row = result.json["rows"][0]
    times = sorted(run["step_s"] for run in row["runs"])
    check(result.status == 0 and len(times) == 3 and row["step_s"] == times[1], result)
    check("3 run(s) a row" in result.out, result)


@test
def gpus_memory_torch_and_gemm_rate(space):
    program = space.stand_ins()
    made = Result(space, "--cpu-smoke", "--rows", "single-64x1").out_folder  # for its tiny model and its pictures
    result = Result(space, "--rows", "single-16x4,ddp-16x4,fsdp-16x4,fsdp-64x1,fsdp-16x4-auto", "--model",
                    f"{made}/model", "--data", f"{made}/data", "--torch-python", f"{space.folder}/python", "--torch",
                    f"{space.folder}/torch_step.py", "--op-bench", f"{space.folder}/op_bench",
                    program=program, path=space.folder / "bin")
    check(result.status == 0 and result.json["gpus"] == ["Stand-in", "Stand-in"], result)
    check(result.rows["single-16x4"]["blipft"].endswith(" s, 0.1 GiB"), "of GPU 0 alone", result)
    check(result.rows["ddp-16x4"]["blipft"].endswith(" s, 1.6 GiB"), "all that the driver reports", result)
    row = result.json["rows"][1]
    check((row["measured_bytes"], row["runs"][0]["bytes_before"]) == (1636 * 2 ** 20, 100 * 2 ** 20), row)
    for name, cells in result.rows.items():
        row = next(row for row in result.json["rows"] if row["name"] == name)
        best = 2.5 if name in ("ddp-16x4", "fsdp-64x1") else 2.0  # the fastest that ran
        check(cells["PyTorch eager"] == "2.500 s, 0.1 GiB", result)
        check(cells["PyTorch best"] == f"{best:.3f} s, 0.1 GiB", result)
        check(cells["ratio"] == f"{best / row['step_s']:.2f}", cells)
        check(cells["of GEMM rate"] == f"{row['tflops_gpu'] / 0.5:.0%}", cells)
    check("fsdp-64x1 torch best failed: torch.OutOfMemoryError: out of luck (exit status 1)" in result.out, result)
    commands = {row["name"]: [row[f"torch_{v}"]["command"] for v in ("eager", "best")] for row in result.json["rows"]}
    check("--nproc-per-node" not in commands["single-16x4"][0], commands)
    check("--nproc-per-node 2" in commands["ddp-16x4"][1] and "fsdp2 --compile --fused --bs 64 --accum 1" in
          commands["fsdp-64x1"][1] and "--strategy fsdp1 --bs 64" in commands["fsdp-64x1"][0], commands)
    check("fsdp2 --compile --fused --no-sync --reshard 0" in commands["fsdp-16x4-auto"][1], commands)
    check("parallel.device=cuda" in result.json["rows"][0]["runs"][0]["command"], result.json["rows"][0])
    versions = result.json["versions"]
    check(versions["driver"] == "1.2.3" and versions["torch"]["torch"] == "9.9", versions)
    line = next(line for line in result.out.splitlines() if line.startswith("| BLIP-2 opt-2.7b, DDP, 16 x 4 "))
    cells, row = [cell.strip() for cell in line.strip("|").split("|")], result.json["rows"][1]
    check(cells[1:4] == ["32 + 50", "2 x Stand-in", "2.500 s, 0.1 GiB"] and cells[6] == f"{row['samples_s']:,.0f} samples" and
          cells[7] == f"{row['tflops_gpu'] / 0.5:.0%}", cells)
    check(result.err.count("torch eager 2.5") == 4, "fsdp-16x4 and fsdp-16x4-auto share one run", result.err)
    # What it will take is said before it begins: blipft 6 s and 5 steps of 0.37 s, PyTorch 20 and 40 s and 5 steps.
    check("estimate for single-16x4: blipft 8 s, torch best 63 s, torch eager 23 s" in result.err, result.err)
    places = [result.err.index(words) for words in ("estimate for all", "8192", "torch best 2.0")]
    check(places == sorted(places), result.err)


@test
def a_budget_leaves_out_what_does_not_fit(space):
    program = space.stand_ins()
    made = Result(space, "--cpu-smoke", "--rows", "single-64x1").out_folder
    result = Result(space, "--rows", "single-64x1,ddp-64x1", "--quick", "--budget", "55", "--model", f"{made}/model",
                    "--data", f"{made}/data", "--torch-python", f"{space.folder}/python", "--op-bench",
                    f"{space.folder}/op_bench", program=program, path=space.folder / "bin")
    # Compiling is estimated at more than a minute, plain PyTorch at half of that.
    row, other = result.json["rows"]
    check(result.status == 0 and row["torch_best"]["skipped"] and "step_s" in row["torch_eager"], result)
    check("tools/bench_torch.py" in row["torch_eager"]["command"], row["torch_eager"])
    check(other["runs"] and "single-64x1 torch best skipped: the budget is spent" in result.out, result)


@test
def a_failed_row_does_not_stop_the_others(space):
    space.stand_ins()
    made = Result(space, "--cpu-smoke", "--rows", "single-64x1").out_folder
    program = space.program("sometimes", f"""#!/bin/bash
case "$*" in *ddp.yaml*) echo "blipft: the run needs too much memory" >&2; exit 1 ;; esac
exec {PROGRAM} "${{@/parallel.device=cuda/parallel.device=cpu}}" train.batch_size=1
""")
    result = Result(space, "--rows", "ddp-64x1,single-64x1", "--model", f"{made}/model", "--data", f"{made}/data",
                    "--torch", "none", "--op-bench", "/nowhere/op_bench", program=program, path=space.folder / "bin")
    check(result.status == 1 and result.rows["ddp-64x1"]["blipft"] == "failed", result)
    check("ddp-64x1 failed: blipft: the run needs too much memory (exit status 1)" in result.out, result)
    cells = result.rows["single-64x1"]
    check(cells["blipft"].endswith("GiB") and cells["of GEMM rate"] == "-", result)
    check("make op_bench builds it" in result.err, result)


@test
def operations_beside_torch(space):
    space.stand_ins()
    result = Result(space, "--ops", "--filter", "attention", "--op-bench", f"{space.folder}/op_bench", "--torch-python",
                    f"{space.folder}/python", path=space.folder / "bin")
    check(result.status == 0 and "op_bench: all of it" in result.out, result)
    cells = [line for line in result.out.splitlines() if line.startswith("| vit 1")]
    check(len(cells) == 1, result)
    cells = [cell.strip() for cell in cells[0].strip("|").split("|")]
    check(cells == ["vit 1", "4.0", "2.0", "-", "0.50", "5.0", "8.0", "-", "1.60"], cells)
    check("vit 1, cuDNN: no" in result.out and result.json["gemm_tflops"] == 0.5, result)
    asked = json.loads((result.out_folder / "attention_shapes.json").read_text())
    check(len(asked) == 1 and asked[0]["head_size"] == 4 and asked[0]["causal"] is True, asked)
    result = Result(space, "--ops", "--op-bench", f"{space.folder}/nothing", path=space.folder / "bin")
    check(result.status == 1 and "make op_bench builds it" in result.err, result)


@test
def the_reason_of_a_failure(space):
    from blipft_bench.commands import error_line
    log = space.folder / "some.log"
    mpirun = ("-----\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per "
              "user-direction, the job has been aborted.\n-----\n-----\nmpirun detected that one or more processes "
              "exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n"
              "  Process name: [[1,1],0]\n  Exit code:    3\n-----\n")
    for text, wanted in (
            ("", "it printed nothing"), ("one\ntwo\n\n", "two"),
            ("blipft: no such file\nbye\n", "blipft: no such file"),
            ("good words\nblipft: too big\n" + mpirun, "blipft: too big"),
            ("begin\n" + mpirun + "late words\n", "late words"),
            ("begin\n-----\nmpirun noticed that process rank 1 exited on signal 9 (Killed).\n-----\n",
             "mpirun noticed that process rank 1 exited on signal 9 (Killed)."),
            ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried\n[rank1]:W x\n"
             "W1 torch/distributed/elastic/a.py: Error: b\n"
             "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n===\nFailures:\nError: no\n",
             "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried")):
        log.write_text(text)
        check(error_line(log) == wanted, repr(text), "gave", repr(error_line(log)))


def torch_python():
    for python in (os.environ.get("BLIPFT_TORCH_PYTHON"), sys.executable, "python3"):
        if python and subprocess.run([python, "-c", "import torch, transformers"], capture_output=True).returncode == 0:
            return python
    raise Skip("no python3 has torch and transformers")


@test
def the_step_in_pytorch(space):
    python = torch_python()
    for options in ("--strategy single --ckpt", "--strategy ddp", "--strategy fsdp1 --fused",
                    "--strategy fsdp2 --no-sync --reshard 0"):
        launch = [] if "single" in options else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [python, *launch, str(ROOT / "tools/bench_torch.py"), "--device", "cpu", "--tiny", "--bs", "2",
                   "--accum", "2", "--seq", "6", "--steps", "3", *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300,
                              # FSDP2 asks for a GPU for each rank wherever it sees one.
                              env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        check(done.returncode == 0 and len(lines) == 1, options, done.stdout[-2000:], done.stderr[-2000:])
        found = json.loads(lines[0][7:])
        check(len(found["periods_s"]) == 3 and found["step_s"] == sorted(found["periods_s"])[1], found)
        check(abs(found["loss"] - np.log(50304)) < 1, "a random model's loss is the logarithm of its words:", found)


@test
def the_steps_of_llama_in_pytorch(space):
    python, model = torch_python(), Result(space, "--cpu-smoke", "--llama", "--rows", "7b-full").out_folder / "models/7b"
    for options in ("--strategy ddp --accumulate 2", "--strategy fsdp --shard-ranks 1 --accumulate 2 --mixed"):
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                   str(ROOT / "tools/bench_families_torch.py"), "--device", "cpu", "--model", str(model), "--batch", "2", "--tokens", "8",
                   "--steps", "2", *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        check(done.returncode == 0 and len(lines) == 1, options, done.stdout[-2000:], done.stderr[-2000:])
        check(abs(json.loads(lines[0][7:])["loss"] - np.log(32000)) < 1, "a random model's loss is the logarithm of its words:", lines)


@test
def attention_in_pytorch(space):
    shapes, times = space.folder / "shapes.json", space.folder / "times.json"
    shapes.write_text(json.dumps([dict(name="a", batch=1, heads=2, queries=8, keys=8, head_size=16, causal=True,
                                       dropout=0)]))
    command = [torch_python(), str(ROOT / "tools/bench_attention.py"), "--device", "cpu", "--shapes", str(shapes),
               "--json", str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    check(done.returncode == 0, done.stdout, done.stderr)
    found = json.loads(times.read_text())["shapes"][0]
    check(found["flash"]["forward"] > 0 and found["flash"]["backward"] > 0 and "error" in found["cudnn"], found)


@test
def the_written_model_is_blip2_opt_2_7b(space):
    space.stand_ins()
    planner = space.program("planner", f"""#!/bin/bash
for a in "$@"; do [[ $a = model.* || $a = data.* ]] && keys+=("$a"); done
{PROGRAM} --plan "$1" "${{keys[@]}}"; exit 3
""")
    result = Result(space, "--rows", "single-16x4", "--torch", "none", program=planner, path=space.folder / "bin")
    log = (result.out_folder / "single-16x4/blipft.log").read_text()
    check("vision 39 x 1408, Q-Former 12 x 768, OPT 32 x 2560" in log, log)
    # 3,744,761,856 parameters with a vocabulary of 50304, in bf16.
    check(re.search(rf"parameters +{3744761856 * 2 / GIB:.2f} GiB", log), log)
    tokenizer = json.loads((result.out_folder / "model/tokenizer.json").read_text())["model"]["vocab"]
    check((tokenizer["<s>"], tokenizer["<pad>"], tokenizer["</s>"]) == (0, 1, 2), "OPT's ids")
    lines = (result.out_folder / "data/metadata.jsonl").read_text().splitlines()
    check(len(lines) == 256 and len(list((result.out_folder / "data/images").glob("*.jpg"))) == 256, len(lines))


@test
def another_tokenizer(space):
    given = space.folder / "tokenizer"
    given.mkdir()
    made = Result(space, "--cpu-smoke", "--rows", "single-64x1").out_folder / "model"
    for name in ("vocab.json", "merges.txt"):  # as some models are distributed: without tokenizer.json
        shutil.copyfile(made / name, given / name)
    result = Result(space, "--cpu-smoke", "--rows", "single-64x1", "--tokenizer", str(given))
    model = result.out_folder / "model"
    check(result.status == 0 and not (model / "tokenizer.json").exists(), result)
    check((model / "vocab.json").read_bytes() == (given / "vocab.json").read_bytes(), "vocab.json differs")
    result = Result(space, "--cpu-smoke", "--rows", "single-64x1", "--tokenizer", str(space.folder))
    check(result.status == 2 and "--tokenizer" in result.err and "merges.txt" in result.err, result)


@test
def a_failed_run_shows_its_last_lines(space):
    program = space.failing("broken", "echo some words before\necho blipft: the reason why >&2\nexit 3\n")
    result = Result(space, "--cpu-smoke", "--rows", "single-16x4,single-64x1", program=program)
    check(result.status == 1, result)
    check([cells["blipft"] for cells in result.rows.values()] == ["failed", "failed"], result)
    check("single-64x1 failed: blipft: the reason why (exit status 3)" in result.out, result)
    check("the reason why" in result.err and "Primary job" not in result.out, result)


@test
def a_run_that_hangs_is_ended(space):
    program = space.failing("hanging", f"echo $$ > {space.folder}/pid\necho asleep\nexec sleep 200\n")
    begin = time.monotonic()
    result = Result(space, "--cpu-smoke", "--rows", "single-16x4", "--row-timeout", "8", program=program)
    check(result.status == 1 and "ended after 8 s" in result.out and "asleep" in result.out, result)
    check(time.monotonic() - begin < 60, "took", time.monotonic() - begin, "s")
    check(has_ended(space.folder / "pid"), "the rank still runs")


@test
def a_run_that_outlasts_the_budget_is_skipped(space):
    program = space.failing("hanging", f"echo $$ > {space.folder}/pid\nexec sleep 200\n")
    result = Result(space, "--cpu-smoke", "--rows", "single-16x4", "--budget", "20", program=program)
    check("single-16x4 skipped: the budget was spent while it ran" in result.out, result)
    check("error" not in result.json["rows"][0] and "FAILED" not in result.err, result)
    check(has_ended(space.folder / "pid"), "the rank still runs")


@test
def a_spent_budget_skips_rows(space):
    result = Result(space, "--cpu-smoke", "--rows", "single-16x4,ddp-16x4", "--budget", "0.001")
    check(result.status == 1 and [cells["blipft"] for cells in result.rows.values()] == ["skipped", "skipped"], result)
    check("ddp-16x4 skipped: the budget is spent" in result.out, result)


@test
def one_rank_skips_what_needs_two(space):
    result = Result(space, "--cpu-smoke", "--rows", "single-64x1,ddp-64x1", "--ranks", "1")
    check(result.status == 0 and result.rows["ddp-64x1"]["blipft"] == "skipped", result)
    check("needs two GPUs" in result.out, result)


@test
def a_terminated_bench_ends_its_ranks_and_prints_the_table(space):
    program = space.failing("slow", f"echo $$ > {space.folder}/pid2\nexec sleep 200\n")
    command = [sys.executable, str(ROOT / "tools/bench.py"), "--cpu-smoke", "--blipft", str(program), "--out",
               str(space.folder / "terminated")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pid_file, deadline = space.folder / "pid2", time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    check(process.returncode == 1 and "| configuration" in out, process.returncode, out)
    check(has_ended(pid_file), "the rank still runs")


@test
def wrong_calls(space):
    result = Result(space)
    check(result.status == 2 and "no GPU" in result.err and "--cpu-smoke" in result.err, result)
    result = Result(space, "--cpu-smoke", "--rows", "single-16x5")
    check(result.status == 2 and "single-16x5" in result.err and "single-16x4" in result.err, result)
    result = Result(space, "--cpu-smoke", "--steps", "4")
    check(result.status == 2 and "--steps is 4" in result.err, result)
    result = Result(space, "--cpu-smoke", "--torch-variants", "worst")
    check(result.status == 2 and "worst" in result.err, result)
    space.stand_ins()
    result = Result(space, "--torch", "/nowhere.py", path=space.folder / "bin")
    check(result.status == 2 and "--torch /nowhere.py" in result.err, result)
    result = Result(space, "--ranks", "3", "--torch", "none", path=space.folder / "bin")
    check(result.status == 2 and "there are 2 GPUs" in result.err, result)


if __name__ == "__main__":
    sys.exit(run_tests("bench_test", Space, PROGRAM))
