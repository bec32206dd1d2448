"""`predict`: masks, overlays and shares of images and videos; resumes after a stop."""

import csv
import glob
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tiss.data.images import IMAGE_SUFFIXES, has_image_suffix, read_image
from tiss.engine.predictor import Prediction, Predictor
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.files import append_line, inside, read_json, read_text, write_bytes, write_json, write_text
from tiss.files.reading import parse_json
from tiss.palette import class_colours

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
SETTINGS, JOURNAL = "prediction.json", "done.jsonl"
JOURNAL_BYTES = 1 << 30
Frame = tuple[str, "Item", Tensor]  # its name, its file, and uint8 3 × H × W
MARGIN, LINE, PANEL = 6, 16, 320  # pixels, of a legend; width of one of several panels
INK, PAPER = (20, 20, 20), (255, 255, 255)


@dataclass(frozen=True)
class Item:
    """One file to segment, and the name (a relative path without suffix) of its results."""

    path: Path
    name: str

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES

    def stamp(self) -> list[int]:
        """Size and modification time: a camera may write another image under the same name."""
        try:
            found = self.path.stat()
        except OSError:  # reading it will say why
            return []
        return [found.st_size, found.st_mtime_ns]


def find_items(paths: Sequence[str], out: Path | None = None) -> list[Item]:
    """Every image and video at `paths`, each once, with a unique name.

    Folders are searched recursively (of a data set only its images), patterns (*, ?, **) are expanded, and `out` is
    skipped, so that results are not taken for images.
    """
    found: dict[Path, str] = {}
    for text in paths:
        for path, name in _expand(text):
            resolved = path.resolve()
            if not (out is not None and resolved.is_relative_to(out.resolve())):
                found.setdefault(resolved, name)
    if not found:
        raise TissError(f"{', '.join(paths)}: no images there ({' '.join(IMAGE_SUFFIXES)}) and no videos")
    items: dict[str, Item] = {}
    for path, wanted in found.items():
        names = (wanted if number == 1 else f"{wanted}-{number}" for number in itertools.count(1))
        name = next(name for name in names if name not in items)
        items[name] = Item(path, name)
    return list(items.values())


def find_images(paths: Sequence[str]) -> list[Item]:
    """As `find_items`, without the videos."""
    items = [item for item in find_items(paths) if not item.is_video]
    if not items:
        raise TissError(f"{', '.join(paths)}: no images there, only videos", setting="data")
    return items


def _expand(text: str) -> Iterator[tuple[Path, str]]:
    path = Path(text).expanduser()
    known = IMAGE_SUFFIXES + VIDEO_SUFFIXES
    if path.is_dir():
        if all((path / part).is_dir() for part in ("images", "masks")):
            path = path / "images"  # a data set: its masks are not images to segment
        for one in sorted(path.rglob("*")):
            is_video = one.suffix.lower() in VIDEO_SUFFIXES and not one.name.startswith(".")
            if is_video or has_image_suffix(one):
                yield one, one.relative_to(path).with_suffix("").as_posix()
    elif path.exists():
        if path.suffix.lower() not in known:
            raise TissError(f"{text}: neither an image ({' '.join(IMAGE_SUFFIXES)}) nor a video")
        yield path, path.stem
    elif glob.has_magic(text):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise TissError(f"{text}: nothing matches this pattern")
        yield from ((match, match.stem) for match in matches if match.suffix.lower() in known)
    else:
        raise TissError(f"{text}: no such file or folder")


def read_frames(item: Item, every: int = 1) -> Iterator[tuple[str, Tensor]]:
    """Every n-th frame of a video: name and uint8 3 × H × W. A broken stream ends in a TissError."""
    av = import_av()
    try:
        with av.open(str(item.path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for number, frame in enumerate(container.decode(stream)):
                if number % every == 0:
                    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
                    yield f"{item.name}/frame-{number:06d}", pixels.contiguous()
    except (av.error.FFmpegError, IndexError, ValueError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TissError(f"{item.path}: broken video ({reason})") from error


def import_av() -> Any:
    """PyAV, or an error that says how to install it."""
    try:
        import av
    except ImportError as error:
        raise TissError(f"videos need PyAV: pip install 'tiss[video]' ({error})") from error
    return av


@dataclass
class Predictions:
    """The share of each class by image, and the files that could not be read."""

    shares: dict[str, dict[str, float]]
    resumed: int
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
) -> Predictions:
    """Segments every item into `out`: masks/, overlays/, shares.csv and shares.json.

    Images that an earlier call with the same model and settings finished are skipped, unless the file has changed.
    """
    settings = {"model": model_hash, "size": predictor.size, "native": predictor.native}
    journal = open_journal(out, settings | {"every": every, "opacity": opacity})
    stamps = {item.name: item.stamp() for item in items}
    earlier = {
        name: entry["shares"]
        for name, entry in journal.items()
        if entry["stamp"] == stamps.get(entry["item"], entry["stamp"])
    }
    done = Predictions(earlier, len(earlier))
    with reporter.bar("predict", len(items)) as bar:
        for _, same in itertools.groupby(_read(items, done, every, bar), key=lambda one: one[2].shape):
            while group := list(itertools.islice(same, batch)):  # images of one size
                masks = predictor.labels([pixels for _, _, pixels in group])
                for (name, item, pixels), mask in zip(group, masks, strict=True):
                    shares = _save(out, name, predictor.prediction(pixels, mask), opacity)
                    done.shares[name] = shares
                    entry = {"name": name, "item": item.name, "stamp": stamps[item.name], "shares": shares}
                    append_line(out / JOURNAL, json.dumps(entry))
    _write_tables(out, done, predictor.classes)
    return done


def _read(items: Sequence[Item], done: Predictions, every: int, bar: Any) -> Iterator[Frame]:
    """Each image or frame that is not done; unreadable ones are listed and skipped."""
    for item in items:
        try:
            if item.is_video:
                found = ((name, item, frame) for name, frame in read_frames(item, every))
                yield from (one for one in found if one[0] not in done.shares)
            elif item.name not in done.shares:
                yield item.name, item, read_image(item.path)
        except TissError as error:
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
    writer.writerow(["picture", *classes])
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
    height = LINE + max(panel.height for panel in panels.values())
    canvas = Image.new("RGB", (len(panels) * (PANEL + MARGIN) - MARGIN, height), PAPER)
    for index, (title, panel) in enumerate(panels.items()):
        ImageDraw.Draw(canvas).text((index * (PANEL + MARGIN) + 2, 2), title, fill=INK, font=font())
        canvas.paste(panel, (index * (PANEL + MARGIN), LINE))
    return canvas


def to_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
