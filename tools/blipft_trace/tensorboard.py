"""Curves of a run as event files that TensorBoard shows, from metrics.jsonl; written with the tensorboardX package."""
import pathlib
import time

from . import metrics
from .files import TraceError

TAGS = {"step": {"loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/grad_norm",
                 "samples_per_second": "speed/samples_per_second", "tokens_per_second": "speed/tokens_per_second",
                 "seconds": "speed/step_seconds"},
        "validation": {"validation_loss": "validation/loss"}}


def summary_writer():
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise TraceError(f"tensorboard needs the Python package tensorboardX ({error}); install it for this Python: "
                         "python3 -m pip install tensorboardX") from None
    return SummaryWriter


def add(writer, row):
    """The scalars of a row; how many."""
    count = 0
    for key, tag in TAGS.get(row.get("event"), {}).items():
        if row.get(key) is not None:
            writer.add_scalar(tag, row[key], row["step"], walltime=row.get("time"))
            count += 1
    for metric, value in (row.get("scores") or {}).items():
        if value is not None:
            writer.add_scalar(f"evaluation/{metric}", value, row["step"], walltime=row.get("time"))
            count += 1
    return count


def over(rows):
    """Returns True if the last row says that the run is complete."""
    return bool(rows) and rows[-1].get("event") == "end" and rows[-1].get("reason") == "done"


def write(run, directory, follow=False, interval=1.0):
    """Writes all rows of a run, and with `follow` those that come, until the run is done; how many scalars."""
    make = summary_writer()
    path = metrics.path_of(run)
    if path is None and not follow:
        raise TraceError(f"{pathlib.Path(run) / metrics.NAME}: there is none that a run wrote; give the directory of a run "
                         "of this version")
    while path is None:
        time.sleep(interval)
        path = metrics.path_of(run)
    follower, count = metrics.Follower(path), 0
    # Values of these steps in earlier event files of this folder no longer count.
    writer = make(str(directory), purge_step=0)
    try:
        while True:
            rows, shorter = follower.new_rows()
            if shorter:  # a resume removed steps: all rows are sent again
                writer.close()
                writer = make(str(directory), purge_step=0)
            count += sum(add(writer, row) for row in rows)
            writer.flush()
            if not follow or over(rows):
                return count
            time.sleep(interval)
    finally:
        writer.close()
