#!/usr/bin/env python3
"""tools/trace.py and plot_loss.py on runs that were stopped and resumed: their parts are one run."""
import contextlib
import csv
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

from trace_test_tools import COMMUNICATION, COMPUTE, call, main, span, step_row, synthetic

import h5py
import numpy as np

from blipft_trace import parts, plots, watch

SECOND = 10**9
STEPS = 22
PICTURES = True
try:
    import matplotlib  # noqa: F401
except ImportError:
    PICTURES = False


def loss_of(step):
    return 3 * 0.9**step


def rank_tables(first, last, wrong_from=1 << 62, kernels=()):
    """A rank that takes the steps first..last, one a second from the 5th second of its part on.

    From the step `wrong_from` on, losses are such that nobody takes them for those of the run.
    """
    begins = [(5 + i) * SECOND for i in range(last - first + 1)]
    numbers = range(first, last + 1)
    return {
        "steps": [step_row(step, begin, begin + 900_000_000, loss=loss_of(step) + 100 * (step >= wrong_from))
                  for step, begin in zip(numbers, begins)],
        "spans": [row for step, begin in zip(numbers, begins)
                  for row in (span("forward", COMPUTE, begin, begin + 500_000_000, step=step),
                              span("gather", COMMUNICATION, begin, begin + 600_000_000, step=step, size=1000))],
        "memory": [(step, b"after_forward", b"parameters", begin, 100) for step, begin in zip(numbers, begins)],
        "plan": [(b"w", b"parameters", 100)],
        "driver_memory": [(step, 0, 100 + step, 0, 0, 0, 0, 100) for step in (-1, *numbers)],
        "device": [(i * SECOND, 90.0, 600.0, 1700.0, 2600.0, 50.0, 0, 1 << 30) for i in range(last - first + 7)],
        "validation": [(step, begin, loss_of(step) + (step >= wrong_from), 4000, 0.5)
                       for step, begin in zip(numbers, begins) if step % 4 == 3],
        "kernels": [(step, begin, begin + 100, 0, 0, 0, 0, 7, 0) for step, begin in zip(numbers, begins)
                    if step in kernels],
        "kernel_names": [(b"gemm",)] if kernels else [],
    }


class Folder(tempfile.TemporaryDirectory):
    def __enter__(self):
        return pathlib.Path(super().__enter__())


def write_resumed(folder, kernels=()):
    """4 ranks were killed in step 13, after the checkpoint of step 10; 3 ranks before their first step; 2 finished."""
    first = [rank_tables(0, 12, wrong_from=10, kernels=kernels) for _ in range(4)]
    synthetic.write_part(folder, 0, first, strategy="fsdp", total_steps=float(STEPS))
    nothing = {"plan": [(b"w", b"parameters", 100)]}
    synthetic.write_part(folder, 1, [nothing] * 3, 10, 60, strategy="ddp", total_steps=float(STEPS))
    last = [rank_tables(10, STEPS - 1) for _ in range(2)]
    synthetic.write_part(folder, 2, last, 10, 120, strategy="ddp", total_steps=float(STEPS))
    return folder


def write_unstopped(folder):
    synthetic.write_part(folder, 0, [rank_tables(0, STEPS - 1) for _ in range(4)], strategy="fsdp")
    return folder


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class OneRun(unittest.TestCase):
    """All tests that only read the resumed run and the one that was not stopped."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.folder.name)
        for name in ("run", "whole"):
            (cls.out / name).mkdir()
        cls.run_, cls.whole = write_resumed(cls.out / "run"), write_unstopped(cls.out / "whole")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def said(self, *arguments):
        status, out, err = call(*arguments)
        self.assertEqual(status, 0, err)
        return out, err

    def test_csv_has_each_step_once_and_in_order(self):
        _, err = self.said("csv", self.run_, "-o", self.out / "csv")
        self.assertEqual(err, f"note: {self.run_}: 3 parts, 22 steps; 3 were taken again after a resume and count "
                              "once, in the later part\n")
        steps = read_csv(self.out / "csv/steps.csv")
        for rank, (last, number) in enumerate(((STEPS, 2), (STEPS, 2), (10, 0), (10, 0))):
            mine = [row for row in steps if row["rank"] == str(rank)]
            self.assertEqual([int(row["step"]) for row in mine], list(range(last)), rank)
            self.assertEqual([int(row["part"]) for row in mine], [0] * 10 + [number] * (last - 10), rank)
            self.assertEqual([float(row["loss"]) for row in mine], [loss_of(step) for step in range(last)], rank)
            # The part's times count from its start, which was 120 s after the run's.
            wanted = [(5 + i) * SECOND for i in range(10)] + [(125 + i) * SECOND for i in range(last - 10)]
            self.assertEqual([int(row["begin_ns"]) for row in mine], wanted, rank)
        self.assertEqual([row["rank"] for row in steps], sorted(row["rank"] for row in steps))
        spans = read_csv(self.out / "csv/spans.csv")
        self.assertEqual([int(row["step"]) for row in spans if row["rank"] == "1"],
                         [step for step in range(STEPS) for _ in range(2)])
        self.assertEqual(int([row for row in spans if row["rank"] == "1"][-1]["end_ns"]), 136_600_000_000)
        for table in ("memory", "validation"):
            numbers = [int(row["step"]) for row in read_csv(self.out / f"csv/{table}.csv") if row["rank"] == "0"]
            self.assertEqual(numbers, sorted(set(numbers)), table)
            self.assertIn(19, numbers, table)
        driver = [row for row in read_csv(self.out / "csv/driver_memory.csv") if row["rank"] == "0"]
        self.assertEqual([int(row["step"]) for row in driver], [-1, *range(10), -1, *range(10, STEPS)])
        plan = [(row["rank"], row["part"]) for row in read_csv(self.out / "csv/plan.csv")]
        self.assertEqual(plan, [("0", "0"), ("0", "1"), ("0", "2"), ("1", "0"), ("1", "1"), ("1", "2"), ("2", "0"),
                                ("2", "1"), ("3", "0")])

    def test_csv_of_some_steps_and_of_a_part(self):
        self.said("csv", self.run_, "-o", self.out / "some", "--table", "steps", "--steps", "8:11")
        rows = [(int(row["rank"]), int(row["part"]), int(row["step"])) for row in read_csv(self.out / "some/steps.csv")]
        self.assertEqual(rows, [(rank, part, step) for rank in range(4)
                                for part, steps in ((0, (8, 9)), (2, (10, 11))) for step in steps
                                if part == 0 or rank < 2])
        _, err = self.said("csv", self.run_, "-o", self.out / "part", "--table", "steps", "--part", 0)
        rows = [row for row in read_csv(self.out / "part/steps.csv") if row["rank"] == "3"]
        self.assertEqual([int(row["step"]) for row in rows], list(range(13)))   # as it was, with what was taken again
        self.assertEqual(float(rows[12]["loss"]), loss_of(12) + 100)
        self.assertEqual(err, "")

    def test_curves_are_those_of_the_run_that_was_not_stopped(self):
        run, whole = parts.open_run(self.run_), parts.open_run(self.whole)
        for got, wanted in zip(plots.loss_by_step(run), plots.loss_by_step(whole), strict=True):
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(plots.loss_by_step(run)[0], np.arange(STEPS))
        np.testing.assert_array_equal(run.curve("loss")[0], [loss_of(step) for step in range(STEPS)])

    @unittest.skipUnless(PICTURES, "no matplotlib")
    def test_pictures(self):
        import plot_loss
        drawn = []
        figure_of = plots.draw_loss

        def draw(run, figure):
            figure_of(run, figure)
            drawn.append({line.get_label(): line.get_xdata() for line in figure.axes[0].get_lines()})

        with mock.patch.object(plots, "draw_loss", draw):
            _, err = self.said("loss", self.run_, "-o", self.out / "loss.png")
        self.assertIn("3 parts, 22 steps", err)
        np.testing.assert_array_equal(drawn[0]["loss"], 1 + np.arange(STEPS))   # as the log counts
        np.testing.assert_array_equal(drawn[0]["validation loss"], [4, 8, 12, 16, 20])
        self.assertEqual(set(drawn[0]["resumed"]), {10.5})
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["plot_loss.py", str(self.run_), "--out", str(self.out / "plot.png")]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            plot_loss.main()
        self.assertIn(f"run: 22 steps, loss 3.0000 -> {loss_of(21):.4f}\n", out.getvalue())
        for place in (self.out / "plot.nothing", self.out / "nowhere" / "plot.png"):
            with mock.patch.object(sys, "argv", ["plot_loss.py", str(self.run_), "--out", str(place)]), \
                    contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaisesRegex(SystemExit, f"plot_loss: {place}: .*; --out names another file"):
                    plot_loss.main()

    def test_summary_is_of_the_last_part(self):
        text, err = self.said("summary", self.run_)
        self.assertEqual(err, "")
        self.assertTrue(text.startswith(
            "the run has 3 parts, 22 steps; 3 were taken again after a resume and count once, in the later part\n"
            "  part 0: steps 0 to 12 on 4 ranks, fsdp, 5.0 to 17.9 s; the last 3 were taken again\n"
            "  part 1: from step 10 on 3 ranks, ddp, started at 60.0 s: no finished step\n"
            "  part 2: steps 10 to 21 on 2 ranks, ddp, 125.0 to 136.9 s, 107.1 s after the step before\n"
            "below: part 2 alone, but for losses (--part N shows another)\n\n       rank      steps  samples/s  median ms"), text)
        self.assertIn("\n\nrank 0: 12 steps\n", text)
        self.assertIn("\n          1         12 ", text)
        self.assertNotIn("rank 2", text)
        # The validation of step 11 that part 0 made is not the run's.
        self.assertIn("validation: 5 times, 4000 tokens, 500.000 ms each in the median; "
                      f"loss: first {loss_of(3):.4f} at step 3, least {loss_of(19):.4f} at step 19", text)
        rank = json.loads(self.said("summary", self.run_, "--json")[0])[1]
        self.assertEqual((rank["part"], rank["steps"], rank["duration_ns"]), (2, 12, 12 * 900_000_000))
        self.assertEqual([(part["steps"], part["taken_again"]) for part in rank["run_parts"]],
                         [(10, 3), (0, 0), (12, 0)])
        self.assertNotIn("part", self.said("summary", self.whole)[0].splitlines()[0])

    def test_another_part_is_shown_on_demand(self):
        text = self.said("summary", self.run_, "--part", 0)[0]
        self.assertIn("\n\nrank 0: 13 steps\n", text)
        self.assertIn("\n          3         13 ", text)
        self.assertIn("has no part 7; it has 0, 1, 2", call("summary", self.run_, "--part", 7)[2])
        self.assertIn("trace.part0001.rank0000.h5: has no finished step", call("summary", self.run_, "--part", 1)[2])

    def test_diff_says_that_losses_are_equal(self):
        text = self.said("diff", self.run_, self.whole)[0]
        self.assertIn("A has 3 parts, 22 steps; 3 were taken again after a resume and count once, in the later part; "
                      "times and memory are of part 2\n", text)
        self.assertIn("loss                    equal in all 22 steps that both took", text)
        self.assertIn("A: 9 steps, B: 19 steps", text)   # without three of warm-up
        # With less left than that, times are of a part that has enough.
        self.assertIn("times and memory are of part 0\n", self.said("diff", self.run_, self.whole, "--warmup", 12)[0])

    def test_diff_tells_losses_that_differ(self):
        answer = json.loads(self.said("diff", self.run_, self.run_ / "trace.rank0000.h5", "--json")[0])
        self.assertEqual(answer["loss"]["first_step"], 10)
        self.assertEqual((answer["loss"]["steps"], answer["loss"]["different"]), (13, 3))
        self.assertAlmostEqual(answer["loss"]["largest"], 100)
        text = self.said("diff", self.run_, self.run_ / "trace.rank0000.h5")[0]
        self.assertIn("loss                    differs in 3 of 13 steps that both took, first in step 10", text)
        text = self.said("diff", self.run_ / "trace.part0002.rank0000.h5", self.run_ / "trace.rank0000.h5")[0]
        self.assertIn("differs in 3 of 3 steps", text)

    def test_perfetto_has_the_parts_on_one_axis(self):
        path = self.out / "trace.json"

        def steps():
            events = json.loads(path.read_text())["traceEvents"]
            return sorted((e["pid"], int(e["name"][5:]), e["ts"]) for e in events
                          if e["ph"] == "X" and e["name"].startswith("step "))

        said, _ = self.said("perfetto", self.run_, "-o", path)
        self.assertIn("events of steps 10 to 21, part 2 of the run (--steps A:B", said)
        self.assertEqual(steps(), [(rank, step, (115 + step) * 1e6) for rank in range(2) for step in range(10, 22)])
        said, _ = self.said("perfetto", self.run_, "-o", path, "--steps", "9:10")
        self.assertIn("steps 9 to 10, part 0, 1, 2 of the run;", said)
        self.assertEqual(steps(), [(0, 9, 14e6), (0, 10, 125e6), (1, 9, 14e6), (1, 10, 125e6), (2, 9, 14e6),
                                   (3, 9, 14e6)])
        self.said("perfetto", self.run_, "-o", path, "--part", 0, "--steps", "12")
        self.assertEqual(steps(), [(rank, 12, 17e6) for rank in range(4)])

    @unittest.skipUnless(PICTURES, "no matplotlib")
    def test_report(self):
        path = self.out / "report.html"
        self.said("report", self.run_, "-o", path)
        page = path.read_text()
        self.assertTrue('<pre id="parts">the run has 3 parts, 22 steps' in page)   # too long to be printed
        self.assertTrue(f"loss 3 at first, {loss_of(21):.4g} at last" in page)
        data = json.loads(page.split('id="timeline-data">')[1].split("</script>")[0].replace("<\\/", "</"))
        self.assertEqual(len(data["ranks"]), 2)
        self.assertGreaterEqual(data["step"], 10)
        self.said("report", self.run_, "-o", path, "--part", 0, "--step", 12)
        page = path.read_text()
        self.assertTrue("4 ranks" in page and 'id="parts"' not in page)

    def test_watch_follows_the_newest_part(self):
        out, _ = self.said("watch", self.run_)   # it has taken all steps: comes back by itself
        self.assertEqual(len(out.splitlines()), 2)
        self.assertTrue(out.startswith("part 2 of the run, from step 10 on, 2 rank(s)\nstep      21 "), out)


class Changing(unittest.TestCase):
    """Runs in which something is added, cut or missing."""

    def test_watch_goes_over_to_the_next_part(self):
        with Folder() as run:
            synthetic.write_part(run, 0, [rank_tables(0, 12)] * 2, total_steps=22.0)
            resumed = [lambda: synthetic.write_part(run, 1, [{}], 10, 60, total_steps=22.0),
                       lambda: synthetic.write_part(run, 2, [rank_tables(10, 15)], 10, 90, total_steps=22.0),
                       lambda: synthetic.write_part(run, 3, [{}], 22, 120, total_steps=22.0)]   # nothing was left
            out = io.StringIO()
            with mock.patch.object(watch.time, "sleep", lambda _: resumed.pop(0)()), \
                    contextlib.redirect_stdout(out):
                watch.watch(run, 1, False)
        lines = out.getvalue().splitlines()
        self.assertEqual([line[:44] for line in lines],
                         ["step      12  epoch   0  loss   0.8473  lr 1", "part 1 of the run, from step 10 on, 1 rank(s",
                          f"{run}: no finished step yet"[:44], "part 2 of the run, from step 10 on, 1 rank(s",
                          "step      15  epoch   0  loss   0.6177  lr 1",
                          "part 3 of the run, from step 22 on, 1 rank(s", f"{run}: no finished step yet"[:44]])

    def test_a_run_may_go_further_back_than_to_its_last_part(self):
        with Folder() as run:
            synthetic.write_part(run, 0, [rank_tables(0, 12)])
            synthetic.write_part(run, 1, [rank_tables(10, 15)], 10, 60)
            synthetic.write_part(run, 2, [rank_tables(5, 8)] * 2, 5, 120)
            got = parts.open_run(run)
            np.testing.assert_array_equal(got.curve("step")[0], np.arange(9))
            self.assertEqual([(part["steps"], part["taken_again"]) for part in got.about()],
                             [(5, 8), (0, 6), (4, 0)])

    def test_kernels_are_of_the_newest_part_that_has_some(self):
        with Folder() as run:
            write_resumed(run, kernels=(3, 11))
            text = call("kernels", run)[1]
            self.assertTrue(text.startswith("part 0 of a run of 3 parts (--part N shows another)\n8 recorded"))
            self.assertIn("no step's kernels were recorded", call("kernels", run, "--part", 2)[2])
            call("csv", run, "--table", "kernels")
            rows = read_csv(run / "csv/kernels.csv")
        self.assertEqual([(row["rank"], row["step"], row["name"]) for row in rows],
                         [(str(rank), "3", "gemm") for rank in range(4)])   # step 11 was taken again

    def test_files_that_cannot_be_read_are_left_out(self):
        with Folder() as run:
            write_resumed(run)
            for rank in range(3):   # killed before anything was written
                synthetic.path_of(run, 1, rank).write_bytes(b"")
            cut = synthetic.path_of(run, 0, 2)
            cut.write_bytes(cut.read_bytes()[:3000])
            status, out, err = call("summary", run)
            self.assertEqual(status, 0)
            self.assertIn("the run has 2 parts, 22 steps; 3 were", out)
            self.assertEqual(len(err.splitlines()), 1)
            self.assertIn("part 1 of", err)
            self.assertIn("trace.part0001.rank0000.h5: cannot be read", err)
            status, _, err = call("csv", run, "--table", "steps")
            self.assertIn("1 of 4 files", err)
            self.assertIn("trace.rank0002.h5: ", err)
            rows = read_csv(run / "csv/steps.csv")
            self.assertEqual({row["rank"] for row in rows}, {"0", "1", "3"})
            self.assertEqual([int(row["step"]) for row in rows if row["rank"] == "0"], list(range(STEPS)))
            for path in run.glob("trace.*"):
                path.unlink()   # HDF5 may have it open still
                path.write_bytes(b"nonsense")
            self.assertEqual(call("summary", run)[0], 1)
            self.assertIn("trace.rank0000.h5: cannot be read", call("summary", run)[2])

    def test_a_cut_file_is_left_out_wherever_it_is_cut(self):
        with Folder() as run:
            write_resumed(run)
            path = synthetic.path_of(run, 0, 0)
            closed = path.read_bytes()
            path.unlink()
            with h5py.File(path, "w", libver="latest") as file:   # as the program writes it: rows behind all else
                file.attrs.update(part=0.0, first_step=0.0, start_unix_ns=float(synthetic.START_NS))
                types = synthetic.create(file, ["u0", "u1"], synthetic.PHASES, "1.8")
                file.swmr_mode = True
                for table, rows in rank_tables(0, 12, wrong_from=10).items():
                    synthetic.append(file, table, np.array(rows, types[table]))
                file.flush()
                killed = path.read_bytes()   # marked as being written
            for whole in (closed, killed):
                for share in (2, 10, 30, 50, 80, 100):
                    path.unlink()
                    path.write_bytes(whole[:len(whole) * share // 100])
                    got = parts.open_run(run)
                    np.testing.assert_array_equal(got.curve("step")[0], np.arange(STEPS), str(share))
                    if share <= 50 or share == 100:   # the last bytes may be of tables that tell nothing of steps
                        self.assertEqual(got.parts[0].first.rank, 0 if share == 100 else 1, str(share))

    def test_other_versions_in_one_run(self):
        """A program that was updated between two parts: the older one knew nothing of validations and text tokens."""
        with Folder() as run:
            synthetic.write_part(run, 0, [rank_tables(0, 4)])
            synthetic.write_part(run, 1, [rank_tables(5, 9)], 5, 60)
            with h5py.File(run / "trace.rank0000.h5", "r+") as file:
                rows = file["steps"][:]
                del file["steps"], file["validation"]
                names = [name for name in rows.dtype.names if name != "text_tokens"]
                old = np.zeros(len(rows), [(name, rows.dtype[name]) for name in names])
                for name in names:
                    old[name] = rows[name]
                file.create_dataset("steps", data=old)
            for command in (("summary",), ("csv",), ("watch", "--once")):
                self.assertEqual(call(command[0], run, *command[1:])[0], 0, command)
            rows = read_csv(run / "csv/steps.csv")
            self.assertEqual([row.get("text_tokens") for row in rows], [""] * 5 + ["50"] * 5)
            self.assertEqual([row["step"] for row in read_csv(run / "csv/validation.csv")], ["7"])


if __name__ == "__main__":
    main()
