"""The summary as text and as JSON."""
import json
import statistics

from .energy import energy_text
from .fp8 import fp8_text
from .parts import parts_text

NAMES = {"compute": "compute", "exposed_communication": "communication, exposed", "exposed_copy": "copies, exposed",
         "data_wait": "waiting for data", "idle": "idle"}
MOST_RANKS = 8  # ranks that differ are listed with their figures
NOTED = 2       # percent of a step's time by which a rank must differ from the others to be named


def ms(ns):
    return f"{ns / 1e6:10.3f} ms"


def gib(size):
    return f"{size / 2**30:9.3f} GiB"


def time_text(r):
    """A rank's step times and where they went."""
    step = r["step"]
    jitter = 100 * step["iqr_ns"] / step["median_ns"] if step["median_ns"] else 0
    lines = [f"  step time         {ms(step['median_ns'])} median, quartiles {jitter:.1f} % apart, "
             f"99 % under {ms(step['p99_ns']).strip()}, longest {ms(step['max_ns']).strip()}"]
    if step["slow_count"]:
        worst = ", ".join(map(str, step["slow_steps"]))
        lines.append(f"  slow steps        {step['slow_count']} took over 1.2 x the median; slowest: {worst}")
    lines.append(f"  between steps     {ms(r['between_steps_ns'])} median")
    with_wait = r["split"]["median_ns"]
    lines.append("  one step, parts that do not overlap (median, share of all steps' time" +
                 (f", with the wait for data before a step: {ms(with_wait).strip()}" if with_wait > 1.001 * step["median_ns"] else "") +
                 "):")
    for name, part in r["parts"].items():
        lines.append(f"    {NAMES[name]:24s}{ms(part['median_ns'])}  {part['percent']:6.2f} %")
    for cause, idle in list(r["idle_causes"].items())[:6]:
        lines.append(f"      idle {cause:32s}           {idle['percent']:6.2f} %")
    n = max(r["steps"], 1)
    if r["phases"]:
        lines.append("  compute by phase, a step:")
    for name, phase in sorted(r["phases"].items(), key=lambda item: -item[1]["time_ns"]):
        rate = f"  {phase['tflops']:9.4g} TFLOP/s" if phase["tflops"] else ""
        lines.append(f"    {name:24s}{ms(phase['time_ns'] / n)}{rate}")
    return lines


def communication_text(r):
    lines, n = [], max(r["steps"], 1)
    if r["communication_ns"]:
        lines.append(f"  communication     {ms(r['communication_ns'] / n)} a step, in the mean: "
                     f"{ms(r['hidden_communication_ns'] / n).strip()} hidden behind compute, "
                     f"{ms(r['exposed_communication_ns'] / n).strip()} exposed (above: the median); overlap {r['overlap_percent']:.1f} %")
        lines.append(f"  slower ranks      {ms(r['waited_for_slower_ns'] / n)} a step waited for in collectives; "
                     f"this rank came last {r['came_last']} times, "
                     f"{ms(r['made_others_wait_ns'] / n).strip()} a step after the others")
    if r["copy_ns"]:
        lines.append(f"  copies            {ms(r['copy_ns'] / n)} a step, hidden or not")
    for name, kind in r["collectives"].items():
        rate = kind["median_bytes_per_second"]
        rate = f"{rate / 1e9:8.2f} GB/s" if rate else "  no bytes"
        size = kind["bytes"] / max(kind["count"], 1) / 1e6
        lines.append(f"    {name:24s}{kind['count']:9d} calls, {size:10.3f} MB each, "
                     f"{rate} median without the wait for slower ranks")
    return lines


def memory_text(r):
    lines = []
    if r["memory"]:
        lines.append("  memory at the peak    plan, largest  plan, as run")
        for owner, size in sorted(r["memory"].items(), key=lambda i: (-max(i[1]["planned"], i[1]['replayed']), i[0])):
            more = f"  (at most {gib(size['largest']).strip()})" if size["largest"] > size['replayed'] else ""
            lines.append(f"    {owner:20s}{gib(size['planned'])} {gib(size['replayed'])}{more}")
        total = r["memory_total"]
        both = total["planned"] and total['replayed']
        off = f"  ({100 * (total['replayed'] / total['planned'] - 1):+.2f} %)" if both else ""
        lines.append(f"    {'sum':20s}{gib(total['planned'])} {gib(total['replayed'])}{off}")
        if total["host"]:
            lines.append(f"    {'in the host':20s}{gib(total['host'])}  (page-locked, planned; in none of the above)")
        if "moment" in total:
            between = ("" if total["moment"] in ("peak", "loading", "saving") else
                       "; memory is noted at such moments only, the plan knows also what is between them")
            lines.append(f"    peak as run: step {total['step']}, {total['moment']}{between}")
    driver = r["driver_memory"]
    if r["memory"] and not driver:
        lines.append("    both are the plan's: for the largest step that may come, and replayed in those that ran; no driver "
                     "measured")
    if driver:
        lines.append("  memory, measured           planned       measured")
        off = 100 * (driver["total_bytes"] / driver["planned_bytes"] - 1) if driver["planned_bytes"] else 0
        lines.append(f"    {'whole process':20s}{gib(driver['planned_bytes'])} {gib(driver['total_bytes'])}  "
                     f"({off:+.2f} %), as the driver reports it, of which")
        parts = {"context and libraries": "context_bytes", "NCCL": "nccl_bytes", "arena": "allocated_bytes",
                 "not planned": "unplanned_bytes"}
        for name, field in parts.items():
            lines.append(f"      {name:22s}{'':10s}   {gib(driver[field])}")
    return lines


def device_text(r):
    """A GPU at its power limit lowers its clock: then the energy determines the time of a step."""
    device = r["device"]
    if not device:
        return []
    return [f"  device            {device['median_watts']:10.1f} W median, {device['joules_a_step']:.4g} J a step; "
            f"SM clock {device['median_mhz']:.0f} MHz median, "
            f"{device['lowest_mhz']:.0f} to {device['highest_mhz']:.0f}"]


def rank_text(r):
    lines = [f"rank {r['rank']}: {r['steps']} steps", *time_text(r), *communication_text(r), *device_text(r)]
    lines.append("  how much faster the step could be at most, if this vanished:")
    for name, gain in r["ceiling"].items():
        lines.append(f"    {NAMES[name]:24s}{ms(gain['step_ns'])} a step, {gain['speedup']:.3f} x")
    lines += memory_text(r)
    if r["kernel_steps"]:
        lines.append(f"  kernels recorded  in steps {', '.join(map(str, r['kernel_steps'][:10]))}"
                     f"{', ...' if len(r['kernel_steps']) > 10 else ''}, which are slower for it; see trace.py kernels")
    if r["dropped_spans"]:
        lines.append(f"  WARNING: {r['dropped_spans']} spans were dropped because the disk was too slow; "
                     "the figures above miss them")
    return "\n".join(lines)


def split_text(summary):
    """A line if only some steps' time was split."""
    split = summary[0]["split"]
    if split["steps"] >= split["of"]:
        return ""
    return (f"split of time from {split['steps']} of {split['of']} steps, spread over the run (--all-steps reads every "
            "one); step times from all")


def slowest_text(summary):
    """The slowest steps: each on the rank that it took longest on."""
    lines = []
    for i, slow in enumerate(summary[0]["slowest"]):
        longest = max(summary, key=lambda r: r["slowest"][i]["ns"])
        it = longest["slowest"][i]
        parts = ", ".join(f"{NAMES[name]} {ns / 1e6:.3f}" for name, ns in it["parts"].items())
        lines.append(f"  step {slow['step']}, rank {longest['rank']}: {ms(it['ns']).strip()}: {parts}")
    return "\n".join(["slowest steps, in ms:", *lines]) if lines else ""


def validation_text(summary):
    """One line about the validations of the run."""
    found = summary[0]["validation"]
    if not found:
        return ""
    said = ", ".join(f"{name} {found[name]['loss']:.4f} at step {found[name]['step']}"
                     for name in ("first", "least", "last"))
    return (f"validation: {found['count']} times, {found['tokens']} tokens, "
            f"{ms(1e9 * found['median_seconds']).strip()} each in the median; loss: {said}")


def evaluation_text(summary):
    """A line about each score of the texts that the run generated at validations."""
    found = summary[0].get("evaluation") or {}
    lines = []
    for metric, score in found.items():
        said = ", ".join(f"{name} {score[name]['value']:.4f} at step {score[name]['step']}"
                         for name in ("first", "highest", "least", "last"))
        lines.append(f"evaluation: {metric}, {score['count']} times; {said}")
    return "\n".join(lines)


def clocks_text(summary):
    """A line about the corrected differences of clocks."""
    clocks = [(r["clock"], r["rank"]) for r in summary if r["clock"]]
    if not clocks:
        return ""
    clock, rank = max(clocks, key=lambda item: abs(item[0]["largest_ns"]))
    return (f"clocks: the ranks' clocks are not equal; rank {rank} is furthest from the middle, "
            f"{clock['first_ns'] / 1e3:+.1f} us at step {clock['first_step']}, "
            f"{clock['last_ns'] / 1e3:+.1f} us at step {clock['last_step']}. Comparisons of ranks are "
            "corrected by the ends of reduce-scatters and all-reduces.")


def ranks_text(summary):
    """Compares the ranks: which ones are slow."""
    if len(summary) < 2:
        return ""
    late = max(summary, key=lambda r: r["made_others_wait_ns"])
    if not late["made_others_wait_ns"]:
        return "ranks: no rank kept the others waiting"
    return (f"ranks: rank {late['rank']} kept the others waiting most: last in {late['came_last']} collectives, "
            f"{ms(late['made_others_wait_ns'] / max(late['steps'], 1)).strip()} a step")


def ranks_table(summary):
    """A line for each rank."""
    head = ("rank", "steps", "samples/s", "median ms", "99 % ms", "compute %", "comm. %", "copy %", "data %", "idle %", "waited ms",
            "late ms")
    lines = ["".join(f"{name:>11s}" for name in head)]
    for r in summary:
        n = max(r["steps"], 1)
        rate = r["samples_per_second"]
        cells = [r["rank"], r["steps"], f"{rate:.4g}" if rate else "-", *(f"{r['step'][name] / 1e6:.3f}" for name in ("median_ns", "p99_ns")),
                 *(f"{part['percent']:.2f}" for part in r["parts"].values()),
                 *(f"{r[name] / n / 1e6:.3f}" for name in ("waited_for_slower_ns", "made_others_wait_ns"))]
        lines.append("".join(f"{cell!s:>11s}" for cell in cells))
    return "\n".join(lines)


def figures_of(r):
    """{name: (value, unit, by how much it must differ from the ranks' median to be named)}."""
    n = max(r["steps"], 1)
    step = r["step"]["median_ns"] / 1e6
    figures = {"step": (step, "ms", NOTED * step / 100)}
    figures.update({NAMES[name]: (part["percent"], "%", NOTED) for name, part in r["parts"].items()})
    figures["later than the others"] = (r["made_others_wait_ns"] / n / 1e6, "ms a step", NOTED * step / 100)
    return figures


def ranks_that_differ(summary):
    """{rank: ["idle 12.10 % (median of the ranks: 3.02)", ...]}, the rank that differs most first."""
    found, most = {}, {}
    all_figures = [(r["rank"], figures_of(r)) for r in summary]
    for name in all_figures[0][1]:
        median = statistics.median(figures[name][0] for _, figures in all_figures)
        for rank, figures in all_figures:
            value, unit, noted = figures[name]
            if abs(value - median) > noted:
                found.setdefault(rank, []).append(f"{name} {value:.2f} {unit} (median of the ranks: {median:.2f})")
                most[rank] = max(most.get(rank, 0), abs(value - median) / noted)
    return dict(sorted(found.items(), key=lambda item: -most[item[0]]))


def all_ranks_text(summary):
    """The table of all ranks, and the names of those that differ."""
    differ = ranks_that_differ(summary)
    lines = [ranks_table(summary), "(waited and late: a step, in collectives)"]
    rates = [r["samples_per_second"] for r in summary]
    if all(rates):
        lines.append(f"all ranks: {sum(rates):.4g} samples/s")
    lines += [f"rank {rank} differs: {', '.join(what)}" for rank, what in list(differ.items())[:MOST_RANKS]]
    if len(differ) > MOST_RANKS:
        lines.append(f"{len(differ) - MOST_RANKS} more ranks differ: {', '.join(map(str, list(differ)[MOST_RANKS:]))}")
    lines.append(f"{'No rank differs' if not differ else 'The others do not differ'} by more than {NOTED} %. Below: all figures of rank "
                 f"{summary[0]['rank']}; --rank R shows another, --json all.")
    return "\n".join(lines)


def to_text(summary, ranks=None):
    """ranks: those to show with all figures; None: the first one, and of several a table of all."""
    shown, table = summary[:1], all_ranks_text(summary) if len(summary) > 1 else ""
    if ranks is not None:
        shown, table = [r for r in summary if r["rank"] in ranks], ""
    texts = [parts_text(summary[0]["run_parts"], summary[0]["part"]), split_text(summary), table, *map(rank_text, shown),
             slowest_text(summary), validation_text(summary), evaluation_text(summary), fp8_text(summary),
             clocks_text(summary), ranks_text(summary), energy_text(summary)]
    return "\n\n".join(text for text in texts if text)


def to_json(summary):
    return json.dumps(summary, indent=1)
