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
THREADS = 4                                        # of a process
# Scripts, with words in the names of their tests that need a GPU, the longest first. Refusals, messages and files written by
# the host are tested without a GPU.
SCRIPTS = (
    "families_program_test.py train_alike_quantised_recomputed_offloaded_and_on_two_ranks_blip2_t5 encoder_decoders_generate "
    "load_in_peft_gemma3 load_in_peft_instructblip_t5 change_no_bit_gemma3 change_no_bit_glm4 two_ranks_learn_as_one_gemma3",
    "llama_program_test.py random_models",
    "combinations_test.py",
    "auto_batch_test.py losses_do_not_depend",
    "checkpoint_test.py the_same_bits another_world adapters_go_on what_lies_in_the_host is_exported",
    "generation_test.py the_same_texts in_bf16 draws_follow from_whatever",
    "faults_test.py error_of a_killed_rank a_stopped_rank finite",
    "evaluation_run_test.py the_same_as training_is_the_same texts_of",
    "generation_scores_test.py scores_results multiple_choice best_checkpoint",
    "peft_program_test.py merge",
    "preemption_test.py a_signal_makes a_time_limit",
)
ALONE = "auto_batch_test.py candidates_that"        # times steps


def why_not():
    try:
        from program_runs import GPUS, PROGRAM
    except ImportError as missing:
        return str(missing)
    if GPUS == 0:
        return "no GPU"
    linked = subprocess.run(["ldd", PROGRAM], stdout=subprocess.PIPE, text=True).stdout
    return "" if "libnccl" in linked else f"{PROGRAM} was built without CUDA"


def shares_of(script, count):
    """[(script, words)]: the tests that the command line's words, else the script's own, choose, in `count` shares at most. Each
    share is a process, which imports and makes its files anew."""
    name, *words = script.split()
    words = sys.argv[1:] or words
    listed = subprocess.run([sys.executable, FOLDER / name, "--names", *words], stdout=subprocess.PIPE, text=True)
    if listed.returncode != 0 or listed.stdout.startswith("SKIPPED"):   # it lacks what it imports: it says so when it runs
        return [(name, words)]
    names = [f"={line}" for line in listed.stdout.split()]
    return [(name, names[i::count]) for i in range(min(count, len(names)))]


def run_share(share):
    script, words = share
    return subprocess.run([sys.executable, FOLDER / script, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_all(scripts, at_once):
    """Runs the scripts' tests, several processes beside each other: program_runs gives each run other GPUs. Returns the exit
    status."""
    status = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=at_once) as pool:
        shares = pool.map(shares_of, scripts, [max(1, at_once // 2)] * len(scripts))
        running = [pool.submit(run_share, share) for of_script in shares for share in of_script]
        for done in map(concurrent.futures.Future.result, concurrent.futures.as_completed(running)):
            print(done.stdout, end="", flush=True)
            status = max(status, abs(done.returncode))
    return status


def main():
    why = why_not()
    if why:
        print(f"SKIPPED gpu_runs_test ({why})")
        return 0
    os.environ["OMP_NUM_THREADS"] = str(THREADS)   # else each of the processes, PyTorch's too, takes all cores
    os.environ.setdefault("BLIPFT_COMBINATIONS", "6")
    # With 16 processes at once on four H200 the start of a tiny run took up to 25 s.
    status = run_all(SCRIPTS, max(1, min(8, len(os.sched_getaffinity(0)) // THREADS)))
    return max(status, run_all([ALONE], 1))


if __name__ == "__main__":
    sys.exit(main())
