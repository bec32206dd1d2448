"""A headless Chromium, driven over its debugging pipe: no driver program, no further package."""

import base64
import json
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def find_browser() -> str | None:
    return next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)


class Browser:
    """One page. Commands go as JSON, each ended by a zero byte, to descriptor 3; answers come from 4."""

    def __init__(self, writing: int, reading: int) -> None:
        self.writing, self.reading = writing, reading
        self.waiting = b""
        self.number = 0
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("DOM.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self._next(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise TimeoutError(method)

    def _next(self, deadline: float) -> Any:
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self.reading, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser says nothing")
            self.waiting += part
        line, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(line)

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 60) -> Any:
        """The first true value of a JavaScript expression."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                value = self.evaluate(expression)
            except RuntimeError:
                value = None
            if value:
                return value
            time.sleep(0.2)
        raise TimeoutError(f"never true: {expression}")

    def upload(self, selector: str, path: Path) -> None:
        root = self.call("DOM.getDocument", depth=-1)["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    """A browser with a profile of its own, gone afterwards."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    # the browser's helper processes may write for a moment after it has gone: what they leave is nobody's loss
    with tempfile.TemporaryDirectory(prefix="tiss-browser-", ignore_cleanup_errors=True) as profile:
        flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe"
        profiles = f"--user-data-dir={shlex.quote(profile)} --no-first-run --window-size=1280,1000"
        command = f"exec {shlex.quote(program)} {flags} {profiles} 3<&{to_read} 4>&{from_write}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(["bash", "-c", command], pass_fds=(to_read, from_write), **quiet)
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(to_write)
            os.close(from_read)
