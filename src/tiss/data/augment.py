"""Scale, crop, flip and colour in one gather: the same code on CPU and GPU, for one sample or a batch.

Images are kept in one flat buffer of packed pixels (red, green, blue and label, a byte each, in an int32), with
an offset and a size for each. A crop window is known before any pixel is touched, and its source coordinates
are separable: a vector for the rows and one for the columns. Images are bilinear, labels the nearest pixel.

An augmentation is drawn with numpy from its own key, so neither workers, ranks nor the loader can change it;
pixel arithmetic is separate float32 operations in a fixed order, so on a CPU a sample does not depend on its
batch.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tiss.data.base import IGNORE, Sample
from tiss.randomness import stream

Size = tuple[int, int]  # height and width
Place = tuple[int, Size]  # where an image starts in a buffer of packed pixels, and its size

# outside an image: ImageNet's mean colour, near zero for every encoder's normalisation
FILL = (124, 116, 104)
PIXELS_AT_ONCE = 1 << 16  # on a CPU: what keeps the temporaries in its cache
GPU_PIXELS_AT_ONCE = 1 << 23  # a usual batch whole; temporaries stay under a gigabyte
LUMA = np.array([0.299, 0.587, 0.114])
YIQ = np.array([LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
RGB = np.linalg.inv(YIQ)
IDENTITY = tuple(np.eye(3, 4).ravel().tolist())  # 3 × 4: a colour matrix with its offset


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch's operations on the calling thread.

    Data work is many short operations: distributing each over all cores costs more than it gains, and on a
    busy machine twenty times as much, since every operation then waits for the slowest core.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class AugmentSettings:
    """How training crops are cut; the fields mean what `DataConfig`'s do."""

    crop: int
    resize: int | None = None  # the shorter side is resized to this first
    scale: tuple[float, float] = (0.5, 2.0)
    flip: bool = True
    photometric: bool = False


@dataclass(frozen=True, slots=True)
class Augmentation:
    """One image resized to `height` × `width`, a window's corner in it, and what is done to its colours.

    The corner may be outside: what the window holds beyond the image is filled, and its label ignored.
    """

    height: int
    width: int
    top: int
    left: int
    flip: bool = False
    colour: tuple[float, ...] | None = None  # 3 × 4 row by row, applied to (red, green, blue, 1)


def draw(settings: AugmentSettings, height: int, width: int, key: Sequence[int | str]) -> Augmentation:
    """The augmentation of a `height` × `width` image that belongs to `key`: a pure function.

    The scale is uniform between its bounds; the window is uniform over all places inside the image, and
    where the image is smaller than the window, over all places of the image inside it.
    """
    scale, top, left, flip, *colours = stream(*key).random(8).tolist()
    low, high = settings.scale
    factor = low + (high - low) * scale
    if settings.resize is not None:
        factor *= settings.resize / min(height, width)
    scaled_height, scaled_width = max(1, round(height * factor)), max(1, round(width * factor))
    return Augmentation(
        scaled_height,
        scaled_width,
        _place(scaled_height - settings.crop, top),
        _place(scaled_width - settings.crop, left),
        settings.flip and flip < 0.5,
        _colour_matrix(*colours) if settings.photometric else None,
    )


def centre(height: int, width: int, size: int) -> Augmentation:
    """The published test image: shorter side to `size`, then the square window in the middle."""
    whole = shrink(height, width, size)
    return Augmentation(whole.height, whole.width, (whole.height - size) // 2, (whole.width - size) // 2)


def shrink(height: int, width: int, size: int) -> Augmentation:
    """The whole image, its shorter side resized to `size`."""
    factor = size / min(height, width)
    return Augmentation(max(size, round(height * factor)), max(size, round(width * factor)), 0, 0)


def pack(sample: Sample) -> Tensor:
    """A sample's pixels as a flat int32 tensor of H · W: red, green, blue, label from the lowest byte up."""
    (height, width), image = sample.label.shape, sample.image
    apart = image.stride() == (1, 4 * width, 4) and image.untyped_storage().nbytes() == 4 * height * width
    if apart:  # as files are decoded: the bytes between the pixels get the labels
        packed = image.as_strided((height, width, 4), (4 * width, 4, 1), 0).numpy().copy()
        packed[..., 3] = sample.label.numpy()
    else:
        packed = np.empty((height, width, 4), np.uint8)
        for place, plane in enumerate((*image.numpy(), sample.label.numpy())):
            packed[..., place] = plane
    return torch.from_numpy(packed.view(np.int32).reshape(-1))


def crop_batch(
    buffer: Tensor,
    places: Sequence[Place],
    augmentations: Sequence[Augmentation],
    crop: Size,
    table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cuts one window from each of N images in `buffer`, on the buffer's device and without waiting for it.

    Args:
        buffer: packed pixels, flat (see `pack`).
        places: where each image is.
        augmentations: one for each image.
        crop: height and width of the windows.
        table: uint8[256] on the buffer's device, label value → channel, or N × 256 with one for each image; the
            outside is 255 in any case.

    Returns:
        images uint8 N × 3 × h × w and labels uint8 N × h × w.
    """
    device = buffer.device
    images = torch.empty(len(places), 3, *crop, dtype=torch.uint8, device=device)
    labels = torch.empty(len(places), *crop, dtype=torch.uint8, device=device)
    with one_thread() if device.type == "cpu" else nullcontext():
        numbers = _parameters(places, augmentations, crop)
        if device.type == "cuda":
            numbers = numbers.pin_memory().to(device, non_blocking=True)
        kind = torch.int32 if len(buffer) < 2**31 else torch.int64  # of indices: the shorter is faster
        rows, columns = _Axis(numbers[:, 0:5], crop[0], kind), _Axis(numbers[:, 5:10], crop[1], kind)
        stride, starts = numbers[:, 8:9].to(kind), numbers[:, 10:11].to(kind)  # N × 1: width and first pixel
        low, high, near = (starts + at * stride for at in (rows.low, rows.high, rows.near))
        shifts = torch.arange(0, 24, 8, dtype=torch.int32, device=device).view(1, 3, 1, 1)
        order = torch.arange(len(places), dtype=torch.int32, device=device).view(-1, 1, 1)
        matrices = numbers[:, 11:23].float() if any(one.colour for one in augmentations) else None

        def pixels(row_starts: Tensor, across: Tensor) -> Tensor:
            index = row_starts[:, :, None] + across[:, None, :]  # n × r × w
            return buffer.index_select(0, index.flatten()).view(index.shape)

        def line(row_starts: Tensor, n: slice, c: slice) -> Tensor:
            left, right = (
                (pixels(row_starts, at[n, c])[:, None] >> shifts).bitwise_and_(255).float()
                for at in (columns.low, columns.high)
            )
            return _mix(left, right, columns.weight[n, None, None, c])

        def between_rows(n: slice, r: slice, c: slice) -> Tensor:
            above, below, weight = rows.low[n, r], rows.high[n, r], rows.weight[n, None, r, None]
            spanned = int(below[0, -1] - above[0, 0]) + 1 if device.type == "cpu" else 0
            if len(above) > 1 or not 0 < spanned < 2 * above.shape[1]:
                return _mix(line(low[n, r], n, c), line(high[n, r], n, c), weight)
            # rows of an enlarged image share rows of the file: each of those is interpolated once
            lines = line(starts[n] + (above[0, 0] + torch.arange(spanned, dtype=kind)) * stride[n], n, c)
            upper, lower = (lines.index_select(2, at[0] - above[0, 0]) for at in (above, below))
            return _mix(upper, lower, weight)

        reaching = any(_reaches_out(one, crop) for one in augmentations)
        at_once = PIXELS_AT_ONCE if device.type == "cpu" else GPU_PIXELS_AT_ONCE
        several = at_once // (crop[0] * crop[1])
        if reaching and several < 2:  # what is outside is filled, and never computed
            labels.fill_(IGNORE)
            for channel, fill in enumerate(FILL):
                images[:, channel].fill_(fill)
        for n, r, c in _pieces(augmentations, crop, at_once):
            value = between_rows(n, r, c)
            if matrices is not None:
                value = _distort(value, matrices[n])
            images[n, :, r, c] = value.add_(0.5)  # cut off as it is stored
            label = (pixels(near[n, r], columns.near[n, c]) >> 24).bitwise_and_(255)
            if table is not None:
                entry = label if table.ndim == 1 else label + 256 * order[n]
                label = table.flatten().index_select(0, entry.flatten()).view(label.shape)
            labels[n, r, c] = label
        if reaching and several > 1:
            outside = ~(rows.inside[:, :, None] & columns.inside[:, None, :])  # N × h × w
            labels.masked_fill_(outside, IGNORE)
            for channel, fill in enumerate(FILL):
                images[:, channel].masked_fill_(outside, fill)
    return images, labels


class _Axis:
    """The source coordinates of a window's rows (or columns), for N windows: all N × length."""

    def __init__(self, numbers: Tensor, length: int, kind: torch.dtype) -> None:
        first, direction, ratio, size, scaled = numbers[:, :, None].unbind(1)
        place = first + direction * torch.arange(length, device=numbers.device)  # in the scaled image
        source = ((place + 0.5) * ratio - 0.5).clamp(min=0).minimum(size - 1)
        floor = source.floor()
        weight = source - floor
        self.low = floor.to(kind)
        self.high = (floor + 1).minimum(size - 1).to(kind)
        self.near = (floor + (weight >= 0.5)).minimum(size - 1).to(kind)
        self.weight = weight.float()
        self.inside = (place >= 0) & (place < scaled)


def _parameters(places: Sequence[Place], augmentations: Sequence[Augmentation], crop: Size) -> Tensor:
    """N × 23 float64: for rows and columns first, direction, ratio, size, scaled; the offset; the colours.

    float64 holds offsets exactly up to 2**53 pixels, and one small tensor is one transfer.
    """
    table = [
        (
            *(one.top, 1, height / one.height, height, one.height),
            *((one.left + crop[1] - 1, -1) if one.flip else (one.left, 1)),
            *(width / one.width, width, one.width),
            offset,
            *(one.colour or IDENTITY),
        )
        for (offset, (height, width)), one in zip(places, augmentations, strict=True)
    ]
    return torch.from_numpy(np.array(table, np.float64))


def _pieces(
    augmentations: Sequence[Augmentation], crop: Size, at_once: int
) -> Iterator[tuple[slice, slice, slice]]:
    """Slices over samples, rows and columns: several whole windows, or one's part inside its image, row by row."""
    height, width = crop
    if (several := at_once // (height * width)) > 1:
        for first in range(0, len(augmentations), several):
            yield slice(first, first + several), slice(height), slice(width)
        return
    for n, one in enumerate(augmentations):
        top, bottom = _inside(one.top, one.height, height)
        left, right = _inside(one.left, one.width, width)
        if one.flip:
            left, right = width - right, width - left
        rows = max(1, at_once // max(1, right - left))
        for first in range(top, bottom, rows):
            yield slice(n, n + 1), slice(first, min(first + rows, bottom)), slice(left, right)


def _inside(corner: int, size: int, length: int) -> tuple[int, int]:
    """Where a window of `length` that begins at `corner` is inside an image of `size`."""
    return max(0, -corner), max(0, min(length, size - corner))


def _mix(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """a + (b − a) · weight in three rounded operations; `lerp` may fuse them here and not there."""
    return b.sub_(a).mul_(weight).add_(a)


def _distort(value: Tensor, matrix: Tensor) -> Tensor:
    """Applies N × 12 colour matrices to N × 3 × h × w, clamped to 0..255."""
    rows = matrix.view(-1, 3, 4, 1, 1)
    red, green, blue = value[:, 0:1], value[:, 1:2], value[:, 2:3]
    mixed = red * rows[:, :, 0]
    mixed.add_(green * rows[:, :, 1]).add_(blue * rows[:, :, 2]).add_(rows[:, :, 3])
    return mixed.clamp_(0, 255)


def _colour_matrix(brightness: float, contrast: float, saturation: float, hue: float) -> tuple[float, ...]:
    """Four numbers in [0, 1) as one affine map: ±32 levels, contrast and saturation × .5 to 1.5, hue ±18°."""
    angle = math.radians(36 * (hue - 0.5))
    cos, sin = math.cos(angle), math.sin(angle)
    turn = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]], np.float64)
    saturate = (0.5 + saturation) * np.eye(3) + (0.5 - saturation) * LUMA[None, :]
    strength = 0.5 + contrast
    matrix = strength * (RGB @ turn @ YIQ @ saturate)
    shift = np.full((3, 1), 128 * (1 - strength) + 64 * (brightness - 0.5))
    return tuple(np.hstack([matrix, shift]).ravel().tolist())


def _place(room: int, number: float) -> int:
    """One of `|room| + 1` corners; negative where the image is smaller than the window."""
    return int(math.copysign(int(number * (abs(room) + 1)), room))


def _reaches_out(one: Augmentation, crop: Size) -> bool:
    inside = _inside(one.top, one.height, crop[0]), _inside(one.left, one.width, crop[1])
    return inside != ((0, crop[0]), (0, crop[1]))
