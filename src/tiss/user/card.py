"""The model card, and pushing a model folder with its card to a hub."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiss.engine.results import read_results
from tiss.engine.run_folder import STATE
from tiss.errors import TissError
from tiss.evaluation.scores import percent
from tiss.files import read_json, write_json, write_text
from tiss.models.folder import CARD, CONFIG, WEIGHTS
from tiss.models.model import SegmentationModel
from tiss.user.model_source import Source

TEMPLATE = """---
library_name: tiss
pipeline_tag: image-segmentation
tags: [semantic-segmentation, incremental-learning]
---
# {encoder} with {count} classes, trained in {groups} step(s)

Semantic segmentation: encoder `{encoder}`, decoder `{decoder}`,
{parameters:.2f} M parameters.

```python
import tiss

model = tiss.from_pretrained("{name}")
labels = model.predict_labels(model(images))  # uint8 N × 3 × H × W, RGB → N × H × W; 0 is the background
```

## Scenario

{scenario}

## Steps

{steps}

## Data

{data}

## Limits

- The model knows the classes above; anything else is background.
- Scores are from the images named here. Images of another kind (camera, light, place) can score much lower.
- Each step was trained on images in which only its own classes were labelled: compare old classes before and
  after (`tiss compare`) before relying on them.
- Not tested for decisions about people, nor for anything where a wrong pixel can hurt.
"""

# what happened to the old classes in a step, by its key in the model's history
AFTERWARDS = {"old_change": "change of the old ones", "pixels_as_before": "other pixels as before, %"}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def write_card(path: Path, model: SegmentationModel, record: Mapping[str, Any]) -> None:
    """Writes README.md of a model folder."""
    write_text(path, make_card(model, record, "this-folder"))


def make_card(model: SegmentationModel, record: Mapping[str, Any], name: str, results: Any = None) -> str:
    """README.md: scenario, steps with their scores, data, limits; `results` are those of a run, if it is one's."""
    history = [entry for entry in record.get("history") or [] if isinstance(entry, Mapping)]
    if results:
        scenario, steps, data = _of_run(model, results)
    else:
        scenario, steps, data = _scenario(record), _steps(model, history), _data(history)
    return TEMPLATE.format(
        encoder=model.architecture.encoder,
        decoder=model.architecture.decoder,
        count=len(model.classes) - 1,
        groups=len(model.groups),
        parameters=sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        name=name,
        scenario=scenario,
        steps=steps,
        data=data,
    )


def _of_run(model: SegmentationModel, results: Any) -> tuple[str, str, str]:
    """Scenario, steps and data of a run."""
    scenario = (
        f"{results['data']}, task {results['task']}, {results['setup']}, protocol {results['protocol']}, "
        f"method {results['method']}, seed {results['seed']}."
    )
    rows = []
    for index, (group, step) in enumerate(zip(model.groups, results["steps"], strict=False)):
        scores = step["scores"]["all"]
        shown = [percent(scores[key]) for key in ("with_background", "without_background")]
        rows.append([str(index), _names(model, group), *shown])
    counts = ", ".join(str(step.get("train_images")) for step in results["steps"])
    titles = ["step", "classes", "mIoU with background", "without"]
    return scenario, markdown(titles, rows), f"{results['data']}: {counts} training images by step."


def _scenario(record: Mapping[str, Any]) -> str:
    parent = record.get("parent")
    if isinstance(parent, Mapping):
        source = f"method {record.get('method')}, from the model `{parent.get('name')}`"
        return f"One step on the owner's own images, {source}."
    return f"A first model on the owner's own images, method {record.get('method', 'unknown')}."


def _steps(model: SegmentationModel, history: Sequence[Mapping[str, Any]]) -> str:
    # a first model has no old classes, and where old classes have no labels only the two models can be compared
    later = [key for key in AFTERWARDS if any(entry.get(key) is not None for entry in history)]
    titles = ["step", "classes", "method", "images", "IoU of the new classes", *map(AFTERWARDS.get, later)]
    by_step = {entry.get("step"): entry for entry in history}
    rows = []
    for index, group in enumerate(model.groups):
        entry = by_step.get(index, {})
        cells = [str(index), _names(model, group), entry.get("method", "–"), entry.get("train_pictures", "–")]
        cells.append(percent(entry.get("new_iou")))
        for key in later:
            value = entry.get(key)
            cells.append(f"{value:+.1f}" if value is not None and key == "old_change" else percent(value))
        rows.append(cells)
    return markdown(titles, rows)


def _data(history: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"- step {entry.get('step')}: {entry.get('train_pictures')} images, tested on "
        f"{entry.get('held_out_pictures')} held-out images"
        for entry in history
    ]
    return "\n".join(lines) or "Not recorded."


def markdown(titles: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (titles, *rows)]
    return "\n".join([lines[0], "|---" * len(titles) + "|", *lines[1:]])


def _names(model: SegmentationModel, group: list[int]) -> str:
    return ", ".join(model.classes[channel] for channel in group).replace("|", "\\|")


def push_model(source: Source, name: str, private: bool = False, message: str = "Add model") -> str:
    """Uploads the model as `name` (owner/name); returns its address."""
    if not HUB_NAME.fullmatch(name):
        raise TissError(f"{name}: a hub name is owner/name, of letters, digits, '-', '_' and '.'")
    with tempfile.TemporaryDirectory(prefix="tiss-push-") as folder:
        stage(source, name, Path(folder))
        return upload(Path(folder), name, private, message)


def stage(source: Source, name: str, folder: Path) -> None:
    """Fills `folder` with what is uploaded: the model, its card, and the method's state; no path of this machine."""
    model = source.load()  # which checks the weights
    shutil.copyfile(source.folder / WEIGHTS, folder / WEIGHTS)
    if (source.folder / STATE).is_file():
        shutil.copyfile(source.folder / STATE, folder / STATE)
    config = read_json(source.folder / CONFIG)
    parent = config.get("record", {}).get("parent")
    if isinstance(parent, dict):
        parent.pop("path", None)
    write_json(folder / CONFIG, config)
    step = source.folder.resolve()
    run = step.parent / "results.json"
    results = read_results(run) if step.name.startswith("step-") and run.is_file() else None
    write_text(folder / CARD, make_card(model, model.record, name, results))


def upload(folder: Path, name: str, private: bool, message: str) -> str:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except Exception as error:  # what its HTTP library raises differs from version to version
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise TissError(f"{name}: upload failed: {reason}; `hf auth login` sets the access token") from error
    return str(address)
