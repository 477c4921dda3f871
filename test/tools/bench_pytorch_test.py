#!/usr/bin/env python3
"""tools/bench.py beside PyTorch: its GPU path on stand-ins for nvidia-smi, torch and op_bench, and the scripts in PyTorch.

    python3 test/tools/bench_pytorch_test.py [PART-OF-A-NAME...]

BLIPFT names the program (default ./blipft); BLIPFT_TORCH_PYTHON a python3 that has torch and transformers.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import Skip, check, run_tests, test  # noqa: E402

try:
    import numpy as np
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED bench_pytorch_test ({missing})")
    sys.exit(0)

from bench_runs import GIB, PROGRAM, ROOT, Result, Space  # noqa: E402


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
    # The expected duration is printed before it begins: blipft 6 s and 5 steps of 0.37 s, PyTorch 20 and 40 s and 5 steps.
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


if __name__ == "__main__":
    sys.exit(run_tests("bench_pytorch_test", Space, PROGRAM))
