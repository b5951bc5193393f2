"""A real browser, driven over the pipe that it opens for its developer tools: no driver, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
# Chromium reads commands from descriptor 3 and answers on descriptor 4.
LAUNCH = """import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])"""


def program() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of one browser; what it logs and asks the network for is kept in ``events``."""

    def __init__(self, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        high = [_above_ten(commands), _above_ten(answers)]
        executable = program()
        assert executable is not None
        command = [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", LAUNCH, *map(str, high), *command],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (commands, answers, *high):
            os.close(fd)
        self.events: list[dict[str, Any]] = []
        self._number, self._rest, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard["error"]
                return dict(heard["result"])
            self.events.append(heard)

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def open(self, page: Path, *, width: int = 1280, height: int = 900) -> None:
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=page.as_uri())
        until = time.monotonic() + 20
        while self.run("document.readyState + location.href") != f"complete{page.as_uri()}":
            assert time.monotonic() < until, "the page does not load"
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def key(self, name: str, text: str = "") -> None:
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowRight": 39, "End": 35, " ": 32}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code="Space" if name == " " else name,
                windowsVirtualKeyCode=codes[name],
                text=text if kind == "keyDown" else "",
            )

    def click(self, selector: str) -> None:
        x, y = self.centre(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector: str) -> None:
        x, y = self.centre(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def point(self, selector: str) -> None:
        x, y = self.centre(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def focus(self, selector: str) -> None:
        self.centre(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")

    def centre(self, selector: str) -> tuple[float, float]:
        quoted = json.dumps(selector)
        self.run(f"document.querySelector({quoted}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        # A scroll is told to the page in the next frame, and closes what floats.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        box = self.run(f"document.querySelector({quoted}).getBoundingClientRect().toJSON()")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def media(self, kind: str = "", **features: str) -> None:
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=kind, features=listed)

    def script(self, allowed: bool) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def shot(self, path: Path, *, whole: bool = True) -> None:
        made = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def said(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._read)
        os.close(self._write)


def _above_ten(fd: int) -> int:
    """A copy that neither 3 nor 4 can overwrite."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD, 10)
