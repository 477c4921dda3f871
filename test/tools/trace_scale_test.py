#!/usr/bin/env python3
"""tools/trace.py on long runs: time and memory are bounded, and a sample of steps says what all steps say.

BLIPFT_FULL_SCALE=1 also runs the full-size proof: 10,000 steps of 8 ranks with 1,700 spans each (8 GB in TMPDIR), and
512 ranks (1 GB). BLIPFT_SCALE_RUN=DIR keeps these runs in DIR and uses them again.
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import unittest

from trace_test_tools import COMMUNICATION, COMPUTE, ROOT, Run, call, main, span, step_row, synthetic

import numpy as np

from blipft_trace import sampling, summary
from blipft_trace.files import RankTrace
from blipft_trace.parts import open_run
from blipft_trace.step_index import StepIndex

# Runs the tool, and tells how many rows of spans were read.
COUNTING = """
import sys
sys.path.insert(0, sys.argv[1])
from blipft_trace import cli, files
read, rows = files.RankTrace.read, [0]
def counting_read(self, table, begin=0, end=None):
    got = read(self, table, begin, end)
    rows[0] += len(got) * (table == "spans")
    return got
files.RankTrace.read = counting_read
status = cli.main(sys.argv[2:])
print("rows read:", rows[0], file=sys.stderr)
sys.exit(status)
"""
MIB = 1 << 20


class Child:
    """A run of the tool in a process of its own: output, seconds, processor seconds, and peak memory in bytes."""

    def __init__(self, *arguments, code=None, limit_files=None):
        # A process between this one and the tool, as getrusage() tells only the largest of all children so far.
        watcher = ("import json, resource, subprocess, sys\n"
                   "limit = json.loads(sys.argv[1])\n"
                   "if limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
                   "done = subprocess.run(sys.argv[2:])\n"
                   "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
                   "print('\\n' + json.dumps([used.ru_maxrss, used.ru_utime + used.ru_stime]))\n"
                   "sys.exit(done.returncode)\n")
        tools = ROOT / "tools"
        tool = [sys.executable, "-c", code, str(tools)] if code else [sys.executable, str(tools / "trace.py")]
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-c", watcher, json.dumps(limit_files), *tool, *map(str, arguments)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.seconds = time.monotonic() - start
        self.error = done.stderr
        if done.returncode:
            raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stderr}")
        self.out, last = done.stdout.rstrip("\n").rsplit("\n", 1)
        kib, self.processor = json.loads(last)
        self.peak = kib * 1024


def counted(*arguments):
    child = Child(*arguments, code=COUNTING)
    child.rows = int(child.error.rsplit("rows read:", 1)[1])
    return child


class Bounded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        for name, steps, spans in (("small", 1000, 1000), ("more_spans", 1000, 4000), ("more_steps", 4000, 1000)):
            synthetic.write_long_run(f"{cls.folder.name}/{name}", steps, 4, spans, same=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_of(self, name):
        return f"{self.folder.name}/{name}"

    def test_four_times_the_spans_cost_no_more(self):
        """4 and 16 million spans, of which the sample takes 2.5 million."""
        def measured(name, limit=None):
            child = counted("summary", self.run_of(name))
            if limit and child.processor > limit:   # another process may have disturbed it
                child = min(child, counted("summary", self.run_of(name)), key=lambda c: c.processor)
            return child
        small = measured("small")
        spans, steps = (measured(name, 1.6 * small.processor) for name in ("more_spans", "more_steps"))
        for child in (small, spans, steps):
            print(f"{child.rows} rows of spans read, {child.processor:.2f} s, {child.peak / MIB:.0f} MiB")
            # Five steps are read for three in the sample, and whole pieces at either end, which a search adds to.
            self.assertLess(child.rows, 4 * sampling.SAMPLE_SPANS)
            self.assertLess(child.peak, 350 * MIB)
            self.assertIn("steps, spread over the run (--all-steps reads every one)", child.out)
        for child in (spans, steps):
            self.assertLess(child.processor, 1.6 * small.processor)  # up to twice the rows are read, not four times
            self.assertLess(child.peak, 1.3 * small.peak)

    def test_other_commands_need_little_memory(self):
        out = pathlib.Path(self.folder.name)
        for arguments in (("perfetto", self.run_of("more_spans"), "-o", out / "x.json"),
                          ("watch", self.run_of("more_steps"), "--once"),
                          ("csv", self.run_of("small"), "-o", out / "csv", "--steps", "0:50"),
                          ("diff", self.run_of("small"), self.run_of("more_spans"))):
            # Python with numpy, h5py and the parts of a file that are read at once; diff takes samples of spans.
            self.assertLess(Child(*arguments).peak, (350 if arguments[0] == "diff" else 150) * MIB, arguments)

    def test_all_steps_in_bounded_memory(self):
        self.assertLess(Child("summary", self.run_of("small"), "--all-steps").peak, 350 * MIB)


class ManyRanks(unittest.TestCase):
    def test_few_files_are_open(self):
        """96 ranks with at most 40 files: HDF5 and Python need some, too."""
        with tempfile.TemporaryDirectory() as run:
            synthetic.write_long_run(run, 40, 96, 40)
            for arguments in (("summary", run), ("perfetto", run, "-o", f"{run}/x.json", "--steps", "39"),
                              ("watch", run, "--once"), ("csv", run, "--table", "steps")):
                child = Child(*arguments, limit_files=40)
                self.assertLess(child.peak, 200 * MIB)
                if arguments[0] == "summary":
                    self.assertIn("kept the others waiting most", child.out)
                    self.assertIn("\n         95         40", child.out)


class Sampling(unittest.TestCase):
    def test_short_runs_are_read_whole(self):
        np.testing.assert_array_equal(sampling.choose_steps(50, sampling.FULL_SPANS, 10**6), np.arange(50))

    def test_spread_and_size(self):
        for count, ranks, spans in ((10_000, 8, 1700), (10_000, 1, 400), (200, 512, 100), (100_000, 64, 500),
                                    (30, 512, 17_000)):
            chosen = sampling.choose_steps(count, count * ranks * spans, count * spans)
            self.assertTrue((np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < count)
            wanted = min(max(sampling.SAMPLE_SPANS / (ranks * spans), sampling.LEAST_STEPS), count)
            self.assertLessEqual(len(chosen), wanted)
            self.assertGreater(len(chosen), 0.6 * wanted)
            tenths = np.bincount(chosen * 10 // count, minlength=10)
            self.assertGreater(tenths.min(), 0)
            np.testing.assert_array_equal(chosen, sampling.choose_steps(count, count * ranks * spans, count * spans))

    def test_what_comes_regularly_is_hit_as_often_as_it_comes(self):
        chosen = sampling.choose_steps(10_000, 10_000 * 8 * 1700, 10_000 * 1700)
        for period in range(2, 101):
            share = float((chosen % period == 0).mean())
            # Steps drawn at random in groups of two: a share of p has a standard deviation of at most
            # sqrt(2 p / n); 4 of them, for 99 periods.
            self.assertAlmostEqual(share, 1 / period, delta=4 * np.sqrt(2 / period / len(chosen)), msg=str(period))

    def test_a_sample_says_what_all_steps_say(self):
        """A run whose steps differ: every 7th waits 60 ms for data, compute drifts by a third over the run."""
        random = np.random.default_rng(8)
        ranks = []
        for rank in range(2):
            made = synthetic.LongRank(rank, 3000, 80)
            spans = made.spans(0, 3000).reshape(3000, 80)
            compute = (spans["stream"] == COMPUTE)
            factor = np.linspace(0.6, 0.9, 3000)[:, None] * random.uniform(0.8, 1.2, (3000, 1))
            length = spans["end_ns"] - spans["begin_ns"]
            spans["end_ns"] = spans["begin_ns"] + np.where(compute, length * factor, length).astype(np.int64)
            spans["end_ns"][::7, 0] = spans["begin_ns"][::7, 0] + 60_000_000
            ranks.append({"steps": made.steps, "spans": spans.reshape(-1)})
        old = sampling.FULL_SPANS, sampling.SAMPLE_SPANS
        sampling.FULL_SPANS, sampling.SAMPLE_SPANS = 100_000, 80_000
        try:
            with Run(*ranks) as run:
                sample = json.loads(call("summary", run, "--json")[1])
                text = call("summary", run)[1]
                every = json.loads(call("summary", run, "--json", "--all-steps")[1])
                self.assertNotIn("--all-steps", call("summary", run, "--all-steps")[1])
        finally:
            sampling.FULL_SPANS, sampling.SAMPLE_SPANS = old
        used = sample[0]["split"]["steps"]
        self.assertIn(f"split of time from {used} of 3000 steps", text)
        self.assertLessEqual(used, 500)
        for a, b in zip(sample, every):
            self.assertEqual(a["step"], b["step"])   # from all steps
            self.assertEqual(a["slowest"], b["slowest"])
            for part in a["parts"]:
                # A step's share varies by some 7 % of the step (compute) with steps of a group alike in their trend
                # only: sigma = 0.07 / sqrt(480) = 0.3 %; 3 of them.
                self.assertAlmostEqual(a["parts"][part]["percent"], b["parts"][part]["percent"], delta=1.0, msg=part)
            for name in ("communication_ns", "exposed_communication_ns", "waited_for_slower_ns"):
                self.assertAlmostEqual(a[name] / b[name], 1, delta=0.05, msg=name)
            for name, kind in a["collectives"].items():
                self.assertAlmostEqual(kind["count"] / b["collectives"][name]["count"], 1, delta=1e-3)
                self.assertAlmostEqual(kind["median_bytes_per_second"] /
                                       b["collectives"][name]["median_bytes_per_second"], 1, delta=0.02)

    def test_a_sampled_step_is_split_as_among_all(self):
        """Work of neighbouring steps reaches into a step whether they are in the sample or not."""
        steps = [step_row(i, 100 * i, 100 * i + 100) for i in range(400)]
        spans = [span("forward", COMPUTE, 100 * i + 10, 100 * i + 120, step=i) for i in range(400)]
        spans += [span("gather", COMMUNICATION, 100 * i - 10, 100 * i + 15, step=i) for i in range(1, 400)]
        spans.sort(key=lambda row: row[0])
        with Run({"steps": steps, "spans": spans}) as run:
            every, = summary.gather_results(open_run(run).parts[0], 0)
            old = sampling.FULL_SPANS, sampling.SAMPLE_SPANS
            sampling.FULL_SPANS, sampling.SAMPLE_SPANS = 100, 100
            try:
                few, = summary.gather_results(open_run(run).parts[0], 0)
            finally:
                sampling.FULL_SPANS, sampling.SAMPLE_SPANS = old
        at = few.split_steps["step"]
        self.assertLess(len(at), 60)
        for part in summary.PARTS:
            np.testing.assert_array_equal(few.parts[part], every.parts[part][at], part)
        np.testing.assert_array_equal(few.split.communication, every.split.communication[at])


class FindingSteps(unittest.TestCase):
    """StepIndex against looking at every row."""

    def check(self, order, most_pieces=None):
        spans = np.zeros(len(order), synthetic.dtypes(synthetic.PHASES)["spans"])
        spans["step"], spans["begin_ns"] = order, np.arange(len(order))
        with Run({"spans": spans, "steps": [step_row(0, 0, 1)]}) as run:
            with RankTrace(f"{run}/trace.rank0000.h5") as trace:
                index = StepIndex(trace)
                random = np.random.default_rng(1)
                for first in random.integers(-2, order.max() + 3, 30):
                    last = first + random.integers(0, 5)
                    wanted = np.flatnonzero((order >= first) & (order <= last))
                    np.testing.assert_array_equal(index.read(int(first), int(last))["begin_ns"], wanted)
                np.testing.assert_array_equal(index.read(0, int(order.max()))["begin_ns"], np.arange(len(order)))
                fresh = StepIndex(trace)
                fresh.read(int(order.max()) // 3, int(order.max()) // 3)
                return index.ordered, len(fresh.known), fresh.count

    def test_in_order(self):
        ordered, known, count = self.check(np.repeat(np.arange(3000), 130))
        self.assertTrue(ordered)
        self.assertLess(known, count // 4)   # a search, not a walk

    def test_steps_of_very_different_size(self):
        random = np.random.default_rng(2)
        ordered, known, count = self.check(np.repeat(np.arange(3000), random.integers(0, 10, 3000) ** 3))
        self.assertTrue(ordered)
        self.assertLess(known, count // 2)

    def test_gaps_and_one_huge_step(self):
        self.check(np.concatenate((np.zeros(1, int), np.full(60_000, 5), np.repeat(np.arange(900, 910), 5000))))

    def test_nearly_in_order(self):
        random = np.random.default_rng(3)
        order = np.repeat(np.arange(1000), 100)
        ordered, _, _ = self.check(order[np.argsort(np.arange(len(order)) + random.uniform(0, 250, len(order)))])
        self.assertTrue(ordered)

    def test_out_of_order(self):
        order = np.repeat(np.arange(1000), 100)
        self.assertFalse(self.check(np.concatenate((order[40_000:], order[:40_000])))[0])
        self.check(np.random.default_rng(4).permutation(order))


@unittest.skipUnless(os.environ.get("BLIPFT_FULL_SCALE") == "1", "BLIPFT_FULL_SCALE=1 runs it; takes 8 GB of disk")
class FullSize(unittest.TestCase):
    def proof(self, name, steps, ranks, spans):
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(os.environ.get("BLIPFT_SCALE_RUN", folder), name)
            if not run.exists():
                synthetic.write_long_run(run, steps, ranks, spans, len(os.sched_getaffinity(0)))
            child = Child("summary", run)
            print(f"{name}: {steps} steps, {ranks} ranks, {spans} spans a step: summary took {child.seconds:.1f} s, "
                  f"{child.peak / MIB:.0f} MiB")
            return child

    def test_ten_thousand_steps_of_eight_ranks(self):
        child = self.proof("full", 10_000, 8, 1700)
        self.assertLess(child.seconds, 15)
        self.assertLess(child.peak, 2048 * MIB)

    def test_512_ranks(self):
        child = self.proof("wide", 200, 512, 100)
        self.assertLess(child.seconds, 30)   # 512 files are opened; on 2 cores 8 s
        self.assertLess(child.peak, 2048 * MIB)


if __name__ == "__main__":
    main()
