"""What a command prints, and the line of one that is refused."""

from tests.user.conftest import refused, said

__all__ = ["refused", "said"]
