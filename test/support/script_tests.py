"""Helpers of the test scripts: how a test is declared, what it checks with, and how all are run and reported.

    from script_tests import check, run_tests, test

    @test
    def one_and_one_are_two(space):
        check(1 + 1 == 2, "found", 1 + 1)

    sys.exit(run_tests("some_test", Space, program="./blipft"))
"""
import os
import re
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


def test_each(items):
    """Declares a test for each of the items, called with the space and the item: NAME_ITEM. They may run beside each other."""
    def declare(function):
        for item in items:
            def one(space, item=item):
                function(space, item)
            one.__name__ = re.sub(r"[^A-Za-z0-9]+", "_", f"{function.__name__}_{item}").strip("_")
            one.__module__ = function.__module__
            test(one)
        return function
    return declare


def chosen_tests(words):
    """The tests of the script itself whose names hold one of the words; a word =NAME is a whole name. No words: all."""
    own = [function for function in _tests if function.__module__ == "__main__"]  # not those of a script that it imports
    return [function for function in own if not words or any(
        word[1:] == function.__name__ if word.startswith("=") else word in function.__name__ for word in words)]


class Skip(Exception):
    """Raised by a test that cannot run here; its text says why."""


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def run_tests(name, make_space, program):
    """Runs the declared tests, or those that chosen_tests() finds for the command line's words, on make_space(a new folder).
    Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each, and returns the exit status. With --names before the
    words it prints the tests' names instead."""
    if sys.argv[1:2] == ["--names"]:
        print("\n".join(function.__name__ for function in chosen_tests(sys.argv[2:])))
        return 0
    if not os.access(program, os.X_OK):
        print(f"FAILED {name}: there is no program {program}; make builds it")
        return 1
    if not shutil.which("mpirun"):
        print(f"SKIPPED {name} (no mpirun)")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix=f"blipft_{name}.") as folder:
        space = make_space(folder)
        for function in chosen_tests(sys.argv[1:]):
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
