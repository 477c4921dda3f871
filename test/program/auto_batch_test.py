#!/usr/bin/env python3
"""train.batch_size: auto and totals that do not come out even, in the whole program: the same losses as any other way to cut
a step into micro-batches, the same choice when a run goes on, and a refusal where the micro-batch is part of the loss."""
import json
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (DEVICE, PROGRAM, TwoModels, checkpoint, model_of, mpirun, ranks_up_to, start,  # noqa: E402
                          steps_of, trained)
from script_tests import check, run_tests, test  # noqa: E402

import h5py  # noqa: E402

TOTAL, STEPS = 12, 3
LORA = ("adapter.kind=lora", "adapter.targets=[q, v, mlp]")
MODELS = {"blip2": ("picture", ()), "llama": ("text", ()), "lora": ("text", LORA),
          "qlora": ("text", (*LORA, "model.quantize=nf4"))}


class Models(TwoModels):
    """And a wide one of text."""

    def __init__(self, folder):
        super().__init__(folder, f"train:\n  lr: 1.0e-3\n  total_batch_size: {TOTAL}\n  precision: 32-true\n"
                                 f"  max_steps: {STEPS}\nparallel:\n  device: {DEVICE}\n  threads: 1\n")
        # Wide and long enough that a GPU computes about as fast in one micro-batch as in two.
        wide = self.folder / "wide"
        shutil.copytree(self.text / "model", wide)
        (wide / "config.json").write_text(json.dumps({
            **json.loads((wide / "config.json").read_text()), "num_hidden_layers": 2, "hidden_size": 1024,
            "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 512}))
        self.configs["wide"] = self.folder / "wide.yaml"
        self.configs["wide"].write_text(
            self.configs["text"].read_text().replace(str(self.text / "model"), str(wide)).replace("max_text_tokens: 96", "max_text_tokens: 512\n  text_padding: max")
            .replace("32-true", "bf16-true").replace(f"total_batch_size: {TOTAL}", f"total_batch_size: 64\n  max_epochs: {STEPS}"))


def chosen(result):
    """(batch_size, accumulate_grad_batches) of a run's trace, and what it says of the choice."""
    with h5py.File(result.output / "trace.rank0000.h5", "r") as file:
        texts = {name: value.decode() if isinstance(value, bytes) else str(value)
                 for name, value in ((name, file.attrs.get(name, "")) for name in ("config", "choice"))}
    number = {key: int(re.search(rf"^  {key}: (\d+)$", texts["config"], re.M)[1])
              for key in ("batch_size", "accumulate_grad_batches")}
    return number["batch_size"], number["accumulate_grad_batches"], texts["choice"]


def same_losses(steps, expected, *what):
    check(len(steps) == len(expected), steps, expected)
    for (step, loss, norm), (_, other, other_norm) in zip(steps, expected, strict=True):
        # Sums of f32 in another order: a few roundings of 1e-7 in sums of some 1,000 terms, and of what was learnt by them.
        check(abs(loss / other - 1) < 2e-5 and abs(norm / other_norm - 1) < 2e-4, "step", step, loss, other, norm,
              other_norm, *what)


def compared(name):
    def losses(space):
        kind, settings = MODELS[name]
        expected = None
        for ranks in range(1, ranks_up_to(4) + 1):
            strategy = ("auto", "parallel.strategy=ddp", "parallel.strategy=fsdp", "parallel.strategy=fsdp")[ranks - 1]
            where = (*settings, *([strategy] if ranks > 1 else []))
            auto = trained(space, kind, ranks, *where)
            batch, micro_batches, said = chosen(auto)
            line = re.search(r"^auto +(.*)$", auto.out, re.M)
            check(line and line[1] == said and said.startswith(f"{batch} sample"), said, auto)
            if DEVICE == "cpu":
                check(re.match(r"[^:]*: fits [\d.]+ .iB", said) and "an estimated" not in said, "a GPU's seconds on a CPU:", said)
            check(TOTAL <= batch * micro_batches * ranks < TOTAL + ranks * micro_batches, batch, micro_batches)
            expected = expected or steps_of(auto.output)
            same_losses(steps_of(auto.output), expected, ranks, "auto")
            for batch in ((1, 2, 5) if ranks == 1 else (ranks - 1,)):
                other = trained(space, kind, ranks, *where, f"train.batch_size={batch}")
                check(chosen(other) == (batch, -(-TOTAL // ranks // batch) if TOTAL % (ranks * batch) == 0 else
                                        chosen(other)[1], ""), chosen(other))
                same_losses(steps_of(other.output), expected, ranks, batch)
    losses.__name__ = f"losses_do_not_depend_on_the_choice_{name}"
    return test(losses)


for each in MODELS:
    compared(each)


@test
def a_total_that_does_not_come_out_even_is_that_many_samples(space):
    for kind in ("picture", "text"):
        whole = trained(space, kind, 1, "train.total_batch_size=7", "train.batch_size=7")
        for ranks, *how in ((1, "train.batch_size=2"), (1, "train.batch_size=3", "train.act_ckpt=half"), (2,),
                            (2, "train.batch_size=3"), (3, "parallel.strategy=fsdp"), (4, "train.batch_size=1")):
            if ranks > ranks_up_to(4):
                continue
            other = trained(space, kind, ranks, "train.total_batch_size=7", *how)
            same_losses(steps_of(other.output), steps_of(whole.output), kind, ranks, how)
            rate = sum(h5py.File(other.output / f"trace.rank{rank:04d}.h5", "r").attrs["samples_per_step"]
                       for rank in range(ranks))
            check(rate == 7, "the ranks' samples of a step are", rate)


@test
def a_run_goes_on_with_what_it_chose(space):
    settings = ("checkpoint.every_steps=1", "checkpoint.keep=9", "output.save_model=true")
    for ranks, begun in ((1, ()), (2, ("train.batch_size=2",))):  # the latter: not what auto would choose here
        whole = trained(space, "text", ranks, *settings, *begun)
        batch, micro_batches, _ = chosen(whole)
        part = trained(space, "text", ranks, "output.save_model=true",
                       f"checkpoint.resume={checkpoint(whole.output, 1)}")
        check(chosen(part)[:2] == (batch, micro_batches) and "as chosen when the run began" in part.out, part)
        check(DEVICE == "cuda" or re.search(r"^auto .* as chosen when the run began$", part.out, re.M), part)
        check("rounding may differ" not in part.out, part)
        check(steps_of(part.output) == steps_of(whole.output)[1:], part)
        check(model_of(part.output) == model_of(whole.output), "another model")
    # Another number of ranks has other shares.
    if ranks_up_to(3) == 3:
        other = trained(space, "text", 3, f"checkpoint.resume={checkpoint(whole.output, 1)}")
        check(chosen(other)[0] == 4 and "as chosen" not in other.out, other)
        same_losses(steps_of(other.output), steps_of(whole.output)[1:])
    # A key that is given now is not taken from there.
    given = trained(space, "text", 2, "train.act_ckpt=full", f"checkpoint.resume={checkpoint(whole.output, 1)}")
    check("chosen anew, since the run began with 2 samples x 3 micro-batches" in given.out, given)


def timings_of(output):
    with h5py.File(output / "trace.rank0000.h5", "r") as file:
        value = file.attrs.get("choice_timings", "")
    return value.decode() if isinstance(value, bytes) else str(value)


def chosen_by_hand(output):
    """The overrides that give what a run chose."""
    with h5py.File(output / "trace.rank0000.h5", "r") as file:
        config = file.attrs["config"]
    config = config.decode() if isinstance(config, bytes) else str(config)
    value = lambda key: re.search(rf"^  {key}: (.*)$", config, re.M)[1]  # noqa: E731
    return [f"train.{key}={value(key)}" for key in ("batch_size", "act_ckpt")] + [f"parallel.reshard={value('reshard')}"]


@test
def candidates_that_estimates_do_not_tell_apart_are_timed(space):
    settings = ("checkpoint.every_steps=1", "checkpoint.keep=9", "output.save_model=true")
    cases = [("text", 2, ("parallel.strategy=fsdp",)), ("wide", 1, ())] if DEVICE == "cuda" else \
            [("text", 2, ("parallel.strategy=fsdp",)), ("picture", 2, ("parallel.strategy=fsdp", "train.accumulate_grad_batches=1"))]
    for kind, ranks, how in cases:
        if ranks > ranks_up_to(2):
            continue
        seam = {} if DEVICE == "cuda" else {"BLIPFT_TIME_CHOICE_ON_CPU": "1"}
        auto = trained(space, kind, ranks, *settings, *how, **seam)
        batch, micro_batches, said = chosen(auto)
        line = re.search(rf"^auto +{batch} samples? x {micro_batches} micro-batch(?:es)?.*?: timed ([0-9.]+) s a step, an "
                         r"estimated [0-9.]+ s, [0-9.]+ .iB of .*?; next .*?: timed ([0-9.]+) s, an estimated", auto.out, re.M)
        check(line and float(line[1]) <= float(line[2]), kind, auto)
        timings = timings_of(auto.output)
        check(re.match(rf"{batch} x {micro_batches}\b.* {line[1]} s, .* {line[2]} s", timings), timings, said)
        index = json.loads((checkpoint(auto.output, 1) / "checkpoint.json").read_text())
        check(index["run"]["choice_timings"] == timings and index["run"]["choice"] == said, index["run"])

        # The bits equal those of a run with these settings.
        hand = trained(space, kind, ranks, *how, *chosen_by_hand(auto.output), "output.save_model=true")
        check("auto  " not in hand.out and not timings_of(hand.output), hand)
        check(steps_of(hand.output) == steps_of(auto.output) and model_of(hand.output) == model_of(auto.output), kind)

        # Kept without another timing, and what was timed goes on with the run.
        part = trained(space, kind, ranks, *how, "output.save_model=true", "checkpoint.every_steps=1",
                       f"checkpoint.resume={checkpoint(auto.output, 1)}", **seam)
        check(f"as chosen when the run began (timed: {timings})" in part.out and " timed 0" not in part.out, part)
        check(timings_of(part.output) == timings and steps_of(part.output) == steps_of(auto.output)[1:], part)
        again = json.loads((checkpoint(part.output, STEPS) / "checkpoint.json").read_text())
        check(again["run"]["choice_timings"] == timings, again["run"])
        check(model_of(part.output) == model_of(auto.output), kind)

        # Without a run nothing is timed.
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", "--ranks", str(ranks), space.configs[kind], *how], **seam)
        check(status == 0 and "auto chooses" in out and "timed" not in out, out, err)


@test
def what_auto_cannot_choose_is_refused(space):
    config = space.configs["text"]
    for overrides, expected in (
            (("train.loss_normalization=micro_batch",), "train.loss_normalization: is micro_batch, but train.batch_size is auto. "
             "Set train.batch_size to a number"),
            (("train.loss_on_padding=true", "train.batch_size=auto"), "train.loss_on_padding: is true, but train.batch_size is "
             "auto. Set train.batch_size to a number"),
            (("train.batch_size=auto", "train.total_batch_size=0"), "train.batch_size: is auto, but train.total_batch_size is 0. "
             "Set train.total_batch_size"),
            (("train.batch_size=aut",), "expected an integer >= 1 and <= 65535, or auto; did you mean auto?"),
            (("train.batch_size=0",), "train.batch_size: found 0, expected an integer"),
            (("train.accumulate_grad_batches=13", "train.total_batch_size=12"), "is 13, but of train.total_batch_size 12 a rank has 12 samples")):
        result = start(space, 1, *overrides, config=config)
        check(result.status == 1 and expected in result.err, overrides, result)
    few = start(space, 3, "train.total_batch_size=2", config=config)
    check(few.status == 1 and "is 2, less than the 3 ranks, so that some would have no sample" in few.err, few)


@test
def plan_and_fit_print_the_choice(space):
    config = space.configs["text"]
    for options in (("--plan",), ("--plan", "--fit", "24GiB"), ("--plan", "--ranks", "5")):
        status, out, err, _ = mpirun(0, [PROGRAM, *options, config])
        found = re.search(r"^train\.batch_size: auto chooses (\d+) samples? x (\d+) micro-batch(es)?: an estimated "
                          r"[0-9.]+ s a step, .* of .*; next (\d+) x (\d+)", out, re.M)
        check(status == 0 and found, options, out, err)
        if "5" not in options:
            check((found[1], found[2]) == ("12", "1"), out)
    status, out, _, _ = mpirun(0, [PROGRAM, "--print-config", config])
    check(status == 0 and re.search(r"^  batch_size: auto$", out, re.M), out)


@test
def a_plan_looks_at_captions(space):
    def said(*options):
        status, out, err, _ = mpirun(0, [PROGRAM, "--plan", space.configs["picture"], *options])
        check(status == 0, options, out, err)
        return re.search(r"^captions of ([\d.]+) tokens, the mean of (\d+), for the time; of up to 32 for the memory$",
                         out, re.M)

    found = said()
    check(found and found[2] == str(len((space.data / "metadata.jsonl").read_text().splitlines())), found)
    longer = space.copy(space.data)
    records = [json.loads(line) for line in (longer / "metadata.jsonl").read_text().splitlines()]
    for record in records:
        record["text"] += " " + record["text"]
    (longer / "metadata.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    check(1.5 * float(found[1]) < float(said(f"data.path={longer}")[1]) < 2.1 * float(found[1]), found[0])
    for options in (("data.text_padding=max",), ("data.path=not_there",)):  # of one length; not known
        check(not said(*options), options)


if __name__ == "__main__":
    sys.exit(run_tests("auto_batch_test", Models, PROGRAM))
