"""The commands and examples that the documentation shows, taken out of its pages.

A block of commands is fenced as `console`, and each command starts with "$ ". A comment on the line before a fence
says what the tests do with it: `<!-- run -->` runs its commands, in the order of the page, in one folder for each
page; `<!-- file: NAME -->` writes a block of Python there. Commands without a comment are only checked: the command
and its flags must exist.
"""

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.user.story import write_folder
from tiss.cli.main import main
from tiss.models.timm_encoder import declare_torchvision_operators

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
COLOURS = {"Road": (180, 140, 60), "Building": (40, 90, 170), "Car": (210, 60, 40)}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    kind: str
    note: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.kind == "console" else []
        found = [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]
        return [words for words in found if words]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["kind"], match["note"] or "", match["text"]) for match in found]


def table_after(name: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, its head first."""
    lines = text_of(name).partition(f"\n## {heading}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next(
        (number for number in range(start, len(lines)) if not lines[number].startswith("|")), len(lines)
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[start:end]]
    return [rows[0], *rows[2:]]


def labelme_folder(folder: Path, names: list[str], labelled: list[str], seeds: range) -> None:
    """Images with one box of each name, and labelme's JSON files, in which only `labelled` are marked."""
    folder.mkdir()
    for seed in seeds:
        random = np.random.default_rng(seed)
        image = Image.fromarray(random.integers(100, 160, (6, 6, 3), np.uint8)).resize((48, 48))
        shapes = []
        for name in names:
            x, y, size = (int(value) for value in random.integers((2, 2, 12), (26, 26, 20)))
            corners = [[x, y], [x + size, y + size]]
            ImageDraw.Draw(image).rectangle((x, y, x + size, y + size), fill=COLOURS[name])
            shapes.append({"label": name, "shape_type": "rectangle", "points": corners})
        image.save(folder / f"street-{seed}.jpg")
        kept = [shape for shape in shapes if shape["label"] in labelled]
        document = {"shapes": kept, "imagePath": f"street-{seed}.jpg", "imageWidth": 48, "imageHeight": 48}
        if labelled:
            (folder / f"street-{seed}.json").write_text(json.dumps(document))


def make_foreign(segformer: Path, unet: Path) -> None:
    """Tiny random models of transformers and smp; one has a class called background, both see 64 pixels."""
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    smp = pytest.importorskip("segmentation_models_pytorch")
    shape = {"hidden_sizes": [4, 4, 8, 8], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2]}
    config = transformers.SegformerConfig(
        **shape, decoder_hidden_size=8, id2label={0: "background", 1: "car"}
    )
    transformers.SegformerForSemanticSegmentation(config).save_pretrained(segformer)
    smp.Unet("tu-test_resnet", encoder_weights=None, classes=3, decoder_channels=(8,) * 5).save_pretrained(
        unet
    )
    for one in (segformer, unet):
        (one / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 64, "width": 64}}))


def prepare(page: str, folder: Path) -> None:
    """Puts into the folder what the reader of the page has before the first command."""
    if page == "tutorial.md":
        labelme_folder(folder / "labelled", ["Road", "Building"], ["Road", "Building"], range(20))
        labelme_folder(folder / "labelled-cars", ["Road", "Car"], ["Car"], range(100, 110))
        labelme_folder(folder / "shots", list(COLOURS), [], range(200, 203))
        shutil.copy(ROOT / "examples" / "run_onnx.py", folder)
    if page == "models.md":
        write_folder(folder / "tonight", ["star"], 8, listed=[])
        make_foreign(folder / "nvidia" / "segformer-b0-finetuned-ade-512-512", folder / "unet")
    if page == "teach.md":
        labelme_folder(folder / "labelled", ["Road", "Building"], ["Road", "Building"], range(12))
        labelme_folder(folder / "shots", list(COLOURS), [], range(200, 203))
        how = ["--encoder", "vit_micro_patch8", "--method", "analytic", "--epochs", "5", "--batch", "8"]
        for words in (
            ["data", "convert", "labelme", str(folder / "labelled"), "--out", str(folder / "streets")],
            ["train", str(folder / "streets"), "--out", str(folder / "first"), *how],
        ):
            assert main(words) == 0
