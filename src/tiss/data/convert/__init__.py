"""Labels from other tools into the `folder` layout: one reader per tool, one rasterizer, one writer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiss.data.convert.coco import read_coco
from tiss.data.convert.colours import read_colours
from tiss.data.convert.cvat import read_cvat
from tiss.data.convert.huggingface import read_huggingface
from tiss.data.convert.labelme import read_labelme
from tiss.data.convert.labels import Found, Labelled
from tiss.data.convert.labelstudio import read_labelstudio
from tiss.data.convert.supervisely import read_supervisely
from tiss.data.convert.writing import (
    Options,
    Written,
    find_lookalikes,
    find_unlabelled,
    save_mask,
    write_folder,
)
from tiss.data.convert.yolo import read_yolo


@dataclass(frozen=True)
class Tool:
    """Where labels come from: their reader, and how an image without objects is kept."""

    read: Callable[[Path, Path | None], Found]
    keep: str


TOOLS = {
    "coco": Tool(read_coco, "list them in the file's images; one without annotations is background"),
    "colours": Tool(read_colours, "give them masks; an all-black one is background"),
    "cvat": Tool(read_cvat, "label them in CVAT; one without shapes in annotations.xml is background"),
    "huggingface": Tool(read_huggingface, "give them rows"),
    "labelme": Tool(read_labelme, "label them; one with nothing on it takes an outline named background"),
    "labelstudio": Tool(read_labelstudio, "submit them in Label Studio; one without regions is background"),
    "supervisely": Tool(read_supervisely, "give them files in ann; one without objects is background"),
    "yolo": Tool(read_yolo, "name their folder in data.yaml; one without a label file is background"),
}
