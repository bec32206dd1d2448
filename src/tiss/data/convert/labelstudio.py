"""Label Studio's export "JSON" (https://labelstud.io/guide/task_format, https://labelstud.io/tags/brushlabels)."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from tiss.data.convert.labels import Found, Labelled, Patch, Polygon, Shape, Stamp, ellipse
from tiss.data.convert.reading import (
    BOXES,
    MAX_BYTES,
    decode_base64,
    find_image,
    items,
    points,
    table,
    text,
    whole,
)
from tiss.data.images import IMAGE_SUFFIXES
from tiss.errors import TissError
from tiss.files import read_json

_UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # set before the names of uploaded files


def read_labelstudio(source: Path, images: Path | None = None) -> Found:
    """All annotated tasks; classes in alphabetical order.

    Polygons, ellipses, brush strokes and bitmasks are drawn; boxes are counted. Of several annotations of a task,
    the one marked as ground truth is read, else the newest; predictions and skipped tasks are not. Images are in
    `images`, else beside the file, by the end of the path or address in the task, with or without the eight
    characters that uploading sets before a name.
    """
    document, found = read_json(source, MAX_BYTES), Found([], [])
    if not isinstance(document, list) or not all(isinstance(task, dict) for task in document):
        raise TissError(f"{source}: expected a list of tasks; export it from Label Studio as JSON")
    for task in document:
        where = f"{source}, task {text(task, 'id')}"
        if "annotations" not in task:
            raise TissError(f"{where}: no annotations; export as JSON, not JSON-MIN")
        submitted = [one for one in items(task, "annotations", where) if not one.get("was_cancelled")]
        if not submitted:
            found.notes["tasks that nobody annotated, left out"] += 1
            continue
        chosen = max(submitted, key=lambda one: (one.get("ground_truth") is True, text(one, "updated_at")))
        found.notes["annotations by others of the same task, left out"] += len(submitted) - 1
        results = [one for one in items(chosen, "result", where) if "value" in one]  # relations have none
        labels = {text(one, "id"): label for one in results if "id" in one and (label := _label(one, where))}
        objects: list[tuple[str, Shape]] = []
        for one in results:
            label = _label(one, where) or labels.get(text(one, "id"), "")
            shape = _shape(one, where, found.notes)
            if shape is not None and label:
                objects.append((label, shape))
            elif shape is not None:
                found.notes["regions without a label, left out"] += 1
        size = next((_size(one, where) for one in results if "original_width" in one), None)
        image, id = _image(table(task.get("data"), where), [images or source.parent], where)
        found.images.append(Labelled(id, image, where, size, tuple(objects)))
    found.notes = +found.notes
    found.classes = sorted({label for item in found.images for label, _ in item.objects})
    return found


def _label(result: dict[str, Any], where: str) -> str:
    """The first label of a region: polygonlabels, brushlabels, …, or the labels of a tag of its own."""
    value = table(result.get("value"), where)
    found = next((value[key] for key in value if key.endswith("labels")), None)
    return str(found[0]).strip() if isinstance(found, list) and found else ""


def _image(data: dict[str, Any], folders: list[Path], where: str) -> tuple[Path, str]:
    """The image of a task: a path, an address, or a path in the query of one (/data/local-files/?d=…)."""
    texts = [unquote(value) for value in data.values() if isinstance(value, str)]
    ends = [end for value in texts for end in (value.split("?")[0], value.rpartition("?d=")[2])]
    names = [end for end in ends if end.lower().endswith(IMAGE_SUFFIXES)]
    if not names:
        raise TissError(f"{where}: its data names no image")
    last = [re.split(r"[/\\]", name)[-1] for name in names]
    return find_image([*names, *(_UPLOADED.sub("", name) for name in last)], folders, where)


def _size(result: dict[str, Any], where: str) -> tuple[int, int]:
    return whole(result, "original_width", where), whole(result, "original_height", where)


def _shape(result: dict[str, Any], where: str, notes: Counter[str]) -> Shape | None:
    """Coordinates are percent of the image's width and height."""
    value = table(result.get("value"), where)
    if result.get("image_rotation"):
        raise TissError(f"{where}: labelled on an image turned in Label Studio; turn the file itself")
    if "rle" in value:
        try:
            return Brush(bytes(value["rle"]) if isinstance(value["rle"], list) else b"")
        except (TypeError, ValueError):
            raise TissError(f"{where}: the rle of a brush must be numbers from 0 to 255") from None
    if "imageDataURL" in value:
        return Stamp(decode_base64(text(value, "imageDataURL").rpartition(",")[2], where), 0, 0)
    if "points" in value or "radiusX" in value:
        across, down = (side / 100 for side in _size(result, where))
        if "points" in value:
            return Polygon((points(value["points"], where, (across, down)),))
        keys = (("x", "y"), ("radiusX", "radiusY"))
        centre, axes = points([[value.get(key) for key in pair] for pair in keys], where, (across, down))
        ((turn, _),) = points([(value.get("rotation", 0), 0)], where)
        return ellipse(*centre, *axes, turn)
    notes[BOXES if "width" in value else f"results of the kind {text(result, 'type')}, left out"] += 1
    return None


@dataclass(frozen=True)
class Brush:
    """A painted mask in Label Studio's run lengths; a pixel is inside if it is at least half as opaque as any.

    A stream of bits (https://github.com/thi-ng/umbrella/tree/develop/packages/rle-pack): 32 for the number of words,
    5 for the bits of a word less 1, four times 4 for the bits of a length less 1. Then blocks: 1 bit, whether a
    word is repeated; 2 bits, which kind of length; the length less 1; one word or that many. The words are RGBA.
    """

    data: bytes

    def cover(self, height: int, width: int) -> Patch:
        bits = "".join(f"{byte:08b}" for byte in self.data)
        if len(bits) < 53 or int(bits[32:37], 2) != 7:
            raise TissError("not the run lengths of a brush mask")
        total = int(bits[:32], 2)
        if total != 4 * height * width:
            raise TissError(f"a brush mask of {total // 4:,} pixels on {width} × {height}")
        lengths = [int(bits[place : place + 4], 2) + 1 for place in range(37, 53, 4)]
        values, at, place = np.zeros(total, np.uint8), 0, 53
        while at < total:
            length = lengths[int(bits[place + 1 : place + 3] or "0", 2)]
            begin = place + 3 + length
            count = int(bits[place + 3 : begin] or "0", 2) + 1
            words = 1 if bits[place : place + 1] == "1" else count
            place = begin + 8 * words
            if place > len(bits) or at + count > total:
                raise TissError("a brush mask that is cut off or longer than it says")
            values[at : at + count] = [int(bits[word : word + 8], 2) for word in range(begin, place, 8)]
            at += count
        opaque = values.reshape(height, width, 4)[..., 3]
        return Patch(0, 0, opaque >= max(1, int(opaque.max()) / 2))
