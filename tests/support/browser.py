"""A headless Chromium, driven over pipes by its DevTools protocol. No package is needed, and no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "Debian's package chromium is not installed"
FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe"


class Browser:
    """One page. End it with `close`."""

    def __init__(self, profile: Path) -> None:
        """`profile`: an empty folder for its files."""
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (their_in, their_out)]
        command = f'exec "$0" {FLAGS} --user-data-dir="$1" about:blank 3<&{ends[0]} 4>&{ends[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM or "", str(profile)], pass_fds=ends, stderr=subprocess.DEVNULL
        )
        for end in (their_in, their_out, *ends):
            os.close(end)
        self._answers = os.fdopen(self._in, "rb")
        self._number, self._session = 0, ""
        (page,) = (t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, script: str) -> Any:
        """The value of a JavaScript expression, as JSON has it."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Return once the expression is true."""
        end = time.monotonic() + WAIT_S
        while not self.value(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def open(self, url: str) -> None:
        """Show a page, whole."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def key(self, name: str) -> None:
        """Press a key."""
        text = {"text": name} if len(name) == 1 else {}
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        for kind in ("keyDown", "keyUp"):
            code = {"windowsVirtualKeyCode": codes[name], "key": name, "code": "Space" if name == " " else name}
            self.call("Input.dispatchKeyEvent", type=kind, **code, **(text if kind == "keyDown" else {}))

    def size(self, width: int, height: int, scheme: str) -> None:
        """Of the window; `scheme`: light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        """A PNG of the whole page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait(WAIT_S)
        self._answers.close()
        os.close(self._out)

    def _next(self) -> bytes:
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            message += byte
        return bytes(message)
