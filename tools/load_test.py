"""Visitors of the web page, many at once, through the same HTTP calls that the page's script makes.

    python -m tools.load_test --users 50 --seconds 300

Starts `tiss app` on loopback with a small model. Each visitor opens the page, uploads a picture nobody has sent
before, waits for the answer, moves the slider, waits again, leaves, and comes back as somebody else. Counted are
visits, errors, the time from the upload to the answer, and the server's memory, threads and open files. The exit
code is 1 after an error, or if one of the three grows after the warm-up (the first fifth of the time).
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WAIT = 120.0  # seconds until a visitor gives up
ALLOWED = {"megabytes": 1.05, "threads": 1.2, "files": 1.2}  # growth from after the warm-up to the end


@dataclass
class Tally:
    """What all visitors have seen."""

    uploads: list[float] = field(default_factory=list)  # seconds from the upload to the answer
    slides: list[float] = field(default_factory=list)  # seconds from a move of the slider to the answer
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """The server at one moment."""

    second: float
    megabytes: float
    threads: int
    files: int


class Visitor:
    """One visit: a session of its own."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.port, self.chance = port, chance
        self.session = uuid.UUID(int=chance.getrandbits(128)).hex[:11]
        self.config: dict[str, Any] = {}

    def visit(self, tally: Tally) -> None:
        self.fetch("GET", "/")
        self.config = json.loads(self.fetch("GET", "/config"))
        with self.heartbeat():
            start = time.monotonic()
            picture = self.upload()
            self.answer("picture", [picture, 1, ["class 1", "class 2"], False])
            tally.uploads.append(time.monotonic() - start)
            start = time.monotonic()
            self.answer("step", [picture, 0, ["class 1"], False])
            tally.slides.append(time.monotonic() - start)

    def heartbeat(self) -> Any:
        """The stream that tells the server that the page is still open."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request("GET", f"/gradio_api/heartbeat/{self.session}")
        response = connection.getresponse()
        check(response.status == 200, f"heartbeat: status {response.status}")
        return response

    def upload(self) -> dict[str, Any]:
        numbers = np.random.default_rng(self.chance.getrandbits(64))
        pixels = numbers.integers(0, 256, (16, 16, 3), dtype=np.uint8).repeat(12, 0).repeat(16, 1)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        mark = f"----{self.session}"
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n'
        body = f"{head}Content-Type: image/png\r\n\r\n".encode() + buffer.getvalue()
        body += f"\r\n--{mark}--\r\n".encode()
        kind = f"multipart/form-data; boundary={mark}"
        (path,) = json.loads(self.fetch("POST", "/gradio_api/upload", body, kind))
        return {"path": path, "orig_name": "a.png", "meta": {"_type": "gradio.FileData"}}

    def answer(self, changed: str, data: list[Any]) -> None:
        """Tells the server that a part of the page has changed and waits for what it shows."""
        (part,) = (one for one in self.config["components"] if one["props"].get("elem_id") == changed)
        (event,) = (one for one in self.config["dependencies"] if [part["id"], "change"] in one["targets"])
        request = {
            "data": data,
            "fn_index": event["id"],
            "session_hash": self.session,
            "trigger_id": part["id"],
        }
        self.fetch("POST", "/gradio_api/queue/join", json.dumps(request).encode(), "application/json")
        stream = self.fetch("GET", f"/gradio_api/queue/data?session_hash={self.session}").decode()
        messages = [json.loads(line[5:]) for line in stream.splitlines() if line.startswith("data:")]
        ends = [one for one in messages if one["msg"] == "process_completed"]
        check(len(ends) == 1 and ends[0]["success"], f"{changed}: {str(messages[-1:])[:300]}")
        check(
            "data:image/png;base64" in str(ends[0]["output"]["data"][0]),
            f"{changed}: no picture in the answer",
        )

    def fetch(self, method: str, path: str, body: bytes | None = None, kind: str = "text/plain") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if body else {})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        check(response.status == 200, f"{path.split('?')[0]}: status {response.status}: {text[:200]!r}")
        return text


class RefusedError(Exception):
    """An answer that a visitor would have been unhappy with."""


def check(fine: bool, message: str) -> None:
    if not fine:
        raise RefusedError(message)


def visitors(port: int, users: int, seconds: float) -> Tally:
    """`users` visitors at once, each coming back until the time is over."""
    tally = Tally()
    end = time.monotonic() + seconds

    def stay(number: int) -> None:
        chance = random.Random(number)
        time.sleep(chance.random())
        while time.monotonic() < end:
            try:
                Visitor(port, chance).visit(tally)
            except (RefusedError, OSError, http.client.HTTPException, ValueError, KeyError) as error:
                tally.errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=stay, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def watch(pid: int, samples: list[Sample], stop: threading.Event) -> None:
    """Notes the server's state twice a second."""
    start = time.monotonic()
    while not stop.wait(0.5):
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        samples.append(
            Sample(
                time.monotonic() - start,
                int(status["VmRSS"].split()[0]) / 1024,
                int(status["Threads"]),
                len(os.listdir(f"/proc/{pid}/fd")),
            )
        )


def make_model(folder: Path) -> Path:
    """Two steps of an untrained model, as a run's folder has them."""
    from tiss.config import ModelConfig
    from tiss.models.build import build_model

    model = build_model(ModelConfig(encoder="vit_micro_patch8"), ["background", "class 1"], 64)
    model.save_pretrained(folder / "step-0")
    model.grow(["class 2"], initialise="random")
    model.save_pretrained(folder / "step-1")
    return folder


def load(users: int, seconds: float) -> tuple[Tally, list[Sample]]:
    """Starts the server, sends the visitors, stops the server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        words = ["app", str(make_model(Path(name, "model"))), "--port", str(port), "--device", "cpu"]
        server = subprocess.Popen([sys.executable, "-m", "tiss", *words], stdout=subprocess.PIPE, text=True)
        samples: list[Sample] = []
        stop = threading.Event()
        try:
            line = server.stdout.readline() if server.stdout else ""
            check(line.startswith("http://"), f"the server did not start: {line!r}")
            watcher = threading.Thread(target=watch, args=(server.pid, samples, stop))
            watcher.start()
            tally = visitors(port, users, seconds)
            stop.set()
            watcher.join()
        finally:
            stop.set()
            server.terminate()
            server.wait(30)
    return tally, samples


def growth(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """Each quantity's median over the second and over the last fifth of the time."""
    fifth = max(1, len(samples) // 5)
    early, late = samples[fifth : 2 * fifth] or samples, samples[-fifth:]
    return {
        name: tuple(statistics.median(getattr(one, name) for one in part) for part in (early, late))  # type: ignore[misc]
        for name in ALLOWED
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    tally, samples = load(options.users, options.seconds)
    print(
        f"{options.users} users, {options.seconds:.0f} s: {len(tally.uploads)} visits, {len(tally.errors)} errors"
    )
    for text in sorted(set(tally.errors))[:5]:
        print(f"  {text}")
    for name, times in (("upload to answer", tally.uploads), ("slider to answer", tally.slides)):
        if len(times) > 1:
            last = statistics.quantiles(times, n=20)[-1]
            print(f"{name}: median {statistics.median(times):.2f} s, 95 % within {last:.2f} s")
    failed = bool(tally.errors) or not tally.uploads
    print("| server | after the warm-up | at the end | most | |\n|---|---|---|---|---|")
    for name, (before, after) in growth(samples).items():
        grows = after > before * ALLOWED[name]
        failed = failed or grows
        most = max(getattr(one, name) for one in samples)
        print(f"| {name} | {before:.1f} | {after:.1f} | {most:.1f} | {'grows' if grows else 'flat'} |")
    fifth = max(1, len(samples) // 5)
    parts = (samples[start : start + fifth] for start in range(0, 5 * fifth, fifth))
    medians = (f"{statistics.median(one.megabytes for one in part):.0f}" for part in parts if part)
    print(f"megabytes, fifth by fifth: {', '.join(medians)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
