"""The short version of tools/kill_test.py: a few kills, one at least in each phase."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_killed_runs_resume_to_the_same_result() -> None:
    command = [sys.executable, "-m", "tools.kill_test", "--kills", "6", "--each", "1", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
