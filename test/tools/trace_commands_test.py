#!/usr/bin/env python3
"""The commands of tools/trace.py on hand-made traces, and on a file of the program itself.

BLIPFT_TESTS names the C++ test binary that writes such a file (default: the first of build/*/tests).
"""
import csv
import glob
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

from trace_test_tools import COMMUNICATION, COMPUTE, ROOT, Run, call, main, span, step_row, synthetic

import h5py
import numpy as np

from blipft_trace import export, parts, watch
from blipft_trace.files import RankTrace
from blipft_trace.kernels import short_name

KERNEL, A_COPY = 0, 1
NAMES = [(b"void gemm<float, 128>(float const*, int)",), (b"copy device to device",)]


def kernel(step, begin, end, name=0, kind=KERNEL, size=0, stream=7, node=0):
    return (step, begin, end, size, node, name, kind, stream, 0)


X, W, DY = range(3)
MATRICES = ["layers.0.q_proj, k_proj", "layers.0.fc", "layers.1.fc"]


class Fp8(unittest.TestCase):
    """Rows of /fp8: (step, matrix, factor, amax, elements, underflows, not_finite)."""

    def run_of(self, *ranks, **more):
        steps = [step_row(i, 1000 * i, 1000 * i + 1000) for i in range(3)]
        return Run(*({"steps": steps, "fp8": rows} for rows in ranks), version="1.13", fp8_matrices=MATRICES, **more)

    def test_summary_names_the_layers_that_suffer(self):
        rank0 = [(0, 0, X, 8.0, 100, 1, 0), (0, 1, X, 4.0, 100, 30, 0), (0, 1, W, 1.0, 50, 0, 0), (0, 2, DY, 1e-3, 100, 5, 0),
                 (2, 0, X, 9.0, 100, 0, 0), (2, 1, X, 4.0, 100, 50, 0), (2, 1, W, 2.0, 50, 0, 0), (2, 2, DY, 2e-3, 100, 6, 0)]
        rank1 = [(0, 0, X, 8.0, 100, 2, 0), (0, 1, X, 16.0, 100, 40, 0), (0, 1, W, 1.0, 50, 0, 0), (0, 2, DY, 1e-3, 100, 9, 0)]
        with self.run_of(rank0, rank1) as run:
            found = json.loads(call("summary", run, "--json")[1])[0]["fp8"]
            text = call("summary", run)[1]
            report = call("report", run, "-o", f"{run}/r.html")
            self.assertEqual(report[0], 0, report)
            page = pathlib.Path(f"{run}/r.html").read_text(encoding="utf-8")
        self.assertEqual((found["steps"], found["matrices"], found["counted"], found["not_finite"]), (2, 3, True, None))
        x, w, dy = (found["underflow"][name] for name in ("x", "w", "dy"))
        self.assertEqual([(one["matrix"], one["share"], one["amax"]) for one in x["most"]],
                         [("layers.0.fc", 120 / 300, 16.0), ("layers.0.q_proj, k_proj", 3 / 300, 9.0)])
        self.assertEqual((x["share"], w["share"], w["most"]), (123 / 600, 0.0, []))
        self.assertEqual((dy["share"], dy["most"][0]["matrix"]), (20 / 300, "layers.1.fc"))
        for line in ("products in fp8: 3 matrices, 2 step(s) recorded; elements that became zero as codes: x 20.5 %, w 0 %, dy 6.667 %",
                     "most of x          40 %  layers.0.fc, whose largest is 16", "most of dy"):
            self.assertIn(line, text)
            self.assertIn(line, page)
        self.assertNotIn("NOT FINITE", text)

    def test_summary_names_the_first_factor_that_is_not_finite(self):
        inf, nan = float("inf"), float("nan")
        # Backward comes from the last layer to the first; rank 1's forward was before both.
        backward = [(1, 0, DY, nan, 0, 0, 0), (1, 2, DY, inf, 0, 0, 0), (2, 0, X, nan, 0, 0, 0)]
        with self.run_of(backward, []) as run:
            alone = json.loads(call("summary", run, "--json")[1])[0]["fp8"]
        with self.run_of(backward, [(1, 1, X, inf, 0, 0, 0), (1, 1, DY, nan, 0, 0, 0)]) as run:
            both = json.loads(call("summary", run, "--json")[1])[0]["fp8"]
            text = call("summary", run)[1]
        self.assertEqual(alone["not_finite"], {"factors": 3, "first": {"step": 1, "factor": "dy", "matrix": "layers.1.fc", "rank": 0}})
        self.assertEqual(both["not_finite"], {"factors": 5, "first": {"step": 1, "factor": "x", "matrix": "layers.0.fc", "rank": 1}})
        self.assertFalse(both["counted"])
        self.assertIn("NOT FINITE: 5 factor(s), first x of layers.0.fc in step 1 on rank 1", text)
        self.assertNotIn("became zero", text)

    def test_csv_has_names(self):
        with self.run_of([(0, 0, X, 8.0, 100, 1, 0), (0, 1, DY, 4.0, 100, 30, 2)]) as run:
            self.assertEqual(call("csv", run, "-o", f"{run}/csv")[0], 0)
            rows = list(csv.DictReader(open(f"{run}/csv/fp8.csv", encoding="utf-8")))
        self.assertEqual([(row["matrix"], row["factor"], row["underflows"]) for row in rows],
                         [("layers.0.q_proj, k_proj", "x", "1"), ("layers.0.fc", "dy", "30")])


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

    def test_a_step_may_lie_in_two_pieces(self):
        whole = RankTrace.chunks
        with Run(self.tables(), self.tables()) as run:
            answers = [json.loads(call("kernels", run, "--json")[1])]
            for size in (1, 2):
                with mock.patch.object(RankTrace, "chunks", lambda trace, table, rows=0: whole(trace, table, size)):
                    answers.append(json.loads(call("kernels", run, "--json")[1]))
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])

    def test_a_run_without_kernels(self):
        for version in ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13"):  # 1.0 has no such tables
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
        with Run({"steps": [step_row(0, 0, 10)]}, version="1.99") as run:
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

    def test_steps_of_csv_and_perfetto(self):
        steps = [step_row(i, 1000 * i, 1000 * i + 900) for i in range(5)]
        spans = [span("forward", COMPUTE, 1000 * i, 1000 * i + 100 + i, step=i) for i in range(5)]
        with Run({"steps": steps, "spans": spans}, {"steps": steps[:4], "spans": spans[:4]}) as run:
            self.assertEqual(call("csv", run, "--table", "spans", "--steps", "1:2")[0], 0)
            self.assertEqual([path.name for path in pathlib.Path(run, "csv").iterdir()], ["spans.csv"])
            with open(f"{run}/csv/spans.csv", newline="") as file:
                self.assertEqual([(row["rank"], row["step"]) for row in csv.DictReader(file)],
                                 [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")])
            self.assertIn("has no table /nothing; it has steps, spans",
                          call("csv", run, "--table", "nothing")[2])
            old, export.EVENTS = export.EVENTS, 4   # two steps of two ranks
            try:
                path = f"{run}/out.json"
                self.assertIn("steps 2 to 3", call("perfetto", run, "-o", path)[1])   # step 4 is not finished on rank 1
                with open(path) as file:
                    events = json.load(file)["traceEvents"]
                self.assertIn("events of steps from 4;", call("perfetto", run, "-o", path, "--steps", "4:")[1])
            finally:
                export.EVENTS = old
        work = [(e["pid"], e["args"]["step"]) for e in events if e["ph"] == "X" and e["tid"] < 4]
        self.assertEqual(work, [(0, 2), (0, 3), (1, 2), (1, 3)])

    def test_summary_of_one_rank(self):
        with Run(*[{"steps": [step_row(0, 0, 10 + i)]} for i in range(10)]) as run:
            many, one = call("summary", run)[1], call("summary", run, "--rank", 7)[1]
            self.assertIn("has no rank 12", call("summary", run, "--rank", 12)[2])
        self.assertIn("rank 0: 1 steps", many)
        self.assertNotIn("rank 9: 1 steps", many)
        self.assertIn("rank 9 differs: step ", many)   # with rank 0 the furthest from the median
        self.assertNotIn("rank 7: 1 steps", many)
        self.assertIn("          7          1", many)   # but the table has it
        self.assertIn("rank 7: 1 steps", one)
        self.assertNotIn("rank 9: 1 steps", one)

    def test_a_rank_without_a_file_is_told(self):
        rows = {"steps": [step_row(i, 10 * i, 10 * i + 10) for i in range(3)]}
        with Run(rows, rows, attributes=[{"world_size": 2.0}] * 2) as run:
            self.assertNotIn("no file", call("summary", run)[2])
            (pathlib.Path(run) / "trace.rank0000.h5").unlink()
            status, out, err = call("summary", run)
        self.assertEqual(status, 0, err)
        self.assertIn("1 of 2 ranks have no file there", err)

    def test_loss_picture(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError as missing:
            self.skipTest(str(missing))
        with Run({"steps": [step_row(i, i, i + 1, loss=3 - i) for i in range(3)]}) as run:
            path = pathlib.Path(run, "loss.png")
            self.assertEqual(call("loss", run, "-o", path), (0, f"{path}\n", ""))
            self.assertEqual(path.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")


class Validation(unittest.TestCase):
    def run_with(self, losses):
        rows = [(9 * (i + 1), 10 * i, loss, 4000, 0.5) for i, loss in enumerate(losses)]
        return Run({"steps": [step_row(i, 1000 * i, 1000 * i + 100) for i in range(60)], "validation": rows})

    def test_summary_and_diff_tell_of_it(self):
        with self.run_with([2.5, 1.25, float("nan"), 1.75]) as a, self.run_with([2.5, 1.5]) as b:
            status, text, _ = call("summary", a)
            found = json.loads(call("summary", a, "--json")[1])[0]["validation"]
            difference = call("diff", a, b)[1]
            self.assertEqual(call("loss", a, "-o", f"{a}/loss.png")[0], 0)
        self.assertEqual(status, 0)
        self.assertIn("validation: 4 times, 4000 tokens, 500.000 ms each in the median; loss: first 2.5000 at step 9, "
                      "least 1.2500 at step 18, last 1.7500 at step 36", text)
        self.assertEqual(found["least"], {"step": 18, "loss": 1.25})
        lines = {line[:24].strip(): line[24:].split() for line in difference.splitlines()}
        self.assertEqual(lines["validation loss, least"], ["1.2500", "1.5000", "+0.2500"])
        self.assertEqual(lines["validation loss, last"], ["1.7500", "1.5000", "-0.2500"])

    def test_runs_without_it(self):
        with self.run_with([]) as a, Run({"steps": [step_row(0, 0, 10)]}, version="1.6") as old:
            for run in (a, old):
                self.assertNotIn("validation", call("summary", run)[1])
            self.assertNotIn("validation", call("diff", a, a)[1])


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
            self.skipTest(str(missing))
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
                self.assertEqual(path.read_text().count("data:image/svg+xml;base64,"), 5)
        for outside in ("src=\"http", "href=", "url("):
            self.assertNotIn(outside, page)
        self.assertEqual(page.count("data:image/svg+xml;base64,"), 6)
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

    def test_watch_ends_with_the_run(self):
        with Run(*({"steps": [step_row(i, 1000 * i, 1000 * i + 500) for i in range(3)]} for _ in range(2))) as run:
            for path in pathlib.Path(run).glob("trace.rank*.h5"):
                with h5py.File(path, "r+") as file:
                    file.attrs["total_steps"] = 3.0
            status, out, _ = call("watch", run)   # comes back by itself
            self.assertEqual((status, out.count("step ")), (0, 2), out)   # of one line: the step and its time
            traces = parts.open_run(run).parts[0].traces
            self.assertTrue(watch.finished(traces))
            for trace in traces:
                trace.close()
            with h5py.File(sorted(pathlib.Path(run).glob("trace.rank*.h5"))[1], "r+") as file:
                file.attrs["total_steps"] = 4.0   # one rank has not finished
            traces = parts.open_run(run).parts[0].traces
            self.assertFalse(watch.finished(traces))
            for trace in traces:
                trace.close()


class ProgramsOwnFile(unittest.TestCase):
    def test_written_by_the_program(self):
        built = sorted(glob.glob(str(ROOT / "build/*/tests")))
        found = os.environ.get("BLIPFT_TESTS") or (built[0] if built else None)
        if not found:
            self.skipTest("no build/*/tests; run make check")
        with tempfile.TemporaryDirectory() as run:
            path = f"{run}/trace.rank0000.h5"
            subprocess.run([found, "-ts=trace", "-tc=every field of every record comes back"], check=True,
                           cwd=ROOT, env={**os.environ, "BLIPFT_TEST_TRACE": path}, stdout=subprocess.DEVNULL)
            with RankTrace(path) as trace:
                self.assertEqual(trace.units, ["vit.0", "Qformer \u2603"])
                self.assertEqual(trace.phases, ["forward", "gather"])
                for name, dtype in synthetic.dtypes(trace.phases, minor=14).items():
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
                self.assertEqual(trace.read("device").tolist(), [(5, 99.5, 650.0, 1980.0, 2619.0, 61.0, 123, 456, 7.5, 2.5)])
                self.assertEqual(trace.read("driver_memory").tolist(), [(-1, 6, 1000, 100, 200, 600, 100, 990)])
                self.assertEqual(trace.read("kernels")["name"].tolist(), [0, 1, 0, 2])
                self.assertEqual([trace.kernel_name(i) for i in range(3)],
                                 ["gemm<float>(int)", "copy device to device", "k" * 510])
                self.assertEqual(h5py.check_enum_dtype(trace.file["kernels"].dtype["kind"]),
                                 {"kernel": 0, "copy": 1, "fill": 2})
                self.assertEqual(trace.fp8_matrices, ["layers.0.q, k", "layers.0.fc"])
                self.assertEqual(trace.read("fp8").tolist(), [(7, 1, 2, 0.125, 5 << 33, 17, 3), (7, 0, 1, float("inf"), 64, 0, 1)])
                self.assertEqual(h5py.check_enum_dtype(trace.file["fp8"].dtype["factor"]), {"x": 0, "w": 1, "dy": 2})
                self.assertEqual(trace.attributes()["world_size"], 4.0)
                self.assertEqual(trace.attributes()["creator"], "blipft")
                self.assertEqual(len(trace.attributes()["config"]), 100_000)
            self.assertEqual(call("summary", run)[0], 0)


if __name__ == "__main__":
    main()
