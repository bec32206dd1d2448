from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import write_picture
from tiss.data.base import Entry
from tiss.data.convert import (
    Found,
    Labelled,
    Options,
    find_lookalikes,
    find_unlabelled,
    save_mask,
    write_folder,
)
from tiss.data.convert.labels import Polygon
from tiss.data.convert.writing import GAP, LINE, TILE, choose_images
from tiss.data.folder import Folder
from tiss.errors import TissError
from tiss.palette import class_colours


def square(side: int) -> Polygon:
    return Polygon((((0, 0), (side, 0), (side, side), (0, side)),))


@pytest.fixture
def found(tmp_path: Path) -> Found:
    write_picture(tmp_path / "x.jpg")
    labels = ("cat", "dog", "cat")
    images = [
        Labelled(f"p{n}", tmp_path / "x.jpg", f"p{n}.json", (12, 8), ((labels[n % 3], square(4)),))
        for n in range(60)
    ]
    return Found(["background", "cat", "dog"], images)


def test_the_test_share_is_chosen_by_id_alone(found: Found, tmp_path: Path) -> None:
    written = write_folder(found, tmp_path / "out", Options(test_share=0.25))
    assert [one.name for one in written.classes] == ["cat", "dog"]
    assert written.train + written.test == 60
    assert 5 < written.test < 26
    tested = Folder(str(tmp_path / "out")).ids("test")
    found.images = found.images[::-2]
    write_folder(found, tmp_path / "fewer", Options(test_share=0.25))
    kept = {item.id for item in found.images}
    assert Folder(str(tmp_path / "fewer")).ids("test") == [id for id in tested if id in kept]


def test_chosen_classes(found: Found, tmp_path: Path) -> None:
    write_folder(found, tmp_path / "out", Options(test_share=0, classes=("dog",)))
    dataset = Folder(str(tmp_path / "out"))
    assert dataset.classes == ("dog",)
    assert dataset.classes_present("train")["p1"] == {1}
    assert dataset.classes_present("train")["p0"] == frozenset()
    with pytest.raises(TissError, match="classes no 'bird' here; there are cat, dog"):
        write_folder(found, tmp_path / "other", Options(classes=("bird",)))


def test_links(found: Found, tmp_path: Path) -> None:
    write_folder(found, tmp_path / "out", Options(test_share=0, link=True))
    assert (tmp_path / "out/images/train/p0.jpg").is_symlink()
    assert Folder(str(tmp_path / "out")).read("train", "p0").image.shape == (3, 8, 12)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (["background"], "no class"),
        (["a", "a"], "'a' is there twice"),
        (["a,b"], "comma"),
        (["#a"], "leading #"),
        (["", "a"], "a label has no name"),
        ([f"c{n}" for n in range(254)], "254 classes"),
    ],
)
def test_bad_classes_write_nothing(found: Found, tmp_path: Path, classes: list[str], words: str) -> None:
    with pytest.raises(TissError, match=words):
        write_folder(Found(classes, found.images), tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()


def test_faults(found: Found, tmp_path: Path) -> None:
    write_picture(tmp_path / "full/x.jpg")
    for what, out, options, words in (
        (found, "full", Options(), r"out .*already"),
        (found, "out", Options(test_share=1.0), "test_share"),
        (Found(["cat"], [found.images[0]] * 2), "out", Options(), "'p0' is there twice"),
        (Found(["cat"], []), "out", Options(), "nothing to convert"),
    ):
        with pytest.raises(TissError, match=words):
            write_folder(what, tmp_path / out, options)
    assert not (tmp_path / "out").exists()


def test_broken_images_are_named_and_left_out(found: Found, tmp_path: Path) -> None:
    write_picture(tmp_path / "large.jpg", 120, 80)
    whole = (tmp_path / "large.jpg").read_bytes()
    write_picture(tmp_path / "large.bmp", 120, 80)
    bitmap = (tmp_path / "large.bmp").read_bytes()
    for name, data in (("p1.jpg", whole[:-40]), ("p2.jpg", b""), ("p3.bmp", bitmap[:-40])):
        (tmp_path / name).write_bytes(data)
    broken = [
        Labelled(name[:2], tmp_path / name, "labels", (12, 8), (("cat", square(4)),))
        for name in ("p1.jpg", "p2.jpg", "p3.bmp")
    ]
    found.images[1:4] = broken
    written = write_folder(found, tmp_path / "out", Options(test_share=0))
    assert written.train == 57
    assert sum(one.objects or 0 for one in written.classes) == 57
    words = ("p1.jpg: broken image", "p2.jpg: not a readable image", "p3.bmp: broken image")
    assert all(word in line for word, line in zip(words, written.broken, strict=True))
    assert not {"p1", "p2", "p3"} & set(Folder(str(tmp_path / "out")).ids("train"))
    with pytest.raises(TissError, match=r"p1\.jpg: broken image .*\(and 2 more\)"):
        write_folder(Found(["cat"], broken), tmp_path / "other", Options())
    assert not (tmp_path / "other").exists()


def test_masks_keep_their_numbers_and_look_like_something(tmp_path: Path) -> None:
    mask = np.array([[0, 1, 255]], np.uint8)
    save_mask(mask, tmp_path / "x.png")
    image = Image.open(tmp_path / "x.png")
    assert image.mode == "P"
    assert np.array_equal(np.array(image), mask)
    assert image.convert("RGB").getpixel((1, 0)) == (128, 0, 0)


@pytest.fixture
def scene(tmp_path: Path) -> Found:
    """Two pictures of 12 × 8 = 96 pixels: a cat of 16 under a dog of 4; two cats, one hidden by the other."""
    images = []
    for name, other in (("a", ("dog", square(2))), ("b", ("cat", square(3)))):
        path = tmp_path / f"photos/{name}.jpg"
        write_picture(path)
        images.append(Labelled(name, path, name, (12, 8), (("cat", square(4)), other, ("void", square(1)))))
    return Found(["cat", "dog", "bird", "void"], images)


def test_pictures_objects_and_share_of_pixels(scene: Found, tmp_path: Path) -> None:
    rows = write_folder(scene, tmp_path / "out", Options()).classes
    found = [(row.name, row.images, row.objects, row.pixels) for row in rows]
    assert found == [("cat", 2, 3, 27), ("dog", 1, 1, 3), ("bird", 0, 0, 0)]
    assert [row.share * 192 for row in rows] == pytest.approx([27, 3, 0])


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["tv", "tvmonitor", "cat", "cat", "car"], []),
        (["tv", "Tv", "T V", "dog"], [("tv", "Tv"), ("tv", "T V"), ("Tv", "T V")]),
        (["road-sign", "roadsign"], [("road-sign", "roadsign")]),
        (["background", "_background_", "Void", "void"], []),
        (["person", "preson", "persons", "perso", "Perosn"], None),
        (["zone 1", "zone 2", "lane12", "lane21"], []),
        (["house", "horse"], [("house", "horse")]),
    ],
)
def test_lookalikes(names: list[str], alike: list[tuple[str, str]] | None) -> None:
    found = find_lookalikes(names, names)
    if alike is None:
        assert {pair for pair in found if "person" in pair} == {("person", other) for other in names[1:]}
    else:
        assert found == alike


def test_pictures_without_labels_are_found_beside_the_others(scene: Found, tmp_path: Path) -> None:
    assert find_unlabelled(scene) == []
    for name in ("photos/d.JPG", "photos/c.png", "photos/.e.jpg", "elsewhere/f.jpg"):
        write_picture(tmp_path / name)
    (tmp_path / "photos/notes.txt").write_text("")
    (tmp_path / "photos/folder.jpg").mkdir()
    assert find_unlabelled(scene) == [tmp_path / "photos/c.png", tmp_path / "photos/d.JPG"]


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
