#!/usr/bin/env python3
"""The runs of a sweep: every combination of the values in a file. jobs/sweep.sh submits them as one Slurm array.

    run: inputs/photos.yaml            # the run file, or @RECIPE
    output: sweeps/rates               # optional; the default is sweeps/ and the name of this file
    train.max_steps: 500               # a key of the run file with one value for all runs
    train.lr: [1e-5, 3e-5, 1e-4]       # with a list: one run for each value
    adapter.targets: [[q, v], [q, k, v, o]]

    tools/sweep.py prepare SWEEP.yaml    writes OUTPUT/sweep.yaml; prints OUTPUT and the numbers of runs to start, "0-3,5"
    tools/sweep.py arguments OUTPUT N    prints the arguments of blipft for run N, one a line
    tools/sweep.py table OUTPUT          writes OUTPUT/table.txt and table.csv, and prints the table

A run that has ended is not started again; an interrupted one resumes from its newest checkpoint. The folder of a run has
the values of the keys with several values as its name, so that values may be added to the file later.
"""
import argparse
import csv
import fcntl
import itertools
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import own_python  # noqa: E402

if __name__ == "__main__" and sys.argv[1:2] == ["table"]:
    own_python.need("numpy", "h5py")

from blipft_trace import metrics  # noqa: E402

COLUMNS = ("steps", "loss at the end", "best validation loss", "samples/s", "ended")


class SweepError(Exception):
    """A mistake of the user; its text has the remedy."""


def split_list(text):
    """The values of "[a, [b, c]]": "a" and "[b, c]"."""
    values, depth, value = [], 0, ""
    for character in text[1:-1]:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            values.append(value)
            value = ""
        else:
            value += character
    return [one.strip().strip("\"'") for one in [*values, value] if one.strip()]


class Sweep:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.file, self.output, self.keys, self.lines = "", f"sweeps/{self.path.stem}", {}, {}
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            line = re.sub(r"(^|\s)#.*", "", line).rstrip()
            if line:
                self.add(f"{self.path}:{number}", line)
        if not self.file:
            raise SweepError(f"{self.path}: run: is missing. Add the run file: run: inputs/photos.yaml")

    def add(self, place, line):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or not value or line.startswith((" ", "-")):
            raise SweepError(f"{place}: found \"{line}\", expected section.key: VALUE or section.key: [VALUE, ...] in one line")
        if name in self.keys:
            raise SweepError(f"{place}: {name}: is given twice. Remove one of the lines")
        if name in ("output.path", "checkpoint.resume"):
            raise SweepError(f"{place}: {name}: is set by the sweep. Remove the line; output: names the sweep's folder")
        if name == "run":
            self.file = value
        elif name == "output":
            self.output = value
        elif "." not in name:
            raise SweepError(f"{place}: {name}: expected run, output or a key as section.key")
        else:
            self.lines[name] = value
            self.keys[name] = split_list(value) if value.startswith("[") and value.endswith("]") else [value.strip("\"'")]
            if not self.keys[name]:
                raise SweepError(f"{place}: {name}: found an empty list, expected at least one value")

    def runs(self):
        """[({key: value}, folder)] of all runs; the last key changes fastest."""
        several = [name for name, values in self.keys.items() if len(values) > 1]
        runs = []
        for values in itertools.product(*self.keys.values()):
            settings = dict(zip(self.keys, values))
            name = ",".join(f"{key}={settings[key]}" for key in several) or "run"
            runs.append((settings, pathlib.Path(self.output, re.sub(r"[^\w.,=+-]", "_", name))))
        folders = [folder for _, folder in runs]
        for folder in folders:
            if folders.count(folder) > 1:
                raise SweepError(f"{self.path}: two runs have the folder {folder}. Remove values that are given twice")
        return runs

    def arguments(self, number):
        settings, folder = self.runs()[number]
        return [self.file, *(f"{key}={value}" for key, value in settings.items()), f"output.path={folder}"]


def ended(folder):
    rows = metrics.read_rows(folder)
    return bool(rows) and rows[-1].get("event") == "end" and rows[-1].get("reason") == "done"


def ranges(numbers):
    """"0-3,5" of [0, 1, 2, 3, 5]."""
    texts = []
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        texts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return ",".join(texts)


def prepare(path):
    sweep = Sweep(path)
    runs = sweep.runs()
    output = pathlib.Path(sweep.output)
    output.mkdir(parents=True, exist_ok=True)
    copy = output / "sweep.yaml"
    # Tasks of the array read this copy, so that the file may change while they wait.
    lines = [f"run: {sweep.file}", f"output: {sweep.output}"]
    lines += [f"{key}: {line}" for key, line in sweep.lines.items()]
    copy.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(output)
    print(ranges([number for number, (_, folder) in enumerate(runs) if not ended(folder)]))


def table(output):
    from blipft_trace import compare
    from blipft_trace.files import TraceError
    sweep = Sweep(pathlib.Path(output, "sweep.yaml"))
    several = [name for name, values in sweep.keys.items() if len(values) > 1]
    rows = []
    for settings, folder in sweep.runs():
        try:
            _, results = compare.look(folder)
        except (TraceError, OSError):
            results = {"ended": "not started"}
        shown = ["-" if results.get(name) is None else compare.RESULTS[name].format(results[name]) for name in COLUMNS]
        rows.append([*(settings[name] for name in several), *shown, str(folder)])
    rows.insert(0, [*several, *COLUMNS, "path"])
    widths = [max(map(len, column)) for column in zip(*rows)]
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows) + "\n"
    print(text, end="")
    pathlib.Path(output, "table.txt").write_text(text, encoding="utf-8")
    with open(pathlib.Path(output, "table.csv"), "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare").add_argument("sweep")
    arguments = commands.add_parser("arguments")
    arguments.add_argument("output")
    arguments.add_argument("number", type=int)
    commands.add_parser("table").add_argument("output")
    options = parser.parse_args()
    try:
        if options.command == "prepare":
            prepare(options.sweep)
        elif options.command == "arguments":
            print("\n".join(Sweep(pathlib.Path(options.output, "sweep.yaml")).arguments(options.number)))
        else:
            # Tasks that end at the same time write one table after the other.
            with open(pathlib.Path(options.output, "sweep.yaml"), encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                table(options.output)
    except (SweepError, OSError) as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
