"""`predict`: masks, overlays and shares of images and videos; resumes after a stop."""

import csv
import io
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tiss.data.images import read_image
from tiss.engine.predictor import Prediction, Predictor
from tiss.engine.progress import Bar, Reporter
from tiss.errors import TissError
from tiss.files import append_line, inside, read_json, read_text, write_bytes, write_json, write_text
from tiss.files.reading import parse_json
from tiss.palette import class_colours
from tiss.user.items import STDIN, Item, read_frames

SETTINGS, JOURNAL = "prediction.json", "done.jsonl"
JOURNAL_BYTES = 1 << 30
Frame = tuple[str, Item, Tensor]  # its name, its file, and uint8 3 × H × W
MARGIN, LINE, PANEL = 6, 16, 320  # pixels, of a legend; width of one of several panels
INK, PAPER = (20, 20, 20), (255, 255, 255)


@dataclass
class Predictions:
    """The share of each class by image, and the files that could not be read."""

    shares: dict[str, dict[str, float]]
    resumed: int
    seconds: float = 0.0  # for those that were not done earlier
    broken: list[str] = field(default_factory=list)


def predict_items(
    predictor: Predictor,
    items: Sequence[Item],
    out: Path,
    model_hash: str,
    reporter: Reporter,
    *,
    batch: int,
    every: int,
    opacity: float,
    frames: int | None = None,
    frame_size: tuple[int, int] | None = None,
) -> Predictions:
    """Segments every item into `out`: masks/, overlays/, shares.csv and shares.json.

    Images that an earlier call with the same model and settings finished are skipped, unless the file has changed.
    Of a video or stream, every n-th frame is taken, at most `frames`; `frame_size` is the width and height of raw ones.
    """
    if frame_size is None and any(str(item.path) == STDIN for item in items):
        raise TissError(
            "standard input needs the size of its raw frames, such as 640x480", setting="frame_size"
        )
    settings = {"model": model_hash, "size": predictor.size, "native": predictor.native}
    journal = open_journal(out, settings | {"every": every, "opacity": opacity})
    if journal and any(item.is_stream for item in items):
        raise TissError(
            f"{out}: holds frames already, and a stream cannot resume: choose another", setting="out"
        )
    stamps = {item.name: item.stamp() for item in items}
    earlier = {
        name: entry["shares"]
        for name, entry in journal.items()
        if entry["stamp"] == stamps.get(entry["item"], entry["stamp"])
    }
    done, begin = Predictions(earlier, len(earlier)), time.perf_counter()
    with reporter.bar("predict", len(items)) as bar, ends_with_interrupt(any(one.is_stream for one in items)):
        read = _read(items, done, (every, frames, frame_size), bar)
        for _, same in itertools.groupby(read, key=lambda one: one[2].shape):
            while group := list(itertools.islice(same, batch)):  # images of one size
                masks = predictor.labels([pixels for _, _, pixels in group])
                for (name, item, pixels), mask in zip(group, masks, strict=True):
                    shares = _save(out, name, predictor.prediction(pixels, mask), opacity)
                    done.shares[name] = shares
                    entry = {"name": name, "item": item.name, "stamp": stamps[item.name], "shares": shares}
                    append_line(out / JOURNAL, json.dumps(entry))
    done.seconds = time.perf_counter() - begin
    _write_tables(out, done, predictor.classes)
    return done


@contextmanager
def ends_with_interrupt(stream: bool) -> Iterator[None]:
    """A camera is stopped with Ctrl-C, which then is no fault."""
    try:
        yield
    except KeyboardInterrupt:
        if not stream:
            raise


def _read(items: Sequence[Item], done: Predictions, which: Any, bar: Bar) -> Iterator[Frame]:
    """Each image or frame that is not done; unreadable ones are listed and skipped."""
    every, frames, size = which
    for item in items:
        try:
            if item.is_video:
                found = itertools.islice(read_frames(item, every, size), frames)
                yield from ((name, item, frame) for name, frame in found if name not in done.shares)
            elif item.name not in done.shares:
                yield item.name, item, read_image(item.path)
        except TissError as error:
            if error.setting:
                raise
            done.broken.append(str(error))
        bar.advance()


def _save(out: Path, name: str, found: Prediction, opacity: float) -> dict[str, float]:
    """Writes the mask and the overlay of one image; returns the share of each class."""
    for folder, image in (("masks", found.to_image()), ("overlays", draw(found, opacity))):
        path = inside(out, f"{folder}/{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, to_png(image))
    shares = found.shares()
    return {one: round(shares[one], 6) for one in found.classes if one in shares}


def open_journal(out: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The finished images in `out`, if made with these settings; an empty or missing folder is prepared."""
    fault = ""
    if out.exists() and not out.is_dir():
        fault = "not a folder"
    elif not out.is_dir() or not any(out.iterdir()):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / SETTINGS, settings)
    elif not (out / SETTINGS).is_file():
        fault = "holds other files: choose an empty folder or a new one"
    elif read_json(out / SETTINGS) != settings:
        fault = "holds predictions of another model or with other settings: choose another folder"
    if fault:
        raise TissError(f"{out}: {fault}", setting="out")
    found: dict[str, dict[str, Any]] = {}
    text = read_text(out / JOURNAL, JOURNAL_BYTES) if (out / JOURNAL).is_file() else ""
    for line in text.splitlines():
        entry = parse_json(line, str(out / JOURNAL))
        name = str(entry["name"]) if isinstance(entry, dict) and isinstance(entry.get("shares"), dict) else ""
        if name and all(inside(out, f"{folder}/{name}.png").is_file() for folder in ("masks", "overlays")):
            # version 0.1 noted no item at first: such an image counts as finished
            found[name] = {"stamp": None, **entry, "item": str(entry.get("item"))}
    return found


def _write_tables(out: Path, done: Predictions, classes: Sequence[str]) -> None:
    """shares.csv and shares.json: one row per image, one column per class."""
    shares = dict(sorted(done.shares.items()))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["image", *classes])
    for name, row in shares.items():
        writer.writerow([name, *(f"{row.get(one, 0.0):.6f}" for one in classes)])
    write_text(out / "shares.csv", buffer.getvalue())
    write_json(out / "shares.json", shares)
    write_text(out / "broken.txt", "".join(f"{line}\n" for line in done.broken))


@cache
def font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default()  # unpacks the font each time it is called


def draw(found: Prediction, opacity: float = 0.55) -> Image.Image:
    """The image with its classes in their colours, named below it, largest first."""
    drawn = found.overlay(opacity)
    places: list[tuple[int, int, int]] = []
    x, y = MARGIN, MARGIN
    shown = [found.classes.index(name) for name in found.shares()]
    for channel in filter(None, shown):
        wide = 14 + int(font().getlength(found.classes[channel])) + 2 * MARGIN
        if x > MARGIN and x + wide > drawn.width:
            x, y = MARGIN, y + LINE
        places.append((channel, x, drawn.height + y))
        x += wide
    height = drawn.height + (y + LINE + MARGIN if places else 0)
    canvas = Image.new("RGB", (drawn.width, height), PAPER)
    canvas.paste(drawn, (0, 0))
    pen = ImageDraw.Draw(canvas)
    for channel, x, y in places:
        pen.rectangle((x, y + 2, x + 10, y + 12), fill=found.colours[channel], outline=INK)
        pen.text((x + 14, y), found.classes[channel], fill=INK, font=font())
    return canvas


def side_by_side(image: np.ndarray, masks: dict[str, np.ndarray], space: tuple[str, ...]) -> Image.Image:
    """The image and its masks in a row, each with its title above and its legend below."""
    size = (PANEL, max(1, round(image.shape[0] * PANEL / image.shape[1])))
    small, colours = Image.fromarray(image).resize(size), tuple(class_colours(len(space)))
    panels = {"image": small}
    for title, mask in masks.items():  # resized before the legend is drawn: its letters keep their size
        shown = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
        panels[title] = draw(Prediction(shown, np.asarray(small), space, colours))
    return arrange(list(panels.values()), list(panels), len(panels))


def arrange(images: Sequence[Image.Image], captions: Sequence[str], columns: int) -> Image.Image:
    """Images in rows, each with its caption above, cut to its width."""
    width, height = (max(sizes) for sizes in zip(*(image.size for image in images), strict=True))
    width, height = width + MARGIN, height + LINE
    sheet = Image.new("RGB", (columns * width - MARGIN, -(-len(images) // columns) * height), PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = number % columns * width, number // columns * height
        while len(caption) > 1 and font().getlength(caption) > width - MARGIN:
            caption = caption[:-2] + "…"
        pen.text((x + 2, y + 2), caption, fill=INK, font=font())
        sheet.paste(image, (x, y + LINE))
    return sheet


def to_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
