#!/usr/bin/env python3
"""Every command of README.md, as it stands and in its order, in a folder like a clone of the repository: on small models
and data in the places that it names. Commands that need a network, a cluster or more GPUs are skipped by name.

    test/program/readme_test.py [WORD...]        tests whose names hold one of the words

BLIPFT names the program (default ./blipft).
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import DEVICE, GPUS, PROGRAM, ROOT, Space, environment, saved_model, start  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

README = (ROOT / "README.md").read_text()
# First words of commands that are not run here, and where they are.
ELSEWHERE = {"make setup": "installs packages; tools/check.sh looks for them", "make check": "is what runs this",
             "make demo": "takes minutes; demo_trace_test.py trains on the same pictures",
             "make bench": "test/tools/bench_test.py"}
NEEDS = {"hf": "a network", "sbatch": "a cluster; test/slurm has its test"}


def blocks():
    """The lines of each block of commands, with continued lines joined, without comments."""
    found = []
    for block in re.findall(r"(?:^    .*\n)+", README, re.M):
        lines = [line.strip() for line in re.sub(r" *\\\n +", " ", block).splitlines()]
        found.append([re.sub(r"\s+# .*", "", line) for line in lines if not line.startswith("{")])
    return [block for block in found if block]


def commands():
    in_text = [text for text in re.findall(r"`((?:\./blipft|make|mpirun|tools/\S+) [^`]+)`", README)
               if text not in ("make demo MODEL=llama",)]
    return [line for block in blocks() for line in block] + in_text


class Clone(Space):
    """A clone with the program built, and what the README tells to download or to have."""

    def __init__(self, folder):
        super().__init__(folder)
        self.clone = self.folder / "clone"
        self.clone.mkdir()
        for name in ("inputs", "share", "tools", "jobs", "docs"):
            (self.clone / name).symlink_to(ROOT / name)
        (self.clone / "blipft").symlink_to(PROGRAM)
        (self.clone / "models").mkdir()
        self.make_llama()
        (self.clone / "models/blip2").symlink_to(saved_model(self))
        subprocess.run([sys.executable, str(ROOT / "tools/make_demo.py"), "--out", str(self.folder / "pictures"),
                        "--samples", "96", "--seed", "4"], check=True, stdout=subprocess.DEVNULL)
        for name in ("photos", "test-photos"):   # enough of them for a step of 64
            (self.clone / name).symlink_to(self.folder / "pictures/data")

    def make_llama(self):
        text = self.folder / "text"
        subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(text), "--samples", "64"],
                       check=True, stdout=subprocess.DEVNULL)
        config = text / "model/config.json"
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "max_position_embeddings": 2048}
        config.write_text(json.dumps({**json.loads(config.read_text()), **sizes}))
        made = start(self, 0, f"model.path={text / 'model'}", "model.init=random", "train.max_steps=1",
                     f"data.path={text / 'data/instructions.jsonl'}", "data.max_text_tokens=128",
                     "output.save_model=true")
        check(made.status == 0, made)
        (self.clone / "models/tiny-llama-1.1b").symlink_to(made.output / "model")
        records = [json.loads(line) for line in (text / "data/instructions.jsonl").read_text().splitlines()]
        (self.clone / "alpaca.json").write_text(json.dumps(records))

    def do(self, command):
        variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1",
                     "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
        if DEVICE == "cpu":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        return subprocess.run(["bash", "-c", command], cwd=self.clone, env={**environment(), **variables}, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=600)


def why_not(command):
    """Why a command is not run here; "": it is."""
    words = shlex.split(command)
    if words[0] in NEEDS:
        return "needs " + NEEDS[words[0]]
    first = next((text for text in ELSEWHERE if command.startswith(text)), None)
    if first:
        return ELSEWHERE[first]
    ranks = int(words[words.index("-np") + 1]) if words[0] == "mpirun" else 1
    if DEVICE == "cuda" and ranks > GPUS:
        return f"needs {ranks} GPUs, there are {GPUS}"
    return ""


@test
def the_page_has_at_most_900_words(space):
    check(len(README.split()) <= 900, "README.md has", len(README.split()), "words")


@test
def every_command_runs_as_it_stands(space):
    skipped, said = [], {}
    for command in commands():
        why = why_not(command)
        if why:
            skipped.append(f"{command}: {why}")
            continue
        if "runs/a" in command:                  # any two runs
            for name, run in (("a", "mine"), ("b", "photos")):
                (space.clone / "runs" / name).symlink_to(space.clone / "runs" / run)
        begin = time.monotonic()
        done = space.do(command)
        if done.returncode == 1 and "needs" in done.stderr and "matplotlib" in done.stderr:
            skipped.append(f"{command}: needs matplotlib")
            continue
        check(done.returncode == 0, command, "\n", done.stdout[-2000:], done.stderr[-3000:])
        said[command] = done.stdout
        print(f"   {time.monotonic() - begin:5.1f} s  {command}", flush=True)
    for line in skipped:
        print(f"   not run: {line}", flush=True)
    expect_results(space, said)


def expect_results(space, said):
    def output_of(*words):
        found = [out for command, out in said.items() if all(word in command for word in words)]
        check(len(found) == 1, words, "stand in", len(found), "commands of README.md")
        return found[0]

    check("the fastest first" in output_of("--plan --fit"), output_of("--plan --fit"))
    check("smoke      it runs here, 5 steps" in output_of("--smoke"), output_of("--smoke"))
    check(output_of("--generate").strip(), "no answer")
    check("rouge_l" in output_of("--evaluate") and "page.html" in output_of("--evaluate"), output_of("--evaluate"))
    check("batch_size" in output_of("--help train"), output_of("--help train"))
    for name in ("runs/mine/adapter/adapter_model.safetensors", "runs/mine/model/model.safetensors",
                 "runs/mine/config.yaml", "runs/mine/log.txt", "runs/mine/metrics.jsonl",
                 "runs/photos/adapter/adapter_config.json"):
        check((space.clone / name).exists(), name, "is missing")
    check("runs/mine/adapter" in output_of("output.path=runs/mine", "save_merged"), "the end does not name the adapter")


if __name__ == "__main__":
    sys.exit(run_tests("readme_test", Clone, PROGRAM))
