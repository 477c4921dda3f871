#!/usr/bin/env python3
"""--generate and --evaluate of a run: whose settings hold, what is scored against what, and which files are left."""
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, SAMPLES, TwoModels, command_line, environment, mpirun, start, trained  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

REST = "train:\n  lr: 1.0e-3\n  batch_size: 4\n  precision: 32-true\n  dropout: false\nparallel:\n  device: cpu\n  threads: 1\n"


class Models(TwoModels):
    """Its LLaMA has random weights that are large enough for texts to differ."""

    def __init__(self, folder):
        super().__init__(folder, REST)
        path = self.text / "model/config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "initializer_range": 0.3}))
        self.config, self.records = self.configs["text"], self.text / "data/instructions.jsonl"


def answered(action, config, *options, ranks=0, expected=0):
    status, out, err, _ = mpirun(ranks, [PROGRAM, action, config, "generate.max_new_tokens=4", *options])
    check(status == expected, status, out, err)
    return out, err


def folder_of(out):
    return pathlib.Path(re.search(r"^(?:texts|choices) +(.*)/\w+\.jsonl$", out, re.M).group(1))


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def scores_of(out):
    results = json.loads((folder_of(out) / "scores.json").read_text())["results"]
    return {name.split(",")[0]: value for name, value in next(iter(results.values())).items() if isinstance(value, float)}


def write_records(space, records):
    file = space.new("records").with_suffix(".jsonl")
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@test
def a_perfect_model_has_exact_match_1(space):
    own = f"output.path={space.new()}"
    data = write_records(space, [{"instruction": f"Say {i}.", "output": "?"} for i in range(5)])
    out, _ = answered("--generate", space.config, own, f"generate.path={data}")
    said = [line["text"] for line in lines_of(folder_of(out) / "generated.jsonl")]
    check(len(set(said)) > 2, said)
    for before, behind, options in ((" ", "\n", ()), ("<think>\n\n</think>\n\n", "", ()), ("", "|rest", ("generate.stop=[\"|\"]",))):
        right = write_records(space, [{"instruction": f"Say {i}.", "output": before + text + behind} for i, text in enumerate(said)])
        out, _ = answered("--evaluate", space.config, own, f"generate.path={right}", "evaluate.metrics=[exact_match]", *options)
        check(scores_of(out)["exact_match"] == 1, before, behind, out)
    wrong = write_records(space, [{"instruction": f"Say {i}.", "output": " " + text + "x"} for i, text in enumerate(said)])
    out, _ = answered("--evaluate", space.config, own, f"generate.path={wrong}", "evaluate.metrics=[exact_match]")
    check(scores_of(out)["exact_match"] == 0, out)


@test
def empty_values_of_options_are_refused(space):
    for option in ("--prompt", "--image"):
        for arguments in ((option, ""), (f"{option}=",)):
            status, out, said, _ = mpirun(0, [PROGRAM, "--generate", space.config, f"output.path={space.new()}", *arguments])
            check(status == 2 and f"{option}: found an empty value, expected" in said and not out, status, out, said)
    status, _, said, _ = mpirun(0, [PROGRAM, "--export", "", f"output.path={space.new()}"])
    check(status == 2 and "--export: found an empty value, expected CHECKPOINT" in said, status, said)


if __name__ == "__main__":
    sys.exit(run_tests("scores_test", Models, PROGRAM))
