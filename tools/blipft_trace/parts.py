"""A run and its parts.

Each start or resume of a run writes a part, one file a rank: trace.rank0000.h5 belongs to the first part,
trace.part0001.rank0000.h5 to the next. Most runs have one part. A part begins after a checkpoint, at its `first_step`.
If an earlier part ran further, its later steps were repeated and count only in the later part.
"""
import functools
import pathlib
import re
import sys

import numpy as np

from .files import RankTrace, TraceError, Unreadable

NUMBERS = re.compile(r"(?:part(\d+)\.)?rank(\d+)")
NAME = re.compile(rf"trace\.{NUMBERS.pattern}\.h5")
NO_END = 1 << 62


def paths_of_parts(run):
    """{number of the part: its files in the order of their ranks}."""
    run = pathlib.Path(run)
    if not run.exists():
        raise TraceError(f"{run}: does not exist; give the directory of a run")
    found = {}
    for path in run.iterdir() if run.is_dir() else [run]:
        name = NAME.fullmatch(path.name) if run.is_dir() else NUMBERS.search(path.name)
        if name:
            found.setdefault(int(name.group(1) or 0), []).append((int(name.group(2)), path))
    if not found:
        raise TraceError(f"{run}: holds no trace.rank*.h5; give the directory of a run that wrote a trace")
    return {number: [path for _, path in sorted(found[number])] for number in sorted(found)}


def note(text):
    print(f"note: {text}", file=sys.stderr)


class Part:
    """The files of one part; each is opened when it is first needed, and an unreadable one is left out."""

    def __init__(self, number, paths):
        self.number, self.paths = number, paths
        self.until = NO_END      # a later part repeated the steps from this one on
        self.shift_ns = 0        # added to its times: ns since the run's start
        self.unreadable = []     # errors of the files that are left out
        self._opened = {}

    def _open(self, path):
        if path not in self._opened:
            try:
                trace = RankTrace(path)
                for table in ("steps", "spans"):  # the growing tables; a truncated file lost their ends
                    trace.check_not_cut(table)
            except Unreadable as error:
                self.unreadable.append(error)
                trace = None
            except (KeyError, OSError, RuntimeError) as error:  # h5py, of a damaged file
                self.unreadable.append(Unreadable(f"{path}: cannot be read ({error}); is the file cut or damaged?"))
                trace = None
            self._opened[path] = trace
        return self._opened[path]

    @functools.cached_property
    def first(self):
        """The first rank that can be read. Values that are equal on all ranks come from it."""
        trace = next(filter(None, map(self._open, self.paths)), None)
        if trace is None:
            raise self.unreadable[0]
        return trace

    @functools.cached_property
    def traces(self):
        """All ranks that can be read, in order."""
        first = self.first
        traces = [trace for trace in map(self._open, self.paths) if trace]
        if self.unreadable:
            note(f"{len(self.unreadable)} of {len(self.paths)} files of {first.path.parent}" +
                 f", part {self.number}," * (self.number > 0) + f" are left out: {self.unreadable[0]}")
        ranks = int(self.attributes.get("world_size", 0))
        if ranks > len(self.paths):
            note(f"{first.path.parent}: {ranks - len(self.paths)} of {ranks} ranks have no file there" +
                 f" for part {self.number}" * (self.number > 0) + "; what follows is of the others")
        return traces

    @functools.cached_property
    def attributes(self):
        return self.first.attributes()

    @property
    def first_step(self):
        return int(self.attributes.get("first_step", 0))

    @property
    def start_ns(self):
        return int(self.attributes.get("start_unix_ns", 0))

    def counting(self, rows):
        """The rows of steps that were not repeated."""
        return rows if self.until == NO_END else rows[rows["step"] < self.until]

    def about(self):
        """Facts of the part; times in s since the run's start, steps without repeated ones."""
        rows = self.first.steps()
        counting = self.counting(rows)
        begin, end = ((int(rows[name][at]) + self.shift_ns) / 1e9 if len(rows) else None
                      for name, at in (("begin_ns", 0), ("end_ns", -1)))
        return {"part": self.number, "ranks": int(self.attributes.get("world_size", len(self.paths))),
                "strategy": self.attributes.get("strategy", ""), "first_step": self.first_step,
                "last_step": int(rows["step"][-1]) if len(rows) else None, "steps": len(counting),
                "taken_again": len(rows) - len(counting), "start_s": self.shift_ns / 1e9, "begin_s": begin,
                "end_s": end}


class Run:
    """The parts of a run, in order."""

    def __init__(self, path, parts):
        self.path = path
        self.parts = self._linked(parts) if len(parts) > 1 else parts

    def _linked(self, parts):
        """Sets for each part the steps that count, and its begin in the run."""
        readable = []
        for part in parts:
            try:
                readable.append((part.first, part)[1])
            except Unreadable as error:
                note(f"part {part.number} of {self.path} is left out: {error}")
        if not readable:
            raise parts[0].unreadable[0]
        start_ns, until = readable[0].start_ns, NO_END
        for part in reversed(readable):
            part.until, until = until, min(until, part.first_step)
            part.shift_ns = part.start_ns - start_ns if part.start_ns and start_ns else 0
        return readable

    def newest(self, least=1):
        """The newest part in which every rank has finished `least` steps. If there is none, the first part."""
        for part in reversed(self.parts[1:]):
            if all(trace.rows("steps") >= least for trace in part.traces):
                return part
        return self.parts[0]

    def curve(self, *names):
        """Columns of /steps of the first rank, each step of the run once."""
        rows = [part.counting(part.first.steps()) for part in self.parts]
        return [np.concatenate([of_part[name] for of_part in rows]) for name in names]

    def about(self):
        return [part.about() for part in self.parts]

    def tell(self):
        """Prints on standard error that a run has several parts."""
        if len(self.parts) > 1:
            note(f"{self.path}: {repeated_text(self.about())}")


def open_run(run, part=None):
    """A directory's run, or a single file; part: only the part of this number, as a separate run."""
    paths = paths_of_parts(run)
    if part is not None and part not in paths:
        raise TraceError(f"{run}: has no part {part}; it has {', '.join(map(str, paths))}")
    return Run(run, [Part(number, paths[number]) for number in paths if part in (None, number)])


def repeated_text(about):
    again = sum(part["taken_again"] for part in about)
    return (f"{len(about)} parts, {sum(part['steps'] for part in about)} steps" +
            (f"; {again} were taken again after a resume and count once, in the later part" if again else ""))


def part_line(part, before_s):
    """before_s: the end of the last step before this part, None in the first."""
    ranks = f"{part['ranks']} rank{'' if part['ranks'] == 1 else 's'}"
    where = f"on {ranks}, {part['strategy']}" if part["strategy"] else f"on {ranks}"
    if part["begin_s"] is None:
        return (f"  part {part['part']}: from step {part['first_step']} {where}, started at {part['start_s']:.1f} s: "
                "no finished step")
    line = (f"  part {part['part']}: steps {part['first_step']} to {part['last_step']} {where}, "
            f"{part['begin_s']:.1f} to {part['end_s']:.1f} s")
    if before_s is not None:
        line += f", {part['begin_s'] - before_s:.1f} s after the step before"
    if part["taken_again"]:
        line += f"; the last {part['taken_again']} were taken again"
    return line


def parts_text(about, shown):
    """The parts of a run, a line each; empty for a run with one part. shown: the number of the part in detail."""
    if len(about) < 2:
        return ""
    lines, before_s = [f"the run has {repeated_text(about)}"], None
    for part in about:
        lines.append(part_line(part, before_s))
        before_s = part["end_s"] if part["end_s"] is not None else before_s
    return "\n".join([*lines, f"below: part {shown} alone, but for losses (--part N shows another)"])
