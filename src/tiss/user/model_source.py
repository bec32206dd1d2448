"""Models of users: finding them in folders, in runs and on the hub, their parents, their card, and pushing them."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiss.engine.device import choose_device
from tiss.engine.predictor import Predictor
from tiss.engine.results import read_results
from tiss.engine.run_folder import STATE, RunFolder
from tiss.errors import TissError
from tiss.files import existing, read_json, write_json, write_text
from tiss.models import CARD, CONFIG, WEIGHTS, SegmentationModel, file_hash, find_folder, from_pretrained
from tiss.models.pretrained import PICKLES, fetch, looks_like_hub_name
from tiss.report.render import render

SMALLEST, LARGEST = 16, 8192  # of the size, in pixels
MOST_PARENTS = 200  # more are a cycle or a mistake
PICKLED, PREPROCESSOR = "pytorch_model.bin", "preprocessor_config.json"  # of models in transformers' format
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Source:
    """A model's folder, and the name that the user gave."""

    folder: Path
    name: str

    @property
    def library(self) -> str | None:
        """The library whose format the model is in; None for ours."""
        if self.folder.is_file():
            return "torchvision"
        config = read_json(self.folder / CONFIG)
        if not isinstance(config, dict) or config.get("model_type", "tiss") == "tiss":
            return "smp" if isinstance(config, dict) and "_model_class" in config else None
        return "transformers"

    def load(self) -> SegmentationModel:
        if self.library is not None:
            raise TissError(f"{self.name}: a model of {self.library}: `tiss extend` makes it one of tiss")
        return from_pretrained(self.folder)

    def hash(self) -> str:
        """SHA-256 of the weights."""
        if self.folder.is_file():
            return file_hash(self.folder)
        pickled, weights = self.folder / PICKLED, self.folder / WEIGHTS
        return file_hash(pickled if pickled.is_file() and not weights.is_file() else weights)


def find_source(name: str) -> Source:
    """The model called `name`: a model folder, the last step of a run folder, a file of weights, or a hub name."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if (folder / CONFIG).exists():
            return Source(folder, name)
        steps = run_steps(folder)
        if steps:
            return Source(steps[-1], str(steps[-1]))
        raise TissError(f"{name}: no model in this folder: it has no {CONFIG}")
    if folder.is_file() and folder.suffix in (".safetensors", *PICKLES):
        return Source(folder, name)
    if looks_like_hub_name(name):
        return Source(fetch(name, [CONFIG, WEIGHTS, CARD, STATE, PICKLED, PREPROCESSOR, "classes.txt"]), name)
    return Source(find_folder(name, allow_download=False), name)


def open_predictor(source: Source, size: int | None, native: bool, device: str) -> Predictor:
    """The model ready to predict, at `size` or at its own."""
    if size is not None and not SMALLEST <= size <= LARGEST:
        raise TissError(f"{size}: give a number of pixels from {SMALLEST} to {LARGEST}", setting="size")
    return Predictor(source.load(), size, native, choose_device(device))


def run_steps(folder: Path) -> list[Path]:
    """The model folders of a run's finished steps, first to last."""
    steps: list[Path] = []
    while ((step := RunFolder(folder).step(len(steps)).path) / CONFIG).exists():
        steps.append(step)
    return steps


def line_of(folder: Path) -> list[Path]:
    """The model folders that led to `folder`, the first model first, `folder` itself last.

    An extended model names its parent by a relative path and the hash of its weights; a step of a run follows the
    step before it. The line ends where a parent is missing or has changed.
    """
    line = [folder]
    while len(line) < MOST_PARENTS and (parent := parent_of(line[0])) is not None:
        if parent.resolve() in [known.resolve() for known in line]:
            break
        line.insert(0, parent)
    return line


def parent_of(folder: Path) -> Path | None:
    """The folder of the model from which `folder`'s model was extended, if it exists and is unchanged."""
    config = read_json(folder / CONFIG)
    record = config.get("record") if isinstance(config, dict) else None
    parent = record.get("parent") if isinstance(record, dict) else None
    if isinstance(parent, dict) and isinstance(parent.get("path"), str):
        if os.path.isabs(parent["path"]):  # tiss writes relative paths only
            return None
        found = folder / parent["path"]
        # os.path, which takes an impossible file name for a missing one
        whole = os.path.isfile(found / CONFIG) and os.path.isfile(found / WEIGHTS)
        ours = whole and Source(found, "").library is None
        return found if ours and file_hash(found / WEIGHTS) == parent.get("sha256") else None
    name, _, number = folder.resolve().name.partition("-")
    if name == "step" and number.isdigit() and int(number) > 0:
        before = folder.resolve().parent / f"step-{int(number) - 1}"
        return before if (before / CONFIG).is_file() else None
    return None


def describe_parent(source: Source, out: Path) -> dict[str, str]:
    """What an extended model records of its parent: its path relative to `out`, and its weights' hash."""
    if not Path(source.name).expanduser().exists():  # of the hub: its cached path means nothing elsewhere
        return {"name": source.name, "sha256": source.hash()}
    folder = source.folder.resolve()
    return {"name": folder.name, "path": os.path.relpath(folder, out.resolve()), "sha256": source.hash()}


def check_out(out: str) -> Path:
    """The path to write to: nothing may be there yet, and its folder must be writable."""
    place = Path(out).expanduser()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise TissError(f"{out}: exists already: choose another name", setting="out")
    above = existing(place)
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise TissError(f"{out}: {above} is not writable: choose another place", setting="out")
    return place


def write_card(
    folder: Path,
    model: SegmentationModel,
    record: Mapping[str, Any],
    name: str = "this-folder",
    results: Any = None,
) -> None:
    """README.md: scenario, steps with their scores, data, limits; `results` are those of a run, if it is one's."""
    history = [entry for entry in record.get("history") or [] if isinstance(entry, Mapping)]
    steps = {entry.get("step"): entry for entry in history}
    # a first model has no old classes, and where old classes have no labels only the two models can be compared
    optional = ("old_change", "pixels_as_before")
    shown = [key for key in optional if any(entry.get(key) is not None for entry in history)]
    values = {"name": name, "record": record, "history": history, "steps": steps, "shown": shown}
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    write_text(folder / CARD, render("card.md", model=model, millions=millions, results=results, **values))


def push_model(source: Source, name: str, private: bool = False, message: str = "Add model") -> str:
    """Uploads the model as `name` (owner/name) with its card; no path of this machine is in it. Returns its address."""
    if not HUB_NAME.fullmatch(name):
        raise TissError(f"{name}: a hub name is owner/name, of letters, digits, '-', '_' and '.'")
    model = source.load()  # which checks the weights
    config = read_json(source.folder / CONFIG)
    parent = config.get("record", {}).get("parent")
    if isinstance(parent, dict):
        parent.pop("path", None)
    step = source.folder.resolve()
    run = step.parent / "results.json"
    results = read_results(run) if step.name.startswith("step-") and run.is_file() else None
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory(prefix="tiss-push-") as folder:
        for file in (WEIGHTS, STATE):
            if (source.folder / file).is_file():
                shutil.copyfile(source.folder / file, Path(folder) / file)
        write_json(Path(folder) / CONFIG, config)
        write_card(Path(folder), model, model.record, name, results)
        try:
            address = HfApi().create_repo(name, private=private, exist_ok=True)
            HfApi().upload_folder(repo_id=name, folder_path=folder, commit_message=message)
        except Exception as error:  # what its HTTP library raises differs from version to version
            reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
            raise TissError(f"{name}: upload failed: {reason}; `hf auth login` sets the token") from error
    return str(address)
