"""A headless Chromium, driven over its debugging pipe with the standard library alone."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """The browser's path, or None."""
    named = os.environ.get("WARPMETER_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(Exception):
    """The browser did not start, ended, or did not answer in time."""


class Browser:
    """One browser with one page, closed by `with`. `events` holds what the page reported since it was last cleared."""

    def __init__(self, path, timeout=600):
        self._timeout = timeout
        self._profile = (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            if "ignore_cleanup_errors" in tempfile.TemporaryDirectory.__init__.__code__.co_varnames
            else tempfile.TemporaryDirectory()
        )
        self._number = 0
        self._session = None
        self._buffer = b""
        self.events = []
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        arguments = [
            path,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            "--user-data-dir=" + self._profile.name,
            "about:blank",
        ]
        # The browser reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" 3<&{commands_out} 4>&{answers_in}', "sh", *arguments],
            pass_fds=(commands_out, answers_in),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(domain + ".enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for _ in range(20):  # its helpers may still be writing there
            try:
                self._profile.cleanup()
                return
            except OSError:
                time.sleep(0.1)

    def call(self, method, **parameters):
        """Sends one command and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._commands, json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise BrowserError(f"the browser ended: {error}") from None
        return self._wait(lambda answer: answer.get("id") == self._number, method)

    def wait_for(self, event):
        """Waits until the page has reported `event`, unless it has since events were cleared."""
        if not any(seen["method"] == event for seen in self.events):
            self._wait(lambda answer: answer.get("method") == event, event)

    def _wait(self, wanted, what):
        end = time.monotonic() + self._timeout
        while True:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                answer = json.loads(text)
                if "method" in answer:
                    self.events.append(answer)
                if wanted(answer):
                    if "error" in answer:
                        raise BrowserError(f"{what}: {answer['error'].get('message')}")
                    return answer.get("result", answer.get("params"))
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                raise BrowserError(f"{what}: the browser {'ended' if ready else 'did not answer in time'}")
            self._buffer += data

    def look(self, width, height=900, dark=False, scripts=True):
        """How the page is looked at from now on."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, path):
        self.events.clear()
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return answer["result"].get("value")

    def screenshot(self, path, whole=False):
        box = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            box = {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 15000), "scale": 1},
            }
        data = self.call("Page.captureScreenshot", format="png", **box)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """Console messages above information, log entries and exceptions, as texts."""
        found = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"].get("text", "exception"))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error"):
                found.append(parameters["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("warning", "error", "assert"):
                found.append(str(parameters["args"]))
        return found

    def requests(self):
        """Addresses that the page asked for."""
        return [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
