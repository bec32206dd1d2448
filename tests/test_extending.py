"""A method and an encoder from outside the package, found by entry point; and the page that shows them."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tiss import registry
from tiss.errors import TissError

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
ENTRY_POINTS = """
[tiss.methods]
my_method = my_method

[tiss.encoders]
my_encoder = my_encoder
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which a distribution with the two examples is installed."""
    site = tmp_path / "site"
    info = site / "somebody_elses-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-elses\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    for name in ("my_method.py", "my_encoder.py"):
        shutil.copy(EXAMPLES / name, site)
    paths = [str(site), str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def python(code: str, environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CHECK = """
import sys
from pathlib import Path
from tests.methods.tester import check_method
from tests.models.tester import check_architecture
from tiss.cli.main import main
from tiss.models import ENCODERS

folder = Path(sys.argv[1])
check_method("selftrain", folder, "convmixer_tiny")
check_architecture("convmixer_tiny", None, folder / "model")
main(["methods"])
print("convmixer_tiny" in ENCODERS)
"""


def test_a_method_and_an_encoder_from_outside(installed: dict[str, str], tmp_path: Path) -> None:
    printed = python(CHECK, installed, str(tmp_path))
    assert "selftrain" in printed
    assert printed.splitlines()[-1] == "True"


def test_a_plug_in_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "a_module_that_does_not_exist", "tiss.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == point.group else [])
    with pytest.raises(TissError, match=r"plug-in a_module_that_does_not_exist .*No module named.*repair"):
        list(registry.Registry("method", "methods"))


def test_the_page_shows_the_method_as_it_is() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert (EXAMPLES / "my_method.py").read_text() in blocks
