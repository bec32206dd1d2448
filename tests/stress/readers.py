"""The readers that other people's files reach. Valid and damaged files for each lie in tests/fixtures/corpus."""

import io
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from tiss.cli.run import config_from, method_name
from tiss.data.classes import read_classes, read_colours
from tiss.data.convert import TOOLS, Options, write_folder
from tiss.data.download import unpack
from tiss.data.folder import read_list
from tiss.data.images import check_whole, image_size, load_mask, read_image
from tiss.engine.checkpoint import read_position
from tiss.engine.run_folder import read_config
from tiss.files import read_json, read_tensors
from tiss.models import from_pretrained
from tiss.models.libraries import read_size
from tiss.models.pretrained import find_colours, read_weights
from tiss.report.runs import experiments, load_results
from tiss.report.tables import report_tables
from tiss.scenarios import read_lists
from tiss.user.model_source import line_of

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
Files = dict[str, bytes]


@dataclass(frozen=True)
class Reader:
    """`read` is given the path of a file with the name `file`, beside which `others` lie."""

    kind: str  # how its files are damaged, see damage.py
    file: str
    read: Callable[[Path], Any]
    others: Files = field(default_factory=dict)

    def __call__(self, data: bytes, folder: Path) -> object:
        for name, content in {**self.others, self.file: data}.items():
            place(content, folder, name)
        return self.read(folder / self.file)


def place(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def kept(name: str) -> list[bytes]:
    """The files in a reader's archive, valid ones first."""
    with zipfile.ZipFile(FIXTURES / "corpus" / f"{name}.zip") as archive:
        return [archive.read(member) for member in archive.namelist()]


def folder_of(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda path: read(path.parent)


def read_whole(path: Path) -> object:
    image_size(path)
    check_whole(path)
    return read_image(path)


def read_config_flag(path: Path) -> object:
    method_name(["--config", str(path)])
    return config_from({}, str(path))


def read_results(path: Path) -> object:
    return [report_tables(experiment) for experiment in experiments(load_results([path.parent]))]


def read_archive(path: Path) -> object:
    out = path.parent / "unpacked"
    try:
        count = unpack(path, out, max_bytes=1 << 20, max_files=50)
        there = {one.name for one in path.parent.iterdir()}
        assert there <= {path.name, out.name}, "a file outside its folder"
        return count
    finally:
        shutil.rmtree(out, ignore_errors=True)


def convert(tool: str, level: int, path: Path) -> object:
    """Reads another tool's labels from a folder above the file, or that file, and writes a `folder` data set."""
    source = (path, *path.parents)[level]
    out = source.parent / "converted"
    try:
        return write_folder(TOOLS[tool].read(source, None), out, Options(test_share=0.0))
    finally:
        shutil.rmtree(out, ignore_errors=True)


def image(mode: str, colour: str = "black") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (9, 7), colour).save(buffer, "PNG")
    return buffer.getvalue()


MODEL = {name: (FIXTURES / "v0_1/model" / name).read_bytes() for name in ("config.json", "model.safetensors")}
RESULTS = {"results.json": (FIXTURES / "v0_1/run/results.json").read_bytes()}
PROJECT = {
    "p/meta.json": b'{"classes": [{"title": "cat"}, {"title": "dog"}]}',
    "p/set/img/a.png": image("RGB"),
    "p/set/ann/a.png.json": kept("supervisely")[0],
}
CVAT = {"e/JPEGImages/a.png": image("RGB"), "e/SegmentationClass/a.png": image("1")}
MASKS = {"e/images/a.png": image("RGB", "red"), "e/masks/a.png": image("RGB")}
YOLO = {
    "e/data.yaml": b"path: /x\ntrain: ../e/images\nnames:\n  0: cat\n  1: dog\n",
    "e/images/a.png": image("RGB"),
    "e/labels/a.txt": b"0 0 0 0.5 0 0.5 1\n1 0.5 0.5 1 0.5 1 1 0.5 1\n",
}
PARENTS = {"parent/config.json": b"{}", "parent/model.safetensors": b""}
EXPECTED = {"a.weight": ((2, 3), "float32"), "b": ((1,), "bool"), "c": ((), None)}
BLACK_AND_WHITE = {(0, 0, 0): 0, (255, 255, 255): 1}
ALLOWED = partial(read_weights, allow_pickle=True)


def lists_of(path: Path) -> object:
    return read_lists(path.parent, 1, [f"2007_{number:06}" for number in range(20)])


READERS = {
    "json": Reader("json", "a.json", read_json),
    "tensors": Reader("tensors", "a", read_tensors),
    "expected_tensors": Reader("tensors", "a", lambda path: read_tensors(path, EXPECTED)),
    "model_config": Reader("json", "config.json", folder_of(from_pretrained), MODEL),
    "model_weights": Reader("tensors", "model.safetensors", folder_of(from_pretrained), MODEL),
    "parent": Reader("json", "child/config.json", folder_of(line_of), PARENTS),
    "preprocessor": Reader("json", "preprocessor_config.json", folder_of(read_size)),
    "run_config": Reader("lines", "config.yaml", folder_of(read_config)),
    "config_flag": Reader("lines", "mine.yaml", read_config_flag),
    "checkpoint_state": Reader("json", "state.json", folder_of(read_position)),
    "results": Reader("json", "results.json", read_results, RESULTS),
    "pretrained_colours": Reader("json", "config.json", folder_of(find_colours)),
    "pickled_weights": Reader("bytes", "a.pth", ALLOWED),
    "mask": Reader("png", "a.png", load_mask),
    "coloured_mask": Reader("png", "a.png", lambda path: load_mask(path, BLACK_AND_WHITE)),
    "picture": Reader("png", "a.png", read_whole),
    "other_picture": Reader("bytes", "a.jpg", read_whole),
    "list": Reader("lines", "train.txt", read_list),
    "classes_txt": Reader("lines", "classes.txt", folder_of(read_classes)),
    "classes_json": Reader("json", "classes.json", folder_of(read_classes)),
    "classes_yaml": Reader("lines", "classes.yaml", folder_of(read_classes)),
    "colours": Reader("lines", "colours.txt", read_colours),
    "training_list_npy": Reader("bytes", "train-0.npy", lists_of),
    "training_list_txt": Reader("lines", "train-0.txt", lists_of),
    "archive": Reader("bytes", "a.bin", read_archive),
    "coco": Reader("json", "e/a.json", partial(convert, "coco", 0), {"e/a.png": image("RGB")}),
    "labelme": Reader("json", "e/a.json", partial(convert, "labelme", 1), {"e/a.png": image("RGB")}),
    "supervisely": Reader("json", "p/set/ann/a.png.json", partial(convert, "supervisely", 3), PROJECT),
    "supervisely_meta": Reader("json", "p/meta.json", partial(convert, "supervisely", 1), PROJECT),
    "cvat": Reader("lines", "e/labelmap.txt", partial(convert, "cvat", 1), CVAT),
    "cvat_xml": Reader("lines", "e/annotations.xml", partial(convert, "cvat", 1), {"e/a.png": image("RGB")}),
    "labelstudio": Reader("json", "e/a.json", partial(convert, "labelstudio", 0), {"e/a.png": image("RGB")}),
    "legend": Reader("lines", "e/legend.csv", partial(convert, "colours", 1), MASKS),
    "yolo": Reader("lines", "e/labels/a.txt", partial(convert, "yolo", 2), YOLO),
    "yolo_names": Reader("lines", "e/data.yaml", partial(convert, "yolo", 1), YOLO),
}
