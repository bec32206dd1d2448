"""Examples in docstrings print numbers; they must be the right ones."""

import doctest
import importlib
import pkgutil

import pytest

import tiss.losses

# The kernels have no examples, and importing them here would fix how triton runs them.
MODULES = [m.name for m in pkgutil.iter_modules(tiss.losses.__path__) if not m.name.startswith("triton")]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(f"tiss.losses.{name}"))
    assert failed == 0


def test_every_public_function_has_an_example():
    for name in tiss.losses.__all__:
        value = getattr(tiss.losses, name)
        if callable(value) and not isinstance(value, type):
            assert ">>>" in (value.__doc__ or ""), name
