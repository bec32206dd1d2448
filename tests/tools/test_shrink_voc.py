"""A VOC with shorter sides of one length: sizes, labels, lists, going on."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tools.shrink_voc import main, mask_bytes, target_size

from tests.user.story import Capture
from tiss.data.benchmarks import VOC, voc_colours
from tiss.data.images import load_mask

NAMES = ("2007_000001", "2007_000002", "2008_000003")
SIZES = ((50, 38), (30, 60), (20, 26))


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    """Three pictures, red on the left and blue on the right, whose masks say 1 and 2; a third label on one pixel."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClassAug", "SegmentationClass", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)
    for name, (width, height) in zip(NAMES, SIZES, strict=True):
        labels = np.ones((height, width), np.uint8)
        labels[:, width // 2 :] = 2
        colours = np.array([(0, 0, 0), (250, 0, 0), (0, 0, 250)], np.uint8)
        Image.fromarray(colours[labels]).save(root / "JPEGImages" / f"{name}.jpg", quality=98)
        labels[0, 1] = 7  # too small for the nearest pixel of a half
        Image.fromarray(labels).save(root / "SegmentationClassAug" / f"{name}.png")
    painted = Image.fromarray(labels)
    painted.putpalette([value for colour in voc_colours() for value in colour])
    painted.save(root / "SegmentationClass" / f"{NAMES[2]}.png")
    Image.new("RGB", (9, 9)).save(root / "JPEGImages" / "2009_000004.jpg")  # no mask: not needed
    lists = root / "ImageSets" / "Segmentation"
    (lists / "train_aug.txt").write_text("\n".join(NAMES[:2]) + "\n")
    (lists / "val.txt").write_text(NAMES[2] + "\n")
    return tmp_path


def test_the_copy_is_a_voc_of_the_side_asked_for(devkit: Path, tmp_path: Path):
    out = tmp_path / "small"
    assert main([str(devkit / "VOCdevkit"), str(out), "--side", "16", "--workers", "1"]) == 0
    data = VOC(out)
    assert data.ids("train") == list(NAMES[:2]) and data.ids("test") == [NAMES[2]]
    for name, split in zip(NAMES, ("train", "train", "test"), strict=True):
        sample = data.read(split, name)
        assert min(sample.label.shape) == 16 and sample.image.shape[1:] == sample.label.shape
        assert set(sample.label.unique().tolist()) == {1, 2, 7}
        middle = sample.image[:, :, sample.label.shape[1] // 4].float().mean(1)
        assert middle[0] > 200 and middle[2] < 60  # red where the label is 1
    assert not (out / "VOCdevkit/VOC2012/JPEGImages/2009_000004.jpg").exists()
    palette = Image.open(out / f"VOCdevkit/VOC2012/SegmentationClass/{NAMES[2]}.png")
    assert palette.mode == "P" and set(np.unique(load_mask(palette.filename))) == {1, 2, 7}
    assert palette.getpalette()[3:6] == [128, 0, 0]  # type: ignore[index]


def test_it_goes_on_and_does_not_mix_sides(devkit: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "small"
    first = [str(devkit), str(out), "--side", "16", "--workers", "1"]
    assert main(first) == 0
    pictures = out / "VOCdevkit/VOC2012/JPEGImages"
    kept, lost = pictures / f"{NAMES[0]}.jpg", pictures / f"{NAMES[1]}.jpg"
    kept.write_bytes(b"as it was left")
    lost.unlink()
    (pictures / ".x.jpg.1.tiss-tmp").write_bytes(b"cut off")
    assert main(first) == 0
    assert kept.read_bytes() == b"as it was left" and lost.exists()
    assert sorted(path.name for path in pictures.iterdir()) == [f"{name}.jpg" for name in NAMES]
    assert main([str(devkit), str(out), "--side", "8"]) == 2
    assert "another --side" in capsys.readouterr().err


def test_what_cannot_be_done_is_one_line(devkit: Path, tmp_path: Path, capsys: Capture):
    assert main([str(tmp_path / "nothing"), str(tmp_path / "out")]) == 2
    assert main([str(devkit), str(devkit)]) == 2
    (devkit / "VOCdevkit/VOC2012/JPEGImages" / f"{NAMES[0]}.jpg").write_bytes(b"no picture")
    assert main([str(devkit), str(tmp_path / "out"), "--workers", "1"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line for line in lines if line.startswith("tools.shrink_voc: ")] == lines[-3:]
    assert f"{NAMES[0]}.jpg: cannot be read" in lines[-1]


def test_the_longer_side_is_rounded_as_in_our_copy():
    assert target_size((500, 375), 256) == (341, 256)
    assert target_size((333, 500), 256) == (256, 384)
    assert target_size((112, 140), 256) == (256, 320)


@pytest.mark.parametrize("seed", range(20))
def test_no_class_loses_its_last_pixel_to_another(seed: int):
    """Many classes of one pixel each, some of which fall on the same place, or on the only one of another."""
    random = np.random.default_rng(seed)
    labels = np.zeros((24, 24), np.uint8)
    labels[:, 12:] = 3
    for label in range(4, 30):
        row, column = random.integers(0, 24, 2)
        labels[row, column] = label
    small = np.asarray(Image.open(io.BytesIO(mask_bytes(Image.fromarray(labels), (8, 8)))))
    assert set(np.unique(small)) == set(np.unique(labels))


def test_a_larger_mask_keeps_its_labels():
    labels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    grown = Image.open(io.BytesIO(mask_bytes(Image.fromarray(labels), (8, 6))))
    np.testing.assert_array_equal(np.asarray(grown), labels.repeat(2, 0).repeat(2, 1))
