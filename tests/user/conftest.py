"""The story that the tests of these commands share, played once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.user.story import play


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders warehouse, tonight, tomorrow with pictures; models first → second → third."""
    return play(tmp_path_factory.mktemp("story"))
