"""A few steps of the long run; the long version is tools/soak.py."""

from __future__ import annotations

from pathlib import Path

from tools.soak import How, State, growth, soak


def test_nothing_is_left_open_from_step_to_step(tmp_path: Path) -> None:
    states = soak(3, tmp_path / "run", How())
    assert [state.step for state in states] == [0, 1, 2, 3]
    after = [(state.files, state.threads, state.processes) for state in states[1:]]
    assert len(set(after)) == 1
    assert states[-1].megabytes < states[1].megabytes * 1.1


def test_growth_is_seen() -> None:
    states = [State(step, 100 + step, 6, 2, 0, 1.0) for step in range(50)]
    assert growth(states)["megabytes"] == (106.5, 144.5)
    assert growth(states)["files"] == (6, 6)
