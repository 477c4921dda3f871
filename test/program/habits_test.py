#!/usr/bin/env python3
"""Habits of new users, with the whole program: trials, wrong folders, settings that teach little. Checks without a
run are in test/config/habits_test.cpp, those of recipes in recipes_test.py.

    python3 test/program/habits_test.py [PART-OF-A-NAME...]
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
try:
    import h5py  # noqa: F401
    import numpy  # noqa: F401
    import PIL  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED habits_test ({missing})")
    sys.exit(0)
from program_runs import DEVICE, PROGRAM, ROOT, Space, environment, mpirun, ranks_up_to, read_table, run, start  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402


# Rank 0 stops once it has removed the lock of output.path; the others wait for that before they look at the lock again.
SLOW_FIRST_RANK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_first_rank(void) {
  const char* const rank = getenv("OMPI_COMM_WORLD_RANK");
  return rank && strcmp(rank, "0") == 0;
}

static int is_lock(const char* path) {
  const char* const end = strrchr(path, '/');
  return strcmp(end ? end + 1 : path, "run.lock") == 0 && !strstr(path, "/checkpoints/");
}

int unlink(const char* path) {
  const int result = ((int (*)(const char*))dlsym(RTLD_NEXT, "unlink"))(path);
  if (is_first_rank() && is_lock(path)) sleep(20);
  return result;
}

int unlinkat(int folder, const char* name, int flags) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  if (readlink(link, path, sizeof path - 1) < 0) path[0] = 0;
  const int result = ((int (*)(int, const char*, int))dlsym(RTLD_NEXT, "unlinkat"))(folder, name, flags);
  if (is_first_rank() && is_lock(name) && !strstr(path, "/checkpoints")) sleep(20);
  return result;
}

int open(const char* path, int flags, ...) {
  static int looks = 0;
  va_list arguments;
  va_start(arguments, flags);
  const int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
  va_end(arguments);
  if (!is_first_rank() && is_lock(path) && looks++ > 0)
    for (int i = 0; i < 500 && access(path, F_OK) == 0; ++i) usleep(10000);
  return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}
"""


def everything_in(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def text_model(space):
    """A small LLaMA with its data."""
    folder = space.folder / "text"
    if not folder.exists():
        subprocess.run([sys.executable, str(ROOT / "tools/make_text_demo.py"), "--out", str(folder), "--samples", "48"],
                       check=True, stdout=subprocess.DEVNULL)
    return folder


@test
def a_trial_leaves_everything_as_it_was(space):
    home = space.new("home")
    (home / ".smoke-abcdef").mkdir(parents=True)
    (home / ".smoke-abcdef/mine").write_text("a folder of that name, and not the program's")
    earlier = run(space, 0, "train.max_steps=1", f"output.path={home}/run", "checkpoint.every_steps=1")
    check(earlier.status == 0, earlier)
    before = everything_in(home)
    for ranks, *options in ((0,), (ranks_up_to(2), "parallel.strategy=fsdp"),
                            (0, "output.save_model=true", "output.overwrite=true", "checkpoint.every_steps=1",
                             "checkpoint.resume=auto", "data.val_split_fraction=0.5", "train.val_check_interval=1",
                             "train.max_steps=1", "train.limit_val_batches=0.001")):
        result = start(space, ranks, "--smoke", "2", f"output.path={home}/run", *options)
        check(result.status == 0, options, result)
        check(re.search(r"^smoke      it runs here, 2 steps on .*; nothing was saved\n\Z", result.out, re.M), result)
        check(result.out.count("validation after") == (1 if "train.val_check_interval=1" in options else 0), result)
        check("checkpoint after" not in result.out and "model      /" not in result.out, result)
        check(everything_in(home) == before, options, set(everything_in(home)) ^ set(before))
    # If there was nothing before, there is nothing afterwards.
    result = start(space, 0, "--smoke", f"output.path={space.folder}/new/folders/run")
    check(result.status == 0 and "5 steps on 1 rank" in result.out, result)
    check(not (space.folder / "new").exists(), list(space.folder.iterdir()))


@test
def a_trial_that_fails_takes_its_folder_away(space):
    home = space.new("home")
    home.mkdir()
    for ranks in (0, ranks_up_to(2)):
        broken = space.copy(space.data)
        for picture in list(broken.rglob("*.png")) + list(broken.rglob("*.jpg")):
            picture.write_bytes(b"no picture")
        for options in ((f"data.path={broken}",), (f"data.path={space.folder}/nothing",), ("model.freeze=[nothing]",)):
            result = start(space, ranks, "--smoke", f"output.path={home}/run", *options)
            check(result.status != 0 and "smoke      " not in result.out, options, result)
            check(os.listdir(home) == [], options, os.listdir(home), result)


@test
def a_trial_takes_its_folder_away_if_another_rank_ends_the_run(space):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler or ranks_up_to(2) < 2:
        raise Skip("no C compiler, or no second rank")
    source, library, home = space.new("slow.c"), space.new("slow.so"), space.new("home")
    home.mkdir()
    source.write_text(SLOW_FIRST_RANK)
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", source, "-o", library, "-ldl"], check=True)
    broken = space.copy(space.data)
    for picture in list(broken.rglob("*.png")) + list(broken.rglob("*.jpg")):
        picture.write_bytes(b"no picture")
    result = start(space, 2, "--smoke", f"output.path={home}/run", f"data.path={broken}",
                   before=["env", f"LD_PRELOAD={library}"])
    check(result.status != 0 and "smoke      " not in result.out, result)
    check(os.listdir(home) == [], os.listdir(home), result)


@test
def a_trial_needs_a_folder_that_it_may_write_beside(space):
    file = space.new("file")
    file.write_text("")
    result = start(space, 0, "--smoke", f"output.path={file}/run")
    check(result.status == 1 and "output.path: " in result.err and "cannot make a folder for the trial" in result.err, result)


@test
def the_command_line_wins_with_one_note(space):
    config = space.new("run.yaml")
    config.write_text(space.config.read_text().replace("train:\n", "train:\n  warmup_steps: 100\n"))
    for ranks in (0, ranks_up_to(2)):
        result = start(space, ranks, "train.max_steps=2", config=config)
        check(result.status == 0 and result.err.count("note: ") == 1, result)
        check(f"note: {config}:" in result.err and "train.warmup_steps: 100 is ignored because the command line sets "
              "train.max_steps=2" in result.err, result)
        check(result.steps()["lr"].tolist() == [1e-3, 1e-3], result.steps()["lr"])
    result = start(space, 0, "--smoke", "3", config=config)
    check(result.status == 0 and "train.warmup_steps: 100 is ignored because --smoke sets train.max_steps=3\n"
          in result.err, result)
    status, out, err, _ = mpirun(0, [PROGRAM, "--print-config", config, "train.max_steps=2"])
    check(status == 0 and "warmup_steps: 0\n" in out and "note: " not in out and err.count("note: ") == 1, out, err)


@test
def a_warm_up_that_never_ends_is_warned_of(space):
    for options in (("train.warmup_steps=4", "train.max_steps=4"), ("train.warmup_steps=24", "train.max_epochs=1")):
        result = run(space, 0, *options)
        check(result.out.count("the learning rate never reaches train.lr") == 1, result)
        check(result.out.index("never reaches") < result.out.index("step 1/"), result)
    check("never reaches" not in run(space, 0, "train.warmup_steps=3", "train.max_steps=4").out, "warned of a good one")


@test
def an_adapter_is_no_model(space):
    adapter = space.new("adapter")
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/base"}))
    for options in ((), ("--plan",)):
        status, out, err, _ = mpirun(0, [PROGRAM, *options, space.config, f"model.path={adapter}",
                                         f"output.path={space.new()}"])
        check(status in (1, 2) and f'model.path: found "{adapter}", which is an adapter' in err and f"adapter.path={adapter}" in err and
              "org/base" in err, out, err)


@test
def a_model_of_text_says_that_it_reads_no_pictures(space):
    model = text_model(space) / "model"
    result = run(space, 0, f"model.path={model}", "train.max_steps=1", "data.max_text_tokens=128")
    check(result.out.count("warning: the model has no vision input: it trains on the captions of ") == 1, result)
    check("has no vision input" not in run(space, 0, "train.max_steps=1").out, "warned for a model with pictures")
    plain = run(space, 0, f"model.path={model}", f"data.path={text_model(space)}/data/instructions.jsonl",
                "train.max_steps=2", "data.max_text_tokens=128")
    check("has no vision input" not in plain.out, plain)
    check(len(re.findall(r"^step .* [\d.]+ samples/s  [\d.]+ tokens/s ", plain.out, re.M)) == 2, plain)
    check(re.search(r"^\[done\] .* \| [\d.]+ samples/s \| [\d.]+ tokens/s$", plain.out, re.M), plain)


@test
def texts_that_are_all_cut_are_told_before_they_are_learnt(space):
    model, data = text_model(space) / "model", text_model(space) / "data/instructions.jsonl"
    for options in ((f"model.path={model}", f"data.path={data}", "data.max_text_tokens=4"), ("data.max_text_tokens=2",)):
        result = run(space, 0, "train.max_steps=3", *options)
        told = re.search(r"^warning: all \d+ texts .*are cut to \d tokens", result.out, re.M)
        check(told and told.start() < result.out.index("step 2/3"), options, result)
    check("warning: all" not in run(space, 0, "train.max_steps=1").out, "warned without cause")


@test
def memory_lines_can_be_left_out(space):
    result = run(space, 0, "train.max_steps=3", "output.memory_every=0")
    check("memory step" not in result.out, result)
    check(len(read_table(result.output, 0, "memory")) > 0, "the trace has lost them too")


@test
def a_small_rate_is_not_rounded_to_nothing(space):
    result = run(space, 0, "train.max_steps=2")
    rates = re.findall(r" ([\d.]+) ([GT])FLOP/s/rank", result.out)
    check(len(rates) == 2 and all(unit == "T" or DEVICE == "cpu" for _, unit in rates), result)
    check(all(float(rate) > 0 for rate, _ in rates) or DEVICE != "cpu", rates)


@test
def a_run_has_as_many_threads_as_it_is_given(space):
    for threads in ("1", "2"):
        result = run(space, 0, "parallel.threads=0", "train.max_steps=2", OMP_NUM_THREADS=threads)
        check(DEVICE != "cpu" or f"CPU, {threads} thread{'s' if threads != '1' else ''}" in result.out, result)


@test
def an_hdf5_of_the_users_own_is_taken_or_refused_by_name(space):
    def make(root):
        done = subprocess.run(["make", "-n", "CUDA=0", f"BUILD={space.folder}/build", f"HDF5_ROOT={root}", "blipft"], cwd=ROOT,
                              capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    own = space.new("hdf5")
    status, _, err = make(own)
    check(status != 0 and f'HDF5_ROOT: found "{own}", which has no include/hdf5.h' in err, err)
    (own / "include").mkdir(parents=True)
    (own / "include/hdf5.h").write_text("")
    status, _, err = make(own)
    check(status != 0 and f'HDF5_ROOT: found "{own}", which has no lib/libhdf5.so' in err, err)
    (own / "lib").mkdir()
    (own / "lib/libhdf5.so").write_text("")
    status, out, err = make(own)
    check(status == 0 and f"-I{own}/include" in out and f"-L{own}/lib" in out, err)
    check("-lhdf5_serial" not in out, "the system's library is linked all the same")


@test
def a_first_build_for_gpus_says_where_there_is_none(space):
    def note_of(*variables):
        """The output of make on a machine with nvcc."""
        environment = {name: value for name, value in os.environ.items() if name not in ("CUDA", "MAKEFLAGS", "MAKELEVEL")}
        done = subprocess.run(["make", "-n", "NVCC_FOUND=/usr/bin/true", f"BUILD={space.folder}/first", *variables, "blipft"],
                              cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment)
        check(done.returncode == 0 and "-c -o" in done.stdout, variables, done.stderr)
        lines = done.stdout.splitlines()
        told = [i for i, line in enumerate(lines) if "nvcc is here and no GPU" in line]
        check(all(i < next(n for n, line in enumerate(lines) if "-c -o" in line) for i in told), "behind what is compiled", told)
        return "\n".join(lines[i] for i in told)

    told = note_of("GPUS_HERE=")
    check(told.count("make CUDA=0 builds for CPUs alone") == 1, told)
    for variables in (("GPUS_HERE=/dev/nvidia0",), ("GPUS_HERE=", "CUDA=1"), ("GPUS_HERE=", "CUDA=0")):
        check(note_of(*variables) == "", variables)
    (space.folder / "first").mkdir()
    (space.folder / "first/blipft").write_text("")
    check(note_of("GPUS_HERE=") == "", "every build says it")


@test
def a_first_build_reads_the_standard_headers_once(space):
    build = space.new("build")
    one, other = f"{build}/src/base/version.cpp.o", f"{build}/src/base/memory_text.cpp.o"

    def make(*arguments, compiler="g++", first=()):
        settings = ("CUDA", "PCH", "MAKEFLAGS", "MAKELEVEL")
        environment = {name: value for name, value in os.environ.items() if name not in settings}
        done = subprocess.run(["make", *first, "CUDA=0", f"BUILD={build}", f"CXX={compiler}", *arguments], cwd=ROOT,
                              capture_output=True, text=True, timeout=300, env=environment)
        check(done.returncode == 0, arguments, done.stderr)
        return done.stdout, done.stderr

    for without in (("CCACHE=ccache",), ("CCACHE=", "PCH=0"), ("CCACHE=", "SAN=1")):
        out, _ = make(*without, one, first=("-n",))
        check("-c -o" in out and "standard.h" not in out, without, out)
    # The commit, which the first file alone is given, must not be in what all files share.
    for file in (one, other):
        _, err = make("CCACHE=", file, compiler="g++ -H")
        check(re.search(r"^! .*standard\.h\.gch$", err, re.M), "g++ does not take it", file, err[-2000:])
    out, _ = make("CCACHE=", one, other, compiler="g++ -H")
    check("-c -o" not in out and "c++-header" not in out, "it is compiled once more", out)
    out, _ = make("CCACHE=", "OPT=-O2", one, first=("-n",))
    check("c++-header" in out, "other flags, the same headers", out)


if __name__ == "__main__":
    sys.exit(run_tests("habits_test", Space, PROGRAM))
