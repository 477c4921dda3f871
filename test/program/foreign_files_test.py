#!/usr/bin/env python3
"""Nothing of anyone's is removed: an output folder with a hundred things that are not the program's, started in every way."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

import h5py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import (PROGRAM, ROOT, Space, checkpoint, command_line, environment, mpirun, run,  # noqa: E402
                          saved_model, start, steps_of)
from script_tests import check, run_tests, test  # noqa: E402

EVERY_STEP = "checkpoint.every_steps=1"


def fingerprint(*folders):
    """{path: type, mode, inode, mtime, link target, bytes} of all in the folders, which are left out themselves."""
    found = {}
    for top in folders:
        for root, names, files in os.walk(os.fsencode(top)):
            for name in names + files:
                path = os.path.join(root, name)
                status = os.lstat(path)
                kind = stat.S_IFMT(status.st_mode)
                content = (os.readlink(path) if kind == stat.S_IFLNK else
                           pathlib.Path(os.fsdecode(path)).read_bytes() if kind == stat.S_IFREG else b"")
                found[path] = (kind, status.st_mode, status.st_ino, status.st_mtime_ns, content)
    return found


def check_untouched(before, way):
    for path, then in before.items():
        check(os.path.lexists(path), way, ": is gone:", path)
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        content = (os.readlink(path) if kind == stat.S_IFLNK else
                   pathlib.Path(os.fsdecode(path)).read_bytes() if kind == stat.S_IFREG else b"")
        now = (kind, status.st_mode, status.st_ino, status.st_mtime_ns, content)
        check(now == then, way, ": was touched:", path, then[:4], now[:4])


def make_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)                  # the name of a socket may have 107 bytes alone
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError:
        path.write_text("devices are not permitted here")


def every_kind(folder, names, theirs):
    """Gives things of every kind these names: files, folders, links to both and to nothing, pipes, sockets, devices."""
    def file(path):
        path.write_bytes(b"theirs " + os.fsencode(path.name))

    def full(path):
        path.mkdir()
        (path / "weights.bin").write_text("theirs")
        (path / "inner").mkdir()
        (path / "inner/link").symlink_to(theirs / "file")

    kinds = [file, full, lambda path: path.symlink_to(theirs / "file"), lambda path: path.symlink_to(theirs / "folder"),
             lambda path: path.symlink_to("nowhere"), os.mkfifo, make_socket, make_device]
    for number, name in enumerate(names):
        kinds[number % len(kinds)](folder / name)


def fill(space, output, checkpoints, whole):
    """A hundred things in both folders; `whole`: a checkpoint of this program's, in another run's folder."""
    theirs = space.new("theirs")
    (theirs / "folder").mkdir(parents=True)
    for path in (theirs / "file", theirs / "folder/weights.bin"):
        path.write_text("theirs")
    shutil.copytree(whole, theirs / whole.name)
    trace = whole.parent.parent / "trace.rank0000.h5"
    shutil.copy(trace, theirs)
    checkpoints.mkdir(parents=True)
    # Nearly our names, in every kind.
    near = ["trace_of_my_experiment.h5", "trace.h5", "trace.rank0.h5", "trace.rank00000.h5", "trace.rank0000.h5.bak",
            "trace.rank0000.hdf5", "trace.part1.rank0000.h5", "trace.part0000.rank0000.h5", "Trace.rank0000.h5",
            "trace.rank-001.h5", "models", "model.older", "model_old", "adapters", "model.partial.bak", "checkpoint",
            "checkpoints.old", "run.lock.bak", "model.safetensors", "wandb", "lightning_logs", "a b\nc", "caf\u00e9"]
    every_kind(output, near, theirs)
    # Our names, as of other ranks, in every kind, and with other programs' content.
    every_kind(output, [f"trace.rank{rank:04d}.h5" for rank in range(4000, 4016)], theirs)
    (output / "trace.rank4020.h5").symlink_to(theirs / trace.name)
    for name, creator in (("trace.rank4021.h5", "another"), ("trace.part4000.rank4000.h5", None)):
        with h5py.File(output / name, "w") as file:
            if creator:
                file.attrs["creator"] = creator
    near = ["base-model", "step-5", "step-0009000", "step-000009000", "step-00009000.bak", "step-00009000.partial.aside",
            "step-", "step-x", "epoch=3-step=9000.ckpt", "last.ckpt", "latest", "step_00009000", "Step-00009000",
            "step-00009000.tmp", "step--0009000", "checkpoint-500", "blipft.json.bak", "gemm_algorithms.txt", " "]
    every_kind(checkpoints, near, theirs)
    every_kind(checkpoints, [f"step-{step:08d}{end}" for step in range(9100, 9108) for end in ("", ".partial", ".aside")
                             if (step, end) not in ((9101, ""), (9103, ""))], theirs)
    (checkpoints / "step-00009200").symlink_to(theirs / whole.name)
    (checkpoints / "step-00009201.partial").symlink_to(theirs / whole.name)

    def copied(name, *left_out):
        shutil.copytree(whole, checkpoints / name, ignore=lambda _, names: [n for n in names if n in left_out])
        return checkpoints / name

    copied("step-00009300", "checkpoint.json")          # under way
    copied("step-00009301", "checkpoint.json", "blipft.json")
    other = copied("step-00009302", "blipft.json", "checkpoint.json",
                   *[path.name for path in whole.glob("state*")])
    (other / "checkpoint.json").write_text(json.dumps({"format": "another checkpoint", "files": []}))
    foreign = copied("step-00009303.partial", "checkpoint.json")
    (foreign / "blipft.json").write_text('{"made_by": "another"}')
    linked = copied("step-00009304.partial", "checkpoint.json", "blipft.json")
    (linked / "blipft.json").symlink_to(whole / "blipft.json")
    (checkpoints / "blipft.json").write_text('{"made_by": "another"}')
    before = fingerprint(theirs, output, checkpoints, whole)
    before.pop(os.fsencode(checkpoints), None)          # the program's own work changes its time
    check(len([path for path in before if os.path.dirname(path) in (os.fsencode(output), os.fsencode(checkpoints))]) > 75,
          len(before))
    check(len(before) >= 100, len(before))
    return before


def whole_checkpoint(space):
    """One of a run of its own."""
    return checkpoint(run(space, 0, "train.max_steps=1", EVERY_STEP).output, 1)


def killed(space, *overrides):
    """Starts a run, and kills it after its first checkpoint was reported."""
    process = subprocess.Popen(command_line(0, [PROGRAM, space.config, *overrides, "train.max_steps=5000",
                                                "train.max_epochs=9999"]), cwd=ROOT, env=environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "checkpoint" in line and "step-" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()
    check(any("step-" in line for line in lines), "".join(lines[-20:]))


@test
def foreign_things_stay_as_they_are_after_every_way_of_starting(space):
    whole = whole_checkpoint(space)
    output = space.new()
    checkpoints = output / "checkpoints"
    before = fill(space, output, checkpoints, whole)
    here = f"output.path={output}"

    def way(name, *overrides, status=0, **more):
        done = start(space, 0, here, *overrides, **more)
        check(done.status == status, name, done)
        check_untouched(before, name)
        return done

    def own(pattern):
        return sorted(path.name for path in checkpoints.iterdir() if re.fullmatch(r"step-0000[0-8]\d{3}(?!\d)" + pattern, path.name))

    way("plan", "--plan")
    way("fresh", "train.max_steps=2", EVERY_STEP, "output.save_model=true")
    check(own("") == ["step-00000001", "step-00000002"] and (output / "model/config.json").exists(), "fresh")
    done = way("auto", "train.max_steps=3", EVERY_STEP, "checkpoint.resume=auto", "output.save_model=true")
    check("after 2 steps, from" in done.out and "step-00009302 is left out of account" in done.err, done)
    way("path", "train.max_steps=4", EVERY_STEP, f"checkpoint.resume={checkpoint(output, 3)}")
    check(own("") == ["step-00000003", "step-00000004"], own(".*"))
    way("fresh again", "train.max_steps=2", status=1)
    way("overwrite", "train.max_steps=1", EVERY_STEP, "output.overwrite=true")
    check(own("") == ["step-00000001"] and not (output / "model").exists(), own(".*"))
    way("overwrite and save", "train.max_steps=1", "output.overwrite=true", "output.save_model=true", EVERY_STEP)
    way("export", "output.overwrite=true", config=f"--export={checkpoint(output, 1)}")
    killed(space, here, "output.overwrite=true", EVERY_STEP)
    check_untouched(before, "killed")
    newest = int(own("")[-1][5:])
    way("killed and started again", f"train.max_steps={newest + 1}", "train.max_epochs=9999", EVERY_STEP,
        "checkpoint.resume=auto")
    way("overwrite at the end", "train.max_steps=1", "output.overwrite=true")
    check(own(".*") == [], own(".*"))


@test
def foreign_things_in_a_checkpoint_path_elsewhere_stay(space):
    whole = whole_checkpoint(space)
    theirs, elsewhere = space.new(), space.new("elsewhere")
    theirs.mkdir()
    before = fill(space, theirs, elsewhere, whole)
    there = f"checkpoint.path={elsewhere}"
    output = space.new()
    for name, overrides in (("fresh", ["train.max_steps=2"]),
                            ("auto", ["train.max_steps=3", "checkpoint.resume=auto"]),
                            ("overwrite", ["train.max_steps=1", "output.overwrite=true"])):
        done = run(space, 0, f"output.path={output}", there, EVERY_STEP, *overrides)
        check_untouched(before, name)
    check(sorted(path.name for path in elsewhere.glob("step-0000000?")) == ["step-00000001"], done)


@test
def what_has_a_name_that_the_run_needs_is_refused_by_name_before_the_first_step(space):
    whole = whole_checkpoint(space)
    saves = ["train.max_steps=2", EVERY_STEP, "output.save_model=true"]

    def theirs(path):
        path.mkdir(parents=True)
        (path / "model.safetensors").write_text("theirs")

    def copy_under_way(path):
        shutil.copytree(whole, path, ignore=lambda _, names: [n for n in names if n == "checkpoint.json"])

    ways = [["output.overwrite=true"], [], ["checkpoint.resume=auto"]]
    for number, (name, make, why) in enumerate((
            ("checkpoints/step-00000002", theirs, "has no checkpoint.json"),
            ("checkpoints/step-00000002", copy_under_way, "has no checkpoint.json"),
            ("checkpoints/step-00000002", lambda path: path.symlink_to(whole), "is a link"),
            ("checkpoints/step-00000001.partial", os.mkfifo, "is not a folder"),
            ("checkpoints/step-00000001.partial", theirs, "has no blipft.json"),
            ("trace.rank0000.h5", lambda path: path.write_text("theirs"), "no trace that blipft wrote"),
            ("trace.rank0000.h5", lambda path: path.symlink_to("nowhere"), "no trace that blipft wrote"),
            ("model", theirs, "not a saved model of blipft's"),
            ("model", lambda path: path.symlink_to(whole), "is a link"),
            ("model.partial", theirs, "not a saved model of blipft's"),
            ("model.old", make_socket, "is not a folder"))):
        output = space.new()
        (output / "checkpoints").mkdir(parents=True)
        make(output / name)
        before = fingerprint(output / name, whole) if (output / name).is_dir() else fingerprint(whole)
        entry = os.lstat(output / name)
        for more in ways if number == 0 else [ways[number % len(ways)]]:
            refused = start(space, 0, f"output.path={output}", *saves, *more)
            check(refused.status == 1 and f"{output}/{name}: " in refused.err and why in refused.err, name, more, refused)
            check("\nstep " not in refused.out, "a step was done", refused)
            now = os.lstat(output / name)
            check((now.st_ino, now.st_mode, now.st_mtime_ns) == (entry.st_ino, entry.st_mode, entry.st_mtime_ns), name)
            check_untouched(before, name)


@test
def what_lies_in_a_folder_of_the_programs_own_stays_too(space):
    first = run(space, 0, "train.max_steps=2", EVERY_STEP, "output.save_model=true")
    here = f"output.path={first.output}"
    note, readme = checkpoint(first.output, 1) / "notes.txt", first.output / "model/README.md"
    note.write_text("theirs")
    readme.write_text("theirs")
    before = fingerprint(first.output)
    before.pop(os.fsencode(str(first.output / "checkpoints")), None)  # a lock comes and goes there, which its time shows
    before.pop(os.fsencode(str(first.output)), None)
    refused = start(space, 0, here, "train.max_steps=1", "output.save_model=true", "output.overwrite=true")
    check(refused.status == 1 and "holds README.md beside the saved model" in refused.err, refused)
    refused = start(space, 0, here, "train.max_steps=1", EVERY_STEP, "output.overwrite=true")
    check(refused.status == 1 and "step-00000001: holds notes.txt" in refused.err, refused)
    check_untouched(before, "refused")
    run(space, 0, here, "train.max_steps=1", "output.overwrite=true")
    check(note.read_text() == "theirs" and readme.read_text() == "theirs", "theirs")
    check([path.name for path in note.parent.iterdir()] == ["notes.txt"], list(note.parent.iterdir()))
    check(not checkpoint(first.output, 2).exists(), "its own checkpoint is left")


@test
def nothing_is_removed_through_a_link(space):
    first = run(space, 0, "train.max_steps=2", EVERY_STEP)
    moved = space.new("moved")
    (first.output / "checkpoints").rename(moved)
    (first.output / "checkpoints").symlink_to(moved)
    before = fingerprint(moved)
    options = [f"output.path={first.output}", EVERY_STEP]
    refused = start(space, 0, *options, "train.max_steps=1", "output.overwrite=true")
    check(refused.status == 1 and "checkpoints: is a link, behind which are a run's checkpoints" in refused.err and
          f"checkpoint.path={moved}" in refused.err, refused)
    check_untouched(before, "refused")
    run(space, 0, *options, "train.max_steps=3", "checkpoint.resume=auto")  # it is where the run wants its checkpoints
    check(sorted(path.name for path in moved.glob("step-*")) == ["step-00000002", "step-00000003"], list(moved.iterdir()))
    done = run(space, 0, *options, "train.max_steps=1", "output.overwrite=true", f"checkpoint.path={moved}")
    check(sorted(path.name for path in moved.glob("step-*")) == ["step-00000001"], done)


@test
def the_newest_checkpoint_is_the_one_of_the_latest_step(space):
    first = run(space, 0, "train.max_steps=3", EVERY_STEP, "checkpoint.keep=3")
    for step, seconds in ((1, 3000), (2, 2000), (3, 1000)):  # a clock that goes back
        os.utime(checkpoint(first.output, step) / "checkpoint.json", (seconds, seconds))
    more = run(space, 0, f"output.path={first.output}", "train.max_steps=4", EVERY_STEP, "checkpoint.resume=auto")
    check("after 3 steps, from" in more.out and steps_of(first.output)[0][0] == 3, more)
    check("step-00000003 is of the latest step" in more.err and "step-00000001 was written later" in more.err, more)
    check(sorted(path.name for path in (first.output / "checkpoints").glob("step-*")) == ["step-00000003", "step-00000004"],
          list((first.output / "checkpoints").iterdir()))


def marker(folder):
    return json.loads((folder / "blipft.json").read_text())


@test
def all_that_a_run_makes_has_its_id_and_a_model_its_step(space):
    settings = [f"model.path={saved_model(space)}", "model.init=pretrained", "adapter.kind=lora", "output.save_merged=true", "output.save_model=true", EVERY_STEP]
    first = run(space, 2, *settings, "train.max_steps=1", "parallel.strategy=fsdp")
    more = run(space, 2, *settings, "train.max_steps=2", "parallel.strategy=fsdp", "checkpoint.resume=auto",
               f"output.path={first.output}")
    ids = set()
    for path in first.output.glob("trace*.h5"):
        with h5py.File(path, "r") as file:
            ids.add(file.attrs["run_id"])
    for folder, what, step in ((first.output / "model", "model", 2), (first.output / "adapter", "adapter", 2),
                               (first.output / "checkpoints", "checkpoints", None),
                               (checkpoint(first.output, 1), "checkpoint", 1),
                               (checkpoint(first.output, 2), "checkpoint", 2)):
        found = marker(folder)
        check(found["made_by"] == "blipft" and found["what"] == what and found.get("step") == step, folder, found)
        ids.add(found["run_id"])
    ids.add(json.loads((checkpoint(first.output, 2) / "checkpoint.json").read_text())["run"]["run_id"])
    check(len(ids) == 1 and len(next(iter(ids))) == 32, ids)
    other = run(space, 0, "train.max_steps=1", EVERY_STEP)
    check(marker(checkpoint(other.output, 1))["run_id"] not in ids, "another run has the same id")


@test
def overwriting_leaves_no_older_model_beside_a_new_trace(space):
    first = run(space, 0, "train.max_steps=2", "output.save_model=true")
    here = f"output.path={first.output}"
    again = run(space, 0, here, "train.max_steps=1", "output.save_model=true", "output.overwrite=true")
    with h5py.File(first.output / "trace.rank0000.h5", "r") as file:
        check(marker(first.output / "model")["run_id"] == file.attrs["run_id"], again)
    check(marker(first.output / "model")["step"] == 1, marker(first.output / "model"))
    run(space, 0, here, "train.max_steps=1", "output.overwrite=true")
    check(not (first.output / "model").exists(), "an older model beside a new trace")


@test
def a_replacement_that_was_interrupted_is_brought_to_its_end(space):
    first = run(space, 0, "train.max_steps=1", "output.save_model=true", EVERY_STEP)
    second = run(space, 0, "train.max_steps=2", "output.save_model=true", "train.seed=5")
    model = first.output / "model"
    older, newer = marker(model), marker(second.output / "model")
    go_on = [f"output.path={first.output}", "train.max_steps=1", "checkpoint.resume=auto"]
    # On file systems without an exchange of names, a kill between two renames leaves this.
    model.rename(first.output / "model.old")
    shutil.copytree(second.output / "model", first.output / "model.partial")
    done = run(space, 0, *go_on)
    check("the new model is there now" in done.err and marker(model) == newer, done)
    check(not (first.output / "model.old").exists() and not (first.output / "model.partial").exists(), done)
    # The new one was not whole yet.
    model.rename(first.output / "model.old")
    shutil.copytree(second.output / "model", first.output / "model.partial",
                    ignore=lambda _, names: [name for name in names if name == "config.json"])
    done = run(space, 0, *go_on)
    check("the older model is back" in done.err and marker(model) == newer and older != newer, done)
    # And the older one that was left over goes.
    shutil.copytree(second.output / "model", first.output / "model.old")
    done = run(space, 0, *go_on)
    check("was removed" in done.err and not (first.output / "model.old").exists(), done)


@test
def trained_weights_are_saved_beside_what_takes_their_name_while_the_run_trains(space):
    def occupied(make, name="model", *overrides):
        """A run during which `make` puts something where its weights are to go."""
        output = space.new()
        process = subprocess.Popen(
            command_line(0, [PROGRAM, space.config, f"output.path={output}", "train.max_steps=400", "train.max_epochs=1000",
                             "output.save_model=true", *overrides]),
            cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while not (output / "metrics.jsonl").exists() or "step" not in (output / "metrics.jsonl").read_text():
            check(process.poll() is None and time.monotonic() < end, "the run has not begun")
            time.sleep(0.01)
        make(output / name)
        out, err = process.communicate(timeout=120)
        check(process.returncode == 0, out[-2000:], err[-2000:])
        return output, out, err

    def a_file(path):
        path.write_text("mine")

    def a_folder(path):
        path.mkdir()
        (path / "README.md").write_text("mine")

    def a_link(path):
        path.symlink_to(space.folder)

    for make, name in ((a_file, "model"), (a_folder, "model"), (a_link, "model"), (a_folder, "model.partial")):
        output, out, err = occupied(make, name)
        check(f"model      {output}/model-2" in out and f"{output}/model-2" in err, make, name, out[-1000:], err)
        check((output / name).is_symlink() == (make is a_link), "what was there is gone")
        if make is a_file:
            check((output / name).read_text() == "mine", "changed")
        if make is a_folder:
            check((output / name / "README.md").read_text() == "mine", "changed")
        check(marker(output / "model-2")["step"] == 400 and (output / "model-2/model.safetensors").exists(), out)
    # --generate finds it, and so does the next start.
    done = mpirun(0, [PROGRAM, space.config, f"output.path={output}", "--generate", "generate.samples=1", "generate.max_new_tokens=2"])
    check(done[0] == 0 and "model-2" in done[1], done)
    again = mpirun(0, [PROGRAM, space.config, f"output.path={output}", "train.max_steps=400", "train.max_epochs=1000",
                       "output.save_model=true", "checkpoint.resume=auto"])
    check(again[0] == 0 and "has ended" in again[1], again)
    output, out, err = occupied(a_folder, "adapter", "adapter.kind=lora")
    check(f"model      {output}/adapter-2" in out and (output / "adapter-2/adapter_config.json").exists(), out, err)


@test
def a_path_means_what_it_means_to_the_system(space):
    """x/../y where x is a link: beside what the link leads to."""
    folder = space.new("paths")
    (folder / "zz/deep").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "zz/deep")
    other = run(space, 0, "train.max_steps=1", "output.save_model=true", f"output.path={folder / 'q9'}")
    before = fingerprint(folder / "q9")
    data = folder / "zz/data"
    data.symlink_to(space.data)
    done = run(space, 0, "train.max_steps=1", "output.save_model=true", f"output.path={folder / 'link'}/../q9",
               f"data.path={folder / 'link'}/../data")
    check((folder / "zz/q9/model/config.json").exists() and (folder / "zz/q9/log.txt").exists(), done)
    check(fingerprint(folder / "q9") == before, "another run's folder was changed", other)
    config = (folder / "zz/q9/config.yaml").read_text()
    check(f"path: {folder / 'zz/data'}\n" in config and f"path: {folder / 'zz/q9'}\n" in config, config)
    exported = mpirun(0, [PROGRAM, "--export", checkpoint_of(space), f"output.path={folder / 'link'}/../e9"])
    check(exported[0] == 0 and (folder / "zz/e9/model/config.json").exists() and not (folder / "e9").exists(), exported)


def checkpoint_of(space):
    done = run(space, 0, "train.max_steps=1", EVERY_STEP)
    return checkpoint(done.output, 1)


if __name__ == "__main__":
    sys.exit(run_tests("foreign_files_test", Space, PROGRAM))
