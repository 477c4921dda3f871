#!/usr/bin/env python3
"""--generate and --evaluate on several ranks: killed and stopped ranks end all by name, and ranks that were given different
seeds, weights, data or actions are refused, as in training.

    python3 test/program/generation_faults_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

os.environ.setdefault("OMPI_MCA_odls_base_sigkill_timeout", "0")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, ROOT, Space, command_line, environment, pids_of_ranks, run  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

LOST = 3              # exit code of ranks that end because another is gone
TIMEOUT = 4           # parallel.timeout_seconds
SHORT = ("generate.max_new_tokens=4", "generate.samples=6", "generate.weights=base")


def lose_a_rank(space, signal_number):
    """Sends a signal to rank 1 of two that generate thousands of texts; exit code and errors."""
    data = space.copy(space.data)
    lines = []
    for sample in map(json.loads, (data / "metadata.jsonl").read_text().splitlines()):
        for i in range(300):
            name = f"{i}_{pathlib.Path(sample['file_name']).name}"
            os.link(data / sample["file_name"], data / name)
            lines.append(json.dumps({**sample, "file_name": name}))
    (data / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    logs = [space.new("out"), space.new("err")]
    command = command_line(2, [PROGRAM, "--generate", space.config, f"output.path={space.new()}", f"data.path={data}",
                               "generate.weights=base", "generate.batch_size=1", "generate.max_new_tokens=16", "generate.num_beams=3", f"parallel.timeout_seconds={TIMEOUT}"])
    env = environment()                    # mpirun's usual second before SIGKILL, in which rank 0 reports the lost rank
    del env["OMPI_MCA_odls_base_sigkill_timeout"]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=open(logs[0], "w"),
                               stderr=open(logs[1], "w"))
    try:
        end = time.monotonic() + 60
        while "prompts " not in logs[0].read_text():
            check(process.poll() is None and time.monotonic() < end, "no start", logs[0].read_text(), logs[1].read_text())
            time.sleep(0.05)
        time.sleep(1.5)                    # ranks tell each other about once a second what they are in
        check(process.poll() is None, "ended", logs[0].read_text(), logs[1].read_text())
        os.kill(pids_of_ranks(process)[1], signal_number)
        process.wait(timeout=60)
    finally:
        if process.poll() is None:
            for pid in pids_of_ranks(process).values():
                os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()
    return process.returncode, logs[1].read_text()


@test
def a_stopped_rank_ends_a_generation_by_name(space):
    status, err = lose_a_rank(space, signal.SIGSTOP)
    check(status == LOST and re.search(r"^blipft: rank 0 on \S+: .*missing: rank 1 on .*no heartbeat for", err, re.M), status, err)


@test
def a_killed_rank_ends_a_generation_by_name(space):
    status, err = lose_a_rank(space, signal.SIGKILL)
    check(status != 0 and re.search(r"^blipft: rank 0 on \S+: generation round \d+.*; missing: rank 1 on .*: killed", err, re.M),
          status, err)


def refused(space, pattern, first, second, common=SHORT):
    """Two ranks, each with an action and options of its own: rank 1 is refused with one message before a result is written."""
    output = space.new()

    def rank(own):
        actions = [one for one in own if one.startswith("--")]
        return [PROGRAM, *actions, space.config, f"output.path={output}", *common, *(one for one in own if one not in actions)]
    command = list(map(str, [*command_line(1, rank(first)), ":", "-np", "1", *rank(second)]))
    done = subprocess.run(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60)
    messages = [line for line in done.stderr.splitlines() if line.startswith("blipft: ")]
    check(done.returncode == 1 and len(messages) == 1 and re.search(rf"^blipft: rank 1 on \S+: {pattern}", messages[0]),
          pattern, done)
    check(not list(output.rglob("scores.json")) and not list(output.rglob("generated.jsonl")), "mixed results")


@test
def ranks_with_other_settings_or_actions_are_refused(space):
    refused(space, r"train\.seed is 7 ", ["--generate"], ["--generate", "train.seed=7"])
    refused(space, r"generate\.max_new_tokens is 5 ", ["--evaluate"], ["--evaluate", "generate.max_new_tokens=5"])
    for first, second in (("--generate", "training"), ("training", "--generate"), ("--evaluate", "--generate"),
                          ("training", "--export")):
        own = {"training": ["train.max_steps=1"], "--export": ["--export"]}
        refused(space, rf"the action is {second}, but on rank 0 \(\S+\) it is {first}; start all ranks with the same",
                own.get(first, [first]), own.get(second, [second]))


@test
def ranks_with_other_weights_of_the_same_size_are_refused(space):
    trained = run(space, 0, "train.max_steps=1", "output.save_model=true").output / "model"
    other = space.copy(trained)
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-3] ^= 1
    (other / "model.safetensors").write_bytes(data)
    same = space.copy(trained)
    common = (*SHORT, "model.init=pretrained")
    for action in ("--generate", "--evaluate"):
        refused(space, r"model file model\.safetensors: bytes \d+ to \d+ have the checksum \d+, but on rank 0",
                [action, f"model.path={trained}"], [action, f"model.path={other}"], common)
    (same / "generation_config.json").write_text('{"do_sample": true}')
    refused(space, r"model file generation_config\.json is ", ["--generate", f"model.path={trained}"],
            ["--generate", f"model.path={same}"], common)


@test
def ranks_with_other_references_or_data_are_refused(space):
    other, fewer = space.copy(space.data), space.copy(space.data)
    text = (other / "metadata.jsonl").read_text()
    letter = re.search(r'"text": "[^"]*([a-z])"', text).start(1)
    (other / "metadata.jsonl").write_text(text[:letter] + ("x" if text[letter] != "x" else "y") + text[letter + 1:])
    (fewer / "metadata.jsonl").write_text("".join(text.splitlines(keepends=True)[:3]))
    for action in ("--generate", "--evaluate"):
        refused(space, r"(contents of )?the data at data\.path is .*; give all machines the same data", [action],
                [action, f"data.path={other}"])
        refused(space, r"the data at data\.path is 3 samples", [action], [action, f"data.path={fewer}"])


if __name__ == "__main__":
    sys.exit(run_tests("generation_faults_test", Space, PROGRAM))
