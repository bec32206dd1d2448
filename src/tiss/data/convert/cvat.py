"""CVAT's export "segmentation mask": coloured masks and a labelmap.txt."""

from __future__ import annotations

from pathlib import Path

from tiss.data.convert.writing import Found, Labelled
from tiss.data.folder import TEST_FOLDERS
from tiss.data.images import IMAGE_SUFFIXES, Colour
from tiss.data.paired import read_list
from tiss.errors import TissError
from tiss.files import read_text

MASKS = "SegmentationClass"


def read_cvat(source: Path, images: Path | None = None) -> Found:
    """The masks of SegmentationClass, by the colours of labelmap.txt.

    Pictures lie in `images`, else in JPEGImages beside the masks. Where lists named train and test (or
    val) are in ImageSets/Segmentation, they make the splits; CVAT's default.txt says nothing about them.
    """
    colours = read_labelmap(source / "labelmap.txt")
    folder = images or source / "JPEGImages"
    masks = sorted((source / MASKS).rglob("*.png"))
    if not masks:
        raise TissError(f"{source / MASKS}: no masks; it takes an export of the kind 'Segmentation mask'")
    splits = _splits(source / "ImageSets" / "Segmentation")
    found = Found(list(dict.fromkeys(colours.values())), [], colours)
    for path in masks:
        stem = path.relative_to(source / MASKS).with_suffix("")
        picture = next(
            (
                folder / f"{stem}{suffix}"
                for suffix in _both_cases()
                if (folder / f"{stem}{suffix}").is_file()
            ),
            None,
        )
        if picture is None:
            raise TissError(f"{path}: no picture {stem} in {folder}; export with pictures, or name --images")
        found.pictures.append(
            Labelled(stem.as_posix(), picture, str(path), mask=path, split=splits.get(stem.name))
        )
    return found


def read_labelmap(path: Path) -> dict[Colour, str]:
    """Colour → label from lines `label:r,g,b:parts:actions`; black is the background if nothing else is."""
    colours: dict[Colour, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        values = rest.split(":")[0].split(",")
        if (
            not name
            or len(values) != 3
            or not all(v.strip().isdecimal() and int(v[:9]) < 256 for v in values)
        ):
            raise TissError(f"{path}, line {number}: expected 'label:r,g,b:parts:actions'")
        colour = (int(values[0]), int(values[1]), int(values[2]))
        if colours.get(colour, name) != name:
            raise TissError(f"{path}, line {number}: {name!r} has the colour of {colours[colour]!r}")
        colours[colour] = name.strip()
    if not colours:
        raise TissError(f"{path}: no labels in it")
    colours.setdefault((0, 0, 0), "background")
    return colours


def _splits(folder: Path) -> dict[str, str]:
    lists = {path.stem.lower(): path for path in sorted(folder.glob("*.txt"))}
    tested = next((lists[name] for name in TEST_FOLDERS if name in lists), None)
    if tested is None or "train" not in lists:
        return {}
    result = dict.fromkeys(read_list(lists["train"]), "train")
    return result | dict.fromkeys(read_list(tested), "test")


def _both_cases() -> list[str]:
    return [form for suffix in IMAGE_SUFFIXES for form in (suffix, suffix.upper())]
