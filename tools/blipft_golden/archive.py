"""The golden data: a set is one archive, test/golden/SET.safetensors, which holds each file of the set as a tensor of bytes."""
import json
import pathlib
import shutil
import struct
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent.parent / "test/golden"
_unpacked = []                             # the folder, once there is one


def pack(folder, archive):
    """Writes the files of a folder into an archive; equal files give equal bytes."""
    header, contents, end = {}, [], 0
    for path in sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file()):
        contents.append(path.read_bytes())
        begin, end = end, end + len(contents[-1])
        header[path.relative_to(folder).as_posix()] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(archive).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(contents))


def unpack(archive, folder):
    """Writes the files of an archive into a folder."""
    data = pathlib.Path(archive).read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:begin]).items():
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        first, last = entry["data_offsets"]
        path.write_bytes(data[begin + first:begin + last])


def golden_path(name):
    """The path of a set's folder, "llama_gqa", or of a file, "images/gray.jpg", in a folder that is removed at the end of the process."""
    if not _unpacked:
        _unpacked.append(tempfile.TemporaryDirectory(prefix="blipft_golden."))
    folder, set_name = pathlib.Path(_unpacked[0].name), name.partition("/")[0]
    if not (folder / set_name).exists():
        unpack(GOLDEN / f"{set_name}.safetensors", folder / set_name)
    return folder / name


def copy_tokenizer(name, folder):
    """Copies the files of a small tokenizer, "llama3", into a model's folder."""
    shutil.copytree(golden_path(f"tokenizer/{name}"), folder, ignore=shutil.ignore_patterns("cases.json"), dirs_exist_ok=True)
