"""A run directory and its trace files, one a rank, read in pieces."""
import pathlib
import re

import h5py
import numpy as np

FORMAT_MAJOR = 1
STREAMS = ["compute", "communication", "copy", "host"]
COMPUTE, COMMUNICATION, COPY, HOST = range(4)
TABLES = ["steps", "spans", "memory", "plan", "device", "driver_memory", "kernels", "kernel_names", "dropped"]
KERNEL_KINDS = ["kernel", "copy", "fill"]


class TraceError(Exception):
    """A mistake in what the user gave; its text says what to do."""


class RankTrace:
    """One rank's file. It may still be growing, or come from a run that was killed."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.rank = int(re.search(r"rank(\d+)", self.path.name).group(1))
        try:
            # SWMR reading is allowed beside the writer, and on a file whose writer was killed.
            self.file = h5py.File(self.path, "r", libver="latest", swmr=True)
        except OSError as error:
            raise TraceError(f"{path}: cannot be read ({error}); was the run killed before its first record, "
                             "or is this not a trace file?") from error
        version = self.file.attrs.get("format_version")
        if version is None:
            raise TraceError(f"{path}: has no attribute format_version; it is not a blipft trace")
        version = version.decode() if isinstance(version, bytes) else str(version)
        if version.split(".")[0] != str(FORMAT_MAJOR):
            raise TraceError(f"{path}: has format version {version}, these tools read {FORMAT_MAJOR}.x; "
                             "use the tools that came with the program that wrote it")
        self.units = self._strings("units")
        self.phases = self._strings("phases")
        self._kernel_names = []

    def _strings(self, name):
        if name not in self.file:
            return []
        return [value.decode() if isinstance(value, bytes) else value for value in self.file[name][:]]

    def kernel_name(self, number):
        """The name that /kernels.name counts."""
        if number >= len(self._kernel_names) and self.rows("kernel_names"):
            self._kernel_names = text(self.read("kernel_names")["name"])
        return self._kernel_names[number] if 0 <= number < len(self._kernel_names) else f"kernel {number}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def refresh(self):
        """Makes rows visible that a living writer has added."""
        for name in TABLES:
            if name in self.file:
                self.file[name].refresh()

    def read(self, table, begin=0, end=None):
        """Rows of a table as a structured array."""
        if table not in self.file:
            raise TraceError(f"{self.path}: has no table /{table}")
        return self.dataset(table)[begin:end]

    def rows(self, table):
        return self.dataset(table).shape[0] if table in self.file else 0

    def dataset(self, table):
        try:
            return self.file[table]
        except (KeyError, OSError) as error:  # a later HDF5 wrote it, or the file is damaged
            raise TraceError(f"{self.path}: /{table} cannot be read with HDF5 {h5py.version.hdf5_version}: "
                             f"{error}") from error

    def steps(self):
        """The rows of /steps in order of steps, each step once (the last row counts)."""
        rows = self.read("steps")
        _, last = np.unique(rows["step"][::-1], return_index=True)
        return rows[len(rows) - 1 - last]

    def chunks(self, table, rows=1 << 17):
        for begin in range(0, self.rows(table), rows):
            yield begin, self.read(table, begin, begin + rows)

    def attributes(self):
        return {key: (value.decode() if isinstance(value, bytes) else value) for key, value in self.file.attrs.items()}


def rank_paths(run):
    run = pathlib.Path(run)
    if not run.exists():
        raise TraceError(f"{run}: does not exist; give the directory of a run")
    paths = sorted(run.glob("trace.rank*.h5")) if run.is_dir() else [run]
    paths = [path for path in paths if re.search(r"rank\d+", path.name)]
    if not paths:
        raise TraceError(f"{run}: holds no trace.rank*.h5; give the directory of a run that wrote a trace")
    return paths


def open_run(run):
    """All ranks of a run, in order."""
    return sorted((RankTrace(path) for path in rank_paths(run)), key=lambda trace: trace.rank)


def text(values):
    """Fixed-length strings of a table as a list of str."""
    return [value.decode("utf-8", "replace") for value in values]


def phase_name(phases, index):
    return phases[index] if 0 <= index < len(phases) else f"phase {index}"


def unit_name(units, index):
    return units[index] if 0 <= index < len(units) else ""
