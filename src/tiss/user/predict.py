"""`predict`: masks, overlays and shares of any number of images and videos; can be stopped and resumed."""

from __future__ import annotations

import csv
import glob
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiss.data.images import IMAGE_SUFFIXES, has_image_suffix, read_image
from tiss.engine.predictor import Prediction, Predictor
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.files import append_line, inside, read_json, read_text, write_bytes, write_json, write_text
from tiss.files.reading import parse_json
from tiss.palette import class_colours
from tiss.user.draw import draw, to_png

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
SETTINGS, JOURNAL = "prediction.json", "done.jsonl"
JOURNAL_BYTES = 1 << 30


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
    taken: set[str] = set()
    items = []
    for path, wanted in found.items():
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}-{number}"
        taken.add(name)
        items.append(Item(path, name))
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

    out: Path
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    resumed: int = 0
    broken: list[str] = field(default_factory=list)


def predict_items(
    predictor: Predictor,
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

    Images that an earlier call with the same model and settings finished are skipped, unless the file has changed.
    """
    settings = {
        "model": model_hash,
        "size": predictor.size,
        "native": predictor.native,
        "every": every,
        "opacity": opacity,
    }
    stamps = {item.name: item.stamp() for item in items}
    earlier = {
        name: entry["shares"]
        for name, entry in open_journal(out, settings).items()
        if entry["stamp"] == stamps.get(entry["item"], entry["stamp"])
    }
    done = Predictions(out, earlier, resumed=len(earlier))
    with (reporter or Reporter()).bar("predict", len(items)) as bar:
        for group in _batches(items, done, batch, every, bar):
            masks = predictor.labels([pixels for _, _, pixels in group])
            for (name, item, pixels), mask in zip(group, masks, strict=True):
                colours = tuple(class_colours(len(predictor.classes)))
                image = pixels.permute(1, 2, 0).numpy()
                shares = _save(
                    out, name, Prediction(mask.numpy(), image, predictor.classes, colours), opacity
                )
                done.shares[name] = shares
                entry = {"name": name, "item": item.name, "stamp": stamps[item.name], "shares": shares}
                append_line(out / JOURNAL, json.dumps(entry))
    _write_tables(done, predictor.classes)
    return done


def _batches(
    items: Sequence[Item], done: Predictions, batch: int, every: int, bar: Any
) -> Iterator[list[tuple[str, Item, Tensor]]]:
    """Up to `batch` images of one size at a time; unreadable ones are listed and skipped."""
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
            yield item.name, read_image(item.path)
    except TissError as error:
        done.broken.append(str(error))


def _save(out: Path, name: str, found: Prediction, opacity: float) -> dict[str, float]:
    """Writes the mask and the overlay of one image; returns the share of each class."""
    drawn = draw(found.image, found.mask, found.classes, found.colours, opacity)
    for folder, image in (("masks", found.to_image()), ("overlays", drawn)):
        path = inside(out, f"{folder}/{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, to_png(image))
    shares = found.shares()
    return {one: round(shares[one], 6) for one in found.classes if one in shares}


def open_journal(out: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The finished images in `out`, if made with these settings; an empty or missing folder is prepared."""
    if out.exists() and not out.is_dir():
        raise TissError(f"{out}: not a folder", setting="out")
    if out.is_dir() and any(out.iterdir()):
        if not (out / SETTINGS).is_file():
            raise TissError(f"{out}: holds other files: choose an empty folder or a new one", setting="out")
        if read_json(out / SETTINGS) != settings:
            what = "predictions of another model or with other settings"
            raise TissError(f"{out}: holds {what}: choose another folder", setting="out")
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / SETTINGS, settings)
    found: dict[str, dict[str, Any]] = {}
    text = read_text(out / JOURNAL, JOURNAL_BYTES) if (out / JOURNAL).is_file() else ""
    for line in text.splitlines():
        entry = parse_json(line, str(out / JOURNAL))
        name = str(entry["name"]) if isinstance(entry, dict) and isinstance(entry.get("shares"), dict) else ""
        if name and all(inside(out, f"{folder}/{name}.png").is_file() for folder in ("masks", "overlays")):
            # version 0.1 noted no item at first: such an image counts as finished
            found[name] = {
                "item": str(entry.get("item")),
                "stamp": entry.get("stamp"),
                "shares": entry["shares"],
            }
    return found


def _write_tables(done: Predictions, classes: Sequence[str]) -> None:
    """shares.csv and shares.json: one row per image, one column per class."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["picture", *classes])
    for name, shares in sorted(done.shares.items()):
        writer.writerow([name, *(f"{shares.get(one, 0.0):.6f}" for one in classes)])
    write_text(done.out / "shares.csv", buffer.getvalue())
    write_json(done.out / "shares.json", dict(sorted(done.shares.items())))
    write_text(done.out / "broken.txt", "".join(f"{line}\n" for line in done.broken))
