"""Converts a model directory with only pytorch_model*.bin to safetensors, without running code from it.

  convert_checkpoint.py SOURCE TARGET

SOURCE holds pytorch_model.bin, or the shards that pytorch_model.bin.index.json names. torch_files.py reads them
without torch, refuses everything that is no tensor, and maps the files: tensors are copied one at a time, as stored, so
the memory is that of one tensor. Each file becomes one .safetensors file; several get an index.
Tensors that share memory are written once for each of their names. Configuration, tokenizer and the other small files
of SOURCE are copied. TARGET appears when it is complete.

Needs numpy.
"""
import argparse
import json
import math
import os
import shutil
import sys

from . import torch_files

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def fail(*what):
    sys.exit("convert_checkpoint.py: " + "".join(str(w) for w in what))


def files_of(source):
    """The files with weights, in order."""
    if os.path.exists(os.path.join(source, SINGLE)):
        return [SINGLE]
    path = os.path.join(source, INDEX)
    if not os.path.exists(path):
        fail(source, ": expected ", SINGLE, " or ", INDEX, ", found neither")
    try:
        with open(path, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        fail(path, ": expected an object \"weight_map\" from tensors to files: ", error)
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:
            fail(path, ": weight_map names the file ", name, ", expected one in the same folder")
        if not os.path.exists(os.path.join(source, name)):
            fail(os.path.join(source, name), ": the shard is missing, but ", INDEX, " names it; copy or download it")
    return names


def load(path):
    """{name: tensor}, mapped."""
    try:
        tensors = torch_files.load(path)
    except (torch_files.Refused, OSError) as error:
        fail(path, ": cannot be read as tensors alone: ", error)
    if not isinstance(tensors, dict):
        fail(path, ": found a ", type(tensors).__name__, ", expected a dictionary of tensors")
    if not tensors:
        fail(path, ": has no tensors, expected those of a model")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch_files.Tensor):
            fail(path, ": found a ", type(tensor).__name__, " under ", repr(name), ", expected tensors alone; is it a "
                 "training state instead of a model?")
        if tensor.dtype is None:
            fail(path, ": tensor ", name, " is of a torch.", tensor.storage.kind, ", which safetensors files do not hold")
    return tensors


def write(path, tensors):
    """One safetensors file; returns the bytes of its tensors."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        size = math.prod(tensor.shape) * tensor.storage.size
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.elements().reshape(-1).view("u1").data)
    return offset


def copy_small_files(source, target):
    for name in sorted(os.listdir(source)):
        path = os.path.join(source, name)
        kind = os.path.splitext(name)[1]
        if os.path.isfile(path) and kind in (".json", ".txt", ".model", ".jinja", ".md") and name != INDEX:
            shutil.copyfile(path, os.path.join(target, name))


def convert(source, target):
    files = files_of(source)
    weight_map, total = {}, 0
    for i, name in enumerate(files, 1):
        tensors = load(os.path.join(source, name))
        out = "model.safetensors" if len(files) == 1 else f"model-{i:05d}-of-{len(files):05d}.safetensors"
        for tensor in tensors:
            if tensor in weight_map:
                fail(os.path.join(source, name), ": tensor ", tensor, " is in an earlier file too")
            weight_map[tensor] = out
        size = write(os.path.join(target, out), tensors)
        total += size
        print(f"{name} -> {out}: {len(tensors)} tensors, {size / 2**30:.2f} GiB", flush=True)
        del tensors
    if len(files) > 1:
        with open(os.path.join(target, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=2)
            file.write("\n")
    copy_small_files(source, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    arguments = parser.parse_args()
    source, target = arguments.source.rstrip("/"), arguments.target.rstrip("/")
    if not os.path.isdir(source):
        fail(source, ": not a folder")
    if os.path.exists(target):
        fail(target, ": is there already; name a new folder")
    partial = target + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    try:
        convert(source, partial)
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise

