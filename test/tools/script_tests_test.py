#!/usr/bin/env python3
"""How test scripts are chosen and spread over GPUs: test/support/script_tests.py, program_runs.gpus_of(), gpu_runs_test.py.

    test/tools/script_tests_test.py [WORD...]
"""
import contextlib
import importlib
import io
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test/support"))
from script_tests import check, run_tests, test  # noqa: E402

SCRIPT = f"""
import sys, time, pathlib
sys.path.insert(0, {str(ROOT / "test/support")!r})
from script_tests import check, run_tests, test, test_each
class Space:
    def __init__(self, folder): pass
@test_each(("a", "b-c"))
def slow(space, item):
    here = pathlib.Path(__file__).parent
    (here / item).touch()
    deadline = time.monotonic() + 30            # each waits for the other: they pass only if they run beside each other
    while not all((here / other).exists() for other in ("a", "b-c")) and time.monotonic() < deadline:
        time.sleep(0.05)
    check(time.monotonic() < deadline, "ran alone")
@test
def slow_and_wrong(space):
    check(False, "as it must")
sys.exit(run_tests("some_test", Space, "/bin/true"))
"""


def called(path, *words):
    return subprocess.run([sys.executable, str(path), *words], stdout=subprocess.PIPE, text=True)


@test
def tests_of_items_have_names_and_a_whole_name_chooses_one(space):
    script = space / "some_test.py"
    script.write_text(SCRIPT)
    check(called(script, "--names").stdout.split() == ["slow_a", "slow_b_c", "slow_and_wrong"], called(script, "--names"))
    check(called(script, "--names", "b_c", "wrong").stdout.split() == ["slow_b_c", "slow_and_wrong"])
    (space / "a").touch()
    done = called(script, "=slow_b_c")
    check(done.returncode == 0 and done.stdout.startswith("ok slow_b_c ") and done.stdout.count("\n") == 1, done)
    check("FAILED slow_and_wrong" in called(script, "=slow_and_wrong").stdout)


def gpu_runs():
    """The module gpu_runs_test, whose import sets BLIPFT_DEVICE: undone here."""
    before = dict(os.environ)
    sys.path.insert(0, str(ROOT / "test/program"))
    try:
        return importlib.import_module("gpu_runs_test")
    finally:
        os.environ.clear()
        os.environ.update(before)


@test
def tests_of_a_script_run_beside_each_other(space):
    runs = gpu_runs()
    script = space / "some_test.py"
    script.write_text(SCRIPT)
    words, sys.argv[1:] = sys.argv[1:], []
    with contextlib.redirect_stdout(io.StringIO()) as said:
        check(runs.run_all([f"{script} =slow_a =slow_b_c"], at_once=4) == 0, "the two tests that wait for each other", said.getvalue())
        check(runs.run_all([str(script)], at_once=4) == 1, "a failure is the status of all", said.getvalue())
    check(said.getvalue().count("ok slow_") == 4 and said.getvalue().count("FAILED slow_and_wrong") == 1, said.getvalue())
    sys.argv[1:] = words


@test
def words_of_the_tests_on_gpus_choose_something(space):
    environment = {**os.environ, "BLIPFT_DEVICE": "cuda"}
    for script, *words in (line.split() for line in (*gpu_runs().SCRIPTS, gpu_runs().ALONE)):
        # A script that lacks a library lists no tests: its source then has the word, without the item at its end.
        source = (ROOT / "test/program" / script).read_text()
        listed = subprocess.run([sys.executable, ROOT / "test/program" / script, "--names"], env=environment,
                                stdout=subprocess.PIPE, text=True).stdout
        for word in words:
            check(word in listed or listed.startswith("SKIPPED") and word.rsplit("_", 1)[0] in source, script, word)


@test
def runs_are_spread_over_gpus(space):
    tool = space / "nvidia-smi"
    tool.write_text("#!/bin/bash\nfor i in 0 1 2 3; do echo \"GPU $i: Stand-in (UUID: GPU-$i)\"; done\n")
    tool.chmod(0o755)
    ask = (f"import sys; sys.path[:0] = [{str(ROOT / 'test/program')!r}, {str(ROOT / 'test/support')!r}]; import program_runs as p; "
           "print(p.GPUS, *[p.environment(r).get('CUDA_VISIBLE_DEVICES', 'all') for r in (0, 1, 1, 1, 2, 2, 4, None)])")
    for visible, gpus in ((None, "0123"), ("3,1", "31")):
        env = {**os.environ, "PATH": f"{space}:{os.environ['PATH']}", "BLIPFT_DEVICE": "cuda"}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if visible:
            env["CUDA_VISIBLE_DEVICES"] = visible
        count, *seen = subprocess.run([sys.executable, "-c", ask], env=env, stdout=subprocess.PIPE, text=True).stdout.split()
        check(int(count) == len(gpus), count, seen)
        check(set(seen[:4]) == set(gpus), "runs of one rank take turns", seen)
        check(all(set(pair.split(",")) <= set(gpus) and len(pair) == 3 for pair in seen[4:6]), seen)
        check(set(seen[6].split(",")) == set(gpus) and seen[7] == (visible or "all"), seen)


if __name__ == "__main__":
    sys.exit(run_tests("script_tests_test", pathlib.Path, "/bin/true"))
