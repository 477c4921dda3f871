"""Compares two runs: medians over steps, and whether they differ by more than noise.

Noise is estimated by resampling: the steps of each run are cut into blocks of neighbours (steps are not independent),
blocks are drawn with replacement, and the difference of the medians is taken each time. A difference counts when the
middle 99 % of these do not contain 0.
"""
import numpy as np

from . import settings
from .parts import open_run, repeated_text
from .summary import PARTS, analyze_series
from .summary_text import NAMES
from .validation import summarize as summarize_validation

DRAWS = 2000
LEAST_STEPS = 8  # fewer say nothing about noise


def resampled_medians(values, random):
    n = len(values)
    block = max(1, int(round(n ** (1 / 3))))
    count = -(-n // block)
    medians = np.empty(DRAWS)
    for begin in range(0, DRAWS, 100):  # in pieces, so that long runs need little memory
        starts = random.integers(0, n - block + 1, (min(100, DRAWS - begin), count))
        index = (starts[:, :, None] + np.arange(block)).reshape(len(starts), -1)[:, :n]
        medians[begin:begin + len(starts)] = np.median(values[index], axis=1)
    return medians


def compare(a, b, seed=0):
    """Medians of two series, the interval of their difference, and a verdict."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    answer = {"a": float(np.median(a)), "b": float(np.median(b))}
    answer["change"] = answer["b"] - answer["a"]
    if min(len(a), len(b)) < LEAST_STEPS:
        return {**answer, "low": None, "high": None, "verdict": "too few steps to tell"}
    if len(a) > 2000 or len(b) > 2000:  # enough for any verdict; neighbouring steps say the same
        a, b = a[-2000:], b[-2000:]
    random = np.random.default_rng(seed)
    spread = resampled_medians(b, random) - resampled_medians(a, random)
    low, high = np.percentile(spread, [0.5, 99.5])
    verdict = "larger than noise" if low > 0 or high < 0 else "within noise"
    return {**answer, "low": float(low), "high": float(high), "verdict": verdict}


def compare_losses(run_a, run_b):
    """Returns True if the losses have the same bits in the steps that both runs took."""
    (steps_a, a), (steps_b, b) = run_a.curve("step", "loss"), run_b.curve("step", "loss")
    steps, at_a, at_b = np.intersect1d(steps_a, steps_b, return_indices=True)
    a, b = a[at_a], b[at_b]
    other = np.flatnonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
    answer = {"steps": len(steps), "different": len(other)}
    if len(other):
        gap = np.abs(a - b)[other]
        most = int(np.argmax(np.where(np.isnan(gap), np.inf, gap)))
        answer.update(first_step=int(steps[other[0]]), largest=float(gap[most]), largest_step=int(steps[other[most]]))
    return answer


def diff(run_a, run_b, warmup=3, all_steps=False):
    """Compares losses and validations of the whole runs; and of their newest parts the slowest rank's step time and its
    parts (mean over ranks), and memory peaks.
    """
    runs = [open_run(run) for run in (run_a, run_b)]
    shown = [run.newest(warmup + 1) for run in runs]
    a, b = (analyze_series(part, warmup, all_steps) for part in shown)
    rows = {"step time": compare(a["every_step"], b["every_step"])}
    for part in PARTS:
        rows[NAMES[part]] = compare(a[part], b[part])
    told = settings.different([settings.of_run(path, run) for path, run in zip((run_a, run_b), runs)])
    return {"settings": {key: dict(zip("ab", values)) for key, values in told.items()},
            "loss": compare_losses(*runs), "validation": dict(zip("ab", map(summarize_validation, runs))),
            "part": dict(zip("ab", (part.number for part in shown))),
            "parts": dict(zip("ab", (run.about() for run in runs))),
            "time_ns": rows, "peak_bytes": {"a": a["peak_bytes"], "b": b["peak_bytes"]},
            "steps": {"a": len(a["every_step"]), "b": len(b["every_step"])},
            "split_steps": {"a": len(a["step"]), "b": len(b["step"])}}


def loss_line(loss):
    name = f"{'loss':24s}"
    if not loss["steps"]:
        return name + "no step was taken by both"
    if not loss["different"]:
        return name + f"equal in all {loss['steps']} steps that both took"
    return name + (f"differs in {loss['different']} of {loss['steps']} steps that both took, first in step "
                   f"{loss['first_step']}, most in step {loss['largest_step']}, by {loss['largest']:.3g}")


def setting_lines(told):
    if not told:
        return ["all settings are the same"]
    width = max(map(len, told)) + 2
    return ["settings that differ (A, B):",
            *(f"  {key:{width}s}{of_run['a'] or '-'}, {of_run['b'] or '-'}" for key, of_run in told.items())]


def to_text(answer):
    steps = answer["steps"]
    several = [f"{run.upper()} has {repeated_text(parts)}; times and memory are of part {answer['part'][run]}"
               for run, parts in answer["parts"].items() if len(parts) > 1]
    lines = [f"A: {steps['a']} steps, B: {steps['b']} steps; medians in ms; interval: 99 % of resampled differences",
             f"{'':24s}{'A':>11s}{'B':>11s}{'B - A':>11s}{'':>10s}  interval"]
    split = answer["split_steps"]
    if split != steps:
        lines.insert(1, f"parts of the step time from {split['a']} and {split['b']} steps, spread over the runs "
                        "(--all-steps reads every one)")
    for name, row in answer["time_ns"].items():
        relative = f"{100 * row['change'] / row['a']:+9.2f}%" if row["a"] else f"{'':10s}"
        interval = f"[{row['low'] / 1e6:+.3f}, {row['high'] / 1e6:+.3f}]" if row["low"] is not None else ""
        lines.append(f"{name:24s}{row['a'] / 1e6:11.3f}{row['b'] / 1e6:11.3f}{row['change'] / 1e6:+11.3f}{relative}"
                     f"  {interval}  {row['verdict']}")
    peak = answer["peak_bytes"]
    if peak["a"] or peak["b"]:
        lines.append(f"{'peak memory, GiB':24s}{peak['a'] / 2**30:11.3f}{peak['b'] / 2**30:11.3f}"
                     f"{(peak['b'] - peak['a']) / 2**30:+11.3f}")
    lines.append(loss_line(answer["loss"]))
    for which in ("least", "last"):
        losses = [answer["validation"][run] and answer["validation"][run][which]["loss"] for run in ("a", "b")]
        if None in losses:
            continue
        name = f"validation loss, {which}"
        lines.append(f"{name:24s}{losses[0]:11.4f}{losses[1]:11.4f}{losses[1] - losses[0]:+11.4f}")
    return "\n".join(several + setting_lines(answer["settings"]) + lines)
