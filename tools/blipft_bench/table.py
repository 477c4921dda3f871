"""The table of a bench, in Markdown, and the lines below it."""
from .machine import GIB, shown

TITLES = ["configuration", "PyTorch eager", "PyTorch best", "blipft", "ratio", "samples/s", "TFLOP/s a GPU",
          "of GEMM rate", "planned GiB", "to first step s"]


def number(value, form):
    return "-" if value is None else format(value, form)


def gib(value):
    return None if value is None else value / GIB


def with_memory(seconds, form, used):
    """ "0.366 s, 35.4 GiB" """
    return f"{seconds:{form}} s" + ("" if used is None else f", {used / GIB:.1f} GiB")


def used_bytes(row):
    """The driver's figure at the peak: of the whole GPU, else of the process as its trace has it."""
    return row["driver_bytes"] if row["measured_bytes"] is None else row["measured_bytes"]


def torch_cell(result):
    if not result:
        return "-"
    if "step_s" in result:
        return with_memory(result["step_s"], ".3f", result.get("measured_bytes"))
    return "failed" if "error" in result else "skipped"


def fastest_torch(row):
    """The fastest variant that ran (compiling does not pay in every row), else the reason why the best one did not run."""
    results = [row.get("torch_" + variant) for variant in ("best", "eager")]
    ran = [result for result in results if result and "step_s" in result]
    return min(ran, key=lambda result: result["step_s"]) if ran else results[0]


def cells(row, gemm_tflops):
    best = fastest_torch(row)
    torch = [torch_cell(row.get("torch_eager")), torch_cell(best)]
    if not row["runs"]:
        return [row["name"], *torch, "failed" if "error" in row else "skipped"] + ["-"] * 6
    ratio = best["step_s"] / row["step_s"] if best and "step_s" in best else None
    share = row["tflops_gpu"] / gemm_tflops if gemm_tflops else None
    return [row["name"], *torch, with_memory(row["step_s"], ".4f", used_bytes(row)), number(ratio, ".2f"),
            number(row["samples_s"], ".1f"), number(row["tflops_gpu"], ".3g" if row["tflops_gpu"] < 1 else ".0f"),
            number(share, ".0%"), number(gib(row["planned_bytes"]), ".2f"), number(row["first_step_s"], ".1f")]


def print_markdown(titles, rows, left=1):
    """Formats a table: `left` columns are left-aligned, the others, numbers, right-aligned."""
    lines = [titles, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    for line in [titles, rule, *rows]:
        print("| " + " | ".join(cell.ljust(width) if i < left else cell.rjust(width)
                                for i, (cell, width) in enumerate(zip(line, widths))) + " |")


def print_results(record, titles, lines, measured, left=1):
    """The table, the machine, and why rows failed or were skipped. Returns bench.py's exit status; an entry that ran has
    the key `measured`."""
    print_markdown(titles, lines, left)
    print(f"\n{about(record)}; {record['seconds']:.0f} s in all")
    entries = record["rows"]
    for entry in entries:
        for what in ("error", "skipped"):
            if what in entry:
                print(f"{entry['name']} {'failed' if what == 'error' else 'skipped'}: {entry[what]}", flush=True)
    return 0 if any(measured in entry for entry in entries) and not any("error" in entry for entry in entries) else 1


README_TITLES = ["model", "sequence", "GPU", "PyTorch compiled", "blipft", "ratio", "a second", "of GEMM rate"]


def compiled_torch(row, entry):
    """The result of the row's best variant of PyTorch if that variant compiles, else of the fastest that ran."""
    best = entry.get("torch_best")
    return best if best and "step_s" in best and "--compile" in row["best"] else fastest_torch(entry)


def print_readme(record, runs):
    """The rows for the README. A run has measurements and model, gpus, length, rate, unit, torch."""
    gpu = record["gpus"][0] if record["gpus"] else "CPU"
    gemm, lines = record.get("gemm_tflops"), []
    for run in runs:
        torch = run["torch"]
        beside = torch["step_s"] if torch and torch.get("step_s") else None
        lines.append([run["model"], run["length"], f"{run['gpus']} x {gpu}", torch_cell(torch),
                      with_memory(run["step_s"], ".4f", used_bytes(run)), number(beside / run["step_s"] if beside else None, ".2f"),
                      f"{run['rate']:,.0f} {run['unit']}", number(run["tflops_gpu"] / gemm if gemm else None, ".0%")])
    if lines:
        print("\nAs the README has it:\n")
        print_markdown(README_TITLES, lines, left=3)


def about(record):
    """GPUs, ceilings, versions and command, in one line."""
    versions = record["versions"]
    where = f"{len(record['gpus'])} x {record['gpus'][0]}" if record["gpus"] else \
        f"{record['ranks']} CPU ranks, a tiny model"
    parts = [where]
    if record.get("gemm_tflops"):
        parts.append(f"8192^3 bf16 product {record['gemm_tflops']:.0f} TFLOP/s")
    if record.get("copy_tb_s"):
        parts.append(f"copy {record['copy_tb_s']:.2f} TB/s")
    if versions["driver"]:
        parts.append(f"driver {versions['driver']}")
    if versions["torch"]:
        parts.append(", ".join(f"{name} {versions['torch'][name]}" for name in ("torch", "transformers")
                               if name in versions["torch"]))
    changed = f" and {versions['changed_files']} changed files" if versions["changed_files"] else ""
    commit = f"commit {versions['commit'][:12]}{changed}" if versions["commit"] else versions["blipft"]
    parts.append(commit or "unknown commit")
    return ", ".join(parts)


def print_table(record, out):
    print_markdown(TITLES, [cells(row, record.get("gemm_tflops")) for row in record["rows"]])
    versions = record["versions"]
    print(f"\n{about(record)}; {record['date']}; {record['steps']} steps a run, {record['repeats']} run(s) a row, "
          f"medians; {record['seconds']:.0f} s in all; GEMM algorithms were "
          f"{'' if versions['gemm_algorithms_were_cached'] else 'not '}cached before")
    for row in record["rows"]:
        for what, part in (("", row), (" torch best", row.get("torch_best")), (" torch eager", row.get("torch_eager"))):
            note = part and (part.get("error") or part.get("skipped"))
            if note:
                print(f"{row['name']}{what} {'failed' if 'error' in part else 'skipped'}: {note}")
    print(f"Everything measured, with the command lines: {shown(out / 'bench.json')}", flush=True)
