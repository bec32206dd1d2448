"""What a user points at, as single pictures: files, folders, patterns, videos."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiss.data.images import IMAGE_SUFFIXES, has_image_suffix, read_image
from tiss.errors import TissError

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")


@dataclass(frozen=True)
class Item:
    """One file to segment, and the name (a relative path without suffix) that its results get."""

    path: Path
    name: str

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def find_items(paths: Sequence[str], out: Path | None = None) -> list[Item]:
    """Every picture and video that `paths` mean, each once, with a name of its own.

    Folders are searched whole, of a data set only its images; patterns (*, ?, **) are expanded here; `out` is left
    out, so that results are never taken for pictures.
    """
    found: dict[Path, str] = {}
    for text in paths:
        for path, name in _expand(text):
            resolved = path.resolve()
            if resolved not in found and not (out is not None and resolved.is_relative_to(out.resolve())):
                found[resolved] = name
    if not found:
        raise TissError(f"{', '.join(paths)}: no pictures there ({' '.join(IMAGE_SUFFIXES)}) and no videos")
    return _name_apart(found)


def _expand(text: str) -> Iterator[tuple[Path, str]]:
    path = Path(text).expanduser()
    if path.is_dir():
        if all((path / part).is_dir() for part in ("images", "masks")):
            path = path / "images"  # a data set: its masks are no pictures to segment
        for one in sorted(path.rglob("*")):
            if has_image_suffix(one) or (
                one.suffix.lower() in VIDEO_SUFFIXES and not one.name.startswith(".")
            ):
                yield one, one.relative_to(path).with_suffix("").as_posix()
    elif path.exists():
        if path.suffix.lower() not in IMAGE_SUFFIXES + VIDEO_SUFFIXES:
            raise TissError(f"{text}: neither a picture ({' '.join(IMAGE_SUFFIXES)}) nor a video")
        yield path, path.stem
    elif glob.has_magic(text):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise TissError(f"{text}: nothing matches this pattern")
        for match in matches:
            if Path(match).suffix.lower() in IMAGE_SUFFIXES + VIDEO_SUFFIXES:
                yield Path(match), Path(match).stem
    else:
        raise TissError(f"{text}: no such file or folder")


def _name_apart(found: dict[Path, str]) -> list[Item]:
    """Items in their order; files that would share a name get -2, -3, … after it."""
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


def read_item(item: Item) -> Tensor:
    """A picture as uint8 3 × H × W."""
    return read_image(item.path)


def read_frames(item: Item, every: int = 1) -> Iterator[tuple[str, Tensor]]:
    """Frames of a video, one in `every`: name and uint8 3 × H × W. A broken stream ends in a TissError."""
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
    """PyAV, or an error that says how to get it."""
    try:
        import av
    except ImportError as error:
        raise TissError(f"videos need PyAV: pip install 'tiss[video]' ({error})") from error
    return av
