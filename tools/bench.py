#!/usr/bin/env python3
"""Times blipft's configurations on this machine's GPUs, with PyTorch if it is installed; prints one table.

    tools/bench.py                               every configuration, on four GPUs at most
    tools/bench.py --quick                       the same within 5 minutes, with as many PyTorch rows as fit
    tools/bench.py --rows single-16x4,ddp-64x1   only these rows
    tools/bench.py --ops                         GPU operations, and attention against PyTorch's
    tools/bench.py --auto                        train.batch_size: auto against the other choices of --fit, on one GPU
    tools/bench.py --auto --free 24              the same while another process leaves 24 GiB of the GPU free
    tools/bench.py --generate                    decoding, captions and reading of prompts on one GPU, with transformers
    tools/bench.py --fp8                         steps with products in fp8 and in bf16, on one GPU
    tools/bench.py --families                    families of models at full size on one GPU, with transformers and PEFT
    tools/bench.py --vlm                         vision-language models at full size on one GPU, with transformers and PEFT
    tools/bench.py --llama                       LLaMA 7B and 13B on one to four GPUs, with PyTorch
    tools/bench.py --cpu-smoke                   tests this script with a tiny model on two CPU ranks

A configuration is named STRATEGY-BxA: micro-batches of B samples, A of them a step, on each GPU. The model is BLIP-2
opt-2.7b with random weights in bf16, with texts of 50 tokens; no file is needed, and --model and --data
select your own. A step's time is the median distance between the beginnings of consecutive steps on the device's clock,
without the first three, of the slowest rank. The GiB are the driver's peak for a GPU, with context and libraries. PyTorch
runs the same step through tools/bench_torch.py, plain ("eager") and compiled, fused, with FSDP2; "best" is the fastest
that ran, ratio its time divided by blipft's. All rows of blipft run first, then PyTorch's fastest variants, then the
plain ones; --budget limits the time.

Progress goes to stderr, the table (Markdown) to stdout, everything else to OUT/bench.json (--ops: OUT/ops.json):
command lines, versions, the times of all steps. Needs python3 with numpy and h5py, and PIL to draw pictures.
Exit status: 0 if all tried rows of blipft ran, 1 if one failed or none ran, 2 for a wrong call or a machine
without GPU.
"""
import argparse
import datetime
import json
import math
import pathlib
import signal
import statistics
import sys
import time

import own_python

if __name__ == "__main__":
    own_python.need("numpy", "h5py", "PIL")

from blipft_bench import auto, blipft, families, fp8, generate, inputs, llama, machine, ops, pytorch, rows, table, vlm  # noqa: E402
from blipft_bench.commands import BenchError, OutOfTime, Skipped, run_command  # noqa: E402
from blipft_bench.machine import ROOT, say, shown  # noqa: E402

SMOKE_RANKS = 2
QUICK = dict(steps=8, repeats=1, budget=285)  # the last command ends and the table is printed in the rest of 300 s
AUTO = dict(steps=8, repeats=1, budget=285)
MODES = dict(auto=auto, generate=generate, fp8=fp8, families=families, llama=llama, vlm=vlm)
USUAL = dict(steps=10, repeats=1, budget=None)


class Bench:
    """The settings of all runs: arguments, GPUs, inputs, the remaining time, and the record for bench.json."""

    def __init__(self, arguments, gpus, ranks, out):
        self.arguments, self.gpus, self.ranks, self.out = arguments, gpus, ranks, out
        self.smoke, self.program = arguments.cpu_smoke, shown(arguments.blipft)
        self.deadline = say.start + arguments.budget if arguments.budget is not None else math.inf
        self.torch, self.torch_results = None, {}
        self.torch_pace = {}  # by whether it compiles: time of the last run divided by its estimate
        self.record = dict(command=sys.argv, date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
                           gpus=[gpu["name"] for gpu in gpus], ranks=ranks, steps=arguments.steps,
                           repeats=arguments.repeats, rows=[])

    def time_for(self, seconds):
        """The time limit of a command with this estimate; None if the budget is too small."""
        left = self.deadline - time.monotonic()
        return min(self.arguments.row_timeout, left) if left > (0 if self.smoke else seconds) else None

    def cut_short(self, error, limit):
        """Returns True if a command that ran this long failed because the budget ended."""
        return isinstance(error, OutOfTime) and limit < self.arguments.row_timeout

    def run(self, command, log, gpus, estimate):
        """run_command() within the budget. Raises Skipped if less than `estimate` seconds are left or they were too few."""
        limit = self.time_for(estimate)
        if limit is None:
            raise Skipped(rows.NO_TIME)
        try:
            return run_command(command, log, gpus, limit)
        except OutOfTime as error:
            if self.cut_short(error, limit):
                raise Skipped(rows.CUT_SHORT) from error
            raise

    def each(self, chosen, measure, prepare=None, file="bench.json"):
        """Calls prepare(), then measure(row, entry) for each row. A failure ends a row; the end of the budget skips the
        remaining runs; an interrupt ends the loop. Entries keep what was measured until then. Returns false if interrupted."""
        entry = {}
        try:
            if prepare:
                prepare()
            for row in chosen:
                entry = next((known for known in self.record["rows"] if known["name"] == row["name"]), None)
                if entry is None:
                    entry = dict(name=row["name"])
                    self.record["rows"].append(entry)
                try:
                    if "estimate" in row and self.time_for(row["estimate"]) is None:
                        raise Skipped(rows.NO_TIME)
                    measure(row, entry)
                except Skipped as reason:
                    entry["skipped"] = str(reason)
                    say(f"{row['name']}: skipped: {reason}")
                except BenchError as error:
                    entry["error"] = str(error)
                    say(f"{row['name']}: FAILED: {error}")
                self.write(file)
        except KeyboardInterrupt:
            say(rows.INTERRUPTED)
            if len(entry) == 1:
                entry["skipped"] = "interrupted"
            self.write(file)
            return False
        return True

    def measure_ceilings(self):
        """Measures the GPU's product and copy rates for the table's shares."""
        if not self.smoke:
            self.record["gemm_tflops"], self.record["copy_tb_s"] = ops.ceilings(
                self.arguments.op_bench, self.out, self.time_for(0) or 1)

    def write(self, name="bench.json"):
        self.record["seconds"] = time.monotonic() - say.start
        path = self.out / name
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self.record, indent=1) + "\n")
        partial.replace(path)

    def ranks_of(self, row):
        return 1 if row.get("strategy", "single") == "single" else self.ranks

    def measure_blipft(self, row, entry):
        """Fills a row's entry with blipft's runs and their medians."""
        name, steps = row["name"], self.arguments.steps
        if row["strategy"] != "single" and self.ranks < 2:
            entry["skipped"] = "needs two GPUs or more"
        for repeat in range(0 if "skipped" in entry else self.arguments.repeats):
            limit = self.time_for(rows.blipft_estimate(row, steps))
            if limit is None:
                if not entry["runs"]:
                    entry["skipped"] = rows.NO_TIME
                break
            try:
                entry["runs"].append(blipft.run(self, row, self.ranks_of(row), repeat, limit))
            except BenchError as error:
                if not self.cut_short(error, limit):
                    entry["error"] = str(error)
                    say(f"{name}: FAILED: {error}")
                elif not entry["runs"]:
                    entry["skipped"] = rows.CUT_SHORT
                break
            say(f"{name}: {blipft.line_of(entry['runs'][-1])}")
        if "skipped" in entry:
            say(f"{name}: skipped: {entry['skipped']}")
        for key in blipft.MEDIANS:
            values = [run[key] for run in entry["runs"] if run[key] is not None]
            entry[key] = statistics.median(values) if values else None

    def measure_torch(self, row, variant, entry):
        """Fills a row's entry with PyTorch's runs; equal commands run once."""
        if entry.get("skipped") == "needs two GPUs or more":
            return
        ranks = self.ranks_of(row)
        line = " ".join(pytorch.command_of(self, row, variant, ranks))
        if line not in self.torch_results:
            estimate, compiled = rows.torch_estimate(row, variant, self.arguments.steps), "--compile" in row[variant]
            limit = self.time_for(estimate * self.torch_pace.get(compiled, 1))
            if limit is None:
                entry["torch_" + variant] = dict(command=line, skipped=rows.NO_TIME)
                return
            result = self.torch_results[line] = pytorch.run(self, row, variant, ranks, limit)
            if "seconds" in result:
                self.torch_pace[compiled] = min(2, result["seconds"] / estimate)
        entry["torch_" + variant] = self.torch_results[line]

    def say_estimates(self, chosen, variants):
        """The expected seconds of the rows, as on H200; the record has them next to the actual seconds."""
        steps, total, known = self.arguments.steps, 20, set()
        for row in chosen:
            if self.ranks_of(row) < 2 and row["strategy"] != "single":
                continue
            parts = dict(blipft=rows.blipft_estimate(row, steps) * self.arguments.repeats)
            for variant in variants:
                line = " ".join(pytorch.command_of(self, row, variant, self.ranks_of(row)))
                parts["torch " + variant] = 0 if line in known else rows.torch_estimate(row, variant, steps)
                known.add(line)
            total += sum(parts.values())
            listed = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items())
            say(f"estimate for {row['name']}: {listed}")
        self.record["estimated_s"] = total
        budget = f"; what does not fit into {self.arguments.budget:.0f} s is skipped" if self.arguments.budget else ""
        say(f"estimate for all, on H200: {total:.0f} s{budget}")

    def measure(self, chosen):
        """All rows; an interrupt ends it early."""
        variants = [v for v in rows.VARIANTS if v in self.arguments.torch_variants] if self.torch else []
        if not self.smoke:
            self.say_estimates(chosen, variants)
        entries = [dict(name=row["name"], runs=[]) for row in chosen]
        self.record["rows"] = entries
        try:
            self.measure_ceilings()
            for row, entry in zip(chosen, entries):
                self.measure_blipft(row, entry)
                self.write()
            in_turn = sorted(zip(chosen, entries), key=lambda pair: rows.TORCH_ORDER.index(pair[0]["name"]))
            for variant in variants:
                for row, entry in in_turn:
                    self.measure_torch(row, variant, entry)
                    self.write()
        except KeyboardInterrupt:
            say(rows.INTERRUPTED)
        self.record["rows"] = [entry for entry in entries if len(entry) > 2]  # rows that were reached


def table_of(arguments):
    """All rows that --rows can select."""
    module = next((module for name, module in MODES.items() if getattr(arguments, name)), rows)
    return module.ROWS


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rows", help="configurations to run, separated by commas: " + ", ".join(rows.NAMES))
    add("--quick", action="store_true", help="--steps 8 --repeats 1 --budget 285, where they are not given")
    add("--ranks", type=int, help="GPUs of ddp and fsdp (default: those there are, 4 at most)")
    add("--steps", type=int, help="optimizer steps of a run (default 10)")
    add("--repeats", type=int, help="runs of each configuration, the table has their medians (default 1)")
    add("--model", help="model directory (default: BLIP-2 opt-2.7b without weights, written into OUT)")
    add("--tokenizer", help="directory whose tokenizer the written model gets (default: one made from the captions)")
    add("--data", help="dataset (default: drawn pictures, written into OUT)")
    add("--out", default=ROOT / "runs/bench", help="folder for results, logs and traces (default runs/bench)")
    add("--budget", type=float, help="seconds for all: a run whose estimate does not fit any more is skipped")
    add("--row-timeout", type=float, default=300, help="seconds that one command may take (default 300)")
    add("--torch", default="auto", help="auto (if it is installed), none, or a script with bench_torch.py's arguments")
    add("--torch-variants", default=",".join(rows.VARIANTS), help="which of best,eager to run (default both)")
    add("--torch-python", help="the python3 that has torch and transformers")
    add("--blipft", default=ROOT / "blipft", help="the program (default ./blipft)")
    add("--op-bench", default=ROOT / "build/cuda/op_bench", help="measures the GEMM rate (default build/cuda/op_bench)")
    add("--ops", action="store_true", help="time the GPU operations instead of whole steps")
    add("--filter", help="with --ops: only operations whose name and shape hold this text")
    add("--auto", action="store_true", help="time train.batch_size: auto; --rows: " + ", ".join(auto.NAMES))
    add("--generate", action="store_true", help="time generation; --rows: " + ", ".join(generate.NAMES))
    add("--fp8", action="store_true", help="time products in fp8; --rows: " + ", ".join(fp8.NAMES))
    add("--vlm", action="store_true", help="time vision-language models at full size; --rows: " + ", ".join(vlm.NAMES))
    add("--families", action="store_true", help="time families at full size; --rows: " + ", ".join(families.NAMES))
    add("--llama", action="store_true", help="time LLaMA on one to four GPUs; --rows: " + ", ".join(llama.NAMES))
    add("--free", type=float, help="with --auto: occupy the GPU's memory except for this many GiB")
    add("--cpu-smoke", action="store_true", help="a tiny model on two CPU ranks: tests this script, measures nothing")
    arguments = parser.parse_args()
    for key, value in (AUTO if arguments.auto else QUICK if arguments.quick else USUAL).items():
        if getattr(arguments, key) is None:
            setattr(arguments, key, value)
    names = [row["name"] for row in table_of(arguments)]
    wrong = [name for name in (arguments.rows or "").split(",") if name and name not in names]
    if wrong:
        parser.error(f"--rows: there is no {wrong[0]}; expected some of {', '.join(names)}")
    if arguments.free is not None and not arguments.auto:
        parser.error("--free is of --auto")
    arguments.torch_variants = arguments.torch_variants.split(",")
    if not set(arguments.torch_variants) <= set(rows.VARIANTS):
        parser.error(f"--torch-variants is {','.join(arguments.torch_variants)}; expected best, eager or both")
    if arguments.steps < rows.WARMUP + 2:
        parser.error(f"--steps is {arguments.steps}; {rows.WARMUP + 2} are needed at least: {rows.WARMUP} are left out")
    if arguments.repeats < 1 or arguments.ranks is not None and arguments.ranks < 1:
        parser.error("--repeats and --ranks must be 1 or more")
    return arguments


def open_bench(arguments):
    """The Bench with its GPUs, torch and versions. Raises BenchError."""
    gpus = [] if arguments.cpu_smoke else machine.find_gpus()
    if not gpus and not arguments.cpu_smoke:
        raise BenchError("nvidia-smi finds no GPU here and the bench needs one; --cpu-smoke tests this script without")
    ranks = arguments.ranks or (SMOKE_RANKS if arguments.cpu_smoke else min(4, len(gpus)))
    if gpus and ranks > len(gpus):
        raise BenchError(f"--ranks is {ranks}, but there are {len(gpus)} GPUs")
    out = pathlib.Path(arguments.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments, gpus, ranks, out)
    if not arguments.cpu_smoke and not (arguments.ops or arguments.auto or arguments.fp8):
        bench.torch = pytorch.find(arguments.torch, arguments.torch_python)
    bench.record["versions"] = machine.versions(gpus, bench.program, bench.torch)
    return bench


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like an interrupt: ends the ranks, prints the table
    try:
        bench = open_bench(arguments)
        chosen = [row for row in table_of(arguments) if not arguments.rows or row["name"] in arguments.rows.split(",")]
        for name, module in MODES.items():
            if getattr(arguments, name):
                return module.run(bench, chosen)
        if not arguments.ops:
            bench.model, bench.data = inputs.prepare(arguments.model, arguments.data, arguments.tokenizer,
                                                     arguments.cpu_smoke, bench.out)
    except BenchError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    if arguments.ops:
        try:
            ops.run(bench)
            status = 0
        except (BenchError, KeyboardInterrupt) as error:
            print(f"bench.py: {error or 'interrupted'}", file=sys.stderr)
            status = 1
        bench.write("ops.json")
        return status
    bench.measure(chosen)
    bench.write()
    table.print_table(bench.record, bench.out)
    table.print_readme(bench.record, [
        dict(entry, model=f"BLIP-2 opt-2.7b, {row['title']}", gpus=bench.ranks_of(row), length=f"32 + {rows.TEXT_TOKENS}",
             rate=entry["samples_s"], unit="samples", torch=table.compiled_torch(row, entry))
        for row in chosen for entry in bench.record["rows"] if entry["name"] == row["name"] and entry["runs"]])
    done = bench.record["rows"]
    return 0 if any(row["runs"] for row in done) and not any("error" in row for row in done) else 1


if __name__ == "__main__":
    sys.exit(main())
