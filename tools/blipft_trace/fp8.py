"""Factors of products in fp8: the rows of /fp8. x and dy are each rank's own, w is the same on every rank."""
import numpy as np

from .files import FP8_FACTORS

MOST = 3  # matrices to name for each factor


class Sums:
    """Sums over one matrix for each factor: elements, those that became zero, and the largest magnitude that is finite."""

    def __init__(self):
        self.elements, self.underflows, self.amax = (np.zeros(len(FP8_FACTORS)) for _ in range(3))


def place(row, rank):
    """The order of non-finite magnitudes: steps in order, in each forward as layers follow, then backward the other way."""
    matrix, factor = int(row["matrix"]), int(row["factor"])
    backward = factor == FP8_FACTORS.index("dy")
    return int(row["step"]), backward, -matrix if backward else matrix, factor, rank


def add_rows(rows, names, sums):
    """Adds rows of /fp8; returns those with a non-finite magnitude."""
    kinds = len(FP8_FACTORS)
    rows = rows[(rows["matrix"] >= 0) & (rows["matrix"] < len(names)) & (rows["factor"] >= 0) & (rows["factor"] < kinds)]
    at, size = rows["matrix"] * kinds + rows["factor"], len(names) * kinds
    finite = np.isfinite(rows["amax"])
    amax = np.zeros(size)
    np.maximum.at(amax, at[finite], rows["amax"][finite])
    elements, underflows = (np.bincount(at, rows[name], size).reshape(-1, kinds) for name in ("elements", "underflows"))
    for number in np.unique(rows["matrix"]).tolist():
        of = sums.setdefault(names[number], Sums())
        of.elements += elements[number]
        of.underflows += underflows[number]
        of.amax = np.maximum(of.amax, amax.reshape(-1, kinds)[number])
    return rows[~finite]


def most_underflows(sums, factor):
    """The matrices with the largest shares of a factor that became zero, largest first; without those with none."""
    found = [{"matrix": name, "share": float(of.underflows[factor] / of.elements[factor]), "amax": float(of.amax[factor])}
             for name, of in sums.items() if of.underflows[factor] > 0]
    return sorted(found, key=lambda one: -one["share"])[:MOST]


def summarize(run):
    """Shares of elements that became zero, by factor and for the worst matrices; non-finite factors. None without rows."""
    sums, steps, first, not_finite = {}, set(), None, set()
    for part in run.parts:
        if not part.first.rows("fp8"):  # the others' files need not be opened
            continue
        for trace in part.traces:
            for _, rows in trace.chunks("fp8"):
                rows = part.counting(rows)
                steps.update(np.unique(rows["step"]).tolist())
                found = add_rows(rows, trace.fp8_matrices, sums)
                not_finite.update((trace.fp8_matrices[matrix], factor)
                                  for matrix, factor in np.unique(found[["matrix", "factor"]]).tolist())
                for row in found[found["step"] == found["step"].min()] if len(found) else found:
                    at = place(row, trace.rank)
                    if first is None or at < first[0]:
                        first = at, {"step": int(row["step"]), "factor": FP8_FACTORS[row["factor"]],
                                     "matrix": trace.fp8_matrices[row["matrix"]], "rank": trace.rank}
    if not sums:
        return None
    elements, underflows = (sum(getattr(of, name) for of in sums.values()) for name in ("elements", "underflows"))
    return {"steps": len(steps), "matrices": len(sums), "counted": bool(elements.any()),
            "underflow": {name: {"share": float(underflows[i] / elements[i]) if elements[i] else 0.0,
                                 "most": most_underflows(sums, i)} for i, name in enumerate(FP8_FACTORS)},
            "not_finite": {"factors": len(not_finite), "first": first[1]} if first else None}


def fp8_text(summary):
    """The layers that lose most in products in fp8."""
    found = summary[0].get("fp8")
    if not found:
        return ""
    head = f"products in fp8: {found['matrices']} matrices, {found['steps']} step(s) recorded"
    lines = []
    if found["counted"]:
        shares = ", ".join(f"{name} {100 * of['share']:.4g} %" for name, of in found["underflow"].items())
        head += f"; elements that became zero as codes: {shares}"
        for name, of in found["underflow"].items():
            lines += [f"  most of {name:2s}  {100 * one['share']:9.4g} %  {one['matrix']}, whose largest is {one['amax']:.4g}"
                      for one in of["most"]]
    if found["not_finite"]:
        first = found["not_finite"]["first"]
        lines.append(f"  NOT FINITE: {found['not_finite']['factors']} factor(s), first {first['factor']} of {first['matrix']} "
                     f"in step {first['step']} on rank {first['rank']}")
    return "\n".join([head, *lines])
