"""The energy of a run, from the counters of GPUs and CPU packages in /device."""
import numpy as np

FIELDS = {"GPUs": "gpu_joules", "CPUs": "cpu_joules"}
JOULES_OF_KWH = 3.6e6


def of_rank(trace, steps):
    """This rank's counters from the begin of the first step to the end of the last, and what it trained on; None: not
    measured. A machine's CPU packages are counted by its first rank."""
    rows = trace.read("device") if trace.rows("device") and len(steps) else None
    samples = float(trace.attributes().get("samples_per_step", 0))
    found = {"host": trace.attributes().get("host"), "samples": samples * len(steps),
             "tokens": samples * float(steps["text_tokens"].sum()), **dict.fromkeys(FIELDS)}
    for name, field in FIELDS.items():
        if rows is None or field not in rows.dtype.names:  # written before format 1.14
            continue
        known = rows[np.isfinite(rows[field])]
        if len(known) > 1:
            begin, end = np.interp([steps["begin_ns"][0], steps["end_ns"][-1]], known["time_ns"], known[field])
            found[name] = float(end - begin)
    return found


def total(ranks):
    """The energy of all ranks (of_rank() of each): of all GPUs, and of all machines' CPUs; None: not measured."""
    gpus = [rank["GPUs"] for rank in ranks]
    cpus = [(rank["host"], rank["CPUs"]) for rank in ranks if rank["CPUs"] is not None]
    on_all_hosts = {host for host, _ in cpus} == {rank["host"] for rank in ranks}
    parts = {"GPUs": None if None in gpus else sum(gpus), "CPUs": sum(joules for _, joules in cpus) if on_all_hosts else None}
    known = [joules for joules in parts.values() if joules is not None]
    if not known:
        return None
    samples, tokens = (sum(rank[name] for rank in ranks) for name in ("samples", "tokens"))
    return {**parts, "joules": sum(known), "kwh": sum(known) / JOULES_OF_KWH,
            "joules_a_sample": sum(known) / samples if samples else None,
            "joules_a_token": sum(known) / tokens if tokens else None}


def of_run(run):
    """total() of all parts of a run, without repeated steps."""
    return total([of_rank(trace, part.counting(trace.steps())) for part in run.parts for trace in part.traces])


def energy_text(summary):
    """A line about the energy of all ranks."""
    found = total([rank["energy"] for rank in summary])
    if not found:
        return "energy: not available (the trace has no counter of GPUs or CPU packages)"
    parts = ", ".join(f"{name} {'not available' if found[name] is None else format(found[name] / JOULES_OF_KWH, '.4g')}" for name in FIELDS)
    each = [f", {found[f'joules_a_{what}']:.4g} J a {what}" for what in ("sample", "token") if found[f"joules_a_{what}"]]
    return f"energy: {found['kwh']:.4g} kWh ({parts}){''.join(each)}"
