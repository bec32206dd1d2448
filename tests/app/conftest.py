"""The same story as the commands' tests."""

from __future__ import annotations

from tests.user.conftest import story

__all__ = ["story"]
