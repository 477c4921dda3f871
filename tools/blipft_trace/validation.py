"""Validations: what /validation tells of a run. Every rank has the same rows."""
import numpy as np


def rows_of(trace):
    """Steps and losses; empty where the run did not validate, or the trace is older than version 1.7."""
    if not trace.rows("validation"):
        return np.zeros(0, np.int64), np.zeros(0)
    rows = trace.read("validation")
    return rows["step"], rows["loss"]


def summarize(trace):
    """The first, last and least loss; None without validations."""
    if not trace.rows("validation"):
        return None
    rows = trace.read("validation")
    loss = np.where(np.isfinite(rows["loss"]), rows["loss"], np.inf)

    def at(i):
        return {"step": int(rows["step"][i]), "loss": float(rows["loss"][i])}

    return {"count": len(rows), "first": at(0), "last": at(-1), "least": at(int(np.argmin(loss))),
            "tokens": int(rows["tokens"][-1]), "median_seconds": float(np.median(rows["seconds"]))}
