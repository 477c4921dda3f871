#!/usr/bin/env python3
"""tools/convert_checkpoint.py: pytorch_model*.bin to safetensors. Prints ok, FAILED or SKIPPED for each test.

    test/tools/convert_checkpoint_test.py [WORD...]     tests whose names hold one of the words

Needs numpy; tests that make their files with torch are skipped without it.
"""
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile

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

    def new(self, with_torch=True):
        if with_torch and torch is None:
            raise Skip("no torch")
        self.count += 1
        folder = self.folder / f"model{self.count}"
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "tokenizer.model").write_bytes(b"\x00\xff")
        (folder / "modeling.py").write_text("raise SystemExit(1)")
        return folder


def convert(source, target, **variables):
    done = subprocess.run([sys.executable, str(ROOT / "tools/convert_checkpoint.py"), str(source), str(target)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                          env={**os.environ, **variables})
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
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


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
    part = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2)).state_dict()  # with versions beside it
    tensors = {**part, "own": torch.nn.Parameter(torch.randn(3, 2)), "part": torch.randn(4, 6)[1:3, 2:]}
    part.update(tensors)
    torch.save(part, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    same(converted(source) / "model.safetensors", tensors)
    torch.save(part, source / "pytorch_model.bin")
    shutil.rmtree(source.parent / (source.name + "-safetensors"))
    same(converted(source) / "model.safetensors", tensors)


def zip_of_torch(path, pickled, members):
    """An archive as torch.save writes it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, data in members.items():
            archive.writestr("archive/" + name, data)


def tensor_pickle(reach=4, elements=4, module="torch._utils", function="_rebuild_tensor_v2"):
    """The pickle of {"x": a tensor of `reach` f32}, instruction by instruction: pickle itself would need torch's classes."""
    def text(word):
        return b"X" + len(word).to_bytes(4, "little") + word.encode()
    storage = (b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K" + bytes([elements]) + b"tQ")
    arguments = b"(" + storage + b"K\x00" + b"(K" + bytes([reach]) + b"t" + b"(K\x01t" + b"\x89" + b"tR"
    return b"\x80\x02}" + text("x") + f"c{module}\n{function}\n".encode() + arguments + b"s."


@test
def without_torch_files_are_read_and_bounds_are_kept(space):
    source = space.new(with_torch=False)
    path, data = source / "pytorch_model.bin", struct.pack("<4f", 1, -2, 3.5, 0)
    blocked = source.parent / "no_torch"
    blocked.mkdir(exist_ok=True)
    (blocked / "torch.py").write_text("raise ImportError('this Python has no torch')")
    zip_of_torch(path, tensor_pickle(), {"data/0": data, "byteorder": b"little"})
    target = source.parent / "read"
    status, out = convert(source, target, PYTHONPATH=str(blocked))
    check(status == 0, out)
    check(read_safetensors(target / "model.safetensors") == {"x": ("F32", (4,), data)}, out)
    for pickled, members, part in (
            (tensor_pickle(reach=5), {"data/0": data}, "reaches to element 4 of a storage of 4"),
            (tensor_pickle(elements=9), {"data/0": data}, "found 16 bytes, expected 9 elements of 4"),
            (tensor_pickle(), {}, "lacks archive/data/0"),
            (tensor_pickle(), {"data/0": data, "byteorder": b"big"}, "big-endian"),
            (tensor_pickle(module="os", function="system"), {"data/0": data}, "names os.system"),
            (tensor_pickle(module="torch._utils", function="_rebuild_sparse_tensor"), {"data/0": data}, "_rebuild_sparse_tensor"),
            (tensor_pickle()[:-9], {"data/0": data}, "broken, or no file of torch")):
        zip_of_torch(path, pickled, members)
        refused(source, "pytorch_model.bin: cannot be read as tensors alone", part)


@test
def without_numpy_the_tool_takes_another_python_or_says_what_it_needs(space):
    source = space.new(with_torch=False)
    zip_of_torch(source / "pytorch_model.bin", tensor_pickle(), {"data/0": bytes(16)})
    alone = source.parent / "alone"                    # a Python without packages
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", alone], check=True)
    tool = [alone / "bin/python3", ROOT / "tools/convert_checkpoint.py", source]
    # With the usual PATH it finds the one that this test runs with.
    done = subprocess.run([*tool, source.parent / "other"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "BLIPFT_PYTHON": sys.executable})
    check(done.returncode == 0 and (source.parent / "other/model.safetensors").exists(), done.stdout)
    # If there is none, it says so.
    done = subprocess.run([*tool, source.parent / "none"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "BLIPFT_TOOL_RUNS_WITH": "this one"})
    check(done.returncode == 1 and "Traceback" not in done.stdout, done.stdout)
    for part in ("convert_checkpoint.py: needs the Python modules numpy", "lacks numpy", "make setup", "-m venv",
                 "export BLIPFT_PYTHON="):
        check(part in done.stdout, part, "not in", done.stdout)


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
                          ({"x": torch.zeros(2, dtype=torch.complex64)}, "tensor x is of a torch.ComplexFloatStorage")):
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
