#!/usr/bin/env python3
"""tools/trace.py on run folders: compare, diff's settings, loss of several runs, and tensorboard.

If the tensorboardX package is missing, a stand-in with its two calls is used.
"""
import csv
import io
import json
import pathlib
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

from trace_test_tools import Run, call, main, step_row

from blipft_trace import metrics, settings, tensorboard

CONFIG = "model:\n  path: /models/a\n\ntrain:\n  lr: {lr}\n  seed: 0\n\noutput:\n  path: {path}\n"
ID = "0123456789abcdef" * 2


def text_of(rows):
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def step(i, loss, seconds=0.5):
    return {"event": "step", "step": i, "epoch": 0, "loss": loss, "lr": 1e-3, "grad_norm": 1.0,
            "samples_per_second": 8 / seconds, "tokens_per_second": 100 / seconds, "seconds": seconds, "tokens": 100,
            "time": 1000.0 + i}


FIRST = {"event": "run", "made_by": "blipft", "run_id": ID, "format": 1, "time": 999.0}
START = {"event": "start", "step": 0, "part": 0, "ranks": 2, "strategy": "ddp", "samples_per_step": 8, "total_steps": 10}
END = {"event": "end", "step": 9, "reason": "done", "train_seconds": 5.0, "time": 1010.0}


def folder_of(directory, name, lr, rows):
    """A run folder without a trace."""
    folder = pathlib.Path(directory) / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"# blipft config.yaml of run {ID}\n" + CONFIG.format(lr=lr, path=folder))
    (folder / "metrics.jsonl").write_text(text_of(rows))
    return folder


class Compare(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        validation = {"event": "validation", "step": 5, "validation_loss": 2.5, "validation_tokens": 9, "seconds": 0.1}
        worse = {**validation, "step": 9, "validation_loss": 2.75}
        self.a = folder_of(self.directory.name, "x/run", "0.001",
                           [FIRST, START, *(step(i, 10.0 - i) for i in range(6)), validation,
                            *(step(i, 10.0 - i) for i in range(6, 10)), worse, END])
        self.b = folder_of(self.directory.name, "y/run", "0.002",
                           [FIRST, START, *(step(i, None if i == 3 else 4.0, 0.25) for i in range(8))])

    def test_settings_and_results(self):
        answer = json.loads(call("compare", self.a, self.b, "--json")[1])
        self.assertEqual(answer["settings"], {"train.lr": ["0.001", "0.002"]})
        self.assertEqual(answer["runs"], ["x/run", "y/run"])
        results = answer["results"]
        self.assertEqual(results["steps"], [10, 8])
        self.assertAlmostEqual(results["loss at the end"][0], 5.5)   # of all ten
        self.assertEqual(results["loss at the end"][1], 4.0)         # null is no loss
        self.assertEqual(results["best validation loss"], [2.5, None])
        self.assertEqual(results["last validation loss"], [2.75, None])
        self.assertEqual(results["samples/s"], [16, 32])
        self.assertEqual(results["tokens/s"], [200, 400])
        self.assertEqual(results["step, ms"], [500, 250])
        self.assertEqual(results["training, s"], [5, 2])
        self.assertEqual(results["ended"], ["done", "no"])
        self.assertEqual(results["memory, GiB"], [None, None])

    def test_text_and_csv(self):
        text = call("compare", self.a, self.b)[1]
        self.assertRegex(text, r"(?m)^ +x/run +y/run$")
        self.assertRegex(text, r"(?m)^train\.lr +0\.001 +0\.002$")
        self.assertRegex(text, r"(?m)^loss at the end +5\.5000 +4\.0000$")
        self.assertRegex(text, r"(?m)^best validation loss +2\.5000 +-$")
        self.assertNotIn("memory", text)
        rows = list(csv.DictReader(io.StringIO(call("compare", self.a, self.b, self.b, "--csv")[1])))
        self.assertEqual([row["run"] for row in rows], [str(self.a), str(self.b), str(self.b)])
        self.assertEqual((rows[0]["train.lr"], rows[1]["tokens/s"], rows[1]["best validation loss"]), ("0.001", "400.0", ""))
        self.assertIn("all settings are the same", call("compare", self.b, self.b)[1])

    def test_more_runs_than_the_terminal_is_wide(self):
        with mock.patch.dict("os.environ", {"COLUMNS": "60"}):
            text = call("compare", *[self.a, self.b] * 4)[1]
        self.assertLessEqual(max(map(len, text.splitlines())), 60)
        self.assertEqual(text.count("train.lr"), text.count("loss at the end"))
        self.assertGreater(text.count("train.lr"), 1)

    def test_runs_with_traces_alone(self):
        def tables(loss):
            return {"steps": [step_row(i, 10**9 * i, 10**9 * i + 5 * 10**8, loss) for i in range(10)]}
        about = {"world_size": 2.0, "samples_per_step": 5.0, "total_steps": 10.0, "planned_total_bytes": 2.0**31,
                 "config": CONFIG.format(lr="0.001", path="/a")}
        more = {**about, "config": CONFIG.format(lr="0.002", path="/b"), "total_steps": 11.0}
        with Run(*[tables(3.0)] * 2, attributes=[about] * 2) as a, Run(*[tables(2.0)] * 2, attributes=[more] * 2) as b:
            answer = json.loads(call("compare", a, b, "--json")[1])
            mixed = json.loads(call("compare", a, self.a, "--json")[1])
            told = json.loads(call("diff", a, b, "--json")[1])["settings"]
            text = call("diff", a, b)[1]
            same = call("diff", a, a)[1]
        self.assertEqual(answer["settings"], {"train.lr": ["0.001", "0.002"]})   # the path is no setting of the run
        self.assertEqual(answer["results"]["loss at the end"], [3, 2])
        self.assertEqual(answer["results"]["samples/s"], [20, 20])               # of two ranks
        self.assertEqual(answer["results"]["step, ms"], [500, 500])
        self.assertEqual(answer["results"]["memory, GiB"], [2, 2])
        self.assertEqual(answer["results"]["ended"], ["done", "no"])
        self.assertEqual(mixed["results"]["steps"], [10, 10])
        self.assertEqual(told, {"train.lr": {"a": "0.001", "b": "0.002"}})
        self.assertRegex(text, r"settings that differ \(A, B\):\n  train\.lr  0\.001, 0\.002\n")
        self.assertIn("all settings are the same", same)

    def test_refusals(self):
        with tempfile.TemporaryDirectory() as empty:
            status, _, error = call("compare", self.a, empty)
            self.assertEqual((status, len(error.splitlines())), (1, 1), error)
            self.assertIn("holds no trace.rank*.h5", error)
            (pathlib.Path(empty) / "metrics.jsonl").write_text('{"loss": 1}\n')   # another program's
            self.assertEqual(call("compare", empty)[0], 1)
            self.assertIsNone(metrics.path_of(empty))

    def test_a_text_with_a_colon_is_one_value(self):
        self.assertEqual(settings.parse('data:\n  path: "C: x"\n# note: no\n  prompt_style: alpaca\n'),
                         {"data.path": '"C: x"', "data.prompt_style": "alpaca"})


class Losses(unittest.TestCase):
    def test_several_runs_in_one_picture(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError as missing:
            self.skipTest(str(missing))
        tables = {"steps": [step_row(i, 10 * i, 10 * i + 10, 5.0 - 0.1 * i) for i in range(60)],
                  "validation": [(59, 600, 3.0, 10, 0.1)]}
        with Run(tables) as a, Run(tables) as b:
            status, out, error = call("loss", a, b, "-o", f"{a}/both.svg")
            self.assertEqual((status, error), (0, ""))
            picture = pathlib.Path(a, "both.svg").read_text()
        for run in (a, b):
            for label in ("(mean of 3 steps)", "validation"):
                text = f"<!-- {pathlib.Path(run).name}{':' * (label == 'validation')} {label} -->"
                self.assertTrue(text in picture, f"{text} is not in the picture")


class FakeWriter:
    """The part of tensorboardX that is used."""
    made = []

    def __init__(self, logdir, purge_step=None):
        self.logdir, self.purge_step, self.scalars, self.closed = logdir, purge_step, [], False
        FakeWriter.made.append(self)

    def add_scalar(self, tag, value, step, walltime=None):
        self.scalars.append((tag, value, step, walltime))

    def flush(self):
        pass

    def close(self):
        self.closed = True


class TensorBoard(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        FakeWriter.made = []
        fake = mock.patch.dict(sys.modules, {"tensorboardX": types.SimpleNamespace(SummaryWriter=FakeWriter)})
        fake.start()
        self.addCleanup(fake.stop)

    def test_values(self):
        rows = [FIRST, START, step(0, 3.0), {**step(1, None), "grad_norm": None},
                {"event": "validation", "step": 1, "validation_loss": 2.5, "time": 1002.0}, END]
        folder = folder_of(self.directory.name, "run", "0.001", rows)
        status, out, error = call("tensorboard", folder)
        self.assertEqual((status, error), (0, ""))
        writer, = FakeWriter.made
        self.assertEqual((writer.logdir, writer.purge_step, writer.closed), (str(folder / "tensorboard"), 0, True))
        self.assertIn(("train/loss", 3.0, 0, 1000.0), writer.scalars)
        self.assertIn(("speed/tokens_per_second", 200.0, 1, 1001.0), writer.scalars)
        self.assertIn(("validation/loss", 2.5, 1, 1002.0), writer.scalars)
        self.assertEqual(len(writer.scalars), 6 + 4 + 1)   # what is not finite has no value
        self.assertIn("11 values", out)

    def test_follows_a_run_to_its_end_through_a_resume(self):
        folder = folder_of(self.directory.name, "run", "0.001", [FIRST, START, step(0, 3.0), step(1, 2.0)])
        path = folder / "metrics.jsonl"
        done = threading.Event()
        counted = []

        def follow():
            counted.append(tensorboard.write(folder, folder / "tb", follow=True, interval=0.01))
            done.set()
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()

        def wait(what):
            end = time.monotonic() + 60
            while not what():
                self.assertLess(time.monotonic(), end, "too long")
                time.sleep(0.01)
        wait(lambda: FakeWriter.made and len(FakeWriter.made[0].scalars) == 12)
        with open(path, "a") as file:   # half a line is not read
            file.write('{"event":"step","st')
        time.sleep(0.05)
        self.assertEqual(len(FakeWriter.made[0].scalars), 12)
        stopped = {**END, "reason": "SIGUSR1"}
        path.write_text(text_of([FIRST, START, step(0, 3.0), stopped]))   # shorter, as a resume makes it
        wait(lambda: len(FakeWriter.made) == 2 and len(FakeWriter.made[1].scalars) == 6)
        self.assertFalse(done.is_set())
        with open(path, "a") as file:
            file.write(text_of([step(1, 1.5), END]))
        self.assertTrue(done.wait(60))
        self.assertIn(("train/loss", 1.5, 1, 1001.0), FakeWriter.made[1].scalars)
        self.assertEqual(FakeWriter.made[1].purge_step, 0)
        self.assertEqual(counted, [24])

    def test_refusals(self):
        status, _, error = call("tensorboard", self.directory.name)
        self.assertEqual((status, len(error.splitlines())), (1, 1), error)
        self.assertIn("metrics.jsonl: there is none that a run wrote", error)
        with mock.patch.dict(sys.modules, {"tensorboardX": None}):
            status, _, error = call("tensorboard", self.directory.name)
        self.assertEqual((status, len(error.splitlines())), (1, 1), error)
        self.assertIn("needs the Python package tensorboardX", error)
        self.assertIn("pip install tensorboardX", error)


class RealTensorBoard(unittest.TestCase):
    def test_event_files_hold_the_values(self):
        try:
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.record_writer import masked_crc32c  # noqa: F401
        except ImportError as missing:
            self.skipTest(str(missing))
        with tempfile.TemporaryDirectory() as directory:
            folder = folder_of(directory, "run", "0.001", [FIRST, START, step(0, 3.0), step(1, 2.0), END])
            for _ in range(2):   # twice: the second time takes the first's place
                self.assertEqual(call("tensorboard", folder)[0], 0)
                time.sleep(1.1)  # the files' names have seconds
            events = []
            for path in sorted((folder / "tensorboard").iterdir()):
                data, at = path.read_bytes(), 0
                while at < len(data):
                    size = int.from_bytes(data[at:at + 8], "little")
                    events.append(Event.FromString(data[at + 12:at + 12 + size]))
                    at += 16 + size
        losses = [(event.step, value.simple_value) for event in events for value in event.summary.value
                  if value.tag == "train/loss"]
        self.assertEqual(losses, [(0, 3.0), (1, 2.0)] * 2)
        starts = [i for i, event in enumerate(events) if event.session_log.status == 1]
        self.assertEqual((len(starts), events[starts[1]].step), (2, 0))


if __name__ == "__main__":
    main()
