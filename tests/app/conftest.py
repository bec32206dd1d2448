"""The same story as the commands' tests."""

from tests.user.conftest import refused, solved, story

__all__ = ["refused", "solved", "story"]
