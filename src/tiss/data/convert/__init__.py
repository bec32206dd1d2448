"""Labels from other tools into the `folder` layout."""

from __future__ import annotations

from tiss.data.convert.coco import read_coco
from tiss.data.convert.cvat import read_cvat
from tiss.data.convert.labelme import read_labelme
from tiss.data.convert.summary import ClassSummary, find_lookalikes, find_unlabelled, summarise
from tiss.data.convert.supervisely import read_supervisely
from tiss.data.convert.writing import Found, Labelled, Options, Written, write_folder

CONVERTERS = {
    "coco": read_coco,
    "cvat": read_cvat,
    "labelme": read_labelme,
    "supervisely": read_supervisely,
}

__all__ = [
    "CONVERTERS",
    "ClassSummary",
    "Found",
    "Labelled",
    "Options",
    "Written",
    "find_lookalikes",
    "find_unlabelled",
    "read_coco",
    "read_cvat",
    "read_labelme",
    "read_supervisely",
    "summarise",
    "write_folder",
]
