#!/usr/bin/env python3
"""The page of `trace.py report`, opened in a headless browser: pictures, timeline, zoom, and nothing from outside.

    python3 test/tools/report_browser_test.py [PART-OF-A-NAME...]

Needs a Chromium in PATH (tools/setup.sh --browser installs one where apt has it). Screenshots stay in build/check.
Prints "ok NAME", "FAILED NAME" or "SKIPPED NAME (why)" for each test; exits 1 when one failed.
"""
import functools
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parent / "program"), str(ROOT / "tools")]
try:
    import h5py
    import matplotlib  # noqa: F401
    import numpy as np
    from PIL import Image
except ImportError as missing:
    print(f"SKIPPED report_browser_test ({missing})")
    sys.exit(0)

import headless_browser  # noqa: E402
import make_synthetic_trace as synthetic  # noqa: E402
from blipft_trace import report_timeline  # noqa: E402
from blipft_trace.intervals import Union  # noqa: E402
from blipft_trace.report import write_report  # noqa: E402
from make_fsdp_trace import P, RANKS, UNITS, FsdpRun  # noqa: E402
from script_tests import Skip, check, run_tests, test  # noqa: E402

STEP = 17
FIGURES = ["loss", "step-time", "speed", "memory", "plan", "device"]
PICTURES = ROOT / "build/check"


def report(run, page, *more):
    """Through the command line, as a person calls it."""
    done = subprocess.run([sys.executable, str(ROOT / "tools/trace.py"), "report", str(run), "-o", str(page), *more],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    check(done.returncode == 0, done.stdout.decode())


class Space:
    """The run, its page, and the browser that shows it."""

    def __init__(self, folder, browser):
        self.folder, self.browser = pathlib.Path(folder), browser
        self.made = FsdpRun()
        self.run = self.made.write(self.folder / "run")
        self.page = self.folder / "report.html"
        report(self.run, self.page, "--step", str(STEP))

    def open(self, width=1400):
        """The page as it is at first, the timeline in sight."""
        self.browser.open(self.page, width)
        self.browser.evaluate("document.getElementById('timeline-canvas').scrollIntoView({block: 'start'})")

    def spans(self, rank):
        """The spans that the timeline must show: those of the run that touch the step, without the step itself."""
        start, end = self.window()
        with h5py.File(self.run / f"trace.rank{rank:04d}.h5", "r") as file:
            rows = file["spans"][:]
        return rows[(rows["end_ns"] >= start) & (rows["begin_ns"] < end) & (rows["phase"] != P["step"])]

    @functools.cache
    def window(self):
        """First begin and last end of the step over the ranks."""
        rows = []
        for rank in range(RANKS):
            with h5py.File(self.run / f"trace.rank{rank:04d}.h5", "r") as file:
                rows.append(file["steps"][STEP])
        return min(int(row["begin_ns"]) for row in rows), max(int(row["end_ns"]) for row in rows)

    def view(self):
        return self.browser.evaluate("window.timeline.view()")

    def place(self, rank, stream, span):
        """In pixels: a span's middle on the canvas and in the window; its left end on the canvas; its width."""
        start, _ = self.window()
        return self.browser.evaluate(f"""(() => {{
          const row = timeline.rows.find(r => r.rank.rank === {rank} && r.stream === "{stream}" && r.spans.some(
            s => s[0] === {int(span["begin_ns"]) - start} && s[2] === {int(span["phase"])}));
          if (!row) return null;
          const a = timeline.x({int(span["begin_ns"]) - start}), b = timeline.x({int(span["end_ns"]) - start});
          const box = document.getElementById("timeline-canvas").getBoundingClientRect();
          // The mouse is at whole pixels of the window.
          const x = Math.round((a + b) / 2 + box.left) - box.left, y = row.y + row.height - 3;
          return {{x, y, windowX: box.left + x, windowY: Math.round(box.top + y), left: a, width: b - a}};
        }})()""")

    def pixel(self, x, y):
        return self.browser.evaluate(f"""Array.from(document.getElementById("timeline-canvas").getContext("2d")
          .getImageData({int(x)}, {int(y)}, 1, 1).data).slice(0, 3)""")

    def legend(self):
        """Colour of each name in the two legends."""
        pairs = self.browser.evaluate("""Array.from(document.querySelectorAll(".legend span"))
          .filter(s => s.firstChild.style).map(s => [s.textContent, getComputedStyle(s.firstChild).backgroundColor])""")
        return {name: [int(value) for value in re.findall(r"\d+", colour)[:3]] for name, colour in pairs}


def is_picture(data, box=None):
    """Returns True if an image shows something: enough different values, not one colour with an edge."""
    image = Image.open(io.BytesIO(data)).convert("L")
    if box:
        image = image.crop(tuple(int(v) for v in box))
    pixels = np.asarray(image, np.float64)
    return pixels.size > 0 and pixels.std() > 8 and len(np.unique(pixels)) > 20


def middle_gather(space, rank):
    """A gather in the middle of the step."""
    rows = space.spans(rank)
    rows = rows[(rows["phase"] == P["gather"]) & (rows["step"] == STEP)]
    return rows[(rows["micro_batch"] == 1) & (rows["unit"] == 3)][0]


@test
def nothing_goes_wrong_and_nothing_is_loaded(space):
    space.open()
    space.browser.evaluate("new Promise(done => setTimeout(done, 200))")
    check(not space.browser.told_errors(), space.browser.told_errors())
    outside = [url for url in space.browser.requests() if not url.startswith(("data:", f"file://{space.page}"))]
    check(not outside, outside)
    loaded = space.browser.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    check(all(name.startswith("data:") for name in loaded), loaded)
    # Should a page ever ask for something, the browser refuses: also proves that the checks above can fail.
    space.browser.evaluate("""new Promise(done => { const image = new Image(); image.onerror = done;
                              image.src = "http://127.0.0.1:9/x.png"; })""")
    check(any("Content Security Policy" in text for text in space.browser.told_errors()), space.browser.told_errors())


@test
def every_section_has_its_picture(space):
    PICTURES.mkdir(parents=True, exist_ok=True)
    space.open()
    shot = space.browser.screenshot(PICTURES / "report_1400.png")
    boxes = space.browser.evaluate("""Object.fromEntries(Array.from(document.querySelectorAll("figure, #timeline"),
      f => { const p = f.querySelector("img, canvas"), b = p.getBoundingClientRect();
      const ready = p.tagName === "CANVAS" || (p.complete && p.naturalWidth > 0 && p.alt !== "");
      return [f.id, {ready, box: [b.left + scrollX, b.top + scrollY, b.right + scrollX, b.bottom + scrollY]}]; }))""")
    check(set(boxes) == {*FIGURES, "timeline"}, sorted(boxes))
    for name, picture in boxes.items():
        left, top, right, bottom = picture["box"]
        check(picture["ready"] and right - left > 300 and bottom - top > 150, name, picture)
        check(is_picture(shot, picture["box"]), name, "is blank")
    blank = io.BytesIO()
    Image.new("RGB", (400, 300), "white").save(blank, "PNG")
    check(not is_picture(blank.getvalue()), "a blank picture counts as one")
    text = space.browser.evaluate("document.body.innerText")
    for said in (f"Timeline of step {STEP}", "Loss and learning rate", "Step time and its parts",
                 "Memory by owner over step 1, rank 0", "Device: utilisation, power and clock",
                 "Where time and memory went"):
        check(said in text, said, "is not on the page")
    rows = space.browser.evaluate("document.querySelectorAll('#ranks tr').length")
    check(rows == RANKS + 1, rows)


@test
def a_narrow_window_shows_everything(space):
    space.open(width=800)
    space.browser.screenshot(PICTURES / "report_800.png")
    check(space.browser.evaluate("document.scrollingElement.scrollWidth") <= 800, "the page is wider than the window")
    widths = space.browser.evaluate("Array.from(document.querySelectorAll('img, canvas')).map(p => p.clientWidth)")
    check(len(widths) == len(FIGURES) + 1 and min(widths) > 600, widths)
    space.browser.resize(1200, 1000)   # the canvas follows
    space.browser.evaluate("new Promise(done => setTimeout(done, 300))")
    sizes = space.browser.evaluate("(c => [c.width, c.clientWidth])(document.getElementById('timeline-canvas'))")
    check(sizes[0] == sizes[1] > 1000, sizes)


@test
def the_timeline_has_every_rank_and_span(space):
    space.open()
    rows = space.browser.evaluate("timeline.rows.map(r => [r.rank.rank, r.strip ? 'strip' : r.stream, r.spans.length])")
    check([rank for rank, stream, _ in rows if stream == "strip"] == list(range(RANKS)), rows)
    names = ["compute", "communication", "copy", "host"]
    for rank in range(RANKS):
        spans = space.spans(rank)
        wanted = {names[number]: int((spans["stream"] == number).sum()) for number in np.unique(spans["stream"])}
        shown = {}
        for of, stream, count in rows:
            if of == rank and stream != "strip":
                shown[stream] = shown.get(stream, 0) + count
        check(shown == wanted, "rank", rank, "shows", shown, "of", wanted)
    # Each is drawn in its place and its phase's colour.
    legend, drawn = space.legend(), set()
    for rank in range(RANKS):
        for span in space.spans(rank):
            place = space.place(rank, names[span["stream"]], span)
            check(place, "no place for", rank, span)
            if place["width"] > 8 and span["step"] == STEP and rank in (0, 3):
                name = synthetic.PHASES[span["phase"]]
                check(space.pixel(place["x"], place["y"]) == legend[name], name, space.pixel(place["x"], place["y"]))
                drawn.add(name)
    check(drawn >= {"forward", "backward", "gather", "reduce_scatter", "optimizer"}, drawn)
    check(len({tuple(colour) for name, colour in legend.items() if name in P}) == len([n for n in legend if n in P]),
          "two phases have one colour", legend)


@test
def the_table_tells_how_the_time_in_view_was_spent(space):
    space.open()

    def table():
        cells = space.browser.evaluate("""Array.from(document.querySelectorAll("#timeline-shares tr")).slice(1)
          .map(tr => Array.from(tr.children).slice(1).map(td => parseFloat(td.textContent)))""")
        return np.array(cells)

    wanted = []
    for rank in range(RANKS):
        step, spans = space.made.steps[rank][STEP], space.spans(rank)
        begin, end = step[7:9]
        unions, lengths = Union([], []), [0]
        for stream in (0, 1, 2, 3):   # compute, communication beside it, copies, waiting; the rest is idle
            rows = spans[spans["stream"] == stream]
            unions = unions | Union(rows["begin_ns"], rows["end_ns"])
            lengths.append(int(unions.within([begin], [end])[0]))
        rows = spans[spans["stream"] == 1]
        communication = int(Union(rows["begin_ns"], rows["end_ns"]).within([begin], [end])[0])
        parts = [*np.diff(lengths), end - begin - lengths[-1]]
        wanted.append([*parts, communication - parts[1]])
    wanted = np.array(wanted) / 1e6
    np.testing.assert_allclose(table(), wanted, atol=6e-4)   # three digits are shown
    check((wanted[:, 1] > 5).all() and (wanted[:, 5] > 5).all(), "too little hidden or exposed to be a test", wanted)
    # Zoomed in: the parts of the ranks that are wholly in the step fill the view.
    space.browser.evaluate("document.querySelector('button[data-key=\"+\"]').click()")
    low, high = space.view()
    np.testing.assert_allclose(table()[:, :5].sum(axis=1), (high - low) / 1e6, atol=3e-3)


@test
def the_wheel_zooms_where_the_mouse_is(space):
    space.open()
    length = space.view()[1]
    start, end = space.window()
    check(space.view() == [0, end - start], space.view())
    span = middle_gather(space, 1)
    before = space.place(1, "communication", span)
    first = space.browser.screenshot()
    at = (int(span["begin_ns"]) + int(span["end_ns"])) / 2 - start
    for _ in range(6):
        space.browser.mouse("mouseWheel", before["windowX"], before["windowY"], deltaX=0, deltaY=-200)
    low, high = space.view()
    factor = length / (high - low)
    check(5 < factor < 50 and 0 <= low < high <= length, low, high, factor)
    after = space.place(1, "communication", span)
    left = before["x"] - (before["x"] - before["left"]) * factor   # what is under the mouse stays there
    check(abs(after["left"] - left) < 0.01, "the span under the mouse moved", before, after)
    check(abs(after["width"] / before["width"] / factor - 1) < 1e-6, before, after, factor)
    check(low < at < high, low, at, high)
    colour = space.pixel(after["left"] + 3, after["y"])   # between the mark of its begin and its name
    check(colour == space.legend()["gather"], "the span is not drawn at its size", colour)
    said = space.browser.evaluate("document.getElementById('timeline-view').textContent")
    check(said.startswith(f"{low / 1e6:.4f} ms to {high / 1e6:.4f} ms"), said)
    second = space.browser.screenshot(PICTURES / "report_zoomed.png")
    a, b = (np.asarray(Image.open(io.BytesIO(data)).convert("L"), np.int16) for data in (first, second))
    check(a.shape == b.shape and (abs(a - b) > 30).sum() > 5000, "the picture did not change")
    for _ in range(40):   # out again, further than there is anything
        space.browser.mouse("mouseWheel", before["windowX"], before["windowY"], deltaX=0, deltaY=200)
    check(space.view() == [0, length], space.view())
    for _ in range(120):  # and in, until single microseconds
        space.browser.mouse("mouseWheel", before["windowX"], before["windowY"], deltaX=0, deltaY=-200)
    low, high = space.view()
    check(90 <= high - low <= 110 and low < at + 2e5 and high > at - 2e5, low, high)
    check(not space.browser.told_errors(), space.browser.told_errors())


@test
def dragging_keys_and_buttons_move_the_view(space):
    space.open()
    browser, length = space.browser, space.view()[1]
    spot = space.place(1, "communication", middle_gather(space, 1))
    x, y = spot["windowX"], spot["windowY"]
    for _ in range(5):
        browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200)
    low, high = space.view()
    browser.drag(x, y, x - 150, y)
    moved, moved_high = space.view()
    per_pixel = space.browser.evaluate("(([a, b]) => (b - a) / (timeline.x(b) - timeline.x(a)))(timeline.view())")
    np.testing.assert_allclose([moved, moved_high], [low + 150 * per_pixel, high + 150 * per_pixel], atol=1)
    browser.mouse("mouseMoved", x + 50, y)   # the button is up: nothing moves any more
    check(space.view() == [moved, moved_high], space.view())
    browser.click(x, y, count=2)
    check(space.view() == [0, length], "a double click shows", space.view())
    at = spot["x"] - browser.evaluate("timeline.x(0)")
    nanoseconds = 1e6 / browser.evaluate("timeline.x(1e6) - timeline.x(0)")   # of a pixel
    low, high = (at - 40) * nanoseconds, (at + 60) * nanoseconds
    browser.drag(x - 40, y, x + 60, y, modifiers=8)   # with shift
    check(np.allclose(space.view(), [low, high], atol=2), "shift and dragging:", space.view(), low, high)
    browser.evaluate("document.getElementById('timeline-canvas').focus({preventScroll: true})")
    browser.key("0", "0")
    check(space.view() == [0, length], "0 shows", space.view())
    browser.key("+", "+")
    check(np.allclose(space.view(), [length / 4, length * 3 / 4]), space.view())
    browser.key("ArrowRight")
    check(np.allclose(space.view(), [length * 3 / 8, length * 7 / 8]), space.view())
    browser.key("-", "-")
    check(np.allclose(space.view(), [0, length]), space.view())
    for key, view in (("+", [0.25, 0.75]), ("ArrowLeft", [0.125, 0.625]), ("-", [0, 1]), ("0", [0, 1])):
        box = browser.evaluate(f"""(b => [b.left + b.width / 2, b.top + b.height / 2])((b => (b.scrollIntoView(),
          b.getBoundingClientRect()))(document.querySelector('button[data-key="{key}"]')))""")
        browser.click(*box)
        check(np.allclose(space.view(), np.array(view) * length), key, space.view())
    check(not browser.told_errors(), browser.told_errors())


@test
def pointing_at_a_span_tells_about_it(space):
    space.open()
    start, _ = space.window()
    span = middle_gather(space, 2)
    place = space.place(2, "communication", span)
    space.browser.mouse("mouseMoved", place["windowX"], place["windowY"])
    shown = space.browser.evaluate("getComputedStyle(document.getElementById('tip')).display")
    text = space.browser.evaluate("document.getElementById('tip').textContent")
    check(shown == "block", "no tooltip")
    length = int(span["end_ns"] - span["begin_ns"])
    rows = space.spans(2)
    compute = rows[rows["stream"] == 0]
    hidden = sum(max(0, min(int(e), int(span["end_ns"])) - max(int(b), int(span["begin_ns"])))
                 for b, e in zip(compute["begin_ns"], compute["end_ns"]))
    twins = [middle_gather(space, rank) for rank in range(RANKS)]
    spread = [max(int(t[name]) for t in twins) - min(int(t[name]) for t in twins) for name in ("begin_ns", "end_ns")]
    for said in ("gather", UNITS[3], "rank 2, communication, micro-batch 1", f"{length / 1e6:.4f} ms, from ",
                 f"{(int(span['begin_ns']) - start) / 1e6:.4f} ms", "50.000 MB", f"{50e6 / length:.2f} GB/s",
                 f"hidden behind compute {hidden / 1e6:.4f} ms, exposed {(length - hidden) / 1e6:.4f} ms",
                 f"on 4 ranks: begins within {spread[0] / 1e6:.4f} ms"):
        check(said in text, repr(said), "is not in", repr(text))
    forward = rows[(rows["phase"] == P["forward"]) & (rows["step"] == STEP)][3]
    place = space.place(2, "compute", forward)
    space.browser.mouse("mouseMoved", place["windowX"], place["windowY"])
    text = space.browser.evaluate("document.getElementById('tip').textContent")
    rate = 2e12 / int(forward["end_ns"] - forward["begin_ns"]) / 1e3
    check(f"{rate:.4g} TFLOP/s" in text and "forward" in text, rate, text)
    space.browser.mouse("mouseMoved", place["windowX"], 5)
    shown = space.browser.evaluate("getComputedStyle(document.getElementById('tip')).display")
    check(shown == "none", "the tooltip stays")


@test
def long_runs_give_small_pages(space):
    folder = space.folder / "long"
    folder.mkdir()
    for rank in range(2):
        tables = synthetic.long_rank(rank, 10_000, 8)
        tables["steps"]["loss"][700] = np.nan
        synthetic.write_trace(folder / f"trace.rank{rank:04d}.h5", tables, UNITS)
    page = space.folder / "long.html"
    report(folder, page)
    check(page.stat().st_size < 1_500_000, "10,000 steps give", page.stat().st_size, "bytes")
    space.browser.open(page)
    check(not space.browser.told_errors(), space.browser.told_errors())
    text = space.browser.evaluate("document.body.innerText")
    check("mean of 17 steps a point" in text and "1 step with a loss that is not a finite number" in text, text[:3000])
    # A step of more spans than a page can hold keeps the longest, and says so.
    most, report_timeline.MOST_SPANS = report_timeline.MOST_SPANS, 100
    try:
        write_report(space.run, page, STEP)
    finally:
        report_timeline.MOST_SPANS = most
    space.browser.open(page)
    data = space.browser.evaluate("timeline.data")
    spans = sum(len(stream["spans"]) for rank in data["ranks"] for stream in rank["streams"])
    whole = sum(len(space.spans(rank)) for rank in range(RANKS))
    check(0 < spans <= 100 and spans == data["shown"] and data["spans"] == whole, spans, data["shown"], whole)
    text = space.browser.evaluate("document.body.innerText")
    check(f"Of {whole} spans the {spans} longest are shown" in text, text[:3000])


@test
def the_step_shown_is_a_usual_one(space):
    page = space.folder / "usual.html"
    report(space.run, page)
    space.browser.open(page)
    step = space.browser.evaluate("timeline.data.step")
    times = np.max([[row[8] - row[7] for row in rows] for rows in space.made.steps], axis=0)
    check(abs(times[step] - np.median(times)) == np.abs(times - np.median(times)).min(), step, times)


@test
def clocks_that_differ_are_corrected(space):
    """As the summary does it, from the ends of reduce-scatters; half a microsecond is what its estimate may be off."""
    run = space.made.write(space.folder / "clocks", clocks=(0, 3_000_000, 0, -1_000_000))
    page = space.folder / "clocks.html"
    report(run, page, "--step", str(STEP))
    space.browser.open(page)
    shifted = space.browser.evaluate("timeline.data")
    space.browser.open(space.page)
    plain = space.browser.evaluate("timeline.data")
    check(plain["clock"] == 0 and abs(shifted["clock"] - 3_000_000) < 500, plain["clock"], shifted["clock"])
    for mine, other in zip(plain["ranks"], shifted["ranks"]):
        for stream, same in zip(mine["streams"], other["streams"]):
            np.testing.assert_allclose(np.array(same["spans"])[:, :2], np.array(stream["spans"])[:, :2], atol=500)


@test
def a_run_of_the_program_itself(space):
    import program_runs as program
    if not os.access(program.PROGRAM, os.X_OK) or not shutil.which("mpirun"):
        raise Skip("there is no ./blipft, or no mpirun")
    demo = program.Space(space.folder / "program")
    result = program.run(demo, 2, "parallel.strategy=fsdp", "train.max_steps=5", "train.accumulate_grad_batches=2")
    page = space.folder / "program.html"
    report(result.output, page)
    space.browser.open(page)
    space.browser.screenshot(PICTURES / "report_program.png")
    check(not space.browser.told_errors(), space.browser.told_errors())
    figures = space.browser.evaluate("""Array.from(document.querySelectorAll("figure"))
      .filter(f => f.querySelector("img").clientHeight > 100).map(f => f.id)""")
    check(figures == FIGURES, figures)   # without a GPU the device's picture shows the host's memory
    data = json.loads(space.browser.evaluate("JSON.stringify(timeline.data)"))
    check([rank["rank"] for rank in data["ranks"]] == [0, 1] and data["units"][0] == "vision.embeddings", data["units"])
    for rank in data["ranks"]:
        phases = {data["phases"][span[2]] for stream in rank["streams"] for span in stream["spans"]}
        check(phases >= {"forward", "backward", "gather", "reduce_scatter", "optimizer", "loss"}, phases)
        check(sum(b - a for a, b, _ in rank["parts"]) == rank["end"] - rank["begin"], "parts do not fill the step")


def main():
    program = headless_browser.find_browser()
    if not program:
        print("SKIPPED report_browser_test (no Chromium in PATH; tools/setup.sh --browser installs one where apt can)")
        return 0
    try:
        browser = headless_browser.Browser(program)
    except (OSError, EOFError) as error:   # TimeoutError is an OSError
        print(f"SKIPPED report_browser_test ({program} does not start: {' '.join(str(error).split())})")
        return 0
    with browser:
        return run_tests("report_browser_test", lambda folder: Space(folder, browser), program)


if __name__ == "__main__":
    sys.exit(main())
