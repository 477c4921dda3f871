#!/usr/bin/env python3
"""The whole program with validation samples, and with a total batch size: the same on any number of ranks."""
import json
import pathlib
import re
import sys

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, SAMPLES, Space, mpirun, read_table, run, start  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

# 36 of the 48 samples train, 12 are kept: steps of 12 samples, three an epoch.
OPTIONS = ("data.val_split_fraction=0.25", "train.max_epochs=2", "train.batch_size=2", "train.total_batch_size=12")


def validations(result, ranks):
    tables = [read_table(result.output, rank, "validation") for rank in range(ranks)]
    for table in tables[1:]:
        check((table[["step", "loss", "tokens"]] == tables[0][["step", "loss", "tokens"]]).all(), tables)
    return tables[0]


@test
def every_strategy_has_the_same_validations(space):
    reference = run(space, 1, *OPTIONS)
    expected = validations(reference, 1)
    check(expected["step"].tolist() == [2, 5], "not after every epoch:", expected)
    check(expected["loss"][1] < expected["loss"][0], "the loss did not change", expected)
    check((expected["seconds"] > 0).all() and (expected["tokens"] > 12).all(), expected)
    check(re.search(r"^validation 12 samples$", reference.out, re.M), reference)
    shown = re.findall(r"^validation after step (\d+)/6  loss (\S+)  (\d+) tokens  \S+ s$", reference.out, re.M)
    check(shown == [(str(row["step"] + 1), f"{row['loss']:.4f}", str(row["tokens"])) for row in expected], shown)
    for ranks, *options in ((2, "parallel.strategy=ddp"), (2, "parallel.strategy=fsdp", "parallel.reshard=always"),
                            (3, "parallel.strategy=fsdp", "parallel.reshard=step")):
        result = run(space, ranks, *OPTIONS, *options)
        found = validations(result, ranks)
        check(np.allclose(result.losses(), reference.losses(), rtol=1e-5), options, result)
        check((found["tokens"] == expected["tokens"]).all(), found, expected)
        check(np.allclose(found["loss"], expected["loss"], rtol=1e-5), options, found, expected)
        with h5py.File(result.output / "trace.rank0000.h5", "r") as file:
            config = str(np.asarray(file.attrs["config"]).item() if not isinstance(file.attrs["config"], (str, bytes))
                         else file.attrs["config"])
        check(f"accumulate_grad_batches: {6 // ranks}" in config, "not resolved:", config)


@test
def the_trace_lists_the_samples_of_each_step(space):
    """On two ranks, of two epochs of 36 training samples: each once an epoch, by its number in the files, none that is held out."""
    result = run(space, 2, *OPTIONS, "trace.samples=true", "parallel.strategy=ddp")
    tables = [read_table(result.output, rank, "step_samples") for rank in range(2)]
    rows = np.concatenate(tables)
    check(rows.dtype.names == ("step", "micro_batch", "place", "sample"), rows.dtype)
    check(sorted(np.unique(rows["step"])) == list(range(6)), rows["step"])
    check(all((table[table["step"] == step]["place"] < 2).all() and len(table[table["step"] == step]) == 6
              for table in tables for step in range(6)), tables)
    epochs = [np.sort(rows[rows["step"] // 3 == epoch]["sample"]) for epoch in range(2)]
    check(len(set(epochs[0])) == 36 and (epochs[0] == epochs[1]).all(), epochs)
    check(epochs[0].max() < SAMPLES and epochs[0].max() >= 36, "numbers in the files, not in the training part", epochs[0])
    check(len(read_table(run(space, 1, *OPTIONS).output, 0, "step_samples")) == 0, "without the key there are none")


@test
def an_interval_and_a_limit(space):
    plain = run(space, 2, *OPTIONS[1:], "data.val_path=" + str(space.data), "train.val_check_interval=3",
                "train.max_steps=7", "train.limit_val_batches=2")
    found = validations(plain, 2)
    check(found["step"].tolist() == [2, 5, 6], found)
    means = run(space, 2, *OPTIONS[1:], "data.val_path=" + str(space.data), "train.val_check_interval=7",
                "train.max_steps=7", "train.limit_val_batches=2", "train.loss_normalization=micro_batch")
    check(validations(means, 2)["tokens"].tolist() == [found["tokens"][0]], "other samples:", means)


@test
def what_cannot_be_validated_is_refused(space):
    single = space.new("single")
    single.mkdir()
    picture = next(space.data.rglob("*.jpg"), None) or next(space.data.rglob("*.png"))
    (single / picture.name).write_bytes(picture.read_bytes())
    (single / "metadata.jsonl").write_text(json.dumps({"file_name": picture.name, "text": "a square"}) + "\n")
    for options, expected in (
            (("data.val_path=/nowhere",), 'override "data.val_path=/nowhere": data.val_path: /nowhere does not exist'),
            (("data.val_split_fraction=0.001",), "leaves no sample for validation"),
            ((f"data.path={single}", "data.val_split_fraction=0.5"), "data.val_split_fraction: found 1 sample at "),
            (("data.val_split_fraction=0.25", "train.limit_val_batches=0.001"), "leaves none; raise it"),
            (("train.total_batch_size=13", "train.loss_normalization=micro_batch"),
             "which is no multiple of 2 ranks x train.batch_size 4 = 8, and with train.loss_normalization: micro_batch "
             "micro-batches must be equal; the nearest that are: 8 or 16")):
        result = start(space, 2, *options)
        check(result.status == 1 and expected in result.err, options, result)


@test
def the_plan_takes_a_total_batch_size(space):
    for ranks in (1, 2, 3, 4):             # 3: micro-batches of different sizes
        found, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--ranks", ranks, space.config, "train.total_batch_size=16"])
        check(found == 0, ranks, out, err)
    plan = [PROGRAM, "--plan", "--ranks", 8, space.config, "train.total_batch_size=16"]
    found, out, err, _ = mpirun(0, plan)   # 4 samples at once of the run file are more than a rank's 2
    check(found == 0 and "train.batch_size: 4 is ignored because the command line sets train.total_batch_size=16" in err, out, err)
    found, out, err, _ = mpirun(0, plan + ["train.batch_size=4"])
    check(found == 2 and "each of 8 ranks has 2 samples; lower it to 2, or give auto" in err, out, err)


if __name__ == "__main__":
    check(SAMPLES == 48, SAMPLES)
    sys.exit(run_tests("validation_run_test", Space, PROGRAM))
