"""Running one command: its log, time limit, memory, and reason of failure."""
import json
import os
import re
import signal
import subprocess
import time

from .machine import MemoryPoll, ROOT


class BenchError(Exception):
    """A run that failed; its text is the line with the reason."""


class OutOfTime(BenchError):
    """A command was ended because it took too long."""


def end_process(process):
    """Sends SIGTERM, with which mpirun and torchrun end their ranks; then kills the rest of the session."""
    for number, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


class Skipped(BenchError):
    """A run that was skipped because of the budget; its text is the reason in the table."""


# Lines that launchers add to a program's output, and how programs report errors.
NOISE = re.compile(r"^-*$|^Primary job  terminated normally|^a non-zero exit code|^mpirun detected that one or more|"
                   r"^(thus causing |)the job to be terminated|^Process name: |^Exit code: |elastic")
REASON = re.compile(r"\bblipft: |\b\w+(Error|Exception)\b: |out of memory|op_bench: |noticed that process rank")
TORCHRUN_SUMMARY = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


def error_line(log):
    """The last line that reports an error, else the last line."""
    words = log.read_text(errors="replace").split(TORCHRUN_SUMMARY)[0]
    lines = [line for line in map(str.strip, words.splitlines()) if not NOISE.search(line)]
    reasons = [line for line in lines if REASON.search(line)]
    return (reasons or lines or ["it printed nothing"])[-1]


def result_of(log):
    """The result of a PyTorch script: its last line, RESULT and a JSON object. Raises BenchError if there is none."""
    results = [line[7:] for line in log.read_text(errors="replace").splitlines() if line.startswith("RESULT ")]
    if not results:
        raise BenchError(f"printed no RESULT line; see {log}")
    return json.loads(results[-1])


def run_command(command, log, gpus, timeout):
    """{start_ns, seconds, measured_bytes, bytes_before}; output goes to `log`. Raises BenchError when it fails,
    OutOfTime when it takes too long."""
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # containers often forbid it; Open MPI warns each time
           "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}     # nvidia-smi's order
    with MemoryPoll(gpus) as memory, open(log, "w") as out:
        start_ns, start = time.time_ns(), time.monotonic()
        try:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            raise BenchError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            end_process(process)
            raise OutOfTime(f"ended after {timeout:.0f} s; its last line: {error_line(log)}") from None
        except BaseException:  # interrupted: leave no rank behind
            end_process(process)
            raise
        seconds = time.monotonic() - start
    if status != 0:
        raise BenchError(f"{error_line(log)} (exit status {status})")
    return dict(start_ns=start_ns, seconds=seconds, measured_bytes=memory.peak_bytes, bytes_before=memory.before_bytes)
