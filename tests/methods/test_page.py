"""The page on methods knows every one of them."""

from __future__ import annotations

from pathlib import Path

from tiss.methods.base import METHODS

PAGE = Path(__file__).parent.parent.parent / "docs" / "methods.md"


def test_every_method_is_on_the_page() -> None:
    text = PAGE.read_text()
    built_in = [name for name in METHODS if METHODS.get(name).__module__.startswith("tiss.")]
    assert [name for name in built_in if f"`{name}`" not in text] == []
