"""Every example in a docstring of the package prints what it says."""

import doctest
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import tiss
import tiss.losses

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
