"""The machine: its GPUs, their memory in use, and the versions that a result depends on."""
import os
import pathlib
import platform
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GIB = 2.0 ** 30


def say(*words):
    """Progress, on stderr."""
    print(f"[{time.monotonic() - say.start:7.1f} s]", *words, file=sys.stderr, flush=True)


say.start = time.monotonic()


def shown(path):
    """A path for commands: relative to the repository's root if it is below it."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def output_of(command, timeout=60):
    """Standard output of a short command, or None if it fails."""
    try:
        result = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def find_gpus():
    """[{id, uuid, name, driver}] of the GPUs that programs see, in the order of their ids."""
    listed = output_of(["nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader"])
    gpus = []
    for line in (listed or "").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4:
            gpus.append(dict(zip(("id", "uuid", "name", "driver"), fields)))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    wanted = [word.strip() for word in visible.split(",") if word.strip()]
    found = [next((g for g in gpus if w == g["id"] or g["uuid"].startswith(w)), None) for w in wanted]
    return [gpu for gpu in found if gpu]


class MemoryPoll:
    """Polls the driver's memory use of the GPUs, of all processes, while a command runs."""

    def __init__(self, gpus, seconds=0.5):
        self.ids, self.seconds = ",".join(gpu["id"] for gpu in gpus), seconds
        self.stopped, self.thread = threading.Event(), threading.Thread(target=self.poll, daemon=True)
        self.before = self.read()
        self.peak = list(self.before)

    def read(self):
        """MiB of each GPU; empty if nvidia-smi does not report it."""
        listed = output_of(["nvidia-smi", f"--id={self.ids}", "--query-gpu=memory.used",
                            "--format=csv,noheader,nounits"], timeout=10) if self.ids else None
        try:
            return [float(line) for line in (listed or "").splitlines()]
        except ValueError:  # [N/A]
            return []

    def poll(self):
        while not self.stopped.wait(self.seconds):
            now = self.read()
            if len(now) == len(self.peak):
                self.peak = [max(pair) for pair in zip(self.peak, now)]

    def __enter__(self):
        if self.before:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        if self.before:
            self.thread.join()

    @property
    def peak_bytes(self):
        """The largest use of any GPU; None: unknown."""
        return max(self.peak) * 2 ** 20 if self.peak else None

    @property
    def before_bytes(self):
        return max(self.before) * 2 ** 20 if self.before else None


def versions(gpus, program, torch):
    """Facts that a result depends on."""
    changed = output_of(["git", "status", "--porcelain", "--untracked-files=no"])
    cache = pathlib.Path(os.environ.get("HOME", "/")) / ".cache/blipft/gemm_algorithms.txt"
    mpirun = output_of(["mpirun", "--version"])
    return dict(
        driver=gpus[0]["driver"] if gpus else None, commit=output_of(["git", "rev-parse", "HEAD"]),
        changed_files=len(changed.splitlines()) if changed else 0, torch=torch,
        blipft=output_of([ROOT / program, "--version"], timeout=10), mpirun=mpirun.splitlines()[0] if mpirun else None,
        python=platform.python_version(), kernel=platform.release(), host_cores=os.cpu_count(),
        gemm_algorithms_were_cached=cache.exists())
