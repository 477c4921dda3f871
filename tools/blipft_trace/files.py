"""The trace files of a run, one a rank, read in pieces. Few files are open at any time."""
import collections
import ctypes
import os
import pathlib
import re
import resource
import sys
import time

import h5py
import numpy as np

FORMAT_MAJOR = 1
STREAMS = ["compute", "communication", "copy", "host"]
COMPUTE, COMMUNICATION, COPY, HOST = range(4)
TABLES = ["steps", "spans", "memory", "plan", "host_plan", "device", "driver_memory", "validation", "evaluation",
          "evaluation_samples", "evaluation_texts", "kernels", "kernel_names", "fp8", "step_samples",
          "dropped"]
KERNEL_KINDS = ["kernel", "copy", "fill"]
FP8_FACTORS = ["x", "w", "dy"]  # factors of y = x w^T
MOST_OPEN = 64  # open files, fewer if the system's limit is lower
READ_ATTEMPTS = 29  # of metadata; the waits between them double from 1 ns on, and are half a second together


class TraceError(Exception):
    """A mistake of the user; its text has the remedy."""


class Unreadable(TraceError):
    """A file without readable rows: its writer was killed before the first record, or it was truncated."""


class Progress:
    """A progress line on standard error; only on a terminal, and only if the work takes long."""

    def __init__(self, what, total):
        self.what, self.total, self.done = what, total, 0
        self.shown = 0
        self.next = time.monotonic() + 1 if sys.stderr.isatty() else float("inf")

    def __enter__(self):
        return self

    def add(self, count=1):
        self.done += count
        now = time.monotonic()
        if now >= self.next:
            self.next = now + 0.2
            share = f"{100 * self.done / self.total:3.0f} %" if self.total else f"{self.done}"
            line = f"{self.what}: {share}"
            print("\r" + line.ljust(self.shown), end="", file=sys.stderr, flush=True)
            self.shown = len(line)

    def __exit__(self, *_):
        if self.shown:
            print("\r" + " " * self.shown + "\r", end="", file=sys.stderr, flush=True)


class OpenFiles:
    """The open files, least recently used first; opening one more closes that one."""

    def __init__(self):
        self.traces = collections.OrderedDict()

    def most(self):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return MOST_OPEN if soft == resource.RLIM_INFINITY else max(2, min(MOST_OPEN, soft // 2))

    def used(self, trace):
        self.traces[id(trace)] = trace
        self.traces.move_to_end(id(trace))
        while len(self.traces) > self.most():
            next(iter(self.traces.values())).close()

    def closed(self, trace):
        self.traces.pop(id(trace), None)


OPEN_FILES = OpenFiles()
NAMES_SEEN = {}  # equal lists of names of several ranks are stored once


def open_beside_writer(path):
    """Opens a file that may be growing, or whose writer was killed.

    If metadata do not match their checksum, HDF5 reads them again, because the writer may be changing them. In a
    truncated file they never match, and with the default waits this would take years. h5py has no setting for it, so
    this sets it in the library that h5py uses.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    try:
        set_attempts = ctypes.CDLL(h5py.h5p.__file__).H5Pset_metadata_read_attempts
        set_attempts.argtypes = [ctypes.c_int64, ctypes.c_uint]
        set_attempts(access.id, READ_ATTEMPTS)
    except (OSError, AttributeError):  # an h5py whose HDF5 cannot be reached that way
        pass
    flags = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ
    return h5py.File(h5py.h5f.open(os.fsencode(path), flags, access))


class RankTrace:
    """One rank's file. It may still be growing, or come from a run that was killed.

    The file is closed if many others are in use, and opened again when needed.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.rank = int(re.search(r"rank(\d+)", self.path.name).group(1))
        self._file = None
        self._datasets = {}
        version = self.file.attrs.get("format_version")
        if version is None:
            raise Unreadable(f"{path}: has no attribute format_version; was the run killed before its first record, or "
                             "is this not a blipft trace?")
        version = version.decode() if isinstance(version, bytes) else str(version)
        if version.split(".")[0] != str(FORMAT_MAJOR):
            raise TraceError(f"{path}: has format version {version}, these tools read {FORMAT_MAJOR}.x; "
                             "use the tools that came with the program that wrote it")
        self.units = self._strings("units")
        self.phases = self._strings("phases")
        self.fp8_matrices = self._strings("fp8_matrices")
        self._kernel_names = []

    @property
    def file(self):
        if not self._file:  # never opened, or closed
            self._datasets.clear()
            try:
                # SWMR reading works while the writer runs, and after it was killed.
                self._file = open_beside_writer(self.path)
            except OSError as error:
                raise Unreadable(f"{self.path}: cannot be read ({error}); was the run killed before its first record, "
                                 "or is this not a trace file?") from error
        OPEN_FILES.used(self)
        return self._file

    def close(self):
        if self._file is not None:
            self._datasets.clear()
            self._file.close()
            self._file = None
        OPEN_FILES.closed(self)

    def _strings(self, name):
        if name not in self.file:
            return []
        names = [value.decode() if isinstance(value, bytes) else value for value in self.file[name][:]]
        return NAMES_SEEN.setdefault(tuple(names), names)

    def kernel_name(self, number):
        """The name at an index of /kernels.name."""
        if number >= len(self._kernel_names) and self.rows("kernel_names"):
            self._kernel_names = text(self.read("kernel_names")["name"])
        return self._kernel_names[number] if 0 <= number < len(self._kernel_names) else f"kernel {number}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def refresh(self, tables=TABLES):
        """Makes rows visible that a living writer has added."""
        for name in tables:
            if self.has(name):
                self.dataset(name).refresh()

    def read(self, table, begin=0, end=None):
        """Rows of a table as a structured array."""
        if not self.has(table):
            raise TraceError(f"{self.path}: has no table /{table}")
        dataset = self.dataset(table)
        try:
            return dataset[begin:end]
        except (OSError, RuntimeError) as error:
            raise Unreadable(f"{self.path}: /{table} cannot be read ({error}); is the file cut or damaged?") from error

    def has(self, table):
        return table in self._datasets or table in self.file

    def rows(self, table):
        return self.dataset(table).shape[0] if self.has(table) else 0

    def dataset(self, table):
        file = self.file  # may open the file, which clears _datasets
        if table not in self._datasets:
            try:
                self._datasets[table] = file[table]
            except (KeyError, OSError, RuntimeError) as error:  # a later HDF5 wrote it, or the file is damaged
                raise Unreadable(f"{self.path}: /{table} cannot be read with HDF5 {h5py.version.hdf5_version}: "
                                 f"{error}") from error
        return self._datasets[table]

    def check_not_cut(self, table):
        """Raises Unreadable if the table's last piece lies beyond the end of the file, where HDF5 would read zeros."""
        rows = self.rows(table)
        if not rows or self.dataset(table).chunks is None:
            return
        piece = self.dataset(table).id.get_chunk_info_by_coord((rows - 1,))
        size = self.path.stat().st_size
        if piece.byte_offset is not None and piece.byte_offset + piece.size > size:
            raise Unreadable(f"{self.path}: /{table} cannot be read: the file was cut, it has {size} bytes of at least "
                             f"{piece.byte_offset + piece.size}")

    def steps(self):
        """The rows of /steps in order of steps, each step once (the last row counts)."""
        rows = self.read("steps")
        _, last = np.unique(rows["step"][::-1], return_index=True)
        return rows[len(rows) - 1 - last]

    def chunks(self, table, rows=1 << 15):
        for begin in range(0, self.rows(table), rows):
            yield begin, self.read(table, begin, begin + rows)

    def device_samples(self, steps):
        """Samples of the device from the first step's begin to the last one's end, in pieces."""
        for _, rows in self.chunks("device"):
            yield rows[(rows["time_ns"] >= steps["begin_ns"][0]) & (rows["time_ns"] <= steps["end_ns"][-1])]

    def attributes(self):
        return {key: (value.decode() if isinstance(value, bytes) else value) for key, value in self.file.attrs.items()}


def text(values):
    """Fixed-length strings of a table as a list of str."""
    return [value.decode("utf-8", "replace") for value in values]


def phase_name(phases, index):
    return phases[index] if 0 <= index < len(phases) else f"phase {index}"


def unit_name(units, index):
    return units[index] if 0 <= index < len(units) else ""
