"""The grids in examples/ say what they mean: they expand to runs that this version knows."""

from pathlib import Path

import pytest

from tiss.cli.flags import read_yaml
from tiss.engine.grid import command_of, expand
from tiss.methods.base import check_pair

GRIDS = sorted((Path(__file__).parent.parent / "examples" / "grids").glob("*.yaml"))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_it_expands_to_runs(path: Path):
    configs = expand(read_yaml(str(path)))
    assert len({command_of(config) for config in configs}) == len(configs) >= 4
    for config in configs:
        check_pair(config.method, config.model)
