"""Images and masks from files, by fixed rules.

Images become RGB: EXIF rotation is applied, grey is repeated, transparency is dropped, 16-bit grey keeps its
upper eight bits. Masks stay numbers: palette indices as they are, colours only through a colour map.
"""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tiss.errors import TissError
from tiss.files import open_regular

Colour = tuple[int, int, int]


class Blob(io.BytesIO):
    """The bytes of an image that is no file of its own, with a name for errors."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:  # what Pillow puts into its errors
        return repr(self.name)


ImageSource = str | os.PathLike[str] | Blob

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM", "GIF")  # whatever the name: others start programs
MAX_PIXELS = 2**27  # 134 million, an RGB image of 400 MB; more is a mistake or an attack, and is not decoded
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_BITS = {"LA": 16, "RGB": 24, "RGBA": 32, "I;16": 16}  # a pixel; grey and palettes may have as little as one
_ORIENTATION = 0x0112
_AT_ONCE = 1 << 24  # bytes of a file that are read in one go
_TAIL = 65536  # bytes searched for the end marker: cameras append previews after it


def has_image_suffix(path: Path) -> bool:
    """Whether a file's name is that of an image; hidden files are none."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def read_image(path: ImageSource) -> Tensor:
    """The image in `path` as uint8, 3 × H × W, RGB, turned as its EXIF tag says."""
    return torch.from_numpy(np.array(load_image(path).transpose(2, 0, 1), order="C"))


def read_pixels(path: ImageSource) -> Tensor:
    """As `read_image`, but four bytes apart in memory, as Pillow decodes them: `pack` copies that in one go."""
    return torch.from_numpy(_decode(path).copy()).permute(2, 0, 1)[:3]


def load_image(path: ImageSource) -> np.ndarray:
    """As `read_image`, as a read-only numpy array H × W × 3."""
    return _decode(path)[..., :3]


def _decode(path: ImageSource) -> np.ndarray:
    """H × W × 3, or × 4 with a byte between pixels."""
    with _open(path, "image") as image:
        if image.mode == "F":
            raise TissError(f"{path}: images of floating-point numbers are not read; save 8 bits per channel")
        turned = ImageOps.exif_transpose(image) if _orientation(image) > 1 else image
        if image.mode in _SIXTEEN_BIT:
            return _sixteen_bit(np.array(turned), path)
        rgb = turned if turned.mode == "RGB" else turned.convert("RGB")
        # Pillow keeps four bytes for each pixel: as they are, they copy fastest
        pixels = np.frombuffer(rgb.tobytes("raw", "RGBX"), np.uint8)
        return pixels.reshape(rgb.height, rgb.width, 4)


def load_mask(path: ImageSource, colours: Mapping[Colour, int] | None = None, stray: float = 0) -> np.ndarray:
    """Label numbers, uint8 H × W.

    Grey (8 or 16 bit), black-and-white and palette files hold the numbers themselves. With a colour map
    (RGB → label), colour files are looked up in it, and palette files by their palette's colours; a colour
    that the map lacks is an error, or 255 where such pixels are at most the share `stray` of a colour file. Without
    a map, a colour file must have three equal channels.
    """
    with _open(path, "mask") as image:
        if image.mode in ("L", "1") or (image.mode == "P" and colours is None):
            return np.array(image, dtype=np.uint8)
        if image.mode == "LA":
            return np.array(image.getchannel("L"))
        if image.mode in _SIXTEEN_BIT:
            values = np.array(image)
            wrong = values[(values < 0) | (values > 255)]
            if wrong.size:
                raise TissError(
                    f"{path}: label {wrong.max()} is not from 0 to 255 (class numbers, 255 = ignore)"
                )
            return values.astype(np.uint8)
        if image.mode in ("P", "RGB", "RGBA", "RGBX"):
            pixels = np.array(image.convert("RGB"))
            if colours is not None:
                return _through_colours(pixels, colours, path, stray)
            if (pixels[..., :1] == pixels).all():
                return np.ascontiguousarray(pixels[..., 0])
            raise TissError(f"{path}: a colour mask needs a colour map, colours.txt of 'name r g b'")
        raise TissError(f"{path}: image mode {image.mode} is no mask's; save it as an 8-bit grey PNG")


def image_size(path: ImageSource) -> tuple[int, int]:
    """Width and height of an image after EXIF rotation, from its header alone."""
    with _open(path, "image", whole=False) as image:
        width, height = image.size
        # asking a PNG for its EXIF tags decodes it whole, unless they were in the header
        known = image.format != "PNG" or "exif" in image.info
        return (height, width) if known and _orientation(image) >= 5 else (width, height)


def check_whole(path: ImageSource) -> None:
    """Raises if a JPEG or PNG was cut off: only a file without an end marker is decoded to be sure."""
    with nullcontext(path) if isinstance(path, Blob) else open(path, "rb") as file:
        file.seek(0)
        head = file.read(8)
        end = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND"}.get(head[:2])
        if end is None:
            return
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL))
        if end in file.read():
            return
    with _open(path, "image") as image:
        image.load()


@contextmanager
def _open(path: ImageSource, what: str, whole: bool = True) -> Iterator[Image.Image]:
    """An opened, not yet decoded image of a bearable size; whatever decoding raises becomes one line.

    `whole`: the file is read in one go, since it will be decoded.
    """
    source = path
    if isinstance(path, Blob):
        size = path.getbuffer().nbytes
    else:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if whole and size <= _AT_ONCE:
                source = Blob(file.read(), str(path))
    try:
        image = Image.open(source, formats=FORMATS)
    except Image.DecompressionBombError:
        raise TissError(f"{path}: more than {MAX_PIXELS:,} pixels; cut it into tiles") from None
    except Exception as error:
        raise TissError(f"{path}: not a readable image ({_first_line(error)})") from error
    with image:
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise TissError(f"{path}: {image.width} × {image.height} pixels are too many; cut it into tiles")
        # deflate packs no more than 1032 bytes into one
        if image.format == "PNG" and _BITS.get(image.mode, 1) * pixels // 8 // 1032 > size:
            raise TissError(f"{path}: broken {what} (a small file for {image.width} × {image.height} pixels)")
        try:
            yield image
        except TissError:
            raise
        except Exception as error:  # OSError, SyntaxError, ValueError, struct.error, zlib.error, …
            raise TissError(f"{path}: broken {what} ({_first_line(error)}); get it again") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _orientation(image: Image.Image) -> int:
    value = image.getexif().get(_ORIENTATION, 1)
    return value if isinstance(value, int) else 1


def _sixteen_bit(values: np.ndarray, path: ImageSource) -> np.ndarray:
    values = values.astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535 or 0 < high < 256:
        raise TissError(
            f"{path}: 16-bit grey with values {low} to {high}, upper 8 bits are read; save 8 bits"
        )
    return np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2)


def _through_colours(
    pixels: np.ndarray, colours: Mapping[Colour, int], path: ImageSource, stray: float = 0
) -> np.ndarray:
    """RGB colours … × 3 → labels."""
    if not colours:
        raise TissError(f"{path}: the colour map is empty")
    known = sorted((_code(np.array(colour)), label) for colour, label in colours.items())
    keys, labels = np.array([code for code, _ in known]), np.array([label for _, label in known], np.uint8)
    codes = _code(pixels)
    place = np.minimum(np.searchsorted(keys, codes), len(keys) - 1)
    unknown = keys[place] != codes
    if unknown.mean() > stray:
        found = np.unique(pixels[unknown], axis=0)
        listed = ", ".join(" ".join(map(str, colour)) for colour in found[:8]) + (
            ", …" if len(found) > 8 else ""
        )
        raise TissError(
            f"{path}: colour {listed} is not in the colour map; add it there, as void to ignore it"
        )
    return np.where(unknown, np.uint8(255), labels[place])


def _code(pixels: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(pixels.astype(np.int32), -1, 0)
    return red << 16 | green << 8 | blue
