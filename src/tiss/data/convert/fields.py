"""Reads fields of label files, which may hold anything, with errors that name the file."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from tiss.errors import TissError

MAX_JSON = 1 << 30  # COCO's largest published file has 0.45 GB
_FARTHEST = 1e6  # pixels: no picture is that large


def table(value: Any, where: str) -> dict[str, Any]:
    """`value`, if it is a JSON object."""
    if not isinstance(value, dict):
        raise TissError(f"{where}: expected names and values, found {type(value).__name__}")
    return value


def names_of(document: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The list of objects under `key`."""
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TissError(f"{where}: {key!r} must be a list of objects")
    return value


def number(item: dict[str, Any], key: str, where: str) -> int:
    """The whole number under `key`."""
    value = item.get(key)
    if type(value) is not int:
        raise TissError(f"{where}: {key!r} must be a whole number, not {value!r}")
    return value


def points_of(value: Any, where: str) -> tuple[tuple[float, float], ...]:
    """Corners (x, y) as floats."""
    try:
        points = tuple((float(x), float(y)) for x, y in value)
    except (TypeError, ValueError, OverflowError):
        raise TissError(f"{where}: points must be pairs of numbers") from None
    if any(not -_FARTHEST < place < _FARTHEST for point in points for place in point):
        raise TissError(f"{where}: a point lies more than a million pixels away")
    return points


def decode_base64(text: Any, where: str) -> bytes:
    """Bytes from base64 text."""
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise TissError(f"{where}: broken base64 data") from None
