"""The model hub: one way in, and one line of error where there is no network."""

from __future__ import annotations

from pathlib import Path

from tiss.errors import TissError


def looks_like_hub_name(name: str) -> bool:
    """Whether `name` reads like owner/repository rather than a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/")


def fetch(name: str, files: list[str]) -> Path:
    """The repository `name` of the hub as a local folder, with those of `files` that it has."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except (HFValidationError, LocalEntryNotFoundError, OSError) as error:  # HTTP errors are OSErrors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TissError(
            f"{name}: no such file or folder here, and the hub did not give it: {reason}; without "
            "a network, give the path of a file or folder"
        ) from error
