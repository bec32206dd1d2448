"""The model card: what a stranger needs to know before using a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiss.engine.results_schema import read_results
from tiss.evaluation.scores import percent
from tiss.files import write_text
from tiss.models.model import SegmentationModel

LIMITS = """- Knows the classes above and nothing else; anything else is background.
- Scores are from the pictures named here. Pictures of another kind (camera, light, place) can score much
  lower.
- Each step learnt from pictures in which only its own classes were labelled: compare old classes before and
  after (`tiss compare`) before relying on them.
- Not tested for decisions about people, nor for anything where a wrong pixel can hurt."""


# what became of the old classes in a step, by its key in the model's history
AFTERWARDS = {
    "old_change": "change of the old ones",
    "pixels_as_before": "other pixels as before, %",
}


def write_card(path: Path, model: SegmentationModel, record: Mapping[str, Any]) -> None:
    write_text(path, make_card(model, record, "this-folder"))


def make_card(model: SegmentationModel, record: Mapping[str, Any], name: str, results: Any = None) -> str:
    """README.md: scenario, steps with their scores, data, limits; `results` are those of a run."""
    architecture = model.architecture
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    scenario = _scenario(record, results)
    return f"""---
library_name: tiss
pipeline_tag: image-segmentation
tags: [semantic-segmentation, incremental-learning]
---
# {architecture.encoder} with {len(model.classes) - 1} classes, learnt in {len(model.groups)} step(s)

Semantic segmentation: encoder `{architecture.encoder}`, decoder `{architecture.decoder}`,
{parameters:.2f} M parameters.

```python
import tiss

model = tiss.from_pretrained("{name}")
labels = model.predict_labels(model(images))  # uint8 N × 3 × H × W, RGB → N × H × W; 0 is the background
```

## Scenario

{scenario}

## Steps

{_steps(model, record, results)}

## Data

{_data(record, results)}

## Limits

{LIMITS}
"""


def results_beside(folder: Path) -> Any:
    """results.json of the run that a step's folder lies in, or None."""
    path = folder.resolve().parent / "results.json"
    is_step = folder.resolve().name.startswith("step-") and path.is_file()
    return read_results(path) if is_step else None


def _scenario(record: Mapping[str, Any], results: Any) -> str:
    if results:
        return (
            f"{results['data']}, task {results['task']}, {results['setup']}, protocol {results['protocol']}, "
            f"method {results['method']}, seed {results['seed']}."
        )
    parent = record.get("parent")
    if isinstance(parent, Mapping):
        source = f"method {record.get('method')}, from the model `{parent.get('name')}`"
        return f"One step on the owner's own pictures, {source}."
    return f"A first model on the owner's own pictures, method {record.get('method', 'unknown')}."


def _steps(model: SegmentationModel, record: Mapping[str, Any], results: Any) -> str:
    if results:
        head = "| step | classes | mIoU with background | without |\n|---|---|---|---|"
        rows = [
            f"| {index} | {_names(model, group)} | "
            + " | ".join(
                percent(step["scores"]["all"][key]) for key in ("with_background", "without_background")
            )
            + " |"
            for index, (group, step) in enumerate(zip(model.groups, results["steps"], strict=False))
        ]
        return "\n".join([head, *rows])
    history = {
        entry.get("step"): entry for entry in record.get("history") or [] if isinstance(entry, Mapping)
    }
    # a first model has no old classes, and where the old ones were not labelled only the two models can be compared
    later = [key for key in AFTERWARDS if any(entry.get(key) is not None for entry in history.values())]
    titles = ["step", "classes", "method", "pictures", "IoU of the new classes"]
    titles += [AFTERWARDS[key] for key in later]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for index, group in enumerate(model.groups):
        entry = history.get(index, {})
        cells = [str(index), _names(model, group), entry.get("method", "–"), entry.get("train_pictures", "–")]
        cells += [percent(entry.get("new_iou"))]
        cells += [
            _signed(entry.get(key)) if key == "old_change" else percent(entry.get(key)) for key in later
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _signed(value: float | None) -> str:
    return percent(value) if value is None else f"{value:+.1f}"


def _data(record: Mapping[str, Any], results: Any) -> str:
    if results:
        counts = ", ".join(str(step.get("train_images")) for step in results["steps"])
        return f"{results['data']}: {counts} training pictures, step by step."
    entries = [entry for entry in record.get("history") or [] if isinstance(entry, Mapping)]
    lines = [
        f"- step {entry.get('step')}: {entry.get('train_pictures')} pictures, scored on "
        f"{entry.get('held_out_pictures')} that were held out"
        for entry in entries
    ]
    return "\n".join(lines) or "Not recorded."


def _names(model: SegmentationModel, group: list[int]) -> str:
    return ", ".join(model.classes[channel] for channel in group).replace("|", "\\|")
