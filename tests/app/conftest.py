"""The same story as the commands' tests."""

from tests.user.conftest import refused, story

__all__ = ["refused", "story"]
