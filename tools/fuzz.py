"""Feeds damaged files to every reader: each must end in a result or in a one-line TissError, quickly.

    python -m tools.fuzz --seconds 3600          # shared out over all targets
    python -m tools.fuzz --only coco --seconds 60 --keep

Another exception, a hang, a dead process or memory beyond the limit is a finding: its input is written to
`--out` and the exit code is 1. Inputs that end somewhere new are mutated further; `--keep` adds the small
ones to the corpus in tests/fixtures/corpus, which the test suite replays.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from tiss.errors import TissError
from tools import fuzz_data, fuzz_labels  # noqa: F401 - they add their targets
from tools.fuzz_targets import TARGETS, Target
from tools.mutate import mutate

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "corpus"
SECONDS_EACH = 10  # no reader may take longer over a file of a few kilobytes
MEMORY = 2 << 30  # more than any of them may take on top of what the process has
KEPT_BYTES = 2048


class Hang(BaseException):
    """Raised by the alarm clock; not an Exception, so that no reader catches it."""


def attempt(target: Target, data: bytes, folder: Path) -> tuple[str, str]:
    """Reads `data` once. Returns what came of it ("read", "refused" or "finding") and where it ended."""
    try:
        target.read(data, folder)
    except TissError as error:
        message = str(error)
        if "\n" in message or not message or len(message) > 2000:
            return "finding", f"the message is not one short line: {message[:300]!r}"
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        return "refused", " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    except Hang:
        return "finding", f"took more than {SECONDS_EACH} s"
    except BaseException as error:
        return "finding", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return "read", "read"


def watch() -> None:
    """Sets up the alarm clock, which rings after `SECONDS_EACH`, and limits the memory from here on."""

    def ring(*_: Any) -> None:
        raise Hang

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGALRM, ring)
    warnings.simplefilter("ignore")
    logging.disable()


def fuzz(target: Target, seconds: float, seed: int, current: Path, report: Path, keep: bool) -> None:
    """The work of one process: mutates and reads until the time is over, then writes its report."""
    chance = random.Random(f"{target.name} {seed}")
    pool = list(dict.fromkeys([*target.seeds(), *saved(target)]))
    seen: set[str] = set()
    outcome: dict[str, Any] = {"target": target.name, "tried": 0, "read": 0, "refused": 0, "findings": []}
    with tempfile.TemporaryDirectory() as name:
        for data in pool:  # loads the modules it needs before time and memory count
            attempt(target, data, Path(name))
        watch()
        start = time.monotonic()
        waiting = list(pool)
        while waiting or time.monotonic() - start < seconds:
            data = waiting.pop() if waiting else mutate(chance.choice(pool), target.kind, chance)
            current.write_bytes(data)
            signal.alarm(SECONDS_EACH)
            kind, where = attempt(target, data, Path(name))
            signal.alarm(0)
            outcome["tried"] += 1
            if kind == "finding":
                outcome["findings"].append([where, data.hex()])
                if len(outcome["findings"]) >= 5:
                    break
                continue
            outcome[kind] += 1
            if where not in seen:
                seen.add(where)
                pool.append(data)
                if keep and len(data) <= KEPT_BYTES:
                    save(target, data)
    outcome |= {"ends": len(seen), "seconds": round(time.monotonic() - start, 1)}
    report.write_text(json.dumps(outcome))


def saved(target: Target) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target.name).glob("*.bin"))]


def save(target: Target, data: bytes) -> None:
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{hashlib.sha256(data).hexdigest()[:12]}.bin").write_bytes(data)


def run(target: Target, seconds: float, seed: int = 0, keep: bool = False) -> dict[str, Any]:
    """Fuzzes one target in a process of its own, which may die or hang without taking this one along."""
    with tempfile.TemporaryDirectory() as name:
        current, report = Path(name, "current"), Path(name, "report")
        process = multiprocessing.get_context("fork").Process(
            target=fuzz, args=(target, seconds, seed, current, report, keep)
        )
        process.start()
        quiet = time.monotonic()
        while process.is_alive():
            process.join(1.0)
            if current.exists() and time.time() - current.stat().st_mtime < 3 * SECONDS_EACH:
                quiet = time.monotonic()
            if time.monotonic() - quiet > 6 * SECONDS_EACH:
                process.kill()  # harmless if it has ended meanwhile
        if report.exists():
            result: dict[str, Any] = json.loads(report.read_text())
            return result
        data = current.read_bytes() if current.exists() else b""
        finding = [f"the process ended with {process.exitcode}", data.hex()]
        return {"target": target.name, "tried": 0, "read": 0, "refused": 0, "ends": 0, "findings": [finding]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument(
        "--only", nargs="*", default=list(TARGETS), choices=list(TARGETS), help="these targets"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="add inputs that end somewhere new to the corpus")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/fuzz"), help="findings and report.json go here"
    )
    options = parser.parse_args()
    import_module("torch")  # once here, not in every process
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    print(
        "| target | inputs | read | refused | places where it ended | findings |\n|---|---|---|---|---|---|"
    )
    for name in options.only:
        result = run(TARGETS[name], options.seconds / len(options.only), options.seed, options.keep)
        for number, (text, data) in enumerate(result["findings"]):
            (options.out / f"{name}-{number}.bin").write_bytes(bytes.fromhex(data))
            (options.out / f"{name}-{number}.txt").write_text(text)
        result["findings"] = [text.splitlines()[0] for text, _ in result["findings"]]
        results.append(result)
        row = [name, *(result[key] for key in ("tried", "read", "refused", "ends")), len(result["findings"])]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    (options.out / "report.json").write_text(json.dumps(results, indent=2) + "\n")
    print(f"{sum(result['tried'] for result in results):,} inputs in all")
    return 1 if any(result["findings"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
