"""The short version of tools/disk_test.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from pathlib import Path
from tools import disk_test
work = Path(sys.argv[1])
if sys.argv[2] != "limit" and not disk_test.can_mount(work):
    sys.exit(77)
trial = disk_test.Trial(work)
if sys.argv[2] == "limit":
    assert disk_test.file_limit(trial, [600, 3000]) == 2
if sys.argv[2] == "full":
    assert disk_test.full_disk(trial, [1000, 250_000]) == 2
if sys.argv[2] == "read-only":
    assert disk_test.read_only(trial, 2) == 2
"""


@pytest.mark.parametrize("fault", ["limit", "full", "read-only"])
def test_run_survives(tmp_path: Path, fault: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), fault]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    if done.returncode == 77:
        pytest.skip("mounting a small disk needs root")
    assert done.returncode == 0, done.stdout + done.stderr
