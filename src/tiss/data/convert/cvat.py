"""CVAT's exports "Segmentation mask" and "CVAT for images 1.1" (https://docs.cvat.ai/docs/other/xml_format)."""

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tiss.data.convert.colours import mask_in_colours, read_colour_map
from tiss.data.convert.labels import Found, Labelled, Polygon, Runs, Shape, ellipse
from tiss.data.convert.reading import BOXES, assign_splits, find_image, images_in, points
from tiss.data.folder import read_list
from tiss.errors import TissError
from tiss.files import read_text

_DRAWN = ("any", "polygon", "mask", "ellipse")
_MAX_XML = 1 << 28  # a parsed tree takes some ten times its text


def read_cvat(source: Path, images: Path | None = None) -> Found:
    """An export with annotations.xml (or that file), else one with SegmentationClass and labelmap.txt."""
    xml = source / "annotations.xml" if source.is_dir() else source
    return _read_xml(xml, images) if xml.is_file() else _read_masks(source, images)


def _read_masks(source: Path, images: Path | None) -> Found:
    """The masks of SegmentationClass, by the colours of labelmap.txt.

    Images are in `images`, else in JPEGImages beside the masks. Where lists named train and test (or val) are
    in ImageSets/Segmentation, they make the splits; CVAT's default.txt says nothing about them.
    """
    classes, colours = read_colour_map(source / "labelmap.txt")
    folder, masks = images or source / "JPEGImages", source / "SegmentationClass"
    lists = {path.stem: path for path in sorted((source / "ImageSets" / "Segmentation").glob("*.txt"))}
    splits = {id: split for name, split in assign_splits(lists).items() for id in read_list(lists[name])}
    photos = {path.relative_to(folder).with_suffix(""): path for path in images_in(folder)}
    found = Found(classes, [])
    for path in images_in(masks):
        stem = path.relative_to(masks).with_suffix("")
        if stem not in photos:
            raise TissError(f"{path}: no image {stem} in {folder}; export with images, or give `images`")
        mask = mask_in_colours(path, colours)
        found.images.append(
            Labelled(stem.as_posix(), photos[stem], str(path), mask=mask, split=splits.get(stem.name))
        )
    if not found.images:
        raise TissError(f"{masks}: no masks; it takes 'Segmentation mask' or 'CVAT for images 1.1'")
    return found


def _read_xml(source: Path, images: Path | None) -> Found:
    """Polygons, masks and ellipses of every image, in order of z_order; boxes, lines and points are counted.

    Images are in `images`, else in the folder images beside the file, else beside the file. The subsets of a
    project are its splits. Classes are in the order of the task's labels, without those for tags, boxes and so on.
    """
    text = read_text(source, _MAX_XML)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise TissError(f"{source}: CVAT writes no document type or entities; export it again")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise TissError(f"{source}: bad XML: {error}") from error
    if root.find("track") is not None:
        raise TissError(f"{source}: tracks of a video; export it as 'CVAT for images 1.1'")
    listed = root.findall("image")
    subsets = assign_splits(element.get("subset", "") for element in listed)
    folders = [images] if images else [source.parent / "images", source.parent]
    labels = [
        label for label in root.findall("meta//labels/label") if label.findtext("type", "any") in _DRAWN
    ]
    found = Found([label.findtext("name", "").strip() for label in labels], [])
    for element in listed:
        name = element.get("name", "")
        where = f"{source}, image {name!r}"
        objects: list[tuple[str, Shape]] = []
        for item in sorted(element, key=lambda item: _number(item, "z_order", where, "0")):
            label, shape = (item.get("label") or "").strip(), _shape(item, where, found.notes)
            if shape is not None:
                objects.append((label, shape))
        subset = element.get("subset", "")
        image, id = find_image([f"{subset}/{name}", name], folders, where)
        size = (round(_number(element, "width", where)), round(_number(element, "height", where)))
        found.images.append(Labelled(id, image, where, size, tuple(objects), split=subsets.get(subset)))
    if not found.images:
        raise TissError(f"{source}: no images; it takes an export of the kind 'CVAT for images 1.1'")
    drawn = (label for item in found.images for label, _ in item.objects)
    found.classes = list(dict.fromkeys([*found.classes, *drawn]))
    return found


def _shape(item: ElementTree.Element, where: str, notes: Counter[str]) -> Shape | None:
    if item.tag == "polygon":
        return Polygon((points([pair.split(",") for pair in item.get("points", "").split(";")], where),))
    if item.tag == "mask":
        left, top, width, height = (
            round(_number(item, key, where)) for key in ("left", "top", "width", "height")
        )
        try:
            runs = tuple(int(count) for count in item.get("rle", "").split(","))
        except ValueError:
            raise TissError(f"{where}: the rle of a mask must be whole numbers with commas") from None
        return Runs(height, width, runs, top, left, rows=True)
    if item.tag == "ellipse":
        x, y, across, down = (_number(item, key, where) for key in ("cx", "cy", "rx", "ry"))
        return ellipse(x, y, across, down, _number(item, "rotation", where, "0"))
    notes[BOXES if item.tag == "box" else f"shapes of the kind {item.tag} that cover no area, left out"] += 1
    return None


def _number(item: ElementTree.Element, key: str, where: str, default: str = "") -> float:
    return points([(item.get(key, default), 0)], where)[0][0]
