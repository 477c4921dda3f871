#!/usr/bin/env python3
"""The tools of tools/trace.py on hand-made traces whose right answers are known, and on a file of the program itself.

BLIPFT_TESTS names the C++ test binary that writes such a file (default: the first of build/*/tests).
"""
import csv
import glob
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]
try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: trace_tools_test ({missing})")
    sys.exit(0)

import make_synthetic_trace as synthetic  # noqa: E402
from blipft_trace import cli, summary  # noqa: E402
from blipft_trace.files import RankTrace  # noqa: E402
from blipft_trace.intervals import Union  # noqa: E402
from blipft_trace.kernels import short_name  # noqa: E402

P = {name: i for i, name in enumerate(synthetic.PHASES)}
COMPUTE, COMMUNICATION, COPY, HOST = range(4)


def step_row(step, begin, end, loss=1.0, wait=0):
    return (step, 0, loss, 1e-5, 0.5, 10.0, 20.0, begin, end, wait, 50)


def span(phase, stream, begin, end, step=0, micro=0, unit=0, size=0):
    return (step, micro, unit, P[phase], stream, begin, end, size, 0.0)


class Run(tempfile.TemporaryDirectory):
    """A run directory; each argument is one rank's tables."""

    def __init__(self, *ranks, **more):
        super().__init__()
        for rank, tables in enumerate(ranks):
            synthetic.write_trace(f"{self.name}/trace.rank{rank:04d}.h5", tables, ["u0", "u1"], **more)


def call(*arguments):
    """Runs the tool; exit status, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.main([str(a) for a in arguments])
    return status, out.getvalue(), err.getvalue()


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
        names, number = summary.string_groups(values)
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
        memory = [(0, b"after_forward", b"parameters", 5, 100), (0, b"after_forward", b"activations", 5, 70),
                  (0, b"after_backward", b"parameters", 6, 100), (0, b"after_backward", b"activations", 6, 20),
                  (1, b"after_forward", b"parameters", 7, 100), (1, b"after_forward", b"activations", 7, 60)]
        plan = [(b"w0", b"parameters", 60), (b"w1", b"parameters", 40), (b"x", b"activations", 68)]
        with Run({"steps": [step_row(0, 0, 10)], "memory": memory, "plan": plan}) as run:
            rank, = summary.analyze(run)
        self.assertEqual(rank["memory"], {"parameters": {"planned": 100, "measured": 100},
                                          "activations": {"planned": 68, "measured": 70}})
        self.assertEqual(rank["memory_total"], {"planned": 168, "measured": 170})

    def test_memory_of_a_moment_that_comes_for_every_micro_batch(self):
        memory = [(0, b"after_forward", owner, time, size) for time, sizes in ((5, (100, 70)), (8, (100, 80)))
                  for owner, size in zip((b"parameters", b"activations"), sizes)]
        with Run({"steps": [step_row(0, 0, 10)], "memory": memory}) as run:
            rank, = summary.analyze(run)
        self.assertEqual(rank["memory_total"]["measured"], 180)

    def test_dropped_spans_are_told(self):
        with Run({"steps": [step_row(0, 0, 10)], "dropped": [(0, 1, 7), (3, 4, 5)]}) as run:
            self.assertIn("WARNING: 12 spans were dropped", call("summary", run)[1])


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


KERNEL, A_COPY = 0, 1
NAMES = [(b"void gemm<float, 128>(float const*, int)",), (b"copy device to device",)]


def kernel(step, begin, end, name=0, kind=KERNEL, size=0, stream=7, node=0):
    return (step, begin, end, size, node, name, kind, stream, 0)


class Kernels(unittest.TestCase):
    def tables(self):
        rows = [kernel(5, 1000, 1300), kernel(5, 1200, 1400, stream=9, node=3), kernel(5, 1500, 1600, 1, A_COPY, 400),
                kernel(6, 2000, 2100), kernel(9, 0, 10)]   # step 9 never finished
        steps = [step_row(i, 1000 * (i - 4), 1000 * (i - 4) + 1000) for i in (4, 5, 6)]
        return {"steps": steps, "kernels": rows, "kernel_names": NAMES}

    def test_time_by_kernel(self):
        with Run(self.tables(), self.tables()) as run:
            answer = json.loads(call("kernels", run, "--json")[1])
            one = json.loads(call("kernels", run, "--json", "--rank", 1)[1])
            text = call("kernels", run, "--top", 1)[1]
            error = call("kernels", run, "--rank", 7)[2]
        self.assertEqual((answer["ranks"], answer["steps"], answer["step_ns"]), ([0, 1], 4, 4000))
        self.assertEqual(answer["busy_ns"], 2 * (400 + 100 + 100))   # the union: kernels overlap from 1200 to 1300
        gemm, copy = answer["kernels"]
        self.assertEqual((gemm["count"], gemm["time_ns"], gemm["mean_ns"], gemm["percent_of_step"]), (6, 1200, 200, 30))
        self.assertEqual((copy["name"], copy["kind"], copy["count"], copy["bytes"]),
                         ("copy device to device", "copy", 2, 800))
        self.assertEqual(one["kernels"][0]["count"], 3)
        self.assertIn("30.0 % of that time", text)
        self.assertIn("gemm<float, 128>\n", text)
        self.assertIn("(1 others)", text)
        self.assertIn("has no rank 7", error)

    def test_a_run_without_kernels(self):
        for version in ("1.0", "1.1"):   # a trace of version 1.0 has no such tables
            with Run({"steps": [step_row(0, 0, 10)]}, version=version) as run:
                status, _, error = call("kernels", run)
                self.assertEqual(status, 1)
                self.assertIn("trace.kernels=[10,12]", error)
                for command in ("summary", "csv", "watch --once"):
                    name, *more = command.split()
                    self.assertEqual(call(name, run, *more)[0], 0, command)
                self.assertEqual(call("perfetto", run, "-o", f"{run}/x.json")[0], 0)

    def test_summary_names_the_steps(self):
        with Run(self.tables()) as run:
            self.assertIn("in steps 5, 6, 9", call("summary", run)[1])

    def test_perfetto_has_a_track_for_each_stream(self):
        with Run(self.tables()) as run:
            path = f"{run}/out.json"
            self.assertEqual(call("perfetto", run, "-o", path, "--steps", "5:5")[0], 0)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        work = [e for e in events if e["ph"] == "X" and e["tid"] >= 100]
        self.assertEqual([(e["name"], e["cat"], e["tid"], e["ts"], e["dur"]) for e in work],
                         [("gemm<float, 128>", "kernel", 107, 1.0, 0.3), ("gemm<float, 128>", "kernel", 109, 1.2, 0.2),
                          ("copy device to device", "copy", 107, 1.5, 0.1)])
        self.assertEqual(work[1]["args"]["graph_node"], 3)
        self.assertEqual(work[2]["args"]["GB/s"], 4.0)
        tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["tid"] >= 100}
        self.assertEqual(tracks, {107: "kernels, CUDA stream 7", 109: "kernels, CUDA stream 9"})

    def test_csv_has_names(self):
        with Run(self.tables()) as run:
            self.assertEqual(call("csv", run)[0], 0)
            with open(f"{run}/csv/kernels.csv", newline="") as file:
                rows = list(csv.DictReader(file))
        self.assertEqual((rows[2]["name"], rows[2]["kind"], rows[2]["stream"]), ("copy device to device", "copy", "7"))

    def test_short_names(self):
        for name, short in (("store_time(long*)", "store_time"), ("copy", "copy"), ("", ""),
                            ("void blipft::(anonymous namespace)::norm<4, true>(Args)", "blipft::norm<4, true>"),
                            ("void f<int (*)(float)>(int (*)(float))", "f<int (*)(float)>"),
                            ("void long_one<" + "a<b>, " * 40 + "c>(int)", "long_one<>"),
                            ("x" * 200, "x" * 93 + "...")):
            self.assertEqual(short_name(name), short)


class Commands(unittest.TestCase):
    def test_refusals(self):
        with Run({"steps": [step_row(0, 0, 10)]}, version="2.3") as run:
            status, _, error = call("summary", run)
            self.assertEqual(status, 1)
            self.assertIn("format version 2.3", error)
            self.assertIn("trace.rank0000.h5", error)
        with Run({"steps": [step_row(0, 0, 10)]}, version="1.7") as run:
            self.assertEqual(call("summary", run)[0], 0)   # a newer minor version is fine
        with Run({}) as run:
            self.assertIn("no finished step", call("summary", run)[2])
        with Run() as run:
            self.assertIn("holds no trace.rank*.h5", call("loss", run)[2])
            pathlib.Path(run, "trace.rank0000.h5").write_text("nonsense")
            self.assertIn("cannot be read", call("csv", run)[2])
        self.assertIn("does not exist", call("summary", "/nonexistent")[2])

    def test_csv(self):
        with Run({"steps": [step_row(0, 0, 10, loss=2.5)], "spans": [span("gather", COMMUNICATION, 1, 2, unit=1)],
                  "memory": [(0, b"after_forward", b"parameters", 5, 100)]},
                 {"steps": [step_row(0, 0, 11)]}) as run:
            self.assertEqual(call("csv", run)[0], 0)
            with open(f"{run}/csv/spans.csv", newline="") as file:
                row, = csv.DictReader(file)
            with open(f"{run}/csv/steps.csv", newline="") as file:
                steps = list(csv.DictReader(file))
        self.assertEqual((row["rank"], row["phase"], row["unit"], row["stream"]),
                         ("0", "gather", "u1", "communication"))
        self.assertEqual([s["rank"] for s in steps], ["0", "1"])
        self.assertEqual(float(steps[0]["loss"]), 2.5)

    def test_perfetto(self):
        spans = [span("gather", COMMUNICATION, 1000, 3000, unit=1, size=4000), span("forward", COMPUTE, 0, 500, step=1)]
        with Run({"steps": [step_row(0, 0, 5000, loss=float("nan")), step_row(1, 5000, 6000)], "spans": spans,
                  "memory": [(0, b"after_forward", b"parameters", 5000, 2**30)]}) as run:
            path = f"{run}/out.json"
            self.assertEqual(call("perfetto", run, "-o", path, "--steps", "0:0")[0], 0)
            with open(path) as file:
                events = json.load(file, parse_constant=self.fail)["traceEvents"]
        work = [e for e in events if e["ph"] == "X" and e["tid"] < 4]
        self.assertEqual(len(work), 1)
        self.assertEqual((work[0]["name"], work[0]["ts"], work[0]["dur"], work[0]["tid"]), ("gather u1", 1.0, 2.0, 1))
        self.assertEqual(work[0]["args"]["GB/s"], 2.0)
        counter, = [e for e in events if e["ph"] == "C"]
        self.assertEqual((counter["name"], counter["args"]["GiB"]), ("memory: parameters", 1.0))

    def test_loss_picture(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError as missing:
            print(f"SKIPPED: loss picture ({missing})")
            return
        with Run({"steps": [step_row(i, i, i + 1, loss=3 - i) for i in range(3)]}) as run:
            path = pathlib.Path(run, "loss.png")
            self.assertEqual(call("loss", run, "-o", path), (0, f"{path}\n", ""))
            self.assertEqual(path.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")


class Comparing(unittest.TestCase):
    def run_with(self, random, mean, steps=60):
        ends = random.normal(mean, 3e6, steps).astype(np.int64)
        begin = np.arange(steps) * 10**9
        rows = [step_row(i, int(b), int(b + e)) for i, (b, e) in enumerate(zip(begin, ends))]
        spans = [span("forward", COMPUTE, int(b), int(b + e - 10**7), step=i)
                 for i, (b, e) in enumerate(zip(begin, ends))]
        return Run({"steps": rows, "spans": spans})

    def test_a_real_change_is_told_from_noise(self):
        random = np.random.default_rng(3)
        with self.run_with(random, 300e6) as a, self.run_with(random, 300e6) as same, \
                self.run_with(random, 310e6) as slow:
            unchanged = json.loads(call("diff", a, same, "--json")[1])["time_ns"]
            changed = json.loads(call("diff", a, slow, "--json")[1])["time_ns"]
            text = call("diff", a, slow)[1]
        # 10 ms against a noise of 3 ms a step and 57 steps: 20 standard errors
        self.assertEqual(unchanged["step time"]["verdict"], "within noise")
        self.assertEqual(changed["step time"]["verdict"], "larger than noise")
        self.assertAlmostEqual(changed["step time"]["change"], 10e6, delta=2.5e6)
        self.assertEqual(changed["compute"]["verdict"], "larger than noise")
        self.assertEqual(changed["idle"]["verdict"], "within noise")
        self.assertIn("larger than noise", text)

    def test_false_alarms_are_rare(self):
        from blipft_trace.diff import compare
        random = np.random.default_rng(5)
        alarms = sum(compare(random.normal(100, 5, 60), random.normal(100, 5, 60))["verdict"] == "larger than noise"
                     for _ in range(60))
        # 1 % of 60 trials is 0.6; more than 5 has a probability under 1e-4 when the level is right
        self.assertLessEqual(alarms, 5)

    def test_few_steps(self):
        steps = [step_row(i, 1000 * i, 1000 * i + 100) for i in range(6)]
        with Run({"steps": steps}) as a:
            self.assertIn("too few steps to tell", call("diff", a, a)[1])


class PageAndTerminal(unittest.TestCase):
    def test_report_is_self_contained_and_holds_one_step(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError as missing:
            print(f"SKIPPED: report ({missing})")
            return
        tables = [synthetic.long_rank(rank, 40, 40) for rank in range(2)]
        with Run(*tables, phases=synthetic.PHASES[:-1] + ["</script>"]) as run:
            path = pathlib.Path(run, "report.html")
            self.assertEqual(call("report", run, "-o", path, "--step", 7)[0], 0)
            page = path.read_text()
            self.assertIn("has no finished step 99", call("report", run, "-o", path, "--step", 99)[2])
            for table in tables:   # a run without a GPU to ask
                table["device"]["utilization"] = np.nan
            with Run(*tables) as other:
                self.assertEqual(call("report", other, "-o", path)[0], 0)
                self.assertEqual(path.read_text().count("data:image/svg+xml;base64,"), 3)
        for outside in ("src=\"http", "href=", "url("):
            self.assertNotIn(outside, page)
        self.assertEqual(page.count("data:image/svg+xml;base64,"), 4)
        self.assertEqual(page.count("</script>"), 2)   # a name cannot end the script
        data = json.loads(page.split('id="timeline-data">')[1].split("</script>")[0].replace("<\\/", "</"))
        self.assertEqual([rank["rank"] for rank in data["ranks"]], [0, 1])
        spans = tables[1]["spans"]
        first = min(int(table["steps"]["begin_ns"][7]) for table in tables)
        chosen = spans[(spans["step"] == 7) & (spans["stream"] == COMMUNICATION)]
        got = [s for s in data["ranks"][1]["streams"] if s["name"] == "communication"][0]["spans"]
        for row in chosen[:5]:
            self.assertIn([int(row["begin_ns"]) - first, int(row["end_ns"]) - first, int(row["phase"]),
                           int(row["unit"]), int(row["micro_batch"]), int(row["bytes"])], got)

    def test_watch(self):
        with Run({"steps": [step_row(i, 1000 * i, 1000 * i + 500, loss=4 - i) for i in range(3)]},
                 {"steps": [step_row(i, 1000 * i, 1000 * i + 900, loss=4 - i) for i in range(3)]}) as run:
            status, out, _ = call("watch", run, "--once")
        self.assertEqual(status, 0)
        self.assertIn("step       2", out)
        self.assertIn("loss   2.0000", out)
        self.assertIn("slowest rank 1", out)
        with Run({}) as run:
            self.assertIn("no finished step yet", call("watch", run, "--once")[1])


class ProgramsOwnFile(unittest.TestCase):
    def test_written_by_the_program(self):
        built = sorted(glob.glob(str(HERE.parent / "build/*/tests")))
        found = os.environ.get("BLIPFT_TESTS") or (built[0] if built else None)
        if not found:
            print("SKIPPED: a trace of the program itself (no build/*/tests; run make check)")
            return
        with tempfile.TemporaryDirectory() as run:
            path = f"{run}/trace.rank0000.h5"
            subprocess.run([found, "-ts=trace", "-tc=every field of every record comes back"], check=True,
                           cwd=HERE.parent, env={**os.environ, "BLIPFT_TEST_TRACE": path}, stdout=subprocess.DEVNULL)
            with RankTrace(path) as trace:
                self.assertEqual(trace.units, ["vit.0", "Qformer \u2603"])
                self.assertEqual(trace.phases, ["forward", "gather"])
                for name, dtype in synthetic.dtypes(trace.phases).items():
                    self.assertEqual(trace.file[name].dtype, dtype, name)
                    for field in dtype.names:
                        self.assertIn(field + ".unit", trace.file[name].attrs)
                        self.assertTrue(trace.file[name].attrs[field + ".description"])
                step, = trace.read("steps").tolist()
                self.assertEqual(step, (7, 1, 2.5, 1e-5, 0.75, 100.5, 600.25, 123456789012345, 123456789012999, 42, 50))
                spans = trace.read("spans")
                i = np.arange(10_000)
                np.testing.assert_array_equal(spans["step"], i // 10)
                np.testing.assert_array_equal(spans["micro_batch"], i % 4)
                np.testing.assert_array_equal(spans["unit"], i % 3 - 1)
                np.testing.assert_array_equal(spans["phase"], i % 2)
                np.testing.assert_array_equal(spans["stream"], i % 4)
                np.testing.assert_array_equal(spans["begin_ns"], i * 1000)
                np.testing.assert_array_equal(spans["end_ns"], i * 1000 + 500)
                np.testing.assert_array_equal(spans["bytes"], i << 33)
                np.testing.assert_array_equal(spans["flops"], i * 1e12)
                self.assertEqual(h5py.check_enum_dtype(spans.dtype["phase"]), {"forward": 0, "gather": 1})
                self.assertEqual(trace.read("memory").tolist(), [(7, b"before_forward", b"parameters", 99, 80 << 30)])
                self.assertEqual(trace.read("plan").tolist()[1], (b"logits", b"activations", 5))
                self.assertEqual(trace.read("device").tolist(), [(5, 99.5, 650.0, 1980.0, 2619.0, 61.0, 123, 456)])
                self.assertEqual(trace.read("driver_memory").tolist(), [(-1, 6, 1000, 100, 200, 600, 100, 990)])
                self.assertEqual(trace.read("kernels")["name"].tolist(), [0, 1, 0, 2])
                self.assertEqual([trace.kernel_name(i) for i in range(3)],
                                 ["gemm<float>(int)", "copy device to device", "k" * 510])
                self.assertEqual(h5py.check_enum_dtype(trace.file["kernels"].dtype["kind"]),
                                 {"kernel": 0, "copy": 1, "fill": 2})
                self.assertEqual(trace.attributes()["world_size"], 4.0)
                self.assertEqual(trace.attributes()["creator"], "blipft")
                self.assertEqual(len(trace.attributes()["config"]), 100_000)
            self.assertEqual(call("summary", run)[0], 0)


class Lines(unittest.TextTestResult):
    """A line for each test on standard output, as tools/check.sh counts them; what went wrong is on standard error."""

    def line(self, word, case):
        print(word, ".".join(case.id().split(".")[1:]))

    def addSuccess(self, case):
        super().addSuccess(case)
        self.line("ok", case)

    def addFailure(self, case, error):
        super().addFailure(case, error)
        self.line("FAILED", case)

    def addError(self, case, error):
        super().addError(case, error)
        self.line("FAILED", case)


if __name__ == "__main__":
    unittest.main(testRunner=unittest.TextTestRunner(resultclass=Lines, verbosity=0))
