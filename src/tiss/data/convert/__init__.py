"""Labels from other tools into the `folder` layout."""

from tiss.data.convert.readers import read_coco, read_cvat, read_labelme, read_supervisely
from tiss.data.convert.writing import (
    Found,
    Labelled,
    Options,
    Written,
    find_lookalikes,
    find_unlabelled,
    summarise,
    write_folder,
)

CONVERTERS = {
    "coco": read_coco,
    "cvat": read_cvat,
    "labelme": read_labelme,
    "supervisely": read_supervisely,
}
