"""The line of a command that is refused."""

from tests.user.conftest import refused

__all__ = ["refused"]
