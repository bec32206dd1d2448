"""Small damages to files: of bytes, of text lines, and of the structure of JSON, safetensors and PNG."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
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

Mutator = Callable[[bytes, random.Random], bytes]


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """One to four edits anywhere: flip, overwrite, insert, cut out, repeat, cut short."""
    edited = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(edited) + 1)
        length = chance.choice((1, 1, 2, 4, 8, 32))
        kind = chance.randrange(6)
        if kind == 0 and at < len(edited):
            edited[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            edited[at : at + length] = chance.randbytes(length)
        elif kind == 2:
            edited[at:at] = chance.choice(WORDS)
        elif kind == 3:
            del edited[at : at + length]
        elif kind == 4:
            edited[at:at] = edited[at : at + length] * chance.choice((1, 2, 50))
        else:
            del edited[at:]
    return bytes(edited)


def mutate_lines(data: bytes, chance: random.Random) -> bytes:
    """Lines dropped, repeated, swapped, or one of their words replaced."""
    lines = data.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at:at] = [lines[other]] * chance.choice((1, 2, 400))
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        words = lines[at].split(b" ")
        hostile = chance.choice(HOSTILE)
        words[chance.randrange(len(words))] = str(hostile).encode("utf-8", "replace")
        lines[at] = b" ".join(words)
    return b"\n".join(lines)


def mutate_value(value: Any, chance: random.Random) -> Any:
    """A JSON value with one of its parts replaced, dropped, doubled or wrapped."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        copy = dict(value)
        kind = chance.randrange(8)
        if kind == 0:
            del copy[key]
        elif kind == 1:
            copy[str(chance.choice(HOSTILE))[:60]] = copy[key]
        else:
            copy[key] = mutate_value(copy[key], chance)
        return copy
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        kind = chance.randrange(8)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value[:at] + [value[at]] * chance.choice((2, 3, 200)) + value[at:]
        return [*value[:at], mutate_value(value[at], chance), *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
        return value + chance.choice((-1, 1, 7, -value, value, 2**32))
    if chance.random() < 0.1:
        return [value]
    return chance.choice(HOSTILE)


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, chance)
    for _ in range(chance.randint(1, 3)):
        value = mutate_value(value, chance)
    return json.dumps(value).encode()


def mutate_tensors(data: bytes, chance: random.Random) -> bytes:
    """The header changed as JSON, its length kept right, and sometimes the data after it."""
    if len(data) < 8:
        return mutate_bytes(data, chance)
    length = min(struct.unpack("<Q", data[:8])[0], len(data) - 8)
    header, rest = data[8 : 8 + length], data[8 + length :]
    header = mutate_json(header, chance)
    if chance.random() < 0.3:
        rest = mutate_bytes(rest, chance)
    return struct.pack("<Q", len(header)) + header + rest


def mutate_png(data: bytes, chance: random.Random) -> bytes:
    """One chunk changed, with its checksum put right again, so that the decoder looks at it."""
    chunks = []
    at = 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return mutate_bytes(data, chance)
    index = chance.randrange(len(chunks))
    kind, body = chunks[index]
    if kind == b"IDAT" and chance.random() < 0.5:
        try:
            body = zlib.compress(mutate_bytes(zlib.decompress(body)[:65536], chance))
        except zlib.error:
            body = mutate_bytes(body, chance)
    else:
        body = mutate_bytes(body, chance)
    action = chance.randrange(8)
    chunks[index : index + 1] = [] if action == 0 else [(kind, body)] * (2 if action == 1 else 1)
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    ]
    return data[:8] + b"".join(parts)


KINDS: dict[str, Mutator] = {
    "bytes": mutate_bytes,
    "lines": mutate_lines,
    "json": mutate_json,
    "tensors": mutate_tensors,
    "png": mutate_png,
}


def mutate(data: bytes, kind: str, chance: random.Random) -> bytes:
    """A damaged copy of `data`: mostly in the way of its `kind`, now and then blindly."""
    blind = chance.random() < 0.25
    return KINDS["bytes" if blind else kind](data, chance)
