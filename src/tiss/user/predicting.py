"""`predict`: masks, overlays and shares of any number of pictures; can be stopped and taken up again."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.files import append_line, inside, read_json, read_text, write_bytes, write_json, write_text
from tiss.files.reading import parse_json
from tiss.user.drawing import colours_of, mask_image, overlay, to_png, with_legend
from tiss.user.inputs import Item, read_frames, read_item
from tiss.user.segment import Segmenter

SETTINGS, JOURNAL = "prediction.json", "done.jsonl"
JOURNAL_BYTES = 1 << 30


@dataclass
class Predictions:
    """What was done: for each picture the share of each class; and the files that could not be read."""

    out: Path
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    resumed: int = 0
    broken: list[str] = field(default_factory=list)


def predict_items(
    segmenter: Segmenter,
    items: Sequence[Item],
    out: Path,
    *,
    model_hash: str,
    batch: int = 8,
    every: int = 1,
    opacity: float = 0.55,
    reporter: Reporter | None = None,
) -> Predictions:
    """Segments every item into `out`: masks/, overlays/, shares.csv and shares.json.

    Pictures that an earlier call with the same model and settings finished are passed over, unless the file has
    changed since.
    """
    settings = {
        "model": model_hash,
        "size": segmenter.size,
        "native": segmenter.native,
        "every": every,
        "opacity": opacity,
    }
    stamps = {item.name: stamp_of(item) for item in items}
    found = open_journal(out, settings)
    fresh = {
        name: entry
        for name, entry in found.items()
        if entry["stamp"] == stamps.get(entry["item"], entry["stamp"])
    }
    done = Predictions(out, {name: entry["shares"] for name, entry in fresh.items()})
    done.resumed = len(done.shares)
    with (reporter or Reporter()).bar("predict", len(items)) as bar:
        for group in _batches(items, done, batch, every, bar):
            masks = segmenter.labels([pixels for _, _, pixels in group])
            for (name, item, pixels), mask in zip(group, masks, strict=True):
                shares = _save(out, name, pixels, mask.numpy(), segmenter.model.classes, opacity)
                done.shares[name] = shares
                entry = {"name": name, "item": item.name, "stamp": stamps[item.name], "shares": shares}
                append_line(out / JOURNAL, json.dumps(entry))
    _write_tables(done, segmenter.model.classes)
    return done


def _batches(
    items: Sequence[Item], done: Predictions, batch: int, every: int, bar: Any
) -> Iterator[list[tuple[str, Item, Tensor]]]:
    """Pictures of one size, up to `batch` together; what cannot be read is listed and passed over."""
    group: list[tuple[str, Item, Tensor]] = []
    for item in items:
        for name, pixels in _read(item, done, every):
            if group and (len(group) == batch or group[0][2].shape != pixels.shape):
                yield group
                group = []
            group.append((name, item, pixels))
        bar.advance()
    if group:
        yield group


def _read(item: Item, done: Predictions, every: int) -> Iterator[tuple[str, Tensor]]:
    try:
        if item.is_video:
            yield from ((name, frame) for name, frame in read_frames(item, every) if name not in done.shares)
        elif item.name not in done.shares:
            yield item.name, read_item(item)
    except TissError as error:
        done.broken.append(str(error))


def _save(
    out: Path, name: str, pixels: Tensor, mask: np.ndarray, classes: Sequence[str], opacity: float
) -> dict[str, float]:
    """Writes one picture's mask and overlay; returns the share of the picture that each class covers."""
    colours = colours_of(classes)
    image = pixels.permute(1, 2, 0).numpy()
    drawn = with_legend(overlay(image, mask, colours, opacity), mask, classes, colours)
    for folder, picture in (("masks", mask_image(mask, colours)), ("overlays", drawn)):
        path = inside(out, f"{folder}/{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, to_png(picture))
    counts = np.bincount(mask.ravel(), minlength=len(classes)) / mask.size
    return {
        classes[channel]: round(float(counts[channel]), 6)
        for channel in range(len(classes))
        if counts[channel]
    }


def stamp_of(item: Item) -> list[int]:
    """Size and time of the last change: a camera may write another picture under the same name."""
    try:
        found = item.path.stat()
    except OSError:  # reading it will say why
        return []
    return [found.st_size, found.st_mtime_ns]


def open_journal(out: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is noted of the pictures that `out` has already, if made with these settings; else made ready."""
    if out.exists() and not out.is_dir():
        raise TissError(f"--out {out}: not a folder")
    if out.is_dir() and any(out.iterdir()):
        if not (out / SETTINGS).is_file():
            raise TissError(f"--out {out}: holds other files: choose an empty folder or a new one")
        if read_json(out / SETTINGS) != settings:
            raise TissError(
                f"--out {out}: holds predictions of another model or with other settings: choose another"
            )
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / SETTINGS, settings)
    if not (out / JOURNAL).is_file():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in read_text(out / JOURNAL, JOURNAL_BYTES).splitlines():
        entry = parse_json(line.encode(), str(out / JOURNAL))
        name = str(entry["name"]) if isinstance(entry, dict) and isinstance(entry.get("shares"), dict) else ""
        if name and all(inside(out, f"{folder}/{name}.png").is_file() for folder in ("masks", "overlays")):
            item = str(entry.get("item"))  # "None" where an older call noted none: such a picture stays done
            found[name] = {"item": item, "stamp": entry.get("stamp"), "shares": entry["shares"]}
    return found


def _write_tables(done: Predictions, classes: Sequence[str]) -> None:
    """shares.csv and shares.json: one picture a row, one class a column."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["picture", *classes])
    for name, shares in sorted(done.shares.items()):
        writer.writerow([name, *(f"{shares.get(one, 0.0):.6f}" for one in classes)])
    write_text(done.out / "shares.csv", buffer.getvalue())
    write_json(done.out / "shares.json", dict(sorted(done.shares.items())))
    write_text(done.out / "broken.txt", "".join(f"{line}\n" for line in done.broken))
