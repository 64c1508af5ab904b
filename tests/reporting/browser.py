"""Headless Chromium over its debugging pipe (NUL-separated JSON on descriptors 3 and 4): no driver, no port."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"]


class Browser:
    """One page; `events` keeps everything that the browser reported."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        high = [os.dup(fd) for fd in (to_read, back_write)]  # clear of 3 and 4
        script = f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}'
        command = ["/bin/bash", "-c", script, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(command, pass_fds=high, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for fd in (to_read, back_write, *high):
            os.close(fd)
        self.events: list[dict[str, Any]] = []
        self.buffer, self.count, self.session = b"", 0, ""
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.back, 1 << 16)
            assert part, "the browser has gone"
            self.buffer += part
        line, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(line)

    def open(self, path: Path) -> None:
        self("Page.navigate", url=path.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())
        self.settle()

    def settle(self) -> None:
        """Wait until the page has drawn."""
        script = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        self("Runtime.evaluate", expression=script, awaitPromise=True)

    def run(self, expression: str) -> Any:
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def look(self, width: int, height: int, dark: bool = False, mobile: bool = False) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self.settle()

    def mouse(self, kind: str, x: float, y: float, pressed: bool = False) -> None:
        button = {"button": "left", "buttons": int(pressed), "clickCount": 1} if kind != "mouseMoved" or pressed else {}
        self("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def troubles(self) -> list[str]:
        """Console errors and requests that left the page's own file."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown" or (
                method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
            ):
                found.append(json.dumps(params)[:300])
            if method == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
                found.append("request to " + params["request"]["url"])
        return found

    def close(self) -> None:
        self.session = ""
        self("Browser.close")
        self.process.wait(timeout=20)
        os.close(self.to)
        os.close(self.back)
