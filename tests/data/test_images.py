from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tiss.data import images
from tiss.data.images import check_whole, image_size, load_mask, read_image, read_pixels
from tiss.errors import TissError


def gradient(height: int = 6, width: int = 9) -> np.ndarray:
    return np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation(tmp_path: Path, orientation: int) -> None:
    pixels = gradient()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    upright = (pixels, pixels[:, ::-1], pixels[::-1, ::-1], pixels[::-1])
    lying = (pixels.transpose(1, 0, 2), np.rot90(pixels, -1))
    lying += (pixels[::-1, ::-1].transpose(1, 0, 2), np.rot90(pixels))
    turned = (*upright, *lying)[orientation - 1]
    image = read_image(tmp_path / "x.png")
    assert np.array_equal(image.permute(1, 2, 0).numpy(), turned)
    assert image_size(tmp_path / "x.png") == (turned.shape[1], turned.shape[0])


def test_sixteen_bit_picture_keeps_upper_bits(tmp_path: Path) -> None:
    values = np.array([[0, 256, 65535], [4096, 511, 32768]], np.uint16)
    Image.fromarray(values).save(tmp_path / "x.png")
    for read in (read_image, read_pixels):
        assert read(tmp_path / "x.png")[1].tolist() == [[0, 1, 255], [16, 1, 128]]
    Image.fromarray(values % 200).save(tmp_path / "dark.png")
    with pytest.raises(TissError, match=r"dark\.png: 16-bit grey"):
        read_image(tmp_path / "dark.png")


def test_float_picture_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(TissError, match=r"x\.tif: .*8 bits"):
        read_image(tmp_path / "x.tif")


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_truncated_picture_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    check_whole(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(TissError, match=rf"x\.{suffix}: broken image"):
        read_image(path)
    with pytest.raises(TissError, match=rf"x\.{suffix}: broken image"):
        check_whole(path)


def test_no_image_at_all(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_text("hello")
    for path, words in (
        (tmp_path / "x.jpg", "not a readable image"),
        (tmp_path / "y.jpg", "no such file"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(TissError, match=f"(?i){words}") as caught:
            read_image(path)
        assert str(path) in str(caught.value)


KINDS = ["jpg:RGB", "jpg:L", "png:RGB", "png:LA", "png:P", "png:RGBA"]


@pytest.mark.parametrize("at_once", [0, 1 << 24])
@pytest.mark.parametrize("kind", [*KINDS, "bmp:RGB", "tif:RGB", "tif:CMYK", "webp:RGB"])
def test_pixels_are_those_of_a_plain_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at_once: int
) -> None:
    name, mode = f"x.{kind.split(':')[0]}", kind.split(":")[1]
    monkeypatch.setattr(images, "_AT_ONCE", at_once)
    drawn = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    Image.fromarray(drawn).convert(mode).save(tmp_path / name)
    with Image.open(tmp_path / name) as image:
        plain = np.array(image.convert("RGB"))
    read = read_image(tmp_path / name)
    assert read.is_contiguous()
    assert np.array_equal(read.numpy(), plain.transpose(2, 0, 1))
    assert torch.equal(read, read_pixels(tmp_path / name))


def test_too_many_pixels_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(gradient()).save(tmp_path / "x.png")
    monkeypatch.setattr(images, "MAX_PIXELS", 50)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(TissError, match="9 × 6 pixels are too many"):
        read_image(tmp_path / "x.png")


LABELS = np.array([[0, 1, 2], [20, 255, 3]], np.uint8)


def test_grey_palette_and_sixteen_bit_masks_give_their_numbers(tmp_path: Path) -> None:
    grey = Image.fromarray(LABELS)
    grey.save(tmp_path / "l.png")
    palette = Image.fromarray(LABELS)
    palette.putpalette([7, 7, 7] * 256)
    palette.save(tmp_path / "p.png")
    Image.fromarray(LABELS.astype(np.uint16)).save(tmp_path / "i.png")
    Image.merge("RGB", [grey] * 3).save(tmp_path / "rgb.png")
    for name in ("l", "p", "i", "rgb"):
        mask = load_mask(tmp_path / f"{name}.png")
        assert mask.dtype == np.uint8
        assert np.array_equal(mask, LABELS), name


def test_large_label_in_sixteen_bits(tmp_path: Path) -> None:
    Image.fromarray(np.array([[1, 700]], np.uint16)).save(tmp_path / "x.png")
    with pytest.raises(TissError, match=r"x\.png: label 700"):
        load_mask(tmp_path / "x.png")


COLOURS = {(0, 0, 0): 0, (128, 0, 0): 1, (0, 128, 0): 2, (255, 255, 255): 255}


def test_colour_mask(tmp_path: Path) -> None:
    pixels = np.array([[[0, 0, 0], [128, 0, 0]], [[0, 128, 0], [255, 255, 255]]], np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert load_mask(tmp_path / "x.png", COLOURS).tolist() == [[0, 1], [2, 255]]
    with pytest.raises(TissError, match="needs a colour map"):
        load_mask(tmp_path / "x.png")
    pixels[0, 1] = (1, 2, 3)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    with pytest.raises(TissError, match=r"x\.png: colour 1 2 3 "):
        load_mask(tmp_path / "x.png", COLOURS)


def test_palette_mask_with_a_colour_map_goes_by_colour(tmp_path: Path) -> None:
    """Programs that make PNG files smaller renumber palettes; the colours stay."""
    image = Image.fromarray(np.array([[5, 9]], np.uint8))
    palette = [0, 0, 0] * 256
    palette[15:18], palette[27:30] = [0, 128, 0], [128, 0, 0]
    image.putpalette(palette)
    image.save(tmp_path / "x.png")
    assert load_mask(tmp_path / "x.png", COLOURS).tolist() == [[2, 1]]
    with pytest.raises(TissError, match="colour 0 128 0"):
        load_mask(tmp_path / "x.png", {(128, 0, 0): 1})
