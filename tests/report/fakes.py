"""Results of runs that never were, with confusion matrices that tell a known story."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
import yaml

from tiss.evaluation.scores import run_scores
from tiss.files import write_json
from tiss.randomness import stream
from tiss.report.runs import Experiment, experiments, load_results

CLASSES = ("background", "disc", "square", "triangle", "ring", "cross", "star", "moon", "bar")
GROUPS = ((1, 2, 3, 4), (5, 6), (7, 8))


def confusion(seen: int, keep: dict[int, float], seed: int) -> torch.Tensor:
    """A matrix in which channel c is right with probability keep[c], and background otherwise."""
    rng = stream(seed, "fake", seen)
    matrix = torch.zeros(seen, seen, dtype=torch.int64)
    for channel in range(seen):
        pixels = 20000 if channel == 0 else 2000
        right = int(pixels * min(1.0, keep.get(channel, 0.8) + 0.02 * rng.standard_normal()))
        matrix[channel, channel] = right
        matrix[channel, 0 if channel else 1] += pixels - right
    return matrix


def results(
    method="tiss",
    seed=0,
    *,
    groups=GROUPS,
    classes=CLASSES,
    data="shapes",
    task="4-2",
    encoder="vit_demo_patch8",
    **others,
) -> dict[str, Any]:
    """results.json of a made-up run: `ft` forgets, `offline` has one step, all others keep what they know."""
    matrices = []
    for step in range(len(groups)):
        seen = 1 + sum(map(len, groups[: step + 1]))
        earlier = [channel for group in groups[:step] for channel in group]
        keep = {0: 0.97} | dict.fromkeys(earlier, 0.05 if method == "ft" else 0.75)
        matrices.append(confusion(seen, keep, seed + len(method)))
    if method == "offline":
        matrices = [confusion(len(classes), {0: 0.98}, seed)]
    scored = run_scores(matrices, classes, groups, has_background=others.get("has_background", True))
    place = {"data": data, "task": task, "setup": "overlapped", "protocol": "paper", "holdout": 0.0}
    network = {"method": method, "encoder": encoder, "decoder": "linear", "seed": seed}
    names = {"classes": list(classes), "has_background": True, "groups": [list(group) for group in groups]}
    return {"format": 1, "tiss": "0", **place, **network, "finished": True, **names, **scored, **others}


def folder(root: Path, values: dict[str, Any], **settings: Any) -> Path:
    """A run folder with those results."""
    path = root / f"{values['method']}-{values['seed']}-{len(list(root.glob('*')))}"
    path.mkdir()
    write_json(path / "results.json", values)
    config = {"method": {"name": values["method"]} | settings, "seed": values["seed"], "out": str(path)}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def sort(*runs: Any) -> Experiment:
    """The one experiment of these runs."""
    (found,) = experiments(load_results(runs))
    return found


class Checker(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
