#!/usr/bin/env python3
"""tools/bench.py without a GPU: its smoke run, every mode, and how it ends.

    python3 test/tools/bench_test.py [PART-OF-A-NAME...]

BLIPFT names the program (default ./blipft).
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import check, run_tests, test  # noqa: E402

try:
    import h5py
    import numpy as np
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED bench_test ({missing})")
    sys.exit(0)

from bench_runs import PROGRAM, ROOT, STEPS, Result, Space, close, has_ended  # noqa: E402


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
