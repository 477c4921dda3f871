"""What the tests that are scripts share: how a test is declared, what it checks with, and how all are run and reported.

    from script_tests import check, run_tests, test

    @test
    def one_and_one_are_two(space):
        check(1 + 1 == 2, "found", 1 + 1)

    sys.exit(run_tests("some_test", Space, program="./blipft"))
"""
import os
import shutil
import sys
import tempfile
import time
import traceback

_tests = []


def test(function):
    """Declares a test; it is called with the space."""
    _tests.append(function)
    return function


class Skip(Exception):
    """Raised by a test that cannot run here; its text says why."""


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def run_tests(name, make_space, program):
    """Runs the declared tests, or those whose names hold one of the command line's words, on make_space(a new folder).
    Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each, and returns the exit status."""
    if not os.access(program, os.X_OK):
        print(f"FAILED {name}: there is no program {program}; make builds it")
        return 1
    if not shutil.which("mpirun"):
        print(f"SKIPPED {name} (no mpirun)")
        return 0
    words, failed = sys.argv[1:], 0
    with tempfile.TemporaryDirectory(prefix=f"blipft_{name}.") as folder:
        space = make_space(folder)
        for function in _tests:
            if function.__module__ != "__main__":  # declared by a script that this one imports
                continue
            if words and not any(word in function.__name__ for word in words):
                continue
            begin = time.monotonic()
            try:
                function(space)
                print(f"ok {function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
            except Skip as why:
                print(f"SKIPPED {function.__name__} ({why})", flush=True)
            except Exception:  # any error fails this test alone
                failed += 1
                print(traceback.format_exc() + f"FAILED {function.__name__}", flush=True)
    return 1 if failed else 0
