#!/usr/bin/env python3
"""tools/bench.py without a GPU: its smoke run, and its GPU path on stand-ins for nvidia-smi, torch and op_bench.

    python3 test/bench_test.py [PART-OF-A-NAME...]

BLIPFT names the program (default ./blipft). Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test;
exits 1 when one failed.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.path.abspath(os.environ.get("BLIPFT", ROOT / "blipft"))
try:
    import h5py
    import numpy as np
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED bench_test ({missing})")
    sys.exit(0)

GIB = 2 ** 30
STEPS = 5
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


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
        self.rows = {line[0]: dict(zip(lines[0], line)) for line in lines[2:]}
        path = self.out_folder / "bench.json"
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
        self.program("python", """#!/bin/bash
case "$*" in
  -c*) echo 9.9 99.9 8.8 ;;
  *--compile*) echo "out of luck"; exit 1 ;;
  *) echo 'RESULT {"step_s": 2.5, "samples_s": 1.0}' ;;
esac
""")
        self.program("op_bench", """#!/bin/bash
[ "$3" = --json ] && echo '{"gemm_tflop_s": 0.5, "ops": []}' > "$4"
""")
        self.program("torch_bench.py", "")
        return self.program("on_cpu", f"""#!/bin/bash
touch {running}; trap 'rm -f {running}' EXIT
{PROGRAM} "${{@/parallel.device=cuda/parallel.device=cpu}}" && sleep 0.7
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
    result = Result(space, "--cpu-smoke", "--only", "single-16x4,fsdp-16x4-ckpt")
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
        check(result.rows[name]["s/step"] == f"{wanted:.4f}" and result.rows[name]["ratio"] == "-", result)
    command = result.json["rows"][1]["runs"][0]["command"]
    check("-np 2" in command and "train.act_ckpt=full" in command and "parallel.reshard=always" in command, command)


@test
def repeats_give_medians(space):
    result = Result(space, "--cpu-smoke", "--only", "single-64x1", "--repeat", "3")
    row = result.json["rows"][0]
    times = sorted(run["step_s"] for run in row["runs"])
    check(result.status == 0 and len(times) == 3 and row["step_s"] == times[1], result)


@test
def gpus_memory_torch_and_gemm_rate(space):
    program = space.stand_ins()
    made = Result(space, "--cpu-smoke", "--only", "single-64x1").out_folder  # for its tiny model and its pictures
    result = Result(space, "--only", "single-16x4,ddp-16x4,fsdp-16x4-ckpt,fsdp-16x4-auto", "--model", f"{made}/model",
                    "--data", f"{made}/data", "--torch-python", f"{space.folder}/python", "--torch-script",
                    f"{space.folder}/torch_bench.py", "--op-bench", f"{space.folder}/op_bench",
                    program=program, path=space.folder / "bin")
    check(result.status == 0 and result.json["gpus"] == ["Stand-in", "Stand-in"], result)
    check(result.rows["single-16x4"]["measured GiB"] == "0.00", "of GPU 0 alone", result)
    check(result.rows["ddp-16x4"]["measured GiB"] == "1.50", "1536 MiB more than before", result)
    check(result.json["rows"][1]["measured_bytes"] == 1536 * 2 ** 20, result.json["rows"][1]["measured_bytes"])
    for name, cells in result.rows.items():
        row = next(row for row in result.json["rows"] if row["name"] == name)
        check(cells["torch eager s"] == cells["torch best s"] == "2.500", "the fastest that ran", result)
        check(cells["ratio"] == f"{2.5 / row['step_s']:.2f}", cells)
        check(cells["of GEMM rate"] == f"{row['tflops_gpu'] / 0.5:.0%}", cells)
    check("ddp-16x4 torch best failed" in result.out and "out of luck" in result.out, result)
    commands = {row["name"]: [row[f"torch_{v}"]["command"] for v in ("eager", "best")] for row in result.json["rows"]}
    check("--nproc-per-node" not in commands["single-16x4"][0], commands)
    check("--nproc-per-node 2" in commands["ddp-16x4"][1] and "ddp --compile --fused --bs 16 --accum 4" in
          commands["ddp-16x4"][1], commands)
    check("fsdp1 --ckpt" in commands["fsdp-16x4-ckpt"][0], commands)
    check("fsdp2 --compile --fused --no-sync --reshard 0" in commands["fsdp-16x4-auto"][1], commands)
    check("parallel.device=cuda" in result.json["rows"][0]["runs"][0]["command"], result.json["rows"][0])
    check(result.json["versions"]["driver"] == "1.2.3" and result.json["versions"]["torch"]["torch"] == "9.9",
          result.json["versions"])


@test
def the_written_model_is_blip2_opt_2_7b(space):
    space.stand_ins()
    planner = space.program("planner", f"""#!/bin/bash
for a in "$@"; do [[ $a = model.* || $a = data.* ]] && keys+=("$a"); done
{PROGRAM} --plan "$1" "${{keys[@]}}"; exit 3
""")
    result = Result(space, "--only", "single-16x4", "--torch", "none", program=planner, path=space.folder / "bin")
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
    made = Result(space, "--cpu-smoke", "--only", "single-64x1").out_folder / "model"
    for name in ("vocab.json", "merges.txt"):  # as some models are distributed: without tokenizer.json
        shutil.copyfile(made / name, given / name)
    result = Result(space, "--cpu-smoke", "--only", "single-64x1", "--tokenizer", str(given))
    model = result.out_folder / "model"
    check(result.status == 0 and not (model / "tokenizer.json").exists(), result)
    check((model / "vocab.json").read_bytes() == (given / "vocab.json").read_bytes(), "vocab.json differs")
    result = Result(space, "--cpu-smoke", "--only", "single-64x1", "--tokenizer", str(space.folder))
    check(result.status == 2 and "--tokenizer" in result.err and "merges.txt" in result.err, result)


@test
def a_failed_run_shows_its_last_lines(space):
    program = space.failing("broken", "echo some words before\necho the reason why >&2\nexit 3\n")
    result = Result(space, "--cpu-smoke", "--only", "single-16x4,single-64x1", program=program)
    check(result.status == 1, result)
    check([cells["s/step"] for cells in result.rows.values()] == ["failed", "failed"], result)
    check("the reason why" in result.out and "the reason why" in result.err and "Primary job" not in result.out, result)


@test
def a_run_that_hangs_is_ended(space):
    program = space.failing("hanging", f"echo $$ > {space.folder}/pid\necho asleep\nexec sleep 200\n")
    begin = time.monotonic()
    result = Result(space, "--cpu-smoke", "--only", "single-16x4", "--timeout", "2", program=program)
    check(result.status == 1 and "ended after 2 s" in result.out and "asleep" in result.out, result)
    check(time.monotonic() - begin < 60, "took", time.monotonic() - begin, "s")
    check(has_ended(space.folder / "pid"), "the rank still runs")


@test
def a_spent_budget_skips_rows(space):
    result = Result(space, "--cpu-smoke", "--only", "single-16x4,ddp-16x4", "--budget", "0.001")
    check(result.status == 1 and [cells["s/step"] for cells in result.rows.values()] == ["skipped", "skipped"], result)
    check("ddp-16x4 skipped: the budget is spent" in result.out, result)


@test
def one_rank_skips_what_needs_two(space):
    result = Result(space, "--cpu-smoke", "--only", "single-64x1,ddp-64x1", "--ranks", "1")
    check(result.status == 0 and result.rows["ddp-64x1"]["s/step"] == "skipped", result)
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
    result = Result(space, "--cpu-smoke", "--only", "single-16x5")
    check(result.status == 2 and "single-16x5" in result.err and "single-16x4" in result.err, result)
    result = Result(space, "--cpu-smoke", "--steps", "4")
    check(result.status == 2 and "--steps is 4" in result.err, result)


def main():
    if not os.access(PROGRAM, os.X_OK):
        print(f"FAILED bench_test: there is no program {PROGRAM}; make builds it")
        return 1
    if not shutil.which("mpirun"):
        print("SKIPPED bench_test (no mpirun)")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="blipft_bench_test.") as folder:
        space = Space(folder)
        for function in TESTS:
            if sys.argv[1:] and not any(part in function.__name__ for part in sys.argv[1:]):
                continue
            begin = time.monotonic()
            try:
                function(space)
                print(f"ok {function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
            except Exception:  # any error fails this test alone
                failed += 1
                print(traceback.format_exc() + f"FAILED {function.__name__}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
