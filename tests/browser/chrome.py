"""Headless Chromium through the DevTools protocol on a pipe: no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120  # seconds for an answer, on a busy machine too


def find_chromium() -> str | None:
    """The browser's command; $CHROMIUM wins."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Chrome:
    """One tab. Messages are JSON objects that end with a zero byte, on file descriptors 3 and 4."""

    def __init__(self, command: str) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="chrome-", ignore_cleanup_errors=True)
        to_chrome, self.out = os.pipe()
        self.into, from_chrome = os.pipe()

        def as_three_and_four() -> None:
            high = [os.dup2(fd, new) for fd, new in ((to_chrome, 213), (from_chrome, 214))]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        flags = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--hide-scrollbars",
        )
        self.process = subprocess.Popen(
            [command, *flags, "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}"],
            preexec_fn=as_three_and_four, close_fds=False, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_chrome)
        os.close(from_chrome)
        self.number, self.buffer, self.session = 0, b"", ""
        self.errors: list[str] = []  # of the console, and exceptions that nobody caught
        self.requests: list[str] = []  # addresses that are no file of ours
        self.loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """Send a command and return its result; events that come first are noted."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def read(self) -> dict[str, Any]:
        """The next message."""
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            more = os.read(self.into, 2**20)
            assert more, "the browser has ended"
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self.note(message.get("method", ""), message.get("params", {}))
        return message

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Remember what went wrong."""
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", params)))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(str([a.get("value", a.get("description")) for a in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith(("file:", "data:", "about:")):
                self.requests.append(address)

    def open(
        self,
        path: Path,
        width: int = 1280,
        height: int = 900,
        *,
        query: str = "",
        dark: bool = False,
    ) -> None:
        """Load a file in a window of this size, phones by their width; `dark`: the reader likes it so."""
        self.errors.clear()
        self.requests.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.loaded = False
        self.ask("Page.navigate", url=path.resolve().as_uri() + query)
        while not self.loaded:
            self.read()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser and what it has started."""
        os.close(self.out)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.into)
        self.profile.cleanup()


def open_chrome() -> Iterator[Chrome]:
    """A browser for a fixture, closed behind it; skips where there is none."""
    command = find_chromium()
    if command is None:
        pytest.skip("no Chromium here: apt install chromium, or name one in $CHROMIUM")
    browser = Chrome(command)
    yield browser
    browser.close()
