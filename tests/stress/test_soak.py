"""What must not grow: a process that trains step after step, and a server with many visitors."""

import gc
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.stress.readers import FIXTURES
from tests.stress.runs import STRESS
from tiss.cli.main import main
from tiss.data.shapes import Shapes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 120 * STRESS)]


def look(process: psutil.Process) -> dict[str, float]:
    megabytes, children = process.memory_info().rss / 2**20, process.children(recursive=True)
    counts = {"files": process.num_fds(), "threads": process.num_threads(), "processes": len(children)}
    return {"megabytes": megabytes, **counts}


def check_flat(states: list[dict[str, float]], slack: float = 1.05) -> None:
    """Between the second and the last third, nothing may grow."""
    third = len(states) // 3
    for name in states[0]:
        values = [one[name] for one in states]
        assert median(values[-third:]) <= slack * median(values[third : 2 * third]), (name, values)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_many_steps_in_one_process(workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shapes.__init__, "__defaults__", (None, 0, 32, 200, 20))  # few images
    states, speeds = [], []
    for number in range(6 * STRESS):  # eight steps each
        out = tmp_path / str(number)
        flags = f"""--data shapes --data.crop 16 --task 1-1 --method tiss --model.encoder vit_micro_patch8
            --train.loader workers --train.workers {workers} --train.batch 16 --train.log_every 2
            --train.epochs 1 --train.device cpu --out {out}"""
        assert main(["run", *flags.split()]) == 0
        gc.collect()
        states.append(look(psutil.Process()))
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        speeds.append(max(line["images_per_second"] for line in lines if line["step"] == 7))
    check_flat(states)
    assert max(speeds[-3:]) > 0.7 * max(speeds[:3]), speeds


def test_visitors_at_once_get_their_answers(tmp_path: Path) -> None:
    """Each uploads images that nobody sent before, moves the slider, leaves and comes back as somebody else."""
    client = pytest.importorskip("gradio_client")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = f"-m tiss app {FIXTURES}/v0_1/run --device cpu --port {port}".split()
    server = psutil.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 20 * STRESS

    def visit(number: int) -> None:
        random, path = np.random.default_rng(number), tmp_path / f"{number}.png"
        while time.monotonic() < end:
            visitor = client.Client(address, verbose=False, download_files=False)
            pixels = random.integers(0, 256, (16, 16, 3), np.uint8).repeat(12, 0).repeat(16, 1)
            Image.fromarray(pixels).save(path)
            for step in (1, 0):
                shown = client.handle_file(path), step, ["disc", "bar"], False
                assert "data:image/png;base64" in str(visitor.predict(*shown, fn_index=0))
            visitor.close()

    try:
        address = next(line for line in server.stdout if line.startswith("http")).split()[0]
        with ThreadPoolExecutor(6) as pool:
            visits = [pool.submit(visit, number) for number in range(6)]
            states = []
            while time.monotonic() < end:
                time.sleep(0.5)
                states.append(look(server))
        for one in visits:
            one.result()
        check_flat(states, slack=1.2)
    finally:
        server.terminate()
        server.wait(30)
