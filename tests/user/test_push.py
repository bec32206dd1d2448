"""Push to a stand-in hub and fetch it back, in processes of their own, as a user's would be."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.user.hub import serve
from tests.user.story import Refused
from tiss.models import SegmentationModel


def run(code: list, address: str, home: Path, token: str = "hf_test") -> subprocess.CompletedProcess[str]:
    hub = {"HF_ENDPOINT": address, "HF_TOKEN": token, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    captured = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run([sys.executable, *map(str, code)], env=os.environ | hub, **captured)


def test_push_and_fetch(story: Path, tmp_path: Path):
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
        code = "import tiss; m = tiss.from_pretrained('team/stars'); m.save_pretrained('fetched')"
        code = f"import os; os.chdir({str(tmp_path)!r}); {code}"
        fetched = run(["-c", code], server.address, tmp_path / "other")
        assert fetched.returncode == 0, fetched.stderr
    ours, theirs = map(SegmentationModel.from_pretrained, (story / "second", tmp_path / "fetched"))
    assert ours.classes == theirs.classes
    assert all((a == b).all() for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_refusals_are_one_line(story: Path, tmp_path: Path, refused: Refused):
    assert "owner/name" in refused("push", story / "first", "just-a-name")
    command = ["-m", "tiss", "push", story / "first", "team/x"]
    with serve() as server:
        wrong = run(command, server.address, tmp_path, "hf_wrong")
    nobody = run(command, "http://127.0.0.1:9", tmp_path)
    for done in (wrong, nobody):
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "hf_wrong" not in done.stderr
