"""Small damage to files: to bytes, to lines of text, to the structure of JSON, safetensors and PNG."""

import json
import random
import struct
import zlib
from typing import Any

_NUMBERS = [0, -1, 1, 255, 256, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308]
_TEXTS = ["", " ", "a", "0", "-1", "NaN", "1e999", "é", "\u202e", "a\0b", "a\nb", "x" * 5000]
_PATHS = ["../../etc/passwd", "/dev/zero", "/", "."]
_NESTED = [[], {}, [[]], [[[]]] * 3, [0] * 300, {"": ""}, [None], [1, 2], [-1, -2], [2**40, 2**40]]
HOSTILE: list[Any] = [None, True, False, *_NUMBERS, *_TEXTS, *_PATHS, *_NESTED]
WORDS = [
    *(b"\x00", b"\xff" * 8, b"\x7f\xff\xff\xff", b"9" * 4400, b"NaN", b"1e999", b"-", b".."),
    *(b"{", b"[" * 200, b'"', b"\\u", b"\\ud800", b",", b":", b"#", b" ", b"\r\n"),
]


def damage(data: bytes, kind: str, chance: random.Random) -> bytes:
    """A damaged copy of `data`: mostly in the way of its `kind`, sometimes blindly."""
    if chance.random() < 0.25 or kind == "bytes":
        return _bytes(data, chance)
    return {"lines": _lines, "json": _json, "tensors": _tensors, "png": _png}[kind](data, chance)


def _bytes(data: bytes, chance: random.Random) -> bytes:
    """One to four edits anywhere: flip, overwrite, insert, cut out, repeat, cut short."""
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(data) + 1), chance.choice((1, 1, 2, 4, 8, 32))
        before, part, after = data[:at], data[at : at + length], data[at + length :]
        flipped = bytes(one ^ 1 << chance.randrange(8) for one in part[:1]) + part[1:]
        repeated = part * chance.choice((2, 3, 51))
        edits = (flipped, chance.randbytes(length), chance.choice(WORDS) + part, b"", repeated)
        data = before if chance.random() < 0.16 else before + chance.choice(edits) + after
    return data


def _lines(data: bytes, chance: random.Random) -> bytes:
    """A line dropped or another one repeated before it, or one of its words replaced."""
    lines = data.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    words = lines[at].split(b" ")
    words[chance.randrange(len(words))] = str(chance.choice(HOSTILE)).encode("utf-8", "replace")
    changed, many = [b" ".join(words)], chance.choice((1, 2, 400))
    lines[at : at + 1] = chance.choice(([], [lines[other]] * many + lines[at : at + 1], changed, changed))
    return b"\n".join(lines)


def _json(data: bytes, chance: random.Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, chance)
    for _ in range(chance.randint(1, 3)):
        value = _value(value, chance)
    return json.dumps(value).encode()


def _value(value: Any, chance: random.Random) -> Any:
    """A JSON value with one of its parts replaced, dropped, doubled or wrapped."""
    kind = chance.randrange(8)
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if kind == 0:
            return {name: part for name, part in value.items() if name != key}
        if kind == 1:
            return {**value, str(chance.choice(HOSTILE))[:60]: value[key]}
        return {**value, key: _value(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        times = chance.choice((3, 4, 201)) if kind == 1 else 0
        middle = [value[at]] * times if kind < 2 else [_value(value[at], chance)]
        return [*value[:at], *middle, *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
        return value + chance.choice((-1, 1, 7, -value, value, 2**32))
    return [value] if chance.random() < 0.1 else chance.choice(HOSTILE)


def _tensors(data: bytes, chance: random.Random) -> bytes:
    """The header changed as JSON, its length kept right, and sometimes the data after it."""
    if len(data) < 8:
        return _bytes(data, chance)
    length = min(struct.unpack("<Q", data[:8])[0], len(data) - 8)
    header, rest = _json(data[8 : 8 + length], chance), data[8 + length :]
    if chance.random() < 0.3:
        rest = _bytes(rest, chance)
    return struct.pack("<Q", len(header)) + header + rest


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file of these chunks, with their checksums."""
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _png(data: bytes, chance: random.Random) -> bytes:
    """One chunk changed, with its checksum put right again, so that the decoder looks at it."""
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return _bytes(data, chance)
    index = chance.randrange(len(chunks))
    kind, body = chunks[index]
    if kind == b"IDAT" and chance.random() < 0.5:
        try:
            body = zlib.compress(_bytes(zlib.decompress(body)[:65536], chance))
        except zlib.error:
            body = _bytes(body, chance)
    else:
        body = _bytes(body, chance)
    chunks[index : index + 1] = [(kind, body)] * chance.choice((0, 1, 1, 1, 1, 1, 1, 2))
    return png(*chunks)
