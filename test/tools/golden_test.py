#!/usr/bin/env python3
"""tools/golden.py and the archives of test/golden. Prints ok, FAILED or SKIPPED for each test."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "test/support"), str(ROOT / "tools")]
from blipft_golden import archive  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

TOOL = ROOT / "tools/golden.py"


def golden(*arguments):
    return subprocess.run([sys.executable, TOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@test
def archives_are_packed_files_and_unpacked_the_same(folder):
    sets = sorted(archive.GOLDEN.glob("*.safetensors"))
    check(len(sets) > 30, sets)
    for path in sets:
        files, again = pathlib.Path(folder) / path.stem, pathlib.Path(folder) / path.name
        archive.unpack(path, files)
        archive.pack(files, again)
        check(again.read_bytes() == path.read_bytes(), path)
        check(all((files / file).read_bytes() == archive.golden_path(f"{path.stem}/{file}").read_bytes()
                  for file in (file.relative_to(files) for file in files.rglob("*") if file.is_file())), path)


@test
def every_set_is_known_to_the_tool_that_makes_it(folder):
    listed = [line.split()[0] for line in golden("list").stdout.splitlines()]
    check({"images", "llama_gqa", "quantize"} <= set(listed), listed)
    done = golden("make", "llama_gqqa")
    if "needs the Python modules" in done.stdout:
        raise Skip("no torch")
    check(done.returncode == 1 and "no set llama_gqqa" in done.stdout, done.stdout)
    known = done.stdout.split("there are ")[1].strip().split(", ")
    check(set(listed) <= set(known), set(listed) - set(known))


if __name__ == "__main__":
    sys.exit(run_tests("golden_test", lambda folder: folder, TOOL))
