from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import write_picture
from tiss.data.base import Entry
from tiss.data.convert import Found, Labelled, Options, write_folder
from tiss.data.convert.contact import GAP, LINE, TILE, choose_images
from tiss.data.convert.labels import Polygon
from tiss.palette import class_colours


def entry(**pixels: int) -> Entry:
    return Entry({int(value[1:]): count for value, count in pixels.items()}, 10, 10)


def test_each_class_is_seen_where_it_is_largest() -> None:
    entries = {f"train/{number:03d}": entry(v0=90, v1=10) for number in range(100)}
    entries |= {"train/rare": entry(v0=99, v2=1), "test/rare": entry(v0=50, v2=50, v255=5)}
    chosen = choose_images(entries, 20)
    assert len(chosen) == 20 and "test/rare" in chosen
    assert np.diff([int(name[-3:]) for name in chosen if name[-1].isdigit()]).max() < 8, "evenly from all"
    mixed = {
        f"train/{number:03d}": entry(v0=90, **({} if number % 10 else {"v1": 10})) for number in range(100)
    }
    assert sum(name[-1] == "0" for name in choose_images(mixed, 20)) == 10, "labelled ones first"
    assert choose_images({"train/a": entry(v0=100)}, 20) == ["train/a"]
    many = {f"train/{number}": entry(**{f"v{number}": 5}) for number in range(1, 31)}
    assert len(choose_images(many, 20)) == 20


def test_a_damaged_image_is_red(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", 40, 40)
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[data.index(b"IDAT") + 6] ^= 255
    (tmp_path / "a.png").write_bytes(data)
    found = Found(["cat"], [Labelled("a", tmp_path / "a.png", "")])
    assert write_folder(found, tmp_path / "out", Options(test_share=0)).train == 1
    with Image.open(tmp_path / "out/contact.png") as sheet:
        assert (np.array(sheet) == (255, 0, 0)).all(axis=2).sum() == TILE[0] * TILE[1]


@pytest.mark.parametrize(("count", "columns"), [(1, 2), (3, 3), (30, 5)])
def test_a_sheet(tmp_path: Path, count: int, columns: int) -> None:
    outline = Polygon((((0, 0), (6, 0), (6, 8), (0, 8)),))
    images = []
    for number in range(count):
        write_picture(tmp_path / f"[{number}].x.png", 12, 9, 200)
        images.append(
            Labelled(f"[{number}].x", tmp_path / f"[{number}].x.png", "", (12, 9), (("cat", outline),))
        )
    names = ["cat", *(f"class of the number {number}" for number in range(40))]
    write_folder(Found(names, images), tmp_path / "out", Options(test_share=0))
    with Image.open(tmp_path / "out/contact.png") as sheet:
        pixels = np.array(sheet)
    rows = -(-min(count, 20) // 5)
    assert pixels.shape[1] == GAP + columns * (TILE[0] + GAP)
    assert pixels.shape[0] >= rows * (TILE[1] + LINE + GAP)
    cat = np.array(class_colours(2)[1])
    assert (pixels[: 3 * LINE] == cat).all(axis=2).any(), "the legend"
    mixed = np.round(0.45 * 200 + 0.55 * cat)
    top = pixels.shape[0] - rows * (TILE[1] + LINE + GAP)
    for place in range(min(count, 20)):
        x, y = GAP + place % 5 * (TILE[0] + GAP), top + place // 5 * (TILE[1] + LINE + GAP)
        tile = pixels[y : y + TILE[1], x : x + TILE[0]]
        assert not (tile == 24).all(axis=2).any(), f"an image fills place {place}"
        assert (pixels[y + TILE[1] + 2 : y + TILE[1] + LINE, x : x + 60] == 255).any(), "its name below"
    below = pixels[-(TILE[1] + LINE) :]
    assert (np.abs(below - mixed) < 2).all(axis=2).any() and (below == 200).all(axis=2).any()
