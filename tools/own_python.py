"""Lets a tool run with a Python that has the modules it needs, before it imports them:

    if __name__ == "__main__":
        own_python.need("numpy", "h5py")
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

CHOSEN = "BLIPFT_TOOL_RUNS_WITH"  # set in the environment of a restarted tool, which is not restarted again
PACKAGES = {"PIL": "pillow"}       # pip's name, if it differs
OF_SETUP = {"numpy", "h5py", "matplotlib", "PIL"}  # the modules that `make setup` installs


def lacking(modules):
    return [module for module in modules if importlib.util.find_spec(module) is None]


def advice(missing):
    packages = " ".join(PACKAGES.get(module, module) for module in missing)
    environment = ("python3 -m venv ~/blipft-python && ~/blipft-python/bin/pip install " + packages +
                   "\n  export BLIPFT_PYTHON=~/blipft-python/bin/python")
    if set(missing) <= OF_SETUP:
        return f"make setup installs them where you are root; elsewhere:\n  {environment}"
    return f"Make a Python that has them, and name it; the tools then run with it:\n  {environment}"


def need(*modules):
    """Returns if this Python has the modules. Otherwise restarts the tool with the Python that tools/setup.sh finds, or exits
    with a message about the missing modules."""
    missing = lacking(modules)
    if not missing:
        return
    if CHOSEN not in os.environ:
        setup = pathlib.Path(__file__).resolve().parent / "setup.sh"
        try:
            found = subprocess.run([setup, "--python", *modules], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
            if found.returncode == 0:
                python = found.stdout.strip()
                os.execvpe(python, [python, *sys.orig_argv[1:]], {**os.environ, CHOSEN: python})
        except OSError:
            pass                           # without bash, say: told below
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: needs the Python modules {', '.join(modules)}; {sys.executable} lacks "
             f"{', '.join(missing)}, and no other python3 here has them all. {advice(missing)}")
