"""Converts parquet and arrow files, and datasets saved by the `datasets` library, into what blipft reads.

    tools/convert_dataset.py saved/ pictures/
    tools/convert_dataset.py saved/ pictures/ --split train --text-column caption --limit 1000
    tools/convert_dataset.py train-00000-of-00001.parquet records/

The source is a .parquet or .arrow file; or a directory of them, perhaps in data/ or a folder for each split, as the hub
has them; or a directory that save_to_disk wrote: state.json and .arrow files, or dataset_dict.json and one such directory
a split. If files are named after splits (train-00000-of-00004.parquet), --split selects one; the default is train, if it exists.

With a column of pictures the result is an ImageFolder: OUTPUT/images/*.jpg|png and OUTPUT/metadata.jsonl. Its records have
file_name and text; a picture with a list of captions becomes one record for each caption. With the columns question and
answers (or answer), as in VQAv2 and TextVQA, they have file_name, prompt and answer instead; answers that are null or
empty, as in test splits, are left out. Equal pictures are written once. Without pictures it is OUTPUT/data.jsonl, a record with all columns in each line; data.keys
renames columns for blipft.

Needs pyarrow, not `datasets`. Pictures that are neither JPEG nor PNG are saved as PNG, which needs PIL.
"""
import argparse
import hashlib
import io
import json
import math
import re
import shutil
import sys
import time
from pathlib import Path

COLUMNAR = (".parquet", ".arrow")
CAPTION_COLUMNS = ("text", "caption", "captions")
QUESTION_COLUMNS = ("question",)
ANSWER_COLUMNS = ("answers", "answer")
ID_COLUMNS = ("question_id", "image_id")
ORIENTATION = 0x0112  # the EXIF tag


def fail(message):
    sys.exit(f"convert_dataset.py: {message}")


def import_pyarrow():
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
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
    """The directory with state.json of the requested split, or of the only one."""
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


SPLIT_NAMES = ("train", "validation", "valid", "val", "dev", "eval", "test")


def split_of(file, source):
    """The split in the name of a file, or of a folder between it and the source; None: none."""
    for part in file.relative_to(source).parts[::-1]:
        name = re.split(r"[-_.]", part)[0].lower()
        if name in SPLIT_NAMES:
            return {"valid": "validation", "val": "validation", "dev": "validation"}.get(name, name)
    return None


def loose_files(source, split):
    """The .parquet and .arrow files of a directory, of one split if they have splits."""
    files = sorted(file for file in source.rglob("*")
                   if file.suffix in COLUMNAR and not any(part.startswith(".") for part in file.relative_to(source).parts))
    if not files:
        fail(f"{source}: no .parquet and no .arrow files, and no state.json or dataset_dict.json of save_to_disk")
    splits = sorted({split_of(file, source) for file in files} - {None})
    if not splits:
        if split is not None:
            fail(f"{source}: --split {split} was given, but no file there is named after a split")
        return files
    if split is None and len(splits) > 1 and "train" not in splits:
        fail(f"{source}: has the splits {', '.join(splits)}; choose one with --split")
    split = split or (splits[0] if len(splits) == 1 else "train")
    if split not in splits:
        fail(f"{source}: no split \"{split}\"; it has {', '.join(splits)}")
    return [file for file in files if split_of(file, source) == split]


def source_files(source, split):
    """(files, the directory that paths in them are relative to)."""
    if not source.exists():
        fail(f"{source}: does not exist")
    if source.is_file():
        if source.suffix not in COLUMNAR:
            fail(f"{source}: expected a file {' or '.join(COLUMNAR)}, or a directory of them")
        if split is not None:
            fail(f"{source}: --split {split} was given, but this is a single file")
        return [source], source.parent
    if not (source / "state.json").exists() and not (source / "dataset_dict.json").exists():
        return loose_files(source, split), source
    directory = split_directory(source, split)
    return arrow_files(directory), directory


def open_batches(pyarrow, file):
    """Record batches of a file; of Arrow, `datasets` writes the stream form, other tools the file form."""
    if file.suffix == ".parquet":
        try:
            return pyarrow.parquet.ParquetFile(str(file)).iter_batches(batch_size=1024)
        except (pyarrow.ArrowInvalid, OSError) as error:
            fail(f"{file}: not a parquet file: {error}")
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
    """(bytes, extension): JPEG and PNG unchanged, others as PNG with their transparency and orientation."""
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


def caption_texts(value, place):
    """The captions of a cell: a string, or a list of strings."""
    captions = value if isinstance(value, list) and value else [value]
    for caption in captions:
        if not isinstance(caption, str):
            fail(f"{place}: found {type(caption).__name__} where a caption was expected (a string or a list of strings)")
    return list(dict.fromkeys(captions))


def answer_texts(value, place):
    """The answers of a cell, one for each person: a string, or a list of strings or of {"answer"}, or {"answer": list}."""
    if isinstance(value, dict):
        value = value.get("answer")
    answers = value if isinstance(value, list) else [] if value is None else [value]
    answers = [one.get("answer") if isinstance(one, dict) else one for one in answers]
    for answer in answers:
        if not isinstance(answer, str):
            fail(f"{place}: found {type(answer).__name__} where an answer was expected (a string, or a list of strings or of "
                 '{"answer": ...})')
    return answers


def plain(value, place):
    """A value for JSON: NaN becomes null, because pandas writes missing values so."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item, place) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, place) for item in value]
    if isinstance(value, bytes):
        fail(f"{place}: found bytes, which no record of text has; name a column of pictures with --image-column")
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def prepare_output(output, force):
    """Creates an empty directory. Removes only files of this tool: of an unfinished conversion, or with --force."""
    if output.exists() and not output.is_dir():
        fail(f"{output}: exists and is not a directory")
    found = {item.name for item in output.iterdir()} if output.exists() else set()
    if found:
        parts = {"metadata.jsonl.part", "data.jsonl.part"}
        unfinished = found & parts and found <= {"images", *parts}
        if not force and not unfinished:
            fail(f"{output}: exists and is not empty; choose another directory, "
                 "or replace its images/, metadata.jsonl and data.jsonl with --force")
        for name in ("metadata.jsonl", "data.jsonl", *parts):
            (output / name).unlink(missing_ok=True)
        if (output / "images").exists():
            shutil.rmtree(output / "images")
    output.mkdir(parents=True, exist_ok=True)


class Progress:
    """A progress line: rewritten on a terminal, printed sometimes elsewhere."""

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
        print(f"{chr(13) if self.terminal else ''}{count} samples, {rate:.0f}/s", end=end, file=sys.stderr, flush=True)


def picture_column(schema, wanted, file):
    """The column of pictures, or None: the requested name, or image, or a column of {bytes, path}."""
    if wanted:
        return choose_column(schema.names, wanted, (), "image", file)
    for field in schema:
        names = {child.name for child in field.type} if str(field.type).startswith("struct") else set()
        if names == {"bytes", "path"} or (field.name == "image" and str(field.type) == "binary"):
            return field.name
    return None


def rows_of(batch, at_once=64):
    """The rows as Python values, a few at a time, because they may contain pictures."""
    for start in range(0, batch.num_rows, at_once):
        yield from batch.slice(start, at_once).to_pylist()


class PictureFiles:
    """Writes pictures below OUTPUT/images, equal ones once, so that a split by pictures keeps their samples together."""

    def __init__(self, output):
        self.folder, self.names = output / "images", {}

    def add(self, data, extension):
        """The picture's name relative to OUTPUT."""
        digest = hashlib.sha256(data).digest()
        if digest not in self.names:
            self.folder.mkdir(exist_ok=True)
            name = f"{len(self.names):08d}.{extension}"
            (self.folder / name).write_bytes(data)
            self.names[digest] = name
        return f"{self.folder.name}/{self.names[digest]}"


def text_columns(names, arguments, file):
    """(column of captions, None, None) or (None, column of questions, column of answers)."""
    asks = arguments.question_column or arguments.answer_column
    if not asks and not arguments.text_column:
        captions = [name for name in CAPTION_COLUMNS if name in names]
        asks = not captions and any(name in names for name in QUESTION_COLUMNS)
    if asks:
        return (None, choose_column(names, arguments.question_column, QUESTION_COLUMNS, "question", file),
                choose_column(names, arguments.answer_column, ANSWER_COLUMNS, "answer", file))
    return choose_column(names, arguments.text_column, CAPTION_COLUMNS, "caption", file), None, None


def picture_records(values, name, columns, place):
    """The records of a row with a picture."""
    captions, question, answers = columns
    if captions:
        return [{"file_name": name, "text": caption} for caption in caption_texts(values[captions], place)]
    if not isinstance(values[question], str):
        fail(f"{place}: found {type(values[question]).__name__} where a question was expected (a string)")
    record = {"file_name": name, "prompt": values[question]}
    texts = answer_texts(values[answers], place)
    if texts:
        record["answer"] = texts
    for key in ID_COLUMNS:
        if isinstance(values.get(key), (int, str)):
            record[key] = values[key]
    return [record]


def write_samples(pyarrow, files, base, arguments, out):
    """Writes the samples of all files and the pictures; returns (number of samples, True if they have pictures)."""
    progress, count, rows = Progress(), 0, 0
    pictures, has_pictures = PictureFiles(arguments.output), False
    for file in files:
        row = 0
        for batch in open_batches(pyarrow, file):
            names = batch.schema.names
            image_column = picture_column(batch.schema, arguments.image_column, file)
            if image_column:
                has_pictures = True
                columns = text_columns(names, arguments, file)
            for values in rows_of(batch):
                if arguments.limit and rows >= arguments.limit:
                    progress.show(count, last=True)
                    return count, has_pictures
                place = f"{file}, row {row}"
                if image_column:
                    name = pictures.add(*encoded(picture_bytes(values[image_column], base, place), place))
                    records = picture_records(values, name, columns, place)
                else:
                    records = [plain(values, place)]
                for record in records:
                    out.write(json.dumps(record, ensure_ascii=False) + "\n")
                row += 1
                rows += 1
                count += len(records)
                progress.show(count)
    progress.show(count, last=True)
    return count, has_pictures


def convert(arguments):
    files, base = source_files(arguments.source, arguments.split)
    pyarrow = import_pyarrow()
    prepare_output(arguments.output, arguments.force)
    partial = arguments.output / "data.jsonl.part"  # renamed at the end, so that an incomplete conversion is no dataset
    with open(partial, "w", encoding="utf-8") as out:
        count, pictures = write_samples(pyarrow, files, base, arguments, out)
    if count == 0:
        fail(f"{arguments.source}: no samples in it")
    partial.rename(arguments.output / ("metadata.jsonl" if pictures else "data.jsonl"))
    what = "records of pictures" if pictures else "records"
    print(f"{arguments.output}: {count} {what}; train with data.path={arguments.output}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="parquet or arrow file, or directory")
    parser.add_argument("output", type=Path, help="directory to write")
    parser.add_argument("--split", help="split, where there are several (default: train)")
    parser.add_argument("--image-column", help="of pictures (default: image, or the one that has bytes and path)")
    parser.add_argument("--text-column", help="of the pictures' captions (default: text, caption or captions)")
    parser.add_argument("--question-column", help="of questions about the pictures (default: question)")
    parser.add_argument("--answer-column", help="of the questions' answers (default: answers, else answer)")
    parser.add_argument("--limit", type=int, default=0, help="at most this many rows of the source")
    parser.add_argument("--force", action="store_true", help="replace an earlier result in the output directory")
    convert(parser.parse_args())

