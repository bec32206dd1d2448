"""One of several processes of a run: `python -m tests.engine.two_processes CASES.json`, started by the tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.methods.toy import toy_config
from tiss.config import RunConfig

PROCESSES = 2


def run_cases(cases: dict[str, dict[str, Any]], folder: Path) -> None:
    """Runs every case here, into `folder`/<name>."""
    from tiss.engine.progress import Reporter
    from tiss.engine.run import run_experiment

    for name, case in cases.items():
        run_experiment(case_config(case, folder / name), reporter=Reporter())


def case_config(case: dict[str, Any], out: Path) -> RunConfig:
    return toy_config(**case, out=str(out))


def start_processes(cases: dict[str, dict[str, Any]], folder: Path, timeout: float = 240) -> None:
    """Runs every case in two processes over gloo, into `folder`/<name>; raises with their output on failure."""
    path = folder / "cases.json"
    path.write_text(json.dumps({"cases": cases, "folder": str(folder)}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(PROCESSES)}
    shared |= {"LOCAL_WORLD_SIZE": str(PROCESSES), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    started = []
    for rank in range(PROCESSES):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, "-m", "tests.engine.two_processes", str(path)]
        log = open(folder / f"rank{rank}.log", "w")  # noqa: SIM115 (closed below, after the process)
        process = subprocess.Popen(
            command, env=os.environ | shared | own, stdout=log, stderr=subprocess.STDOUT
        )
        started.append((process, log))
    try:
        codes = [process.wait(timeout) for process, _ in started]
    finally:
        for process, log in started:
            process.kill()
            log.close()
    logs = "\n".join((folder / f"rank{rank}.log").read_text()[-3000:] for rank in range(PROCESSES))
    assert codes == [0] * PROCESSES, logs


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    run_cases(given["cases"], Path(given["folder"]))
