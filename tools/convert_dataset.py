#!/usr/bin/env python3
"""Converts a dataset saved by the `datasets` library (save_to_disk) into an ImageFolder.

    tools/convert_dataset.py saved/ pictures/
    tools/convert_dataset.py saved/ pictures/ --split train --text-column caption --limit 1000

The source is a directory with state.json and .arrow files, or with dataset_dict.json and one such directory a split.
The result is pictures/images/*.jpg|png and pictures/metadata.jsonl with the keys file_name and text.

Needs pyarrow, not `datasets`. Pictures that are neither JPEG nor PNG are saved as PNG, which needs PIL.
"""
import argparse
import io
import json
import shutil
import sys
import time
from pathlib import Path

CAPTION_COLUMNS = ("text", "caption")
ORIENTATION = 0x0112  # the EXIF tag


def fail(message):
    sys.exit(f"convert_dataset.py: {message}")


def import_pyarrow():
    try:
        import pyarrow
        import pyarrow.ipc
        return pyarrow
    except ImportError:
        fail("the Python package pyarrow is missing; install it with: python3 -m pip install pyarrow "
             "(in a virtual environment), or conda install pyarrow")


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{path}: cannot be read as JSON: {error}")


def split_directory(source, split):
    """The directory with state.json, of the split asked for or the only one there is."""
    if not source.is_dir():
        fail(f"{source}: not a directory")
    splits_file = source / "dataset_dict.json"
    if splits_file.exists():
        splits = read_json(splits_file).get("splits", [])
        if split is None and len(splits) != 1 and "train" not in splits:
            fail(f"{source}: has the splits {', '.join(splits)}; choose one with --split")
        split = split or (splits[0] if len(splits) == 1 else "train")
        if split not in splits:
            fail(f"{source}: no split \"{split}\"; it has {', '.join(splits)}")
        return source / split
    if split is not None:
        fail(f"{source}: --split {split} was given, but there is no dataset_dict.json: this is a single split")
    return source


def arrow_files(directory):
    state_file = directory / "state.json"
    if not state_file.exists():
        fail(f"{directory}: no state.json; expected a dataset saved with save_to_disk")
    state = read_json(state_file)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        fail(f"{state_file}: the dataset is a selection that was not written out; "
             "call flatten_indices() before save_to_disk()")
    names = [item["filename"] for item in state.get("_data_files", [])]
    files = [directory / name for name in names] or sorted(directory.glob("*.arrow"))
    absent = [str(file) for file in files if not file.exists()]
    if absent:
        fail(f"{absent[0]}: does not exist, but {state_file} lists it ({len(absent)} of {len(files)} files are absent)")
    if not files:
        fail(f"{directory}: no .arrow files")
    return files


def open_batches(pyarrow, file):
    """Record batches of an Arrow file; `datasets` writes the stream form, other tools the file form."""
    source = pyarrow.memory_map(str(file))
    try:
        return pyarrow.ipc.open_stream(source)
    except pyarrow.ArrowInvalid:
        pass
    try:
        reader = pyarrow.ipc.open_file(source)
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    except pyarrow.ArrowInvalid as error:
        fail(f"{file}: not an Arrow file: {error}")


def choose_column(names, wanted, candidates, what, file):
    options = [wanted] if wanted else candidates
    for name in options:
        if name in names:
            return name
    fail(f"{file}: no {what} column {' or '.join(options)}; its columns are {', '.join(names)}")


def picture_bytes(value, base, place):
    """The encoded picture of a cell: bytes, or {"bytes", "path"}."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        if value.get("bytes"):
            return value["bytes"]
        if value.get("path"):
            path = Path(value["path"])
            path = path if path.is_absolute() else base / path
            try:
                return path.read_bytes()
            except OSError as error:
                fail(f"{place}: the picture is not in the dataset, and its file cannot be read: {error}")
    fail(f"{place}: found {type(value).__name__} where a picture was expected ({{\"bytes\", \"path\"}})")


def encoded(data, place):
    """(bytes, extension): JPEG and PNG as they are, others as PNG with their transparency and orientation."""
    if data.startswith(b"\xff\xd8\xff"):
        return data, "jpg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data, "png"
    try:
        from PIL import Image
    except ImportError:
        fail(f"{place}: the picture is neither JPEG nor PNG; converting it needs the Python package Pillow "
             "(Debian: python3-pil)")
    try:
        out = io.BytesIO()
        picture = Image.open(io.BytesIO(data))
        picture.load()
        transparent = "A" in picture.getbands() or picture.info.get("transparency") is not None
        exif = Image.Exif()
        if picture.getexif().get(ORIENTATION) is not None:
            exif[ORIENTATION] = picture.getexif()[ORIENTATION]
        picture.convert("RGBA" if transparent else "RGB").save(out, "PNG", exif=exif)
        return out.getvalue(), "png"
    except Exception as error:  # PIL raises several types
        fail(f"{place}: the picture cannot be read: {error}")


def caption_text(value, place):
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str):
        fail(f"{place}: found {type(value).__name__} where a caption was expected (a string or a list of strings)")
    return value


def prepare_output(output, force):
    """A fresh directory. Only what this tool writes is removed: of an unfinished conversion, or with --force."""
    if output.exists() and not output.is_dir():
        fail(f"{output}: exists and is not a directory")
    found = {item.name for item in output.iterdir()} if output.exists() else set()
    if found:
        unfinished = "metadata.jsonl.part" in found and found <= {"images", "metadata.jsonl.part"}
        if not force and not unfinished:
            fail(f"{output}: exists and is not empty; choose another directory, "
                 "or replace its images/ and metadata.jsonl with --force")
        (output / "metadata.jsonl").unlink(missing_ok=True)
        if (output / "images").exists():
            shutil.rmtree(output / "images")
    (output / "images").mkdir(parents=True)


class Progress:
    """A line that is rewritten on a terminal, and printed now and then elsewhere."""

    def __init__(self):
        self.terminal = sys.stderr.isatty()
        self.start = self.last = time.monotonic()

    def show(self, count, last=False):
        now = time.monotonic()
        if not last and now - self.last < (0.2 if self.terminal else 10):
            return
        self.last = now
        rate = count / max(now - self.start, 1e-9)
        end = "\n" if last or not self.terminal else ""
        print(f"{chr(13) if self.terminal else ''}{count} pictures, {rate:.0f}/s", end=end, file=sys.stderr, flush=True)


def convert(arguments):
    directory = split_directory(arguments.source, arguments.split)
    files = arrow_files(directory)
    pyarrow = import_pyarrow()
    prepare_output(arguments.output, arguments.force)
    progress = Progress()
    count = 0
    partial = arguments.output / "metadata.jsonl.part"  # renamed at the end: a half conversion is no dataset
    with open(partial, "w", encoding="utf-8") as metadata:
        for file in files:
            row = 0
            for batch in open_batches(pyarrow, file):
                names = batch.schema.names
                image_column = choose_column(names, arguments.image_column, ("image",), "image", file)
                text_column = choose_column(names, arguments.text_column, CAPTION_COLUMNS, "caption", file)
                images, texts = batch.column(names.index(image_column)), batch.column(names.index(text_column))
                for i in range(batch.num_rows):
                    if arguments.limit and count >= arguments.limit:
                        break
                    place = f"{file}, row {row + i}"
                    data, extension = encoded(picture_bytes(images[i].as_py(), directory, place), place)
                    name = f"images/{count:08d}.{extension}"
                    (arguments.output / name).write_bytes(data)
                    text = caption_text(texts[i].as_py(), place)
                    metadata.write(json.dumps({"file_name": name, "text": text}, ensure_ascii=False) + "\n")
                    count += 1
                    progress.show(count)
                row += batch.num_rows
    if count == 0:
        fail(f"{directory}: no samples in it")
    partial.rename(arguments.output / "metadata.jsonl")
    progress.show(count, last=True)
    print(f"{arguments.output}: {count} pictures with captions")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="directory written by save_to_disk")
    parser.add_argument("output", type=Path, help="directory to write")
    parser.add_argument("--split", help="split of a dataset dictionary (default: the only one, else train)")
    parser.add_argument("--image-column", help="default: image")
    parser.add_argument("--text-column", help="default: text, else caption")
    parser.add_argument("--limit", type=int, default=0, help="at most this many samples")
    parser.add_argument("--force", action="store_true", help="replace an earlier result in the output directory")
    convert(parser.parse_args())


if __name__ == "__main__":
    main()
