#!/usr/bin/env python3
"""The tests of whole runs that say something about GPUs, on this machine's GPUs, one rank each: checkpoints and resume,
faults, random combinations with and without memory in the host, generation, random models beside transformers and PEFT, the
timing of micro-batches.

    test/program/gpu_runs_test.py [WORD...]       tests whose names hold one of the words

BLIPFT names the program (default ./blipft). Skipped where there is no GPU, or where the program has no CUDA; of the tests,
those that need more GPUs than there are.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

os.environ["BLIPFT_DEVICE"] = "cuda"
FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "support"))
SCRIPTS = ("llama_program_test.py", "families_program_test.py", "peft_program_test.py", "checkpoint_test.py",
           "combinations_test.py", "preemption_test.py", "faults_test.py", "generation_test.py", "evaluation_run_test.py",
           "auto_batch_test.py candidates_that")  # with the words of those of its tests


def why_not():
    try:
        from program_runs import GPUS, PROGRAM
    except ImportError as missing:
        return str(missing)
    if GPUS == 0:
        return "no GPU"
    linked = subprocess.run(["ldd", PROGRAM], stdout=subprocess.PIPE, text=True).stdout
    return "" if "libnccl" in linked else f"{PROGRAM} was built without CUDA"


def main():
    why = why_not()
    if why:
        print(f"SKIPPED gpu_runs_test ({why})")
        return 0
    def outcome(script):
        name, *words = script.split()
        return subprocess.run([sys.executable, FOLDER / name, *(sys.argv[1:] or words)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    status = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)) // 4)) as pool:
        for done in pool.map(outcome, SCRIPTS):
            print(done.stdout, end="", flush=True)
            status = max(status, done.returncode)
    return status


if __name__ == "__main__":
    sys.exit(main())
