#!/usr/bin/env python3
"""The figures of tools/trace.py on hand-made traces whose right answers are known. See also trace_commands_test.py."""
import json
import pathlib
import unittest
from unittest import mock

from trace_test_tools import COMMUNICATION, COMPUTE, COPY, HOST, P, Run, call, main, span, step_row, synthetic

import h5py
import numpy as np

from blipft_trace import compare, energy, memory, sampling, summary, summary_text
from blipft_trace.intervals import Union
from blipft_trace.parts import open_run


class Intervals(unittest.TestCase):
    def test_against_counting_every_nanosecond(self):
        random = np.random.default_rng(1)
        for trial in range(200):
            count = int(random.integers(0, 12))
            begin = random.integers(0, 90, count)
            end = begin + random.integers(0, 15, count)
            covered = np.zeros(120, bool)
            for b, e in zip(begin, end):
                covered[b:e] = True
            union = Union(begin, end)
            self.assertEqual(union.length(), covered.sum())
            edges = np.sort(random.choice(np.arange(121), 6, replace=False))
            low, high = edges[::2], edges[1::2]
            if trial % 3 == 0:
                low, high = np.array([0, 40, 80]), np.array([40, 80, 120])  # windows that touch
            wanted = [covered[a:b].sum() for a, b in zip(low, high)]
            self.assertEqual(union.within(low, high).tolist(), wanted)
            empty = np.zeros(120, bool)
            for b, e, w in zip(*union.gaps(low, high)):
                self.assertFalse(empty[b:e].any() or covered[b:e].any())
                self.assertTrue(low[w] <= b < e <= high[w])
                empty[b:e] = True
            outside = np.zeros(120, bool)
            for a, b in zip(low, high):
                outside[a:b] = True
            np.testing.assert_array_equal(empty, outside & ~covered)

    def test_string_groups(self):
        values = np.array([b"a", b"bb", b"a", b"", b"c" * 31, b"bb"], "S32")
        names, number = memory.string_groups(values)
        self.assertEqual([names[i] for i in number], [v.decode() for v in values])


class Summary(unittest.TestCase):
    def test_overlap_gap_and_causes(self):
        spans = [
            span("step", HOST, 0, 1000),                # the step itself is no work
            span("data_wait", HOST, 0, 100),
            span("forward", COMPUTE, 100, 300),
            span("forward", COMPUTE, 200, 400),         # overlaps: the union is 300
            span("gather", COMMUNICATION, 350, 600),    # 50 hidden, 200 exposed
            span("copy_batch", COPY, 550, 700),         # 50 beside the gather, 100 exposed
            span("loss", HOST, 720, 760),               # the host holds the gap from 720 to 760
            span("optimizer", COMPUTE, 800, 900),
        ]
        with Run({"steps": [step_row(0, 0, 1000)], "spans": spans}) as run:
            rank, = summary.analyze(run)
        medians = {name: part["median_ns"] for name, part in rank["parts"].items()}
        self.assertEqual(medians, {"compute": 400, "exposed_communication": 200, "exposed_copy": 100, "data_wait": 100,
                                   "idle": 200})
        self.assertEqual(rank["communication_ns"], 250)
        self.assertEqual(rank["hidden_communication_ns"], 50)
        self.assertEqual(rank["copy_ns"], 150)
        self.assertEqual(rank["overlap_percent"], 20.0)
        causes = {name: idle["ns"] for name, idle in rank["idle_causes"].items()}
        self.assertEqual(causes, {"host: loss": 40, "before optimizer": 60, "after the last work": 100})
        self.assertEqual(rank["ceiling"]["idle"], {"step_ns": 800, "speedup": 1.25})
        self.assertEqual(rank["ceiling"]["exposed_communication"]["step_ns"], 800)
        self.assertEqual(rank["ceiling"]["data_wait"]["step_ns"], 900)

    def test_rate_of_each_phase(self):
        rows = [(step, 0, 0, P[phase], stream, begin, end, 0, flops) for step, phase, stream, begin, end, flops in (
            (0, "forward", COMPUTE, 0, 200, 3e6), (1, "forward", COMPUTE, 1000, 1100, 3e6),
            (0, "optimizer", COMPUTE, 300, 400, 0.0), (0, "forward", COMMUNICATION, 0, 999, 1e9),
            (7, "forward", COMPUTE, 400, 450, 1e9), (0, "step", COMPUTE, 0, 1000, 0.0))]   # step 7 never finished
        with Run({"steps": [step_row(0, 0, 1000), step_row(1, 1000, 2000)], "spans": rows}) as run:
            rank, = summary.analyze(run)
            text = call("summary", run)[1]
        self.assertEqual(rank["phases"]["forward"], {"time_ns": 300, "flops": 6e6, "tflops": 20.0})
        self.assertEqual(rank["phases"]["optimizer"], {"time_ns": 100, "flops": 0, "tflops": None})
        self.assertEqual(set(rank["phases"]), {"forward", "optimizer"})
        self.assertIn(" 20 TFLOP/s", text)

    def test_data_wait_without_spans_for_it(self):
        with Run({"steps": [step_row(0, 0, 1000, wait=300)], "spans": [span("forward", COMPUTE, 300, 900)]}) as run:
            rank, = summary.analyze(run)
        self.assertEqual(rank["parts"]["data_wait"]["median_ns"], 300)
        self.assertEqual(rank["parts"]["idle"]["median_ns"], 100)

    def test_data_wait_between_steps(self):
        """Steps of 100 that wait 900 before each but the first: with spans, and by the step's own figure without."""
        steps = [step_row(i, 1000 * i, 1000 * i + 100, wait=900) for i in range(5)]
        work = [span("forward", COMPUTE, 1000 * i, 1000 * i + 100, step=i) for i in range(5)]
        waits = [span("data_wait", HOST, 1000 * i - 880, 1000 * i - 5, step=i) for i in range(1, 5)]
        for spans, wait in ((work + waits, 875), (work, 900)):
            with Run({"steps": steps, "spans": spans}, attributes=[{"samples_per_step": 8.0}]) as run:
                rank, = summary.analyze(run)
                text = call("summary", run)[1]
            self.assertEqual(rank["parts"]["data_wait"]["median_ns"], wait)
            self.assertEqual(rank["parts"]["compute"]["median_ns"], 100)
            total = 100 + 4 * (1000 if wait == 900 else 980)
            self.assertAlmostEqual(rank["parts"]["data_wait"]["percent"], 100 * 4 * wait / total)
            self.assertAlmostEqual(rank["samples_per_second"], 8e9 / 1000)
            self.assertIn("with the wait for data before a step: 0.001 ms", text)

    def test_ranks_that_differ_are_named(self):
        ranks = [{"steps": [step_row(i, 1000 * i, 1000 * i + 1000) for i in range(3)],
                  "spans": [span("forward", COMPUTE, 1000 * i, 1000 * i + (500 if rank == 2 else 900), step=i) for i in range(3)]}
                 for rank in range(4)]
        with Run(*ranks) as run:
            text = call("summary", run)[1]
        self.assertIn("rank 2 differs: compute 50.00 % (median of the ranks: 90.00), idle 50.00 % (median of the ranks: 10.00)\n", text)
        self.assertEqual(text.count(" differs: "), 1)
        self.assertEqual(text.count(": 3 steps"), 1)     # all figures of the first rank alone

    def test_late_rank(self):
        steps = [step_row(0, 0, 1000)]
        first = [span("gather", COMMUNICATION, 100, 400, size=1000), span("gather", COMMUNICATION, 500, 700, size=1000),
                 span("all_reduce", COMMUNICATION, 800, 900, size=500)]   # the other rank has no such collective
        second = [span("gather", COMMUNICATION, 300, 400, size=1000),
                  span("gather", COMMUNICATION, 450, 700, size=1000)]
        with Run({"steps": steps, "spans": first}, {"steps": steps, "spans": second}) as run:
            a, b = summary.analyze(run)
            text = call("summary", run)[1]
        self.assertEqual((a["waited_for_slower_ns"], b["waited_for_slower_ns"]), (200, 50))
        self.assertEqual((a["made_others_wait_ns"], b["made_others_wait_ns"]), (50, 200))
        self.assertEqual((a["came_last"], b["came_last"]), (1, 1))
        # rank 0: 1000 B in 100 ns and 1000 B in 200 ns once all are there, 10 and 5 GB/s
        self.assertAlmostEqual(a["collectives"]["gather"]["median_bytes_per_second"], 7.5e9)
        self.assertEqual(a["collectives"]["all_reduce"]["waited_ns"], 0)
        self.assertAlmostEqual(a["collectives"]["all_reduce"]["median_bytes_per_second"], 5e9)
        self.assertIn("rank 1 kept the others waiting most", text)

    def test_copies_between_devices_wait_for_nobody(self):
        steps = [step_row(0, 0, 1000)]
        first = [span("gather", COMMUNICATION, 100, 400, size=900),
                 span("all_reduce", COMMUNICATION, 500, 900, size=500)]
        second = [span("gather", COMMUNICATION, 300, 400, size=900),
                  span("all_reduce", COMMUNICATION, 700, 900, size=500)]
        with Run({"steps": steps, "spans": first}, {"steps": steps, "spans": second}) as run:
            for path in pathlib.Path(run).glob("trace.rank*.h5"):
                with h5py.File(path, "r+") as file:
                    file.attrs["gathers"] = "copies between devices"
            a, b = summary.analyze(run)
        self.assertEqual((a["waited_for_slower_ns"], b["waited_for_slower_ns"]), (200, 0))  # in the all-reduce alone
        self.assertEqual((a["came_last"], b["came_last"]), (0, 1))
        self.assertAlmostEqual(a["collectives"]["gather"]["median_bytes_per_second"], 3e9)

    def test_work_of_a_neighbouring_step_counts_where_it_ran(self):
        steps = [step_row(0, 0, 100), step_row(1, 100, 200), step_row(2, 200, 300)]
        spans = [span("forward", COMPUTE, 0, 130), span("forward", COMPUTE, 150, 180, step=1),
                 span("gather", COMMUNICATION, 190, 220, step=2)]
        for block in (summary.BLOCK_SPANS, 1):
            old, summary.BLOCK_SPANS = summary.BLOCK_SPANS, block
            try:
                with Run({"steps": steps, "spans": spans}) as run:
                    rank, = summary.analyze(run)
            finally:
                summary.BLOCK_SPANS = old
            self.assertEqual(rank["parts"]["compute"]["percent"], 100 * 160 / 300)
            self.assertEqual(rank["exposed_communication_ns"], 30)

    def test_blocks_give_what_one_block_gives(self):
        tables = [synthetic.long_rank(rank, 60, 40) for rank in range(3)]
        random = np.random.default_rng(0)
        for table in tables:   # rows need not be in order of steps
            random.shuffle(table["spans"])
        answers = []
        with Run(*tables) as run:
            for block, parallel in ((10**9, 10**9), (1, 10**9), (1, 0)):   # one block, many, many in several processes
                old = summary.BLOCK_SPANS, summary.PARALLEL_SPANS
                summary.BLOCK_SPANS, summary.PARALLEL_SPANS = block, parallel
                try:
                    answers.append(json.loads(call("summary", run, "--json")[1]))
                finally:
                    summary.BLOCK_SPANS, summary.PARALLEL_SPANS = old
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])
        # Every step's parts add up to the step.
        for rank in answers[0]:
            self.assertAlmostEqual(sum(part["percent"] for part in rank["parts"].values()), 100.0)
            causes = sum(idle["ns"] for idle in rank["idle_causes"].values())
            self.assertAlmostEqual(100 * causes / rank["duration_ns"], rank["parts"]["idle"]["percent"])

    def test_steps_and_slow_steps(self):
        ends = [100, 100, 100, 400, 100]
        steps = [step_row(i, 1000 * i, 1000 * i + e) for i, e in enumerate(ends)]
        with Run({"steps": steps}) as run:
            rank, = summary.analyze(run)
            later, = summary.analyze(run, warmup=4)
        self.assertEqual(rank["step"]["median_ns"], 100)
        self.assertEqual(rank["step"]["slow_steps"], [3])
        self.assertEqual(rank["between_steps_ns"], 900)
        self.assertEqual(later["steps"], 1)

    def test_memory(self):
        rows = [(0, b"after_forward", b"parameters", 5, 100), (0, b"after_forward", b"activations", 5, 70),
                (0, b"after_forward", b"gradients", 5, 0),
                (0, b"after_backward", b"parameters", 6, 100), (0, b"after_backward", b"activations", 6, 20),
                (0, b"after_backward", b"gradients", 6, 40),
                (1, b"after_forward", b"parameters", 7, 100), (1, b"after_forward", b"activations", 7, 60)]
        plan = [(b"w0", b"parameters", 60), (b"w1", b"parameters", 40), (b"x", b"activations", 68)]
        wanted = {"parameters": {"planned": 100, "replayed": 100, "largest": 100},
                  "activations": {"planned": 68, "replayed": 70, "largest": 70},
                  "gradients": {"planned": 0, "replayed": 0, "largest": 40}}   # they are largest at another moment
        for piece in (memory.PIECE, 3):   # a moment's rows may lie in two pieces
            old, memory.PIECE = memory.PIECE, piece
            try:
                with Run({"steps": [step_row(0, 0, 10)], "memory": rows, "plan": plan}) as run:
                    rank, = summary.analyze(run)
                    text = call("summary", run)[1]
            finally:
                memory.PIECE = old
            self.assertEqual(rank["memory"], wanted)
            self.assertEqual(rank["memory_total"],
                             {"planned": 168, "replayed": 170, "step": 0, "moment": "after_forward", "host": 0})
            self.assertEqual(sum(owner["replayed"] for owner in rank["memory"].values()), 170)
            self.assertEqual(sum(owner["planned"] for owner in rank["memory"].values()), 168)
            self.assertIn("peak as run: step 0, after_forward; memory is noted at such moments only", text)
            self.assertNotIn("planned       measured", text)   # neither column is a measurement
            self.assertIn("no driver measured", text)

    def test_memory_at_the_moment_of_the_peak(self):
        rows = [(0, moment, owner, 5, size) for moment, sizes in ((b"after_forward", (100, 60)), (b"peak", (100, 68)))
                for owner, size in zip((b"parameters", b"activations"), sizes)]
        plan = [(b"w0", b"parameters", 100), (b"x", b"activations", 68)]
        with Run({"steps": [step_row(0, 0, 10)], "memory": rows, "plan": plan}) as run:
            rank, = summary.analyze(run)
            text = call("summary", run)[1]
        self.assertEqual(rank["memory_total"], {"planned": 168, "replayed": 168, "step": 0, "moment": "peak", "host": 0})
        for owner in rank["memory"].values():
            self.assertEqual(owner["planned"], owner["replayed"])
        self.assertIn("peak as run: step 0, peak\n", text)

    def test_memory_of_a_moment_that_comes_for_every_micro_batch(self):
        rows = [(0, b"after_forward", owner, time, size) for time, sizes in ((5, (100, 70)), (8, (100, 80)))
                for owner, size in zip((b"parameters", b"activations"), sizes)]
        with Run({"steps": [step_row(0, 0, 10)], "memory": rows}) as run:
            rank, = summary.analyze(run)
        self.assertEqual(rank["memory_total"]["replayed"], 180)

    def test_dropped_spans_are_told(self):
        with Run({"steps": [step_row(0, 0, 10)], "dropped": [(0, 1, 7), (3, 4, 5)]}) as run:
            self.assertIn("WARNING: 12 spans were dropped", call("summary", run)[1])


    def test_power_and_energy(self):
        steps = [step_row(0, 10, 110), step_row(1, 110, 210)]
        device = [(at, 90.0, watts, mhz, 2600.0, 50.0, 0, 0)
                  for at, watts, mhz in ((0, 100.0, 300.0), (50, 500.0, 1500.0), (100, 0.0, 0.0), (150, 700.0, 1900.0),
                                       (220, 90.0, 300.0))]
        with Run({"steps": steps, "device": device}) as run:   # before, inside, not told, inside, after
            rank, = summary.analyze(run)
        self.assertEqual(rank["device"], {"samples": 2, "median_watts": 600.0, "joules_a_step": 600 * 100.0 / 1e9,
                                          "median_mhz": 1700.0, "lowest_mhz": 1500.0, "highest_mhz": 1900.0})
        self.assertIn("600.0 W median", summary_text.rank_text(rank))
        with Run({"steps": steps}) as run:
            rank, = summary.analyze(run)
        self.assertIsNone(rank["device"])
        self.assertNotIn("SM clock", summary_text.rank_text(rank))

    def test_energy_of_all_ranks_from_the_counters(self):
        steps = [step_row(0, 100, 300), step_row(1, 300, 500)]
        nan = float("nan")

        def device(gpu, cpu):
            """Counters that rise by 2 * gpu and 2 * cpu J between the steps' begin and end."""
            return [(at, 90.0, 600.0, 1500.0, 2600.0, 50.0, 0, 0, gpu * at / 200, cpu * at / 200) for at in (0, 200, 400, 600)]
        about = [{"host": host, "samples_per_step": 8.0, "world_size": 4.0} for host in ("n1", "n1", "n2", "n2")]
        counters = [(1000, 500), (1100, nan), (1200, 300), (1300, nan)]  # a machine's first rank counts its CPUs
        with Run(*({"steps": steps, "device": device(*of_rank)} for of_rank in counters), attributes=about, version="1.14") as run:
            summary_of_run = summary.analyze(run)
            found = energy.total([rank["energy"] for rank in summary_of_run])
            text, page = summary_text.to_text(summary_of_run), pathlib.Path(run, "r.html")
            compared = compare.compare([run])["results"]
            self.assertEqual(call("report", run, "-o", page)[0], 0)
            self.assertIn("energy: 0.003 kWh (GPUs 0.002556, CPUs 0.0004444), 168.8 J a sample", page.read_text())
        self.assertAlmostEqual(found["GPUs"], 9200)
        self.assertAlmostEqual(found["CPUs"], 1600)
        self.assertAlmostEqual(found["joules_a_sample"], 10800 / 64)
        self.assertAlmostEqual(found["joules_a_token"], 10800 / 64 / 50)
        self.assertIn("energy: 0.003 kWh (GPUs 0.002556, CPUs 0.0004444), 168.8 J a sample, 3.375 J a token", text)
        self.assertAlmostEqual(compared["energy, kWh"][0], 0.003)
        self.assertAlmostEqual(compared["J/sample"][0], 168.75)

        counters[2] = (1200, nan)
        with Run(*({"steps": steps, "device": device(*of_rank)} for of_rank in counters), attributes=about, version="1.14") as run:
            self.assertIn("energy: 0.002556 kWh (GPUs 0.002556, CPUs not available), ", call("summary", run)[1])
        for version in ("1.13", "1.14"):
            with Run({"steps": steps}, version=version) as run:
                self.assertIn("energy: not available (the trace has no counter of GPUs or CPU packages)", call("summary", run)[1])

    def test_memory_as_the_driver_reports_it(self):
        rows = [(-1, 1, 900, 100, 200, 500, 100, 1000), (0, 2, 1010, 100, 200, 500, 210, 1000),
                (1, 3, 1005, 100, 200, 500, 205, 1000)]
        with Run({"steps": [step_row(0, 0, 10)], "driver_memory": rows}, {"steps": [step_row(0, 0, 10)]}) as run:
            first, second = summary.analyze(run)
            text = call("summary", run)[1]
        self.assertEqual(first["driver_memory"], {  # of the largest total
            "step": 0, "total_bytes": 1010, "context_bytes": 100, "nccl_bytes": 200, "allocated_bytes": 500,
            "unplanned_bytes": 210, "planned_bytes": 1000})
        self.assertIsNone(second["driver_memory"])
        self.assertEqual(text.count("whole process"), 1)
        self.assertIn("(+1.00 %), as the driver reports it", text)


class Unequal(unittest.TestCase):
    def test_a_rank_may_have_fewer_steps(self):
        """A killed run: rank 1 has finished only 3 of 10 steps, and rank 2 knows nothing of the first two."""
        steps = [step_row(i, 100 * i, 100 * i + 90) for i in range(10)]
        spans = [span("forward", COMPUTE, 100 * i, 100 * i + 50, step=i) for i in range(10)]
        ranks = [(0, 10), (0, 3), (2, 10)]
        for block in (summary.BLOCK_SPANS, 1):
            old, summary.BLOCK_SPANS = summary.BLOCK_SPANS, block
            try:
                with Run(*[{"steps": steps[a:b], "spans": spans[a:b]} for a, b in ranks]) as run:
                    for r, (a, b) in zip(summary.analyze(run), ranks):
                        self.assertEqual((r["steps"], r["split"]["steps"]), (b - a, b - a))
                        self.assertAlmostEqual(r["parts"]["compute"]["percent"], 100 * 50 / 90)
                    series = summary.analyze_series(open_run(run).parts[0])
                    self.assertEqual(call("summary", run)[0], 0)
            finally:
                summary.BLOCK_SPANS = old
            self.assertEqual(series["number"].tolist(), [2])
            self.assertEqual((series["compute"].tolist(), series["every_step"].tolist()), ([50], [90]))


class SlowSteps(unittest.TestCase):
    def test_slowest_steps_are_told_apart(self):
        steps = [step_row(i, 1000 * i, 1000 * i + (900 if i == 5 else 400 if i == 7 else 100)) for i in range(9)]
        spans = [span("forward", COMPUTE, 1000 * i, 1000 * i + 80, step=i) for i in range(9)]
        spans.append(span("data_wait", HOST, 5100, 5800, step=5))
        with Run({"steps": steps, "spans": spans}) as run:
            rank, = summary.analyze(run)
            text = call("summary", run)[1]
        self.assertEqual([(slow["step"], slow["ns"]) for slow in rank["slowest"]], [(5, 900), (7, 400)])
        self.assertEqual(rank["slowest"][0]["parts"], {"compute": 80, "exposed_communication": 0, "exposed_copy": 0,
                                                       "data_wait": 700, "idle": 120})
        self.assertIn("step 5, rank 0: 0.001 ms: compute 0.000", text)


class Groups(unittest.TestCase):
    """Four ranks in two shard groups; rank 1 comes late to what rank 0 reduces, rank 2 to what rank 0 sums."""

    STEPS = 40

    def run_of(self, attributes):
        ranks = []
        for rank in range(4):
            steps, spans = [], []
            for step in range(self.STEPS):
                base = 1_000_000 * step
                base_group = base + (400_000 if rank >= 2 else 0)   # the second group is late to everything of its own
                steps.append(step_row(step, base, base + 990_000))
                begin = base_group + (30_000 if rank == 1 else 0)
                spans.append(span("reduce_scatter", COMMUNICATION, begin, base_group + 90_000, step, size=1000))
                begin = base + 500_000 + (70_000 if rank == 2 else 0)
                spans.append(span("all_reduce", COMMUNICATION, begin, base + 600_000, step, size=500))
            ranks.append({"steps": steps, "spans": spans})
        return Run(*ranks, attributes=attributes)

    def test_only_ranks_of_a_group_are_compared(self):
        attributes = [{"reduce_scatter_group": float(rank // 2), "gather_group": float(rank // 2),
                       "all_reduce_group": float(rank % 2)} for rank in range(4)]
        with self.run_of(attributes) as run:
            ranks = summary.analyze(run)
            events = call("perfetto", run, "-o", f"{run}/out.json")[1]
        each = [r["waited_for_slower_ns"] / self.STEPS for r in ranks]
        self.assertEqual(each, [30_000 + 70_000, 0, 0, 0])
        self.assertEqual([r["made_others_wait_ns"] / self.STEPS for r in ranks], [0, 30_000, 70_000, 0])
        self.assertEqual([r["came_last"] for r in ranks], [0, self.STEPS, self.STEPS, 0])
        self.assertEqual([r["clock"] for r in ranks], [None] * 4)
        self.assertNotIn("clocks", events)

    def test_without_groups_all_ranks_are_one(self):
        with self.run_of(()) as run:   # the second group seems to be late, or its clocks to be ahead
            ranks = summary.analyze(run)
        self.assertNotEqual([r["came_last"] for r in ranks], [0, self.STEPS, self.STEPS, 0])


class Clocks(unittest.TestCase):
    """Three ranks run the same eight collectives a step; rank 1 comes 20 us late to the gathers.

    Ends are seen up to 3 us late. The clock of rank r gains `drift` ns a step.
    """

    STEPS, LATE = 120, 20_000

    def tables(self, drift, jitter=3000, phase="reduce_scatter"):
        random = np.random.default_rng(4)
        ranks = []
        for rank in range(3):
            spans, steps = [], []
            for step in range(self.STEPS):
                ahead = drift[rank] * step
                base = 1_000_000 * step
                steps.append(step_row(step, base + ahead, base + 900_000 + ahead))
                for i in range(4):
                    begin = base + 200_000 * i + (self.LATE if rank == 1 else 0)
                    spans.append(span("gather", COMMUNICATION, begin + ahead, base + 200_000 * i + 60_000 + ahead, step,
                                      unit=i % 2, size=1000))
                    begin = base + 200_000 * i + 100_000
                    end = begin + 50_000 + int(random.integers(0, jitter))
                    spans.append(span(phase, COMMUNICATION, begin + ahead, end + ahead, step, unit=i % 2, size=1000))
            ranks.append({"steps": steps, "spans": spans})
        return ranks

    def check(self, ranks, tolerance):
        gathers = 4 * self.STEPS
        for r in ranks:   # ranks 0 and 2 wait for rank 1 in every gather, nobody waits elsewhere
            wanted = 0 if r["rank"] == 1 else self.LATE * gathers
            self.assertAlmostEqual(r["waited_for_slower_ns"], wanted, delta=tolerance * 2 * gathers)
        self.assertAlmostEqual(ranks[1]["made_others_wait_ns"], self.LATE * gathers, delta=tolerance * 2 * gathers)
        self.assertGreaterEqual(ranks[1]["came_last"], gathers)

    def test_equal_clocks_are_left_alone(self):
        with Run(*self.tables((0, 0, 0))) as run:
            ranks = summary.analyze(run)
            self.assertNotIn("clocks:", call("summary", run)[1])
        self.check(ranks, 0)
        self.assertEqual([r["clock"] for r in ranks], [None] * 3)

    def test_drift_is_found_and_corrected(self):
        # 1 us a step and rank: after 120 steps the clocks of ranks 0 and 2 are 240 us apart, much more than the wait.
        for block in (summary.BLOCK_SPANS, 300):
            old, summary.BLOCK_SPANS = summary.BLOCK_SPANS, block
            try:
                with Run(*self.tables((0, 1000, 2000))) as run:
                    ranks = summary.analyze(run)
                    text = call("summary", run)[1]
            finally:
                summary.BLOCK_SPANS = old
            # A median of 32 ends that are up to 3 us late is right to about 0.25 us, a difference of two to 0.5 us;
            # where the lines between the medians end they are right to twice that.
            self.check(ranks, 1000)
            for r, slope in zip(ranks, (-1000, 0, 1000)):   # against the middle rank
                if slope and r["clock"]:
                    for which in ("first", "last"):
                        self.assertAlmostEqual(r["clock"][which + "_ns"], slope * r["clock"][which + "_step"],
                                               delta=2500)   # the middle of a bin of some 8 steps
            self.assertIn("clocks: the ranks' clocks are not equal; rank", text)

    def test_drift_is_found_in_a_sample(self):
        """Some 25 of 120 steps are read, one by one; each has four ends that show the clocks."""
        with mock.patch.multiple(sampling, FULL_SPANS=100, SAMPLE_SPANS=600), \
                Run(*self.tables((0, 1000, 2000))) as run:
            ranks = summary.analyze(run)
        self.assertLess(ranks[0]["split"]["steps"], 30)
        self.check(ranks, 3000)   # medians of 4 ends that are up to 3 us late
        self.assertAlmostEqual(ranks[2]["clock"]["last_ns"], 1000 * ranks[2]["clock"]["last_step"], delta=4000)

    def test_without_the_correction_the_answer_would_be_wrong(self):
        with Run(*self.tables((0, 1000, 2000), phase="gather")) as run:   # nothing ends together for sure
            ranks = summary.analyze(run)
        self.assertEqual([r["clock"] for r in ranks], [None] * 3)
        self.assertGreater(ranks[2]["came_last"], ranks[1]["came_last"])   # it never was last

    def test_noise_is_not_drift(self):
        with Run(*self.tables((0, 0, 0), jitter=40_000)) as run:
            self.assertEqual([r["clock"] for r in summary.analyze(run)], [None] * 3)

    def test_perfetto_shows_corrected_times(self):
        with Run(*self.tables((0, 1000, 2000))) as run:
            path = f"{run}/out.json"
            self.assertIn("clocks are not equal", call("perfetto", run, "-o", path, "--steps", "100:110")[1])
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        begin = {}
        for e in events:
            if e["ph"] == "X" and e["name"].startswith("reduce_scatter"):
                begin.setdefault((e["args"]["step"], e["name"], round(e["ts"], -2)), []).append(e["ts"])
        self.assertEqual(len(begin), 11 * 4)
        for times in begin.values():   # they began together; in the file they are 200 us apart
            self.assertEqual(len(times), 3)
            # each of 3 clocks is known to about 0.5 us where the lines between medians end; this is the worst of 44
            self.assertLess(max(times) - min(times), 4)


if __name__ == "__main__":
    main()
