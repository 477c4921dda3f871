"""Helpers of the tests of tools/trace.py: rows, hand-made runs, calls of the tool, and lines for tools/check.sh."""
import io
import os
import pathlib
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]
try:
    import h5py  # noqa: F401
    import numpy as np  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED {os.path.basename(sys.argv[0])} ({missing})")
    sys.exit(0)

import make_synthetic_trace as synthetic  # noqa: E402
from blipft_trace import cli  # noqa: E402

P = {name: i for i, name in enumerate(synthetic.PHASES)}
COMPUTE, COMMUNICATION, COPY, HOST = range(4)


def step_row(step, begin, end, loss=1.0, wait=0):
    return (step, 0, loss, 1e-5, 0.5, 10.0, 20.0, begin, end, wait, 50)


def span(phase, stream, begin, end, step=0, micro=0, unit=0, size=0):
    return (step, micro, unit, P[phase], stream, begin, end, size, 0.0)


class Run(tempfile.TemporaryDirectory):
    """A run directory; each argument is one rank's tables. attributes: of each rank's file, if any."""

    def __init__(self, *ranks, attributes=(), **more):
        super().__init__()
        for rank, tables in enumerate(ranks):
            synthetic.write_trace(f"{self.name}/trace.rank{rank:04d}.h5", tables, ["u0", "u1"], **more)
            if attributes:
                with h5py.File(f"{self.name}/trace.rank{rank:04d}.h5", "r+") as file:
                    file.attrs.update(attributes[rank])


def call(*arguments):
    """Runs the tool; exit status, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.main([str(a) for a in arguments])
    return status, out.getvalue(), err.getvalue()


class Lines(unittest.TextTestResult):
    """A line for each test on standard output, as tools/check.sh counts them; what went wrong is on standard error."""

    def line(self, word, case):
        print(word, ".".join(case.id().split(".")[1:]))

    def addSuccess(self, case):
        super().addSuccess(case)
        self.line("ok", case)

    def addFailure(self, case, error):
        super().addFailure(case, error)
        self.line("FAILED", case)

    def addError(self, case, error):
        super().addError(case, error)
        self.line("FAILED", case)

    def addSkip(self, case, reason):
        super().addSkip(case, reason)
        print("SKIPPED", ".".join(case.id().split(".")[1:]), f"({reason})")


def main():
    unittest.main(testRunner=unittest.TextTestRunner(resultclass=Lines, verbosity=0))
