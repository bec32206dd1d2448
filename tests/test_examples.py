"""Every example in a docstring prints what it says, and the grids in examples/ are of runs that this version knows."""

import doctest
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import tiss
import tiss.losses
from tiss.cli.flags import read_yaml
from tiss.engine.grid import command_of, expand
from tiss.methods.base import check_pair

SOURCE = Path(tiss.__file__).parent
WITH_EXAMPLES = [
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted and not found.failed


def test_every_public_loss_has_an_example() -> None:
    for name, value in vars(tiss.losses).items():
        if isinstance(value, FunctionType):
            assert ">>>" in (value.__doc__ or ""), name


GRIDS = sorted((Path(__file__).parent.parent / "examples" / "grids").glob("*.yaml"))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_it_expands_to_runs(path: Path):
    configs = expand(read_yaml(str(path)))
    assert len({command_of(config) for config in configs}) == len(configs) >= 4
    for config in configs:
        check_pair(config.method, config.model)
