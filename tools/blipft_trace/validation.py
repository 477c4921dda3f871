"""Validations: the rows of /validation. Every rank has the same rows."""
import numpy as np


def rows_of(run, *names):
    """Columns of all parts' validations, but those after steps that were taken again. Empty where the run did not
    validate, or its traces are older than version 1.7.
    """
    rows = [part.counting(part.first.read("validation")) for part in run.parts if part.first.rows("validation")]
    return [np.concatenate([of_part[name] for of_part in rows]) if rows else np.zeros(0) for name in names]


def summarize(run):
    """The first, last and least loss; None without validations."""
    steps, losses, tokens, seconds = rows_of(run, "step", "loss", "tokens", "seconds")
    if not len(steps):
        return None
    finite = np.where(np.isfinite(losses), losses, np.inf)

    def at(i):
        return {"step": int(steps[i]), "loss": float(losses[i])}

    return {"count": len(steps), "first": at(0), "last": at(-1), "least": at(int(np.argmin(finite))),
            "tokens": int(tokens[-1]), "median_seconds": float(np.median(seconds))}
