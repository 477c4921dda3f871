#!/usr/bin/env python3
"""Whole runs on pictures with prompts and answers.

    python3 test/program/picture_prompts_test.py [PART-OF-A-NAME...]

Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import json
import os
import pathlib
import sys

os.environ.setdefault("OMPI_MCA_odls_base_sigkill_timeout", "0")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, Space, run, start  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402


def questions_of(space):
    """The demo's pictures with a question and several answers each."""
    folder = space.copy(space.data)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    with open(folder / "metadata.jsonl", "w", encoding="utf-8") as out:
        for i, row in enumerate(rows):
            out.write(json.dumps({"file_name": row["file_name"], "question": f"what is {i % 5}?", "question_id": i,
                                  "answer": [row["text"], "a circle", "a circle", "two squares"]}) + "\n")
    return [f"data.path={folder}", "data.keys={prompt: question}", "data.prompt_template=Question: {} Answer:"]


@test
def draws_are_the_same_on_one_rank_and_on_two(space):
    settings = [*questions_of(space), "train.max_epochs=2", "train.total_batch_size=8"]
    one, two = run(space, 1, *settings), run(space, 2, *settings)
    # With equal texts, sums differ only in their order: a few units in the last of 24 bits, which steps pass on.
    check(len(one.losses()) == len(two.losses()) > 4, one, two)
    check(abs(one.losses() / two.losses() - 1).max() < 1e-3, one.losses(), two.losses())
    other = run(space, 1, *settings, "data.answers=common")
    check(abs(one.losses() / other.losses() - 1).max() > 1e-3, "the most frequent answers alone:", one.losses(),
          other.losses())


@test
def each_answer_may_be_a_sample(space):
    settings = [*questions_of(space), "train.max_steps=3", "data.val_split_fraction=0.2"]
    result = run(space, 1, *settings, "data.answers=all")
    check(len(result.losses()) == 3, result)


@test
def a_template_without_a_place_for_the_prompt_is_refused(space):
    result = start(space, 1, *questions_of(space)[:2], "data.prompt_template=a photo of")
    check(result.status == 1 and "data.prompt_template has no place: put {} into it" in result.err, result)


if __name__ == "__main__":
    sys.exit(run_tests("picture_prompts_test", Space, PROGRAM))
