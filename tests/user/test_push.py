"""Push to a stand-in hub and fetch it back, in processes of their own, as a user's would be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.user.hub import serve
from tests.user.story import refused
from tiss.models import SegmentationModel


def run(
    code: list[str], address: str, home: Path, token: str = "hf_test"
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "HF_ENDPOINT": address,
        "HF_TOKEN": token,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
    }
    return subprocess.run(
        [sys.executable, *code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_push_and_fetch(story: Path, tmp_path: Path) -> None:
    with serve() as server:
        done = run(["-m", "tiss", "push", str(story / "second"), "team/stars"], server.address, tmp_path)
        assert done.returncode == 0, done.stderr
        files = server.files["team/stars"]
        assert {"config.json", "model.safetensors", "README.md", "method.safetensors"} <= files.keys()
        config = json.loads(files["config.json"])
        assert config["id2label"]["3"] == "star"
        assert "path" not in config["record"]["parent"]
        assert str(story) not in files["config.json"].decode() + files["README.md"].decode()
        assert 'from_pretrained("team/stars")' in files["README.md"].decode()
        assert "| 1 | star | recall |" in files["README.md"].decode()
        code = "import tiss; m = tiss.from_pretrained('team/stars'); m.save_pretrained('fetched'); print(m.classes)"
        fetched = run(
            ["-c", f"import os; os.chdir({str(tmp_path)!r}); {code}"], server.address, tmp_path / "other"
        )
        assert fetched.returncode == 0, fetched.stderr
    ours, theirs = (
        SegmentationModel.from_pretrained(folder) for folder in (story / "second", tmp_path / "fetched")
    )
    assert ours.classes == theirs.classes
    assert all((a == b).all() for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_refusals_are_one_line(story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "owner/name" in refused(["push", str(story / "first"), "just-a-name"], capsys)
    with serve() as server:
        done = run(
            ["-m", "tiss", "push", str(story / "first"), "team/x"], server.address, tmp_path, "hf_wrong"
        )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "hf_wrong" not in done.stderr
    alone = run(["-m", "tiss", "push", str(story / "first"), "team/x"], "http://127.0.0.1:9", tmp_path)
    assert alone.returncode == 2, "nobody answers there"
    assert len(alone.stderr.strip().splitlines()) == 1, alone.stderr
