#!/usr/bin/env python3
"""tools/convert_dataset.py: parquet and arrow, text and pictures. Prints ok, FAILED or SKIPPED for each test.

    test/tools/convert_dataset_test.py [WORD...]     tests whose names hold one of the words

Needs pyarrow; without it the tests are skipped.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "test/support"), str(ROOT / "tools")]
from blipft_golden.archive import golden_path  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

try:
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
except ImportError:
    pyarrow = None

JPEG = golden_path("images/baseline_444.jpg").read_bytes()
PNG = golden_path("images/rgb.png").read_bytes()


class Space:
    def __init__(self, folder):
        self.folder, self.count = pathlib.Path(folder), 0

    def new(self):
        if pyarrow is None:
            raise Skip("no pyarrow")
        self.count += 1
        folder = self.folder / f"data{self.count}"
        folder.mkdir()
        return folder


def convert(source, *options, target=None):
    target = target or source.parent / (source.name + "-converted")
    done = subprocess.run([sys.executable, str(ROOT / "tools/convert_dataset.py"), str(source), str(target), *options],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return done.returncode, done.stdout, target


def records_of(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def converted(source, *options):
    status, out, target = convert(source, *options)
    check(status == 0, out)
    check(not list(target.glob("*.part")), "a part is left in", target)
    return target


def refused(source, *parts, options=()):
    status, out, _ = convert(source, *options)
    check(status == 1 and "Traceback" not in out, status, out)
    for part in parts:
        check(part in out, "expected", part, "in", out)


@test
def records_of_a_parquet_file(space):
    folder = space.new()
    rows = [{"question": "a \u00e9\n\"x\"", "answer": "b", "n": 1, "score": float("nan"), "input": None,
             "messages": [{"role": "user", "content": "hi"}]},
            {"question": "c", "answer": "d", "n": 2, "score": 0.5, "input": "e", "messages": []}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet")
    found = records_of(converted(folder / "a.parquet") / "data.jsonl")
    check(found == [{**rows[0], "score": None}, rows[1]], found)
    found = records_of(converted_to(folder / "a.parquet", "few", "--limit", "1") / "data.jsonl")
    check(len(found) == 1, found)


def converted_to(source, name, *options):
    status, out, target = convert(source, *options, target=source.parent / name)
    check(status == 0, out)
    return target


@test
def files_of_the_hub_are_chosen_by_their_split(space):
    folder = space.new()
    data = folder / "set" / "data"
    data.mkdir(parents=True)
    for split, count in (("train", 2), ("test", 1)):
        for part in range(count):
            pyarrow.parquet.write_table(pyarrow.table({"text": [f"{split}{part}"]}),
                                        data / f"{split}-{part:05d}-of-{count:05d}.parquet")
    texts = [record["text"] for record in records_of(converted(folder / "set") / "data.jsonl")]
    check(texts == ["train0", "train1"], texts)
    texts = [r["text"] for r in records_of(converted_to(folder / "set", "other", "--split", "test") / "data.jsonl")]
    check(texts == ["test0"], texts)
    refused(folder / "set", "no split \"dev\"; it has test, train", options=("--split", "dev"))


@test
def arrow_files_of_both_forms(space):
    folder = space.new()
    table = pyarrow.table({"instruction": ["a", "b"], "output": ["c", "d"]})
    with pyarrow.ipc.new_stream(str(folder / "stream.arrow"), table.schema) as out:
        out.write_table(table)
    with pyarrow.ipc.new_file(str(folder / "file.arrow"), table.schema) as out:
        out.write_table(table)
    for name in ("stream", "file"):
        found = records_of(converted(folder / f"{name}.arrow") / "data.jsonl")
        check(found == table.to_pylist(), found)


@test
def pictures_of_a_parquet_file_become_an_imagefolder(space):
    folder = space.new()
    rows = [{"image": {"bytes": JPEG, "path": None}, "caption": ["one", "other"]},
            {"image": {"bytes": PNG, "path": "b.png"}, "caption": ["two"]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "p.parquet")
    target = converted(folder / "p.parquet")
    found = records_of(target / "metadata.jsonl")
    check([r["text"] for r in found] == ["one", "other", "two"], found)
    check([(target / r["file_name"]).read_bytes() for r in found] == [JPEG, JPEG, PNG], "other pictures")
    check(found[0]["file_name"] == found[1]["file_name"] and len(list((target / "images").iterdir())) == 2, found)
    check(not (target / "data.jsonl").exists(), "records beside pictures")


@test
def questions_about_pictures_keep_all_answers(space):
    picture = {"bytes": JPEG, "path": None}
    forms = {"texts": ["two", "two", "2"], "objects": [{"answer": "two", "answer_id": 1}, {"answer": "two", "answer_id": 2},
                                                       {"answer": "2", "answer_id": 3}],
             "columns": {"answer": ["two", "two", "2"], "answer_id": [1, 2, 3]}}
    for name, answers in forms.items():
        folder = space.new()
        rows = [{"image": picture, "question": "how many?", "answers": answers, "question_id": 7, "multiple_choice_answer": "two"},
                {"image": picture, "question": "what?", "answers": None, "question_id": 8, "multiple_choice_answer": None}]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "p.parquet")
        target = converted(folder / "p.parquet")
        check(records_of(target / "metadata.jsonl") == [
            {"file_name": "images/00000000.jpg", "prompt": "how many?", "answer": ["two", "two", "2"], "question_id": 7},
            {"file_name": "images/00000000.jpg", "prompt": "what?", "question_id": 8}], name, records_of(target / "metadata.jsonl"))
        check(len(list((target / "images").iterdir())) == 1, "a picture is there twice")
    folder = space.new()
    rows = [{"image": picture, "query": "what?", "answer": "a cat", "caption": "x"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "p.parquet")
    found = records_of(converted(folder / "p.parquet", "--question-column", "query") / "metadata.jsonl")
    check(found == [{"file_name": "images/00000000.jpg", "prompt": "what?", "answer": ["a cat"]}], found)
    refused(folder / "p.parquet", "no question column question", "image, query, answer, caption",
            options=("--answer-column", "answer", "--force"))


@test
def what_cannot_be_converted_is_told(space):
    folder = space.new()
    (folder / "broken.parquet").write_bytes(b"PAR1 no parquet")
    refused(folder / "broken.parquet", "broken.parquet: not a parquet file")
    (folder / "a.txt").write_text("x")
    refused(folder / "a.txt", "expected a file .parquet or .arrow")
    refused(folder / "absent", "does not exist")
    (folder / "empty").mkdir()
    refused(folder / "empty", "no .parquet and no .arrow files")
    pyarrow.parquet.write_table(pyarrow.table({"audio": [b"x"]}), folder / "bytes.parquet")
    refused(folder / "bytes.parquet", "row 0: found bytes", "--image-column")


if __name__ == "__main__":
    sys.exit(run_tests("convert_dataset_test", Space, str(ROOT / "tools/convert_dataset.py")))
