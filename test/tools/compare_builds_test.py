#!/usr/bin/env python3
"""tools/compare_builds.py on the program itself, and on stand-ins that plan, train, generate or run kernels otherwise.

    python3 test/tools/compare_builds_test.py [PART-OF-A-NAME...]

BLIPFT names the program (default ./blipft).
"""
import contextlib
import io
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from script_tests import check, run_tests, test

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.path.abspath(os.environ.get("BLIPFT", ROOT / "blipft"))
try:
    import h5py
    import numpy as np
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED compare_builds_test ({missing})")
    sys.exit(0)
sys.path.insert(0, str(ROOT / "tools"))
from blipft_compare import builds as compare_builds  # noqa: E402

RECIPE, DEMO = "qwen3/0.6b-qlora", "inputs/demo-llama.yaml"


class Space:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.demo = compare_builds.Demo(DEMO, folder)

    def stand_in(self, name, script):
        """A program that runs this shell script; "$program" in it is the real one."""
        path = self.folder / name
        path.write_text(f"#!/bin/bash\nset -o pipefail\nprogram={PROGRAM}\n{script}\n")
        path.chmod(0o755)
        return path


def compare(new, *arguments):
    done = subprocess.run([sys.executable, str(ROOT / "tools/compare_builds.py"), PROGRAM, str(new), *arguments],
                          capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def compare_demo(space, function, new):
    """The output and counts of compare_losses, compare_texts or compare_kernels for the demo, with one setting each."""
    comparison = compare_builds.Comparison(PROGRAM, new, str(space.folder))
    comparison.folder = str(space.folder / f"files of {pathlib.Path(new).name}")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(comparison, space.demo)
    return comparison.exit_code(), out.getvalue()


def first_settings_only():
    compare_builds.TRAINING_RUNS[1:] = [(2, ["parallel.strategy=fsdp"])]
    del compare_builds.GENERATION_RUNS[1:]


@test
def a_program_equals_itself(_):
    status, out, err = compare(PROGRAM, RECIPE, "--quick")
    check(status == 0, out, err)
    check(out.splitlines()[-1].startswith("1 recipes; plans: 3 same, 0 different;"), out)


@test
def every_recipe_has_a_shape(_):
    recipes = sorted(ROOT.glob("inputs/**/*.yaml"))
    check(len(recipes) >= 33, recipes)
    for recipe in recipes:
        name = str(recipe.relative_to(ROOT))
        check(name in compare_builds.DEMOS or os.path.exists(os.path.join(compare_builds.shape_of(name), "config.json")), name)


@test
def another_number_of_a_plan_is_a_difference(space):
    new = space.stand_in("larger", """"$program" "$@" | sed 's/^  total .*/  total   9.99 GiB/'""")
    status, out, _ = compare(new, RECIPE, "--quick")
    check(status == 1 and "plans: 0 same, 3 different" in out, out)
    check(f"DIFFERENT plans    inputs/{RECIPE}.yaml" in out and "9.99 GiB" in out, out)


@test
def other_words_of_a_plan_are_counted(space):
    new = space.stand_in("reworded", """"$program" "$@" | sed 's/largest buffers/the largest buffers/'""")
    status, out, _ = compare(new, RECIPE, "--quick")
    check(status == 0 and "plans: 3 same (3 in other words), 0 different" in out, out)


@test
def a_plan_that_only_one_program_makes_is_a_difference(space):
    new = space.stand_in("refuses", """for word; do [ "$word" = --generate ] && { echo "no such plan" >&2; exit 2; }; done
exec "$program" "$@" """)
    status, out, _ = compare(new, RECIPE, "--quick")
    check(status == 1 and "plans: 2 same, 1 different" in out and "no such plan" in out, out)


@test
def a_missing_program_and_an_unknown_recipe_are_refused(space):
    status, _, err = compare(space.folder / "nothing", RECIPE)
    check(status == 2 and "nothing: there is no such program" in err, err)
    status, _, err = compare(PROGRAM, "no-such-recipe")
    check(status == 2 and "no-such-recipe" in err, err)


@test
def other_losses_are_a_difference(space):
    first_settings_only()
    status, out = compare_demo(space, compare_builds.compare_losses, PROGRAM)
    check(status == 0 and out.count("same ") == 2, out)
    new = space.stand_in("other-lr", '"$program" "$@" train.lr=0.0011')
    status, out = compare_demo(space, compare_builds.compare_losses, new)
    check(status == 1 and out.count("DIFFERENT losses") == 2, out)


@test
def settings_apply_to_the_runs_of_both_programs(space):
    first_settings_only()
    demo = compare_builds.Demo(DEMO, str(space.folder), ["train.lr=0.0011"])
    new = space.stand_in("same-lr", '"$program" "$@" train.lr=0.0011')
    comparison = compare_builds.Comparison(PROGRAM, new, str(space.folder / "settings"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        compare_builds.compare_losses(comparison, demo)
    check(comparison.exit_code() == 0 and out.getvalue().count("same ") == 2, out.getvalue())


@test
def a_run_that_fails_is_no_comparison(space):
    first_settings_only()
    new = space.stand_in("fails", 'echo "there is no room" >&2; exit 3')
    for function in (compare_builds.compare_losses, compare_builds.compare_texts):
        status, out = compare_demo(space, function, new)
        check(status == 2 and "FAILED" in out and "there is no room" in out, out)


@test
def other_texts_are_a_difference(space):
    first_settings_only()
    status, out = compare_demo(space, compare_builds.compare_texts, PROGRAM)
    check(status == 0 and "same      texts" in out, out)
    new = space.stand_in("shorter", '"$program" "$@" generate.max_new_tokens=3')
    status, out = compare_demo(space, compare_builds.compare_texts, new)
    check(status == 1 and "DIFFERENT texts" in out, out)


@test
def kernels_are_counted_by_name(space):
    """From the table of a trace, as a GPU's runs leave it."""
    folders = []
    for side, rows in (("old", [0, 1, 1, 2]), ("same", [1, 2, 0, 1]), ("new", [0, 1, 2, 2])):
        folders.append(space.folder / f"kernels-{side}")
        folders[-1].mkdir()
        with h5py.File(folders[-1] / "trace.rank0000.h5", "w") as file:
            file["kernel_names"] = np.array([(b"norm",), (b"gemm",), (b"copy",)], dtype=[("name", "S512")])
            file["kernels"] = np.array([(5, row) for row in rows], dtype=[("step", "i8"), ("name", "i4")])
    old, same, new = [compare_builds.kernels_of(folder) for folder in folders]
    check(old == [("copy", 1), ("gemm", 2), ("norm", 1)], old)
    check(old == same and old != new, same, new)


if __name__ == "__main__":
    sys.exit(run_tests("compare_builds_test", Space, PROGRAM))
