"""The short version of tools/disk_test.py: each fault once or twice, in one process."""

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
trial = disk_test.Trial(work)
assert disk_test.file_limit(trial, [3000]) == 1
if not disk_test.can_mount(work):
    sys.exit(77)
assert disk_test.full_disk(trial, [250_000]) == 1
assert disk_test.read_only(trial, 1) == 1
"""


def test_runs_survive_full_disks_and_read_only_folders(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    if done.returncode == 77:
        pytest.skip("file limits survived; mounting a small disk needs root")
    assert done.returncode == 0, done.stdout + done.stderr
