#!/usr/bin/env python3
"""tools/compare_tokenizers.py on a few random tokenizers: the same ids and decoded texts as the `tokenizers` library.

    python3 test/tools/compare_tokenizers_test.py [PART-OF-A-NAME...]

BLIPFT names the program (default ./blipft); the unit tests lie beside it. Without `tokenizers` the test is skipped.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import check, run_tests, test

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = pathlib.Path(os.path.realpath(os.environ.get("BLIPFT", ROOT / "blipft")))
try:
    import tokenizers  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED compare_tokenizers_test ({missing})")
    sys.exit(0)


@test
def random_tokenizers_give_the_ids_of_the_library(space):
    run = subprocess.run([sys.executable, ROOT / "tools/compare_tokenizers.py", "--tests", PROGRAM.parent / "tests", "--count", "24",
                          "--texts", "40"], capture_output=True, text=True)
    check(run.returncode == 0 and "compared 24 tokenizers" in run.stdout, run.stdout[-3000:], run.stderr[-1000:])


if __name__ == "__main__":
    sys.exit(run_tests("compare_tokenizers_test", str, program=str(PROGRAM)))
