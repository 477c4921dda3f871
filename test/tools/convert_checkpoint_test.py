#!/usr/bin/env python3
"""tools/convert_checkpoint.py: pytorch_model*.bin to safetensors. Prints ok, FAILED or SKIPPED for each test.

    test/tools/convert_checkpoint_test.py [WORD...]     tests whose names hold one of the words

Needs torch and numpy; without torch the tests are skipped.
"""
import json
import os
import pathlib
import pickle
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "test/support"), str(ROOT / "test/program")]
from program_runs import read_safetensors  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

try:
    import torch
except ImportError:
    torch = None


class Space:
    def __init__(self, folder):
        self.folder, self.count = pathlib.Path(folder), 0

    def new(self):
        if torch is None:
            raise Skip("no torch")
        self.count += 1
        folder = self.folder / f"model{self.count}"
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "tokenizer.model").write_bytes(b"\x00\xff")
        (folder / "modeling.py").write_text("raise SystemExit(1)")
        return folder


def convert(source, target):
    done = subprocess.run([sys.executable, str(ROOT / "tools/convert_checkpoint.py"), str(source), str(target)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode, done.stdout


def converted(source):
    target = source.parent / (source.name + "-safetensors")
    status, out = convert(source, target)
    check(status == 0, out)
    return target


def refused(source, *parts):
    target = source.parent / (source.name + "-safetensors")
    status, out = convert(source, target)
    check(status == 1, status, out)
    for part in parts:
        check(part in out, "expected", part, "in", out)
    check("Traceback" not in out, out)
    check(not target.exists() and not target.with_name(target.name + ".partial").exists(), "something is left")


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(path, tensors):
    stored = read_safetensors(path)
    check(set(stored) == set(tensors), set(stored) ^ set(tensors))
    for name, tensor in tensors.items():
        _, shape, data = stored[name]
        check(shape == tuple(tensor.shape) and data == bytes_of(tensor), name)


@test
def one_file_keeps_every_bit_of_every_dtype(space):
    source = space.new()
    tied, base = torch.randn(5, 3), torch.randn(4, 6)
    tensors = {"a": torch.randn(7, 3).to(torch.float16), "b": torch.randn(3).to(torch.bfloat16), "embed": tied,
               "head": tied, "turned": base.t(), "part": base[1:3, 2:], "number": torch.tensor(2.5),
               "none": torch.zeros(0, 4), "ids": torch.arange(5), "flags": torch.tensor([True, False])}
    torch.save(tensors, source / "pytorch_model.bin")
    target = converted(source)
    same(target / "model.safetensors", tensors)
    check(sorted(os.listdir(target)) == ["config.json", "model.safetensors", "tokenizer.model"], os.listdir(target))
    check((target / "tokenizer.model").read_bytes() == b"\x00\xff", "tokenizer.model is another")


@test
def shards_get_an_index(space):
    source = space.new()
    shards = [{"x": torch.randn(3, 2), "y": torch.randn(4)}, {"z": torch.randn(2, 2)}]
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for name, shard in zip(names, shards):
        torch.save(shard, source / name)
    weight_map = {key: name for name, shard in zip(names, shards) for key in shard}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    target = converted(source)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    check(index["metadata"]["total_size"] == 4 * 14, index)
    check(set(index["weight_map"]) == {"x", "y", "z"}, index)
    for i, shard in enumerate(shards, 1):
        same(target / f"model-0000{i}-of-00002.safetensors", shard)
    check(not (target / "pytorch_model.bin.index.json").exists(), "the old index is copied")
    (source / names[1]).unlink()
    (source.parent / (source.name + "-safetensors")).rename(source.parent / "elsewhere")
    refused(source, names[1], "missing")


@test
def files_of_old_versions_are_read(space):
    source = space.new()
    tensors = {"x": torch.randn(3, 2)}
    torch.save(tensors, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    same(converted(source) / "model.safetensors", tensors)


class Command:
    def __reduce__(self):
        return os.system, ("touch RAN",)


@test
def code_in_a_file_is_not_run(space):
    source = space.new()
    torch.save({"x": torch.zeros(2), "y": Command()}, source / "pytorch_model.bin")
    refused(source, "pytorch_model.bin: cannot be read as tensors alone")
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(Command()))
    refused(source, "pytorch_model.bin: cannot be read as tensors alone")
    check(not pathlib.Path("RAN").exists(), "the command ran")


@test
def what_is_no_model_is_refused_by_name(space):
    source = space.new()
    refused(source, "expected pytorch_model.bin")
    for content, part in (([torch.zeros(2)], "found a list"), ({"step": 3}, "found a int under 'step'"),
                          ({"model": {"x": torch.zeros(2)}}, "found a dict under 'model'"),
                          ({"x": torch.zeros(2, dtype=torch.complex64)}, "tensor x has dtype torch.complex64")):
        torch.save(content, source / "pytorch_model.bin")
        refused(source, "pytorch_model.bin: ", part)
    (source / "pytorch_model.bin").write_bytes(b"PK\x03\x04 not a file of torch")
    refused(source, "pytorch_model.bin: cannot be read")
    (source / "pytorch_model.bin").unlink()
    index = source / "pytorch_model.bin.index.json"
    for text in ("{", "{}", '{"weight_map": {"x": "../other.bin"}}', '{"weight_map": {"x": "gone.bin"}}'):
        index.write_text(text)
        refused(source, index.name if "gone" not in text else "gone.bin")
    check(convert(source, source)[0] == 1, "an existing folder is taken for the target")


if __name__ == "__main__":
    sys.exit(run_tests("convert_checkpoint_test", Space, str(ROOT / "tools/convert_checkpoint.py")))
