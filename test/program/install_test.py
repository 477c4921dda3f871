#!/usr/bin/env python3
"""make install, make uninstall and make dist: what users of an installed blipft see, from another folder and as another user."""
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from program_runs import PROGRAM, ROOT  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

TOOLS = ("trace", "convert-dataset", "convert-checkpoint", "plot-loss")


class Installed:
    """A prefix with the program, which nobody may write, and a folder elsewhere to work in."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.chmod(0o755)
        self.prefix, self.work = self.folder / "prefix", self.folder / "work"
        self.work.mkdir()
        self.work.chmod(0o777)

    def install(self, *more):
        return subprocess.run([ROOT / "tools/install.sh", *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *command):
        """Runs a command of the prefix in the other folder: as nobody where this is root."""
        as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.getuid() == 0 else ()
        name, *arguments = command
        return subprocess.run([*as_nobody, self.prefix / "bin" / name, *arguments], cwd=self.work, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env={**os.environ, "HOME": str(self.work)})


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@test
def an_installed_program_finds_its_files_from_any_folder(space):
    done = space.install(PROGRAM, space.prefix)
    check(done.returncode == 0, done)
    subprocess.run(["chmod", "-R", "a-w", space.prefix], check=True)
    before = files_of(space.prefix)
    version = space.run("blipft", "--version")
    check(version.returncode == 0 and version.stdout.startswith("blipft 0."), version)
    for word in ("commit ", "compiler ", "MPI ", "HDF5 ", "NCCL "):
        check(word in version.stdout, word, version)
    recipes = space.run("blipft", "--recipes")
    for path in (ROOT / "inputs").rglob("*.yaml"):
        name = "@" + str(path.relative_to(ROOT / "inputs").with_suffix(""))
        check(f"\n{name} " in "\n" + recipes.stdout, name, recipes)
    plan = space.run("blipft", "--plan", "--gpu-memory", "80", "@llama/7b-lora", "model.path=@llama-2-7b", "model.init=random")
    check(plan.returncode == 0 and "fits: " in plan.stdout, plan)
    wrong = space.run("blipft", "--plan", "@llama/7b-lorra")
    check(wrong.returncode != 0 and "@llama/7b-lora;" in wrong.stdout and "--recipes" in wrong.stdout, wrong)
    (space.work / "@ddp").write_text("model:\n  path: here\n")
    plain = space.run("blipft", "--plan", "@ddp")
    check("@ddp: data.path is missing" in plain.stdout, "a file that is there wins", plain)
    for tool in TOOLS:
        done = space.run(f"blipft-{tool}", "--help")
        check(done.returncode == 0 and "usage" in done.stdout.lower(), tool, done)
    check(files_of(space.prefix) == before, "the prefix stays as it was", files_of(space.prefix) - before)


@test
def job_scripts_of_a_prefix_know_its_program_and_the_sites_settings(space):
    site = space.folder / "site.sh"
    site.write_text("export SITE_WAS_READ=yes\nmpi=pmi2\n")
    script = 'source "$1"; echo "$(realpath "$program") $mpi $SITE_WAS_READ"'
    done = subprocess.run(["bash", "-c", script, "", space.prefix / "share/blipft/jobs/common.sh"], cwd=space.work, text=True,
                          env={**os.environ, "BLIPFT_SITE": str(site), "BLIPFT": ""}, stdout=subprocess.PIPE)
    check(done.stdout.split() == [str((space.prefix / "bin/blipft").resolve()), "pmi2", "yes"], done)
    done = subprocess.run(["bash", "-c", script, "", ROOT / "jobs/common.sh"], cwd=space.work, text=True, stderr=subprocess.PIPE,
                          env={**os.environ, "BLIPFT_SITE": str(space.folder / "none")}, stdout=subprocess.PIPE)
    check(done.returncode == 2 and "BLIPFT_SITE" in done.stderr, done)


@test
def the_module_file_of_lmod_sets_the_paths(space):
    lmod = pathlib.Path("/usr/share/lmod/lmod/init/bash")
    if not lmod.exists():
        raise Skip("no Lmod here (package lmod)")
    script = f"source {lmod}; module use {space.prefix}/share/modulefiles; module load blipft; blipft --version; echo $BLIPFT_JOBS; man -w blipft"
    done = subprocess.run(["bash", "-c", script], cwd=space.work, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "LMOD_CACHED_LOADS": "no"})
    check("blipft 0." in done.stdout and f"{space.prefix}/share/blipft/jobs" in done.stdout, done)


@test
def the_module_file_of_environment_modules_sets_the_paths(space):
    modulecmd = shutil.which("modulecmd.tcl") or "/usr/lib/x86_64-linux-gnu/modulecmd.tcl"
    if not pathlib.Path(modulecmd).exists():
        raise Skip("no Environment Modules here (package environment-modules)")
    script = f'eval "$({modulecmd} bash load blipft)"; blipft --version; echo $BLIPFT_JOBS'
    done = subprocess.run(["bash", "-c", script], cwd=space.work, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "MODULEPATH": f"{space.prefix}/share/modulefiles"})
    check("blipft 0." in done.stdout and f"{space.prefix}/share/blipft/jobs" in done.stdout, done)


@test
def uninstalling_removes_what_was_installed_and_nothing_else(space):
    subprocess.run(["chmod", "-R", "u+w", space.prefix], check=True)
    foreign, changed = space.prefix / "bin/other", space.prefix / "share/blipft/jobs/run.sh"
    foreign.write_text("another program")
    changed.write_text(changed.read_text() + "# ours\n")
    done = space.install("--uninstall", space.prefix)
    check(done.returncode == 1 and str(changed) in done.stdout, done)
    check(files_of(space.prefix) == {"bin/other", "share/blipft/jobs/run.sh"}, files_of(space.prefix))
    again = space.install(PROGRAM, space.prefix)
    check(again.returncode == 1 and f"{changed} is there" in again.stdout, again)
    check("ours" in changed.read_text(), "a file of another is not replaced")


@test
def two_versions_lie_side_by_side_and_one_replaces_itself(space):
    for name in ("one", "two", "one"):
        done = space.install(PROGRAM, f"/{name}", space.folder / "root")
        check(done.returncode == 0, done)
    one, two = files_of(space.folder / "root/one"), files_of(space.folder / "root/two")
    check(one == two and "bin/blipft" in one, one ^ two)
    wrong = space.install(PROGRAM, "relative")
    check(wrong.returncode == 2 and "absolute path" in wrong.stdout, wrong)


@test
def the_release_is_the_same_everywhere(space):
    release = next(line.split(":=")[1].strip() for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("VERSION :="))
    check(subprocess.run([PROGRAM, "--version"], stdout=subprocess.PIPE, text=True).stdout.startswith(f"blipft {release}, "), release)
    check(f"version: {release}\n" in (ROOT / "CITATION.cff").read_text(), "CITATION.cff", release)
    check(f'version("{release}")' in (ROOT / "packaging/spack/package.py").read_text(), "packaging/spack/package.py", release)
    check(f"elease {release} " in (ROOT / "CHANGELOG.md").read_text(), "CHANGELOG.md", release)


@test
def a_source_package_knows_its_commit_without_git(space):
    if not (ROOT / ".git").exists():
        raise Skip("no git repository")
    clone = space.folder / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    done = subprocess.run(["make", "-s", "CUDA=0", "dist"], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(done.returncode == 0, done)
    archive, = clone.glob("blipft-*.tar.gz")
    away = space.folder / "away"
    away.mkdir()
    subprocess.run(["tar", "xzf", archive, "-C", away], check=True)
    tree, = away.iterdir()
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    check((tree / "commit").read_text() == commit and not (tree / ".git").exists(), commit)
    without_git = space.folder / "no-git"
    without_git.mkdir()
    (without_git / "git").write_text("#!/bin/sh\nexit 127\n")
    (without_git / "git").chmod(0o755)
    done = subprocess.run(["make", "-n", "CUDA=0", "blipft"], cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "PATH": f"{without_git}:{os.environ['PATH']}"})
    check(done.returncode == 0 and f"-DBLIPFT_COMMIT='\"{commit.strip()}\"'" in done.stdout, done.stdout[-2000:])
    shutil.rmtree(away)


if __name__ == "__main__":
    sys.exit(run_tests("install_test", Installed, PROGRAM))
