#!/usr/bin/env python3
"""One run at a time in a folder of checkpoints, whatever path leads there; and the same command again, at once, after its
mpirun was killed.

    python3 test/program/locks_test.py [PART-OF-A-NAME...]
"""
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import DEVICE, PROGRAM, ROOT, Space, command_line, environment, pids_of_ranks, run  # noqa: E402
from script_tests import check, run_tests, test  # noqa: E402

SECONDS = 120  # for what ends by itself; nothing is measured by it
LONG = ["train.max_steps=1000000", "train.max_epochs=1000000", "output.progress_seconds=0"]


class Background:
    """A run that goes on until it is ended."""

    def __init__(self, space, ranks, *options, cwd=ROOT):
        self.logs = [space.new("out"), space.new("err")]
        with open(self.logs[0], "w") as out, open(self.logs[1], "w") as err:
            self.process = subprocess.Popen(command_line(ranks, [PROGRAM, space.config, *options]), cwd=cwd, env=environment(),
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def texts(self):
        return [log.read_text(errors="replace")[-4000:] for log in self.logs]

    def trains(self):
        return re.search(r"step \d+/\d+  epoch", self.texts()[0])

    def wait_until_it_trains(self):
        end = time.monotonic() + SECONDS
        while not self.trains():
            check(self.process.poll() is None, "ended early", self.process.returncode, *self.texts())
            check(time.monotonic() < end, "does not train", *self.texts())
            time.sleep(0.02)

    def refused_for_another_run(self):
        """Returns True if it ended with the message of the lock; fails if it trains, or ends in another way."""
        status = self.process.wait(SECONDS)
        out, err = self.texts()
        check(not self.trains(), "it trained", out, err)
        return status == 1 and "in use by another run" in err

    def kill(self):
        for pid in pids_of_ranks(self.process).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def paths_to_one_folder(space):
    """{name: (options, working folder)} of runs whose checkpoints come to lie in one folder, A/checkpoints; and what to
    call at the end."""
    a, link, linked = space.new("A"), space.new("link"), space.new("linked")
    folder = a / "checkpoints"
    folder.mkdir(parents=True)
    link.symlink_to(folder)
    linked.symlink_to(a)
    ways = {
        "default": ([f"output.path={a}", "checkpoint.every_steps=3"], ROOT),
        "default, none but when stopped": ([f"output.path={a}"], ROOT),
        "its path": ([f"output.path={space.new()}", f"checkpoint.path={folder}", "checkpoint.every_steps=3"], ROOT),
        "its path, none but when stopped": ([f"output.path={space.new()}", f"checkpoint.path={folder}"], ROOT),
        "a link to it": ([f"output.path={space.new()}", f"checkpoint.path={link}", "checkpoint.every_steps=3"], ROOT),
        "a link to the output folder": ([f"output.path={linked}", "checkpoint.every_steps=3"], ROOT),
        "a relative path": ([f"output.path={space.new()}", f"checkpoint.path={a.name}/../{a.name}/checkpoints/",
                             "checkpoint.every_steps=3"], space.folder),
        "as output folder": ([f"output.path={folder}", "checkpoint.every_steps=3"], ROOT),
        "resumed": ([f"output.path={a}", "checkpoint.every_steps=3", "checkpoint.resume=auto"], ROOT),
    }
    bound = space.new("bound")
    bound.mkdir()
    mounted = os.getuid() == 0 and subprocess.run(["mount", "--bind", folder, bound], stderr=subprocess.DEVNULL).returncode == 0
    if mounted:
        ways["a bind mount"] = ([f"output.path={space.new()}", f"checkpoint.path={bound}", "checkpoint.every_steps=3"], ROOT)
    else:
        print("no right to bind a folder elsewhere: that way is left out")
    return ways, lambda: mounted and subprocess.run(["umount", "-l", bound], check=True)


@test
def one_run_at_a_time_whatever_path_leads_to_the_checkpoints(space):
    ways, end = paths_to_one_folder(space)
    try:
        for name, (options, cwd) in ways.items():
            holder = Background(space, 0, *options, *LONG, "output.overwrite=true", "trace.enabled=false", cwd=cwd)
            try:
                holder.wait_until_it_trains()
                others = {way: Background(space, 0, *theirs, *LONG, "output.overwrite=true", cwd=folder)
                          for way, (theirs, folder) in ways.items()}
                try:
                    for way, other in others.items():
                        check(other.refused_for_another_run(), f"{way} beside {name}:", *other.texts())
                finally:
                    for other in others.values():
                        other.kill()
                check(holder.process.poll() is None, name, "was ended by another", *holder.texts())
            finally:
                holder.kill()
    finally:
        end()


@test
def of_runs_that_start_at_one_moment_one_trains(space):
    ways, end = paths_to_one_folder(space)
    runs = {name: Background(space, 0, *options, *LONG, "output.overwrite=true", "trace.enabled=false", cwd=cwd)
            for name, (options, cwd) in ways.items()}
    try:
        last = time.monotonic() + SECONDS
        while len(alive := [name for name, one in runs.items() if one.process.poll() is None]) > 1:
            check(time.monotonic() < last, "more than one goes on:", alive)
            time.sleep(0.05)
        check(len(alive) == 1, "none goes on", *[one.texts() for one in runs.values()])
        for name, one in runs.items():
            check(name in alive or one.refused_for_another_run(), name, *one.texts())
        runs[alive[0]].wait_until_it_trains()
    finally:
        for one in runs.values():
            one.kill()
        end()


@test
def runs_with_folders_of_their_own_are_not_refused(space):
    first = run(space, 0, "train.max_steps=2", "checkpoint.every_steps=1")
    shared = space.new("shared")
    holder = Background(space, 0, f"output.path={first.output}", f"checkpoint.path={shared}/a", "checkpoint.every_steps=3",
                        "output.overwrite=true", *LONG)
    try:
        holder.wait_until_it_trains()
        for options in ([f"checkpoint.path={shared}/b"],                             # beside it
                        [f"output.path={first.output}/below"],                      # in the other's output folder
                        [f"output.path={shared}/c"]):
            run(space, 0, "train.max_steps=1", "checkpoint.every_steps=1", *options)
    finally:
        holder.kill()
    # A resume from another run's checkpoint only reads there, while that run continues.
    again = run(space, 0, "train.max_steps=2", "checkpoint.every_steps=1")
    holder = Background(space, 0, f"output.path={again.output}", "checkpoint.resume=auto", "checkpoint.keep=100", *LONG)
    try:
        holder.wait_until_it_trains()
        result = run(space, 0, "train.max_steps=3", f"checkpoint.resume={again.output}/checkpoints/step-00000002")
        check("after 2 steps" in result.out, result)
    finally:
        holder.kill()


@test
def a_lock_that_is_not_the_programs_is_left_alone(space):
    for make in (lambda path: path.write_text("someone's"), lambda path: os.mkfifo(path), lambda path: path.mkdir(),
                 lambda path: path.symlink_to("/nothing/here")):
        for place in ("run.lock", "checkpoints/run.lock"):
            output = space.new()
            lock = output / place
            lock.parent.mkdir(parents=True)
            make(lock)
            before = lock.lstat()
            refused = Background(space, 0, f"output.path={output}", "output.overwrite=true", "train.max_steps=1")
            check(refused.process.wait(SECONDS) == 1 and f"{place}" in refused.texts()[1], refused.texts())
            check((lock.lstat().st_ino, lock.lstat().st_mode) == (before.st_ino, before.st_mode), "it was touched", lock)
            check(sorted(path.name for path in output.iterdir()) == [place.split("/")[0]], "left behind", list(output.iterdir()))


@test
def a_killed_run_without_checkpoints_leaves_nothing_in_the_way(space):
    output = space.new()
    killed = Background(space, 0, f"output.path={output}", *LONG)
    killed.wait_until_it_trains()
    killed.kill()
    check((output / "checkpoints/run.lock").exists(), "no lock in the folder of checkpoints")
    for path in output.iterdir():
        if path.is_file() and path.name != "run.lock":
            path.unlink()
    run(space, 0, f"output.path={output}", "train.max_steps=1")
    check(not (output / "run.lock").exists() and not list((output / "checkpoints").glob("*")), list(output.rglob("*")))


def ends(pids):
    end = time.monotonic() + SECONDS
    for pid in pids:
        while pathlib.Path(f"/proc/{pid}/exe").exists() or is_running(pid):
            check(time.monotonic() < end, "process", pid, "goes on")
            time.sleep(0.01)


def state_of(pid):
    """One letter, as in ps; X where there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def is_running(pid):
    return state_of(pid) not in "ZX"


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + SECONDS
    while state_of(pid) != "T":            # the signal takes effect when the process is scheduled
        check(time.monotonic() < end, "process", pid, "does not stop, state", state_of(pid))
        time.sleep(0.01)


def waits_for_it(run_):
    last = time.monotonic() + SECONDS
    while "has lost its launcher and ends; waiting for that" not in run_.texts()[1]:
        check(run_.process.poll() is None and time.monotonic() < last, "no word of the wait", *run_.texts())
        time.sleep(0.02)


@contextlib.contextmanager
def parent_of_what_loses_its_parent():
    """This process becomes the parent of descendants whose parent ends. A group of processes that loses its last parent in
    the session is sent SIGHUP and SIGCONT where a process of it is stopped: stopped ranks would go on, and end, as soon
    as their mpirun is killed. Otherwise init is their parent, which may or may not be in the session."""
    prctl, set_child_subreaper = ctypes.CDLL(None, use_errno=True).prctl, 36
    check(prctl(set_child_subreaper, 1, 0, 0, 0) == 0, "prctl:", os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)


@test
def the_same_command_again_after_mpirun_was_killed(space):
    with parent_of_what_loses_its_parent():
        start_again_after_mpirun_was_killed(space)


def start_again_after_mpirun_was_killed(space):
    options = [f"output.path={space.new()}", "checkpoint.every_steps=2", "checkpoint.resume=auto", *LONG]
    first = Background(space, 2, *options)
    first.wait_until_it_trains()
    ranks = list(pids_of_ranks(first.process).values())
    check(len(ranks) == 2, ranks)
    # Ranks that cannot end yet, as one that waits for a file system: the second start comes while they live.
    for pid in ranks:
        stop(pid)
    first.process.kill()
    first.process.wait()
    second = Background(space, 2, *options)
    try:
        waits_for_it(second)
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        ends(ranks)
        second.wait_until_it_trains()
        check(second.texts()[1].count("has lost its launcher") == 1, "more than one line", second.texts()[1])
    finally:
        second.kill()
    # As it comes: at once, without a wait for the ranks' end.
    third = Background(space, 2, *options)
    third.wait_until_it_trains()
    third.process.kill()
    third.process.wait()
    fourth = Background(space, 2, *options)
    try:
        fourth.wait_until_it_trains()
    finally:
        fourth.kill()


@test
def a_run_that_waited_has_the_folder_for_itself(space):
    """Ending ranks finish all writes and removals before the next run gets the folder."""
    options = [f"output.path={space.new()}", "checkpoint.every_steps=1", "checkpoint.resume=auto", *LONG]
    with parent_of_what_loses_its_parent():
        now = Background(space, 2, *options)
        try:
            now.wait_until_it_trains()
            for _ in range(8):             # chance decides where in a step, and in a checkpoint, the ranks are
                ranks = list(pids_of_ranks(now.process).values())
                for pid in ranks:
                    stop(pid)
                now.process.kill()
                now.process.wait()
                now = Background(space, 2, *options)
                waits_for_it(now)
                for pid in ranks:
                    os.kill(pid, signal.SIGCONT)
                now.wait_until_it_trains()
        finally:
            now.kill()


@test
def another_rank_does_not_give_up_the_folder_of_rank_0(space):
    output = space.new()
    with parent_of_what_loses_its_parent():
        run_ = Background(space, 2, f"output.path={output}", *LONG)
        run_.wait_until_it_trains()
        ranks = pids_of_ranks(run_.process)
        try:
            stop(ranks[0])
            run_.process.kill()
            run_.process.wait()
            ends([ranks[1]])
            locks = [output / "run.lock", output / "checkpoints/run.lock"]
            check(all(lock.exists() for lock in locks), "given up while rank 0 is there", list(output.rglob("*")))
            os.kill(ranks[0], signal.SIGCONT)
            ends([ranks[0]])
            check(not any(lock.exists() for lock in locks), "left behind", list(output.rglob("*")))
        finally:
            for pid in ranks.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@test
def a_rank_whose_launcher_is_gone_ends_at_once(space):
    # Behind a shell too, which stands between mpirun and the rank, and outlives mpirun.
    for before in ([], ["bash", "-c", '"$0" "$@"; exit']):
        log = space.new("err")
        command = command_line(2, [*before, PROGRAM, space.config, f"output.path={space.new()}", *LONG])
        out = space.new("out")
        with open(out, "w") as stdout, open(log, "w") as stderr:
            process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=stdout,
                                       stderr=stderr)
        end = time.monotonic() + SECONDS
        while not re.search(r"step \d+/\d+  epoch", out.read_text()):
            check(process.poll() is None and time.monotonic() < end, process.poll(), out.read_text(), log.read_text())
            time.sleep(0.02)
        pids = [int(pid) for pid in subprocess.run(["pgrep", "-f", str(command[-len(LONG) - 1])], stdout=subprocess.PIPE,
                                                   text=True).stdout.split() if int(pid) not in (process.pid, os.getpid())]
        check(len(pids) >= 2, pids)
        process.kill()
        process.wait()
        ends(pids)


@test
def a_run_that_was_started_alone_outlives_its_shell(space):
    output, log = space.new(), space.new("log")
    line = f"nohup {PROGRAM} {space.config} output.path={output} {' '.join(LONG)} > {log} 2>&1 < /dev/null & echo $!"
    shell = subprocess.run(["bash", "-c", line], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    pid = int(shell.stdout)
    try:
        end = time.monotonic() + SECONDS
        while not re.search(r"step \d+/\d+  epoch", log.read_text()):
            check(is_running(pid) and time.monotonic() < end, log.read_text())
            time.sleep(0.02)
        os.kill(pid, signal.SIGUSR1)
        while is_running(pid):
            check(time.monotonic() < end, "does not end", log.read_text())
            time.sleep(0.02)
        check("stopped    by SIGUSR1" in log.read_text(), log.read_text())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@test
def processes_that_do_not_know_of_each_other_are_told_how_to_start(space):
    for variables, starter in (({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, "srun without PMIx"),
                               ({"WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1"}, "torchrun"),
                               ({"PMI_SIZE": "4", "PMI_RANK": "1"}, "another MPI's launcher")):
        for more, expected in (([], 1), (["parallel.devices=1"], 0)):
            output = space.new()
            done = subprocess.run([PROGRAM, space.config, f"output.path={output}", "train.max_steps=1", *more], cwd=ROOT,
                                  env={**environment(), **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            check(done.returncode == expected, variables, done)
            if expected == 0:
                continue
            check(re.search(rf"this is one of 4 processes .*{starter}.*mpirun -np 4 or srun --mpi=pmix", done.stderr), done)
            check(not output.exists(), "a folder was made")
    # In a batch script Slurm tells of its tasks too, but this is one process.
    done = subprocess.run([PROGRAM, space.config, f"output.path={space.new()}", "train.max_steps=1"], cwd=ROOT,
                          env={**environment(), "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    check(done.returncode == 0, done)


if __name__ == "__main__":
    if DEVICE == "cuda":
        print("SKIPPED locks_test (what it shows does not depend on the device)")
        sys.exit(0)
    sys.exit(run_tests("locks_test", Space, PROGRAM))
