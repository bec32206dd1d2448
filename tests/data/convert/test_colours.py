"""Colour-coded masks: CamVid's folders and legends, and others'."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import write_picture
from tiss.data.convert import Options, read_colours, write_folder
from tiss.data.folder import Folder
from tiss.errors import TissError

CAR, SKY, BLACK = (64, 0, 128), (128, 128, 128), (0, 0, 0)
LEGENDS = {
    "class_dict.csv": "name,r,g,b\nCar,64, 0, 128\nSky,128,128,128\nVoid,0, 0, 0\n",
    "label_colors.txt": "64 0 128\tCar\n128 128 128\t\tSky\n0 0 0\t\tVoid",
    "labelmap.txt": "# label:color_rgb:parts:actions\nCar:64,0,128::\nSky:128,128,128:a,b:\nVoid:0,0,0::\n",
    "legend.txt": "Car 64 0 128\nSky 128 128 128\n\nVoid 0 0 0\n",
}


def write_coloured(path: Path, *colours: tuple[int, int, int]) -> Path:
    """Two rows of each colour, then black."""
    pixels = np.zeros((8, 12, 3), np.uint8)
    for place, colour in enumerate(colours):
        pixels[2 * place : 2 * place + 2] = colour
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def camvid(root: Path, legend: str = "class_dict.csv") -> Path:
    for split in ("train", "val", "test"):
        write_picture(root / split / f"0001TP_{split}.png")
        write_coloured(root / f"{split}_labels" / f"0001TP_{split}_L.png", CAR, SKY)
    (root / legend).write_text(LEGENDS[legend])
    return root


@pytest.mark.parametrize("legend", LEGENDS)
def test_camvid(tmp_path: Path, legend: str) -> None:
    found = read_colours(camvid(tmp_path / "in", legend))
    written = write_folder(found, tmp_path / "out", Options())
    assert [one.name for one in written.classes] == ["Car", "Sky"]
    assert (written.train, written.test) == (2, 1), "there is a test, so val is for training"
    data = Folder(str(tmp_path / "out"))
    assert data.ids("test") == ["0001TP_test"]
    assert data.read("test", "0001TP_test").label[:, 0].tolist() == [1, 1, 2, 2, 255, 255, 255, 255]


def test_masks_beside_images_and_several_colours_of_a_class(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for name in ("one", "two"):
        write_picture(root / f"{name}.jpg")
        write_coloured(root / f"{name}_mask.png", CAR, (1, 2, 3))
    (root / "colours.csv").write_text("Car,64,0,128\nCar,1,2,3\nSky,128,128,128\n")
    (root / "notes.txt").write_text("made on Tuesday\n")
    written = write_folder(read_colours(root), tmp_path / "out", Options(test_share=0))
    assert [(one.name, one.pixels) for one in written.classes] == [("Car", 96), ("Sky", 0)]
    assert (Folder(str(tmp_path / "out")).read("train", "one").label[4:] == 0).all(), (
        "black is the background"
    )


def test_splits_above_images_and_masks(tmp_path: Path) -> None:
    for split in ("training", "validation"):
        write_picture(tmp_path / f"in/{split}/images/a.jpg")
        write_coloured(tmp_path / f"in/{split}/masks/a.png", CAR)
    (tmp_path / "in/legend.txt").write_text(LEGENDS["legend.txt"])
    found = read_colours(tmp_path / "in")
    assert [item.split for item in found.images] == ["train", "test"]


def test_images_elsewhere_and_the_legend_named(tmp_path: Path) -> None:
    write_picture(tmp_path / "photos/a.jpg")
    write_coloured(tmp_path / "masks/a.png", CAR)
    for name in ("class_dict.csv", "label_colors.txt"):
        (tmp_path / "masks" / name).write_text(LEGENDS[name])
    with pytest.raises(TissError, match="are both legends; name the file"):
        read_colours(tmp_path / "masks", tmp_path / "photos")
    found = read_colours(tmp_path / "masks/class_dict.csv", tmp_path / "photos")
    assert [item.image for item in found.images] == [tmp_path / "photos/a.jpg"]


def test_a_few_stray_pixels_are_ignored(tmp_path: Path) -> None:
    """CamVid's Seq05VD_f02610_L.png has 173 of 691,200."""
    root = tmp_path / "in"
    write_picture(root / "images/a.png", 120, 80)
    pixels = np.zeros((80, 120, 3), np.uint8)
    pixels[:40], pixels[0, :96] = CAR, (26, 26, 26)
    (root / "masks").mkdir()
    Image.fromarray(pixels).save(root / "masks/a.png")
    (root / "class_dict.csv").write_text("name,r,g,b\nCar,64,0,128\n")
    written = write_folder(read_colours(root), tmp_path / "out", Options(test_share=0))
    assert (written.classes[0].pixels, written.ignored.pixels) == (40 * 120 - 96, 96)
    pixels[0, :97], pixels[1, 0] = (26, 26, 26), (25, 25, 25)
    Image.fromarray(pixels).save(root / "masks/a.png")
    with pytest.raises(
        TissError, match=r"a\.png: colour 25 25 25, 26 26 26 is not in the colour map; add it"
    ):
        write_folder(read_colours(root), tmp_path / "other", Options())


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("class_dict.csv", "name,r,g,b\n", "no legend in it"),
        ("class_dict.csv", "name,r,g,b\nCar,64,0,999\n", "no legend in it.*line 2"),
        ("class_dict.csv", "Car,64,0,128\nBus,64,0,128\n", "'Bus' has the colour of 'Car'"),
        ("class_dict.csv", "Car,1,2,3\n", "no image has the colours of"),
        ("class_dict.csv", "".join(f"c{n},{n},1,1\n" for n in range(255)), "256 classes"),
    ],
)
def test_legends_that_do_not_fit(tmp_path: Path, name: str, text: str, words: str) -> None:
    root = camvid(tmp_path)
    (root / name).write_text(text)
    with pytest.raises(TissError, match=words):
        read_colours(root)


def test_two_images_of_one_name(tmp_path: Path) -> None:
    root = tmp_path / "drone"
    for folder in ("original_images", "depth"):
        write_picture(root / f"{folder}/000.jpg")
    write_coloured(root / "train_masks/000.png", CAR)
    (root / "class_dict.csv").write_text(LEGENDS["class_dict.csv"])
    with pytest.raises(
        TissError, match=r"masks/000\.png: .*depth/000\.jpg or .*images/000\.jpg; name the folder"
    ):
        read_colours(root)
    assert read_colours(root, root / "original_images").images[0].image == root / "original_images/000.jpg"


def test_a_mask_without_its_image(tmp_path: Path) -> None:
    root = camvid(tmp_path)
    (root / "val/0001TP_val.png").unlink()
    with pytest.raises(TissError, match=r"0001TP_val_L\.png: no image of that name"):
        read_colours(root)
