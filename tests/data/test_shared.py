"""The training set in memory once a machine, not once a process."""

from __future__ import annotations

import pytest

from tests.engine.processes import run_module
from tiss.data.shared import SHARED_MEMORY, Team, free_shared_memory


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="shared memory is a Linux folder")
def test_two_processes_share_one_copy() -> None:
    before = set(SHARED_MEMORY.glob("tiss-*"))
    run_module("tests.data.share_memory")
    assert set(SHARED_MEMORY.glob("tiss-*")) <= before  # nothing is left behind
    assert free_shared_memory() > 0


def test_a_process_alone_has_no_team() -> None:
    assert Team.here() is None
