"""Drives a headless Chromium over its DevTools protocol, with nothing but the standard library.

Messages are JSON, ended by a zero byte, on file descriptors 3 (to the browser) and 4 (from it).
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 60  # for any answer; a first start on a slow disk takes some


def find_browser():
    """The program, or None. Ubuntu's package is a script that only tells to install a snap: it has no version."""
    for name in NAMES:
        path = shutil.which(name)
        if not path:
            continue
        try:
            said = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0 and b"Chrom" in said.stdout:
            return path
    return None


class Browser:
    """One browser with one page. `events` holds what the page reported since it was opened."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(prefix="blipft_browser.", ignore_cleanup_errors=True)
        read_commands, self.write = os.pipe()
        self.read, write_answers = os.pipe()
        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "--no-first-run",
                   "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
                   "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND",
                   "--no-sandbox"]  # root and most containers have none; the pages are our own
        # The shell gives the pipes the two numbers that the browser expects.
        script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        with open(os.path.join(self.folder.name, "stderr"), "wb") as errors:
            self.process = subprocess.Popen(["bash", "-c", script, "bash", program, *options, "about:blank"],
                                            pass_fds=(read_commands, write_answers), stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=errors)
        os.close(read_commands)
        os.close(write_answers)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1,
                  uploadThroughput=-1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except Exception:  # it does not answer any more
            self.process.kill()
            self.process.wait()
        os.close(self.write)
        os.close(self.read)
        self.folder.cleanup()

    def errors_of_start(self):
        with open(os.path.join(self.folder.name, "stderr"), errors="replace") as file:
            return file.read()[-2000:]

    def message(self, until):
        """The next message of the browser."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser says nothing: {self.errors_of_start()}")
            piece = os.read(self.read, 1 << 20)
            if not piece:
                raise EOFError(f"the browser ended: {self.errors_of_start()}")
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data):]
        until = time.monotonic() + SECONDS
        while True:
            answer = self.message(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def wait_for(self, method):
        until = time.monotonic() + SECONDS
        while not any(event["method"] == method for event in self.events):
            answer = self.message(until)
            if "method" in answer:
                self.events.append(answer)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, path, width=1400, height=1000):
        self.resize(width, height)
        self.events.clear()
        self.call("Page.navigate", url=f"file://{path}")
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression):
        """A JavaScript expression's value; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def told_errors(self):
        """Exceptions, and whatever went to the console as an error or a warning."""
        told = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                told.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                told.append(parameters["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                told.append(str(parameters["args"]))
        return told

    def requests(self):
        return [event["params"]["request"]["url"] for event in self.events
                if event["method"] == "Network.requestWillBeSent"]

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y, count=1):
        for n in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", clickCount=n)
            self.mouse("mouseReleased", x, y, button="left", clickCount=n)

    def drag(self, x, y, to_x, to_y, **more):
        self.mouse("mousePressed", x, y, button="left", clickCount=1, **more)
        for part in (0.3, 0.7, 1.0):
            self.mouse("mouseMoved", x + part * (to_x - x), y + part * (to_y - y), button="left", buttons=1, **more)
        self.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1, **more)

    def key(self, key, text=""):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path=None):
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                           clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        data = base64.b64decode(answer["data"])
        if path:
            with open(path, "wb") as out:
                out.write(data)
        return data
