#!/usr/bin/env python3
"""jobs/sweep.sh on a machine without Slurm, and the mistakes that tools/sweep.py reports. test/slurm/ has it as a Slurm array.

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import csv
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "program")]
from program_runs import PROGRAM, ROOT, Space, environment  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402


def sweep_file(space, text):
    path = space.new("sweep").with_suffix(".yaml")
    path.write_text(f"run: {space.config}\noutput: {path.with_suffix('')}\n{text}")
    return path, path.with_suffix("")


def run_sweep(space, path, program=PROGRAM):
    """Runs the script with no sbatch in PATH."""
    tools = space.folder / "path"
    if not tools.exists():
        tools.mkdir()
        for folder in reversed(os.environ["PATH"].split(":")):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name not in ("sbatch", "squeue", "srun") and not os.path.lexists(tools / name):
                    (tools / name).symlink_to(os.path.join(folder, name))
    return subprocess.run([ROOT / "jobs/sweep.sh", path], cwd=space.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**environment(1), "PATH": str(tools), "BLIPFT": str(program)}, timeout=200)


def rows_of(folder):
    with open(folder / "table.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@test
def a_sweep_makes_a_run_for_each_combination_and_one_table_and_goes_on_after_a_failure(space):
    path, folder = sweep_file(space, "# comment\ntrain.lr: [1e-3, 2e-3]  # rates\ntrain.batch_size: [4, 2]\ntrain.max_steps: 2\n"
                                     "adapter.targets: [[q, v]]\nadapter.kind: lora\n")
    log = space.new("log")
    # The second run fails at first.
    program = space.new("program")
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\ncase "$*" in *lr=1e-3*batch_size=2*) [ -e {log}.again ] || exit 1 ;; esac\n'
                       f'exec {PROGRAM} "$@"\n')
    program.chmod(0o755)
    done = run_sweep(space, path, program)
    rows = rows_of(folder)
    check(done.returncode == 1 and len(rows) == 4, done, rows)
    check([row["ended"] for row in rows] == ["done", "not started", "done", "done"], rows)
    check([(row["train.lr"], row["train.batch_size"]) for row in rows] ==
          [("1e-3", "4"), ("1e-3", "2"), ("2e-3", "4"), ("2e-3", "2")], rows)
    check("adapter.targets=[q, v] adapter.kind=lora" in log.read_text(), log.read_text())
    pathlib.Path(f"{log}.again").touch()
    done = run_sweep(space, path, program)
    rows = rows_of(folder)
    check(done.returncode == 0 and all(row["ended"] == "done" and row["steps"] == "2" and float(row["loss at the end"]) > 0 and
                                       float(row["samples/s"]) > 0 for row in rows), done, rows)
    check([pathlib.Path(row["path"]).name for row in rows][1] == "train.lr=1e-3,train.batch_size=2", rows)
    check(len(log.read_text().splitlines()) == 5, "only the failed run is started again", log.read_text())
    check((folder / "table.txt").read_text() in done.stdout, done)
    done = run_sweep(space, path, program)
    check(done.returncode == 0 and "have ended" in done.stdout and len(log.read_text().splitlines()) == 5, done)


@test
def mistakes_in_a_sweep_file_are_named(space):
    for text, message in (("train.lr 1e-3\n", ':3: found "train.lr 1e-3", expected section.key: VALUE'),
                          ("train.lr: []\n", ":3: train.lr: found an empty list"),
                          ("train.lr: 1\ntrain.lr: 2\n", ":4: train.lr: is given twice"),
                          ("train.lr: [1, 1]\n", "two runs have the folder"),
                          ("output.path: x\n", ":3: output.path: is set by the sweep"),
                          ("lr: 1\n", ":3: lr: expected run, output or a key as section.key")):
        path, _ = sweep_file(space, text)
        done = run_sweep(space, path)
        check(done.returncode == 2 and f"sweep.py: {path}{message}" in done.stderr or "two runs" in done.stderr and message in done.stderr,
              text, done)


if __name__ == "__main__":
    sys.exit(run_tests("sweep_test", Space, PROGRAM))
