#!/usr/bin/env python3
"""A checkpoint that was damaged at random: each resume is refused, with the name of a file, or is the undisturbed run.

    python3 test/program/damage_test.py [PART-OF-A-NAME...]

Each kind of damage is done once to every kind of bytes, at places drawn by chance; BLIPFT_DAMAGE=100 does so 100 times,
BLIPFT_SEED=N draws the places of an earlier run, which a failure names. Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME
(why)" for each test.
"""
import json
import os
import pathlib
import random
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, Space, checkpoint, model_of, run, start, steps_of  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

SEED = int(os.environ.get("BLIPFT_SEED", random.SystemRandom().randrange(10**9)))
ROUNDS = int(os.environ.get("BLIPFT_DAMAGE", 1))
SETTINGS = ("train.total_batch_size=8", "train.precision=bf16-mixed", "train.optim=adamw8bit", "train.max_steps=3",
            "adapter.kind=lora", "adapter.targets=[q, v, mlp]", "output.save_model=true")


class Damage:
    """Kinds of damage to the bytes of one file, from `begin` to `end`."""

    def __init__(self, draw):
        self.draw = draw

    def place(self, begin, end, most):
        size = self.draw.randint(1, min(most, end - begin))
        at = self.draw.randrange(begin, end - size + 1)
        return at, at + size

    def flip(self, data, begin, end):
        data[self.draw.randrange(begin, end)] ^= 1 << self.draw.randrange(8)

    def zero(self, data, begin, end):
        at, stop = self.place(begin, end, 600)
        data[at:stop] = bytes(stop - at)

    def noise(self, data, begin, end):
        at, stop = self.place(begin, end, 40)
        data[at:stop] = self.draw.randbytes(stop - at)

    def cut(self, data, begin, end):
        at, stop = self.place(begin, end, 600)
        del data[at:stop]

    def end_early(self, data, begin, end):
        del data[self.draw.randrange(begin, end):]

    def insert(self, data, begin, end):
        at = self.draw.randrange(begin, end)
        data[at:at] = self.draw.randbytes(self.draw.randint(1, 20))

    def swap(self, data, begin, end):
        half = (begin + end) // 2
        at, stop = self.place(begin, half, 600)
        other = self.draw.randrange(half, end - (stop - at) + 1)
        data[at:stop], data[other:other + stop - at] = data[other:other + stop - at], data[at:stop]


KINDS = ("flip", "zero", "noise", "cut", "end_early", "insert", "swap")


def parts_of(path):
    """{kind of bytes: (begin, end)} of a checkpoint's file."""
    data = path.read_bytes()
    if path.name == "checkpoint.json":
        config, files = data.index(b'"config"'), data.index(b'"files"')
        return {"head": (0, config), "config": (config, files), "files": (files, len(data) - 25),
                "checksum": (len(data) - 25, len(data))}
    length, = struct.unpack("<Q", data[:8])
    return {"length": (0, 8), "header": (8, 8 + length), "payload": (8 + length, len(data))}


def lines_of(path):
    return path.read_text().splitlines(keepends=True)


class Checkpoints:
    """A kind of damage, and the expected result of a run from it."""

    def __init__(self, space):
        self.space = space
        made = run(space, 2, *SETTINGS, "parallel.strategy=fsdp", "checkpoint.every_steps=1", "checkpoint.keep=9",
                   "train.batch_size=4")
        self.first, self.second = checkpoint(made.output, 1), checkpoint(made.output, 2)
        self.whole = self.resumed(self.second)
        check(self.whole.status == 0, self.whole)

    def resumed(self, folder):
        return start(self.space, 0, *SETTINGS, "train.batch_size=8", f"checkpoint.resume={folder}")

    def weights(self, output):
        return (output / "adapter/adapter_model.safetensors").read_bytes()

    def try_damage(self, what, spoil):
        folder = self.space.new("damaged")
        shutil.copytree(self.second, folder)
        spoil(folder)
        result = self.resumed(folder)
        note = f"{what} (BLIPFT_SEED={SEED}, {folder})"
        if result.status == 0:
            check(steps_of(result.output) == steps_of(self.whole.output), note, "other steps", result)
            check(self.weights(result.output) == self.weights(self.whole.output), note, "other weights", result)
        else:
            messages = [line for line in result.err.splitlines() if line.startswith("blipft: ")]
            check(result.status == 1 and len(messages) == 1 and str(folder) in messages[0], note, result)
            check(len(messages[0]) < 1500, note, messages[0])
            check(not (result.output / "adapter").exists(), note, "a model was saved")
        shutil.rmtree(folder)
        shutil.rmtree(result.output, ignore_errors=True)
        return result.status


_made = {}


def checkpoints_of(space):
    if space not in _made:
        _made[space] = Checkpoints(space)
    return _made[space]


@test
def bytes_of_every_kind_are_damaged(space):
    of = checkpoints_of(space)
    draw = random.Random(SEED)
    harmless = []
    for _ in range(ROUNDS):
        damage = Damage(draw)
        state = draw.choice(sorted(path.name for path in of.second.glob("state-*")))
        for name in ("checkpoint.json", state):
            for part, (begin, end) in parts_of(of.second / name).items():
                # Two kinds of damage to the state's header are enough each time, because resuming does not need it.
                for kind in KINDS if name == "checkpoint.json" and part != "checksum" else draw.sample(KINDS, 2):
                    def spoil(folder):
                        data = bytearray((folder / name).read_bytes())
                        before = bytes(data)
                        while bytes(data) == before:
                            getattr(damage, kind)(data, begin, end)
                        (folder / name).write_bytes(data)
                    if of.try_damage(f"{kind} in the {part} of {name}", spoil) == 0:
                        harmless.append((name, part))
    check(all(name != "checkpoint.json" and part != "payload" for name, part in harmless), SEED, harmless)


@test
def keys_are_dropped_and_names_are_swapped(space):
    of = checkpoints_of(space)
    draw = random.Random(SEED)

    def changed(change):
        def spoil(folder):
            path = folder / "checkpoint.json"
            index = json.loads(path.read_text())
            change(index)
            path.write_text(json.dumps(index, indent=1) + "\n")
        return spoil

    def swap_names(index):
        pieces = [piece for file in index["files"] for piece in file["pieces"]]
        one = draw.choice(pieces)
        other = draw.choice([piece for piece in pieces if piece["shape"] == one["shape"] and piece != one])
        one["tensor"], other["tensor"] = other["tensor"], one["tensor"]

    def drop_line(folder):
        lines = lines_of(folder / "checkpoint.json")
        del lines[draw.randrange(len(lines))]
        (folder / "checkpoint.json").write_text("".join(lines))

    changes = {
        "no train.seed": changed(lambda index: index["config"].pop("train.seed")),
        "two tensors' names": changed(swap_names),
        "no file": changed(lambda index: index["files"].pop()),
        "no checksum": changed(lambda index: index.pop("crc32c")),
        "another step": changed(lambda index: index.update(step=1)),
        "no fact of the run": changed(lambda index: index["run"].pop(draw.choice(sorted(index["run"])))),
        "no line": drop_line,
    }
    for _ in range(ROUNDS):
        for what, spoil in changes.items():
            check(of.try_damage(what, spoil) == 1, what, SEED)


@test
def files_are_swapped_mixed_and_removed(space):
    of = checkpoints_of(space)
    states = sorted(path.name for path in of.second.glob("state-*"))
    check(len(states) == 2, states)

    def swap(folder):
        (folder / states[0]).rename(folder / "aside")
        (folder / states[1]).rename(folder / states[0])
        (folder / "aside").rename(folder / states[1])

    def of_first(name):
        return lambda folder: shutil.copy(of.first / name, folder / name)

    def same_twice(folder):
        shutil.copy(folder / states[0], folder / states[1])
    for what, spoil in {"swapped": swap, "twice the same": same_twice, "another's index": of_first("checkpoint.json"),
                        "another's state": of_first(states[1]), "no state": lambda folder: (folder / states[0]).unlink(),
                        "no index": lambda folder: (folder / "checkpoint.json").unlink()}.items():
        check(of.try_damage(what, spoil) == 1, what)
    # A whole one under another's name.
    wrong = space.new("checkpoints") / "step-00000002"
    shutil.copytree(of.first, wrong)
    refused = of.resumed(wrong)
    check(refused.status == 1 and "step 1, but the folder's name says 2" in refused.err, refused)


if __name__ == "__main__":
    sys.exit(run_tests("damage_test", Space, PROGRAM))
