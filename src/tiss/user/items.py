"""What is to be segmented: images, videos, cameras, and raw frames from standard input."""

import glob
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from tiss.data.images import IMAGE_SUFFIXES, has_image_suffix
from tiss.errors import TissError

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
STDIN, CAMERA = "-", re.compile(r"camera:(\d+)")
CAMERAS = {
    "linux": ("v4l2", "/dev/video{}"),
    "darwin": ("avfoundation", "{}"),
}  # FFmpeg's format and name of one


@dataclass(frozen=True)
class Item:
    """One file to segment, and the name (a relative path without suffix) of its results."""

    path: Path
    name: str

    @property
    def is_video(self) -> bool:
        return self.is_stream or self.path.suffix.lower() in VIDEO_SUFFIXES

    @property
    def is_stream(self) -> bool:
        """Whether it is read as it comes, and only once: a camera or standard input."""
        return is_stream(str(self.path))

    def stamp(self) -> list[int]:
        """Size and modification time: a camera may write another image under the same name."""
        try:
            found = self.path.stat()
        except OSError:  # reading it will say why
            return []
        return [found.st_size, found.st_mtime_ns]


def is_stream(text: str) -> bool:
    return text == STDIN or CAMERA.fullmatch(text) is not None


def find_items(paths: Sequence[str], out: Path | None = None) -> list[Item]:
    """Every image and video at `paths`, each once, with a unique name.

    `camera:0` is the first camera and `-` standard input. Folders are searched recursively (of a data set only its
    images), patterns (*, ?, **) are expanded, and `out` is skipped, so that results are not taken for images.
    """
    found: dict[Path, str] = {}
    for text in paths:
        if is_stream(text):
            found[Path(text)] = "stdin" if text == STDIN else text.replace(":", "-")
            continue
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


def read_frames(
    item: Item, every: int = 1, size: tuple[int, int] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Every n-th frame of a video or stream: name and uint8 3 × H × W; `size` is that of raw frames, W and H.

    A broken stream ends in a TissError.
    """
    raw = str(item.path) == STDIN
    frames = raw_frames(sys.stdin.buffer, size) if raw and size else decoded_frames(item)
    for number, pixels in enumerate(frames):
        if number % every == 0:
            image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
            yield f"{item.name}/frame-{number:06d}", image


def decoded_frames(item: Item) -> Iterator[np.ndarray]:
    """The frames of a video file or a camera, uint8 H × W × 3."""
    av, form, name = import_av(), None, str(item.path)
    if camera := CAMERA.fullmatch(name):
        if sys.platform not in CAMERAS:
            raise TissError(
                f"{name}: cameras work on Linux and macOS; elsewhere send raw frames to standard input"
            )
        form, pattern = CAMERAS[sys.platform]
        name = pattern.format(camera[1])
    try:
        with av.open(name, format=form) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                yield frame.to_ndarray(format="rgb24")
    except (av.error.FFmpegError, IndexError, ValueError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TissError(f"{item.path}: broken video ({reason})") from error


def raw_frames(stream: BinaryIO, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Frames of rgb24, one after the other, uint8 H × W × 3."""
    if size is None:
        raise TissError(
            "standard input needs the size of its raw frames, such as 640x480", setting="frame_size"
        )
    width, height = size
    while data := stream.read(3 * width * height):
        if len(data) < 3 * width * height:
            fault = f"{width}x{height}: standard input ended within a frame: it must be rgb24 of this size"
            raise TissError(fault, setting="frame_size")
        yield np.frombuffer(data, np.uint8).reshape(height, width, 3).copy()


def import_av() -> Any:
    """PyAV, or an error that says how to install it."""
    try:
        import av
    except ImportError as error:
        raise TissError(f"videos need PyAV: pip install 'tiss[video]' ({error})") from error
    return av
