from pathlib import Path

import pytest

from tests.data.samples import make_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A labelled folder of four images."""
    return make_folder(tmp_path / "data")
