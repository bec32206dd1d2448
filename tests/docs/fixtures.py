"""What a page's commands find in their folder: small stand-ins for what the reader has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tiss.randomness import stream

COLOURS = {"pallet": (180, 140, 60), "barrel": (40, 90, 170), "forklift": (210, 60, 40)}


def draw_scene(seed: int, names: list[str], side: int = 48) -> tuple[Image.Image, list[dict[str, object]]]:
    """A picture with one object of each name, and labelme's entries for them."""
    random = stream(seed, "docs")
    ground = random.integers(100, 160, (6, 6, 3), np.uint8)
    picture = Image.fromarray(ground).resize((side, side))
    pen = ImageDraw.Draw(picture)
    entries: list[dict[str, object]] = []
    for name in names:
        x, y = (int(value) for value in random.integers(2, side - 22, 2))
        size = int(random.integers(12, 20))
        box = (x, y, x + size, y + size)
        if name == "barrel":
            pen.ellipse(box, fill=COLOURS[name])
            centre, edge = [x + size / 2, y + size / 2], [x + size, y + size / 2]
            entries.append({"label": name, "shape_type": "circle", "points": [centre, edge]})
        else:
            pen.rectangle(box, fill=COLOURS[name])
            entries.append(
                {"label": name, "shape_type": "rectangle", "points": [[x, y], [x + size, y + size]]}
            )
    return picture, entries


def labelme_folder(folder: Path, names: list[str], labelled: list[str], count: int, first: int) -> None:
    """Pictures of `names` with labelme's JSON files, in which only `labelled` are marked."""
    folder.mkdir(parents=True)
    for seed in range(first, first + count):
        picture, entries = draw_scene(seed, names)
        picture.save(folder / f"shot-{seed:03d}.jpg")
        kept = [entry for entry in entries if entry["label"] in labelled]
        document = {"shapes": kept, "imagePath": f"shot-{seed:03d}.jpg", "imageWidth": 48, "imageHeight": 48}
        (folder / f"shot-{seed:03d}.json").write_text(json.dumps(document))


def tutorial(folder: Path) -> None:
    """A first labelling of pallets and barrels, a second one of forklifts only, and pictures without labels."""
    labelme_folder(folder / "labelled", ["pallet", "barrel"], ["pallet", "barrel"], 24, 0)
    labelme_folder(folder / "labelled-tonight", ["pallet", "forklift"], ["forklift"], 12, 100)
    shots = folder / "shots"
    shots.mkdir()
    for seed in range(200, 204):
        draw_scene(seed, ["pallet", "barrel", "forklift"])[0].save(shots / f"yard-{seed}.jpg")


FIXTURES: dict[str, Callable[[Path], None]] = {"tutorial.md": tutorial}
