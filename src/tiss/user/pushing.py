"""`push`: a model folder to a hub, with a card and without a word about this machine."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tiss.errors import TissError
from tiss.files import read_json, write_json, write_text
from tiss.models.folder import CARD, CONFIG, WEIGHTS
from tiss.user.card import make_card, results_beside
from tiss.user.choices import STATE
from tiss.user.source import Source

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def push_model(source: Source, name: str, *, private: bool = False, message: str = "Add model") -> str:
    """Uploads the model as `name` (owner/name); returns its address."""
    if not NAME.fullmatch(name):
        raise TissError(f"{name}: a hub name is owner/name, of letters, digits, '-', '_' and '.'")
    with tempfile.TemporaryDirectory(prefix="tiss-push-") as folder:
        stage(source, name, Path(folder))
        return upload(Path(folder), name, private, message)


def stage(source: Source, name: str, folder: Path) -> None:
    """Fills `folder` with what goes to the hub: the model, checked whole, its card, and the method's state."""
    model = source.load()
    shutil.copyfile(source.folder / WEIGHTS, folder / WEIGHTS)
    if (source.folder / STATE).is_file():
        shutil.copyfile(source.folder / STATE, folder / STATE)
    config = read_json(source.folder / CONFIG)
    config["record"] = without_paths(config.get("record", {}))
    write_json(folder / CONFIG, config)
    write_text(folder / CARD, make_card(model, model.record, name, results_beside(source.folder)))


def without_paths(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the parent named, but not where it lies on this machine."""
    parent = record.get("parent")
    if not isinstance(parent, dict):
        return record
    return record | {"parent": {key: value for key, value in parent.items() if key != "path"}}


def upload(folder: Path, name: str, private: bool, message: str) -> str:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except Exception as error:  # what its HTTP library raises differs from version to version
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise TissError(
            f"{name}: the hub did not take it: {reason}; `hf auth login` sets the access token"
        ) from error
    return str(address)
