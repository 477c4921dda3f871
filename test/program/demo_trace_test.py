#!/usr/bin/env python3
"""Every command of tools/trace.py on the program's own traces: two FSDP ranks on the CPU train the demo's model.

    python3 test/program/demo_trace_test.py [PART-OF-A-NAME...]

What the commands say is compared with what h5py reads from the same files. BLIPFT names the program (default ./blipft).
Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import contextlib
import csv
import functools
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED demo_trace_test ({missing})")
    sys.exit(0)

import program_runs as program  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

ROOT = program.ROOT
RANKS, STEPS, MICRO_BATCHES = 2, 14, 2
OPTIONS = ("parallel.strategy=fsdp", "data.num_train_samples=16", f"train.accumulate_grad_batches={MICRO_BATCHES}",
           "train.batch_size=2", "train.max_epochs=1000")
STREAMS = ["compute", "communication", "copy", "host"]

def tool(command, *arguments):
    """tools/trace.py: exit status, standard output, standard error."""
    done = subprocess.run([sys.executable, str(ROOT / "tools/trace.py"), command, *map(str, arguments)], timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def says(command, *arguments):
    status, out, err = tool(command, *arguments)
    check(status == 0 and not err, command, *arguments, status, out, err)
    return out


def has_matplotlib():
    try:
        import matplotlib  # noqa: F401
        return True
    except ImportError:
        return False


class Runs:
    """The runs that the commands are shown on."""

    def __init__(self, folder):
        self.space = program.Space(folder)
        self.folder = self.space.folder

    @functools.cached_property
    def first(self):
        return program.run(self.space, RANKS, *OPTIONS, f"train.max_steps={STEPS}").output

    def with_steps_of(self, milliseconds, seed):
        """The first run's files with other times of its steps, within 5 % of each other: a busy machine is not to decide."""
        copy = self.space.copy(self.first)
        random = np.random.default_rng(seed)
        for rank in range(RANKS):
            with h5py.File(copy / f"trace.rank{rank:04d}.h5", "r+") as file:
                rows = file["steps"][:]
                length = milliseconds * 1e6 * random.uniform(0.95, 1.05, len(rows))
                rows["begin_ns"] = np.arange(len(rows)) * 1_000_000_000
                rows["end_ns"] = rows["begin_ns"] + length.astype(np.int64)
                file["steps"][:] = rows
        return copy


def read(run, rank, table):
    return program.read_table(run, rank, table)


def names(run, what):
    with h5py.File(run / "trace.rank0000.h5", "r") as file:
        return [name.decode() for name in file[what][:]]


def busy(spans, begin, end):
    """Length of the union of spans within [begin, end), by merging one after the other."""
    total, reached = 0, begin
    for first, last in sorted(zip(spans["begin_ns"].tolist(), spans["end_ns"].tolist())):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total, reached = total + last - first, last
    return total


def split(run, rank):
    """Compute, exposed communication, hidden communication and the step with the wait for its data before it, of every step in ns,
    from the spans alone."""
    steps, spans = read(run, rank, "steps"), read(run, rank, "spans")
    spans = spans[spans["phase"] != names(run, "phases").index("step")]   # the step itself is no work
    compute, communication = (spans[spans["stream"] == stream] for stream in (0, 1))
    both = np.concatenate((compute, communication))
    waits = spans[spans["phase"] == names(run, "phases").index("data_wait")]
    rows, before = [], int(steps["begin_ns"][0])
    for step, begin, end in zip(steps["step"], steps["begin_ns"].tolist(), steps["end_ns"].tolist()):
        begin, before = min(begin, max(before, int(waits[waits["step"] == step]["begin_ns"][0]))), end
        a, b, c = (busy(spans, begin, end) for spans in (compute, communication, both))
        rows.append((a, c - a, a + b - c, end - begin))
    return np.array(rows).T


@test
def the_summary_accounts_for_all_time_and_memory(runs):
    summary = json.loads(says("summary", runs.first, "--json"))
    check([rank["rank"] for rank in summary] == list(range(RANKS)), summary)
    phases = names(runs.first, "phases")
    for number, rank in enumerate(summary):
        check(rank["steps"] == STEPS, rank["steps"])
        compute, exposed, hidden, whole = split(runs.first, number)
        own = read(runs.first, number, "steps")
        own = own["end_ns"] - own["begin_ns"]
        check(rank["duration_ns"] == own.sum() and rank["step"]["median_ns"] == np.median(own), rank["step"])
        parts = rank["parts"]
        check(abs(sum(part["percent"] for part in parts.values()) - 100) < 1e-9, parts)
        for name, wanted in (("compute", compute), ("exposed_communication", exposed)):
            check(abs(parts[name]["percent"] - 100 * wanted.sum() / whole.sum()) < 1e-9, name, parts[name])
            check(parts[name]["median_ns"] == np.median(wanted), name, parts[name])
        check(rank["hidden_communication_ns"] == hidden.sum(), rank["hidden_communication_ns"], hidden.sum())
        check(exposed.sum() > 0 and compute.sum() > 0.1 * whole.sum(), "the run computes or communicates too little")
        spans = read(runs.first, number, "spans")
        for kind in ("gather", "reduce_scatter"):
            rows = spans[spans["phase"] == phases.index(kind)]
            told = rank["collectives"][kind]
            check(len(rows) and told["count"] == len(rows), kind, told, len(rows))
            check(told["bytes"] == rows["bytes"].sum(), kind, told, rows["bytes"].sum())
        plan = read(runs.first, number, "plan")
        check(rank["memory_total"]["planned"] == plan["bytes"].sum(), rank["memory_total"])
        check(rank["memory_total"]["replayed"] == rank["memory_total"]["planned"] > 0, rank["memory_total"])
        check({owner.decode() for owner in plan["owner"]} <= set(rank["memory"]), rank["memory"])
    text = says("summary", runs.first)
    for rank in summary:
        check(re.search(rf"^ +{rank['rank']} +{STEPS} .* {rank['step']['median_ns'] / 1e6:.3f} ", text, re.M), text)
    check(f"rank 0: {STEPS} steps" in text and f"rank 1: {STEPS} steps" not in text, text)
    later = json.loads(says("summary", runs.first, "--json", "--warmup", 4))
    check([rank["steps"] for rank in later] == [STEPS - 4] * RANKS, later[0]["steps"])


@test
def the_example_of_the_format_page_works(runs):
    page = (ROOT / "docs/trace-format.md").read_text()
    example, = re.findall(r"(?m)^    import h5py, numpy as np\n(?:(?:    .*)?\n)+", page)
    code = "\n".join(line[4:] for line in example.splitlines())
    for old, new in (("runs/fsdp/trace.rank0000.h5", str(runs.first / "trace.rank0000.h5")), ("== 100", "== 5")):
        check(old in code, old, "is not in the example")
        code = code.replace(old, new)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "the example", "exec"), {})
    told = float(re.search(r"exposed: ([\d.]+) ms", out.getvalue()).group(1)) * 1e6
    wanted = split(runs.first, 0)[1][5]   # from all spans; on a CPU a step's own lie within it
    check(wanted > 0 and abs(told - wanted) < 1, out.getvalue(), wanted)
    check("blipft ns" in out.getvalue() and re.search(r"gather: median GB/s [\d.e-]+", out.getvalue()), out.getvalue())


@test
def diff_tells_a_change_from_noise(runs):
    same = json.loads(says("diff", runs.first, runs.first, "--json"))
    for name, row in same["time_ns"].items():
        check(row["change"] == 0 and row["verdict"] == "within noise", name, row)
    warmup = 3
    base, again, slower = runs.with_steps_of(10, 1), runs.with_steps_of(10, 2), runs.with_steps_of(12, 3)
    for other, verdict in ((again, "within noise"), (slower, "larger than noise")):
        longest = []
        for run in (base, other):
            rows = [read(run, rank, "steps")[warmup:] for rank in range(RANKS)]
            longest.append(np.max([r["end_ns"] - r["begin_ns"] for r in rows], axis=0))
        answer = json.loads(says("diff", base, other, "--json", "--warmup", warmup))
        row = answer["time_ns"]["step time"]
        check(answer["steps"] == {"a": STEPS - warmup, "b": STEPS - warmup}, answer["steps"])
        check((row["a"], row["b"]) == tuple(map(np.median, longest)), row, longest)
        check(row["verdict"] == verdict, row)
    text = says("diff", base, slower)
    check(re.search(r"step time .*larger than noise", text) and "peak memory" in text, text)


@test
def perfetto_has_every_span_of_the_chosen_steps(runs):
    path = runs.folder / "trace.json"
    said = says("perfetto", runs.first, "-o", path, "--steps", "3:5")
    events = json.loads(path.read_text())["traceEvents"]
    check(f"{len(events)} events" in said, said, len(events))
    work = [event for event in events if event["ph"] == "X"]
    for event in work:
        check(all(isinstance(event.get(key), (int, float)) for key in ("pid", "tid", "ts", "dur")), event)
    phases, units = names(runs.first, "phases"), names(runs.first, "units")
    for rank in range(RANKS):
        spans = read(runs.first, rank, "spans")
        spans = spans[(spans["step"] >= 3) & (spans["step"] <= 5)]
        wanted = sorted((int(row["stream"]), int(row["begin_ns"]), int(row["end_ns"] - row["begin_ns"]),
                         f"{phases[row['phase']]} {units[row['unit']] if row['unit'] >= 0 else ''}".strip())
                        for row in spans)
        mine = [event for event in work if event["pid"] == rank]
        shown = sorted((e["tid"], round(e["ts"] * 1e3), round(e["dur"] * 1e3), e["name"])
                       for e in mine if e["tid"] < len(STREAMS))
        check(shown == wanted and len(shown) > 3 * 2 * len(units), "rank", rank, len(shown), len(wanted), shown[:2])
        check(sorted(e["name"] for e in mine if e["tid"] == len(STREAMS)) == ["step 3", "step 4", "step 5"], "steps")
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    check(tracks >= {(rank, name) for rank in range(RANKS) for name in STREAMS}, tracks)


@test
def csv_has_every_row_and_column(runs):
    folder = runs.folder / "csv"
    paths = {pathlib.Path(line).stem: pathlib.Path(line) for line in says("csv", runs.first, "-o", folder).splitlines()}
    phases = names(runs.first, "phases")
    with h5py.File(runs.first / "trace.rank0000.h5", "r") as file:
        tables = {name: file[name].dtype.names for name in file if file[name].dtype.names}
        check((file.attrs["part"], file.attrs["first_step"]) == (0, 0), "a run that was not resumed has one part")
    check(set(paths) == set(tables) and len(tables) >= 7, paths, tables)
    for table, columns in tables.items():
        with open(paths[table], newline="", encoding="utf-8") as file:
            head, *lines = csv.reader(file)
        rows = [read(runs.first, rank, table) for rank in range(RANKS)]
        check(head == ["rank", "part", *columns], table, head, columns)
        check({line[1] for line in lines} <= {"0"}, table, "parts")
        check(len(lines) == sum(map(len, rows)), table, len(lines), [len(r) for r in rows])
        check([int(line[0]) for line in lines] == [rank for rank in range(RANKS) for _ in rows[rank]], table, "ranks")
        every = np.concatenate(rows)
        for number, name in enumerate(columns, 2):
            column = [line[number] for line in lines]
            if every.dtype[name].kind == "f":
                np.testing.assert_array_equal(np.array(column, np.float64), every[name], f"{table}.{name}")
            elif name == "phase" and table == "spans":
                check(column == [phases[i] for i in every[name]], table, name)
            elif name == "stream" and table == "spans":
                check(column == [STREAMS[i] for i in every[name]], table, name)
            elif every.dtype[name].kind == "S":
                check(column == [value.decode() for value in every[name]], table, name)
            elif name != "unit":
                check(column == [str(value) for value in every[name].tolist()], table, name)


@test
def watch_shows_the_newest_step(runs):
    line = says("watch", runs.first, "--once")
    step = read(runs.first, 0, "steps")[-1]
    check(re.match(rf"step +{STEPS - 1}  epoch +{step['epoch']}  loss +{step['loss']:.4f}  ", line), line, step)
    check(len(line.splitlines()) == 1, line)


@test
def kernels_says_what_to_do_without_any(runs):
    status, out, err = tool("kernels", runs.first)
    check(status == 1 and not out and len(err.splitlines()) == 1, status, out, err)
    check("no step's kernels were recorded" in err and "trace.kernels=" in err and str(runs.first) in err, err)


@test
def the_report_holds_the_step_that_is_asked_for(runs):
    if not has_matplotlib():
        raise Skip("no matplotlib")
    page = runs.folder / "report.html"
    says("report", runs.first, "-o", page, "--step", "6")
    text = page.read_text()
    data = json.loads(text.split('id="timeline-data">')[1].split("</script>")[0].replace("<\\/", "</"))
    check(data["step"] == 6 and len(data["ranks"]) == RANKS, data["step"])
    whole = data["phases"].index("step")
    steps = [read(runs.first, rank, "steps")[6] for rank in range(RANKS)]
    begin, end = min(row["begin_ns"] for row in steps), max(row["end_ns"] for row in steps)
    for number, rank in enumerate(data["ranks"]):
        spans = read(runs.first, number, "spans")
        wanted = spans[(spans["step"] == 6) & (spans["phase"] != whole)]
        wanted = wanted[(wanted["end_ns"] >= begin) & (wanted["begin_ns"] < end)]
        shown = [tuple(span) for stream in rank["streams"] for span in stream["spans"]]
        lengths = {(end - begin, phase, unit, micro) for begin, end, phase, unit, micro, _ in shown}
        missing = [row for row in wanted if (int(row["end_ns"] - row["begin_ns"]), int(row["phase"]), int(row["unit"]),
                                             int(row["micro_batch"])) not in lengths]
        check(not missing and len(shown) >= len(wanted), "rank", number, "lacks", missing[:3])
    check(f"{STEPS} steps, " in text and "fsdp" in text, "the headline")
    picture = runs.folder / "loss.png"
    says("loss", runs.first, "-o", picture)
    check(picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000, picture.stat())


@test
def a_newer_major_version_is_refused(runs):
    newer = runs.space.copy(runs.first)
    with h5py.File(newer / "trace.rank0001.h5", "r+") as file:
        file.attrs["format_version"] = "2.0"
    for command in (("summary", newer), ("report", newer, "-o", newer / "out"), ("diff", runs.first, newer),
                    ("perfetto", newer, "-o", newer / "out"), ("csv", newer, "-o", newer / "out"),
                    ("watch", newer, "--once"), ("kernels", newer), ("loss", newer, "-o", newer / "out.png")):
        status, out, err = tool(*command)
        check(status == 1 and len(err.splitlines()) == 1, command, status, out, err)
        check("format version 2.0" in err and "trace.rank0001.h5" in err and "1.x" in err, command, err)
        left = [path.name for path in newer.iterdir() if path.is_file() and not path.name.startswith("trace.rank")
                and path.name not in program.RECORD_FILES]
        check(not left, command, "left", left)


def children(process):
    """Ids of the processes that this one started."""
    try:
        with open(f"/proc/{process}/task/{process}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


@test
def a_killed_run_can_be_read(runs):
    output = runs.space.new()
    command = [program.PROGRAM, runs.space.config, *OPTIONS, "train.max_steps=100000", f"output.path={output}"]
    process = subprocess.Popen(program.command_line(RANKS, command), cwd=ROOT, env=program.environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        seen, until = -1, time.monotonic() + 60
        while seen < 5:
            check(time.monotonic() < until and process.poll() is None, "no step 5 within a minute", process.poll())
            time.sleep(0.3)
            if len(list(output.glob("trace.rank*.h5"))) < RANKS:
                continue
            status, out, _ = tool("watch", output, "--once")   # beside the writers
            found = re.match(r"step +(\d+)  ", out)
            seen = int(found.group(1)) if status == 0 and found else -1
        live = json.loads(says("summary", output, "--json"))
        check(min(rank["steps"] for rank in live) > seen, "the summary of the running job", live[0]["steps"], seen)
        ranks = children(process.pid)
        check(len(ranks) == RANKS, "mpirun's processes:", ranks)
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        check(process.wait(30) != 0, "mpirun did not notice")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    try:
        h5py.File(output / "trace.rank0000.h5", "r+").close()
        raise AssertionError("the files were closed as they should be: nothing was killed")
    except OSError:   # still marked as being written
        pass
    dead = json.loads(says("summary", output, "--json"))
    for number, rank in enumerate(dead):
        check(rank["steps"] >= live[number]["steps"] > 5, rank["steps"], live[number]["steps"])
        check(abs(sum(part["percent"] for part in rank["parts"].values()) - 100) < 1e-9, rank["parts"])
        check(rank["parts"]["compute"]["percent"] > 1 and rank["collectives"]["gather"]["count"] > 0, rank["parts"])
    check(len(says("csv", output).splitlines()) >= 7, "csv of the killed run")
    if has_matplotlib():
        says("report", output, "-o", output / "report.html")


if __name__ == "__main__":
    sys.exit(run_tests("demo_trace_test", Runs, program.PROGRAM))
