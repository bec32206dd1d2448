import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tiss.data.augment import FILL, Augmentation, AugmentSettings, centre, crop_batch, draw, pack, shrink
from tiss.data.base import Sample


def make_sample(height: int, width: int, seed: int = 0, labels: tuple[int, ...] = (0, 3, 7, 255)) -> Sample:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (3, height, width), np.uint8)
    label = rng.choice(np.array(labels, np.uint8), (height, width))
    return Sample(torch.from_numpy(image), torch.from_numpy(label), "x")


def cut(sample: Sample, one: Augmentation, crop: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    image, label = crop_batch(pack(sample), [(0, tuple(sample.label.shape))], [one], crop)
    return image[0], label[0]


def test_packed_pixels_are_red_green_blue_and_label_from_the_lowest_byte_up() -> None:
    sample = make_sample(5, 7)
    turned = Sample(sample.image.permute(0, 2, 1), sample.label.T, "x")  # however it lies in memory
    apart = torch.cat([sample.image, sample.label[None] + 1]).permute(1, 2, 0).contiguous()
    for one in (sample, turned, Sample(apart.permute(2, 0, 1)[:3], sample.label, "x")):
        red, green, blue = one.image.long()
        value = red + 256 * green + 256**2 * blue + 256**3 * one.label.long()
        assert pack(one).dtype == torch.int32
        assert torch.equal(pack(one).long() % 2**32, value.flatten())


@pytest.mark.parametrize(("height", "width"), [(60, 100), (45, 33), (20, 27), (31, 47)])
def test_scaling_agrees_with_torch(height: int, width: int) -> None:
    sample = make_sample(40, 54)
    image, label = cut(sample, Augmentation(height, width, 0, 0), (height, width))
    expected = F.interpolate(
        sample.image[None].double(), (height, width), mode="bilinear", align_corners=False
    )[0]
    assert (image.double() - expected).abs().max() <= 0.5001
    near = F.interpolate(sample.label[None, None].double(), (height, width), mode="nearest-exact")[0, 0]
    assert torch.equal(label.double(), near)


def test_window_and_flip_are_slices_of_the_whole() -> None:
    sample = make_sample(40, 54)
    whole, whole_label = cut(sample, Augmentation(60, 81, 0, 0), (60, 81))
    image, label = cut(sample, Augmentation(60, 81, 7, 11, flip=True), (32, 24))
    assert torch.equal(image, whole[:, 7:39, 11:35].flip(-1))
    assert torch.equal(label, whole_label[7:39, 11:35].flip(-1))


def test_outside_is_filled_and_ignored_whatever_the_table_says() -> None:
    sample = make_sample(10, 12)
    table = torch.zeros(256, dtype=torch.uint8)  # the void border becomes background; padding must not
    image, label = crop_batch(pack(sample), [(0, (10, 12))], [Augmentation(10, 12, -3, -2)], (16, 16), table)
    assert torch.equal(image[0, :, 3:13, 2:14], sample.image)
    assert (label[0, 3:13, 2:14] == 0).all()
    assert (label[0, :3] == 255).all()
    assert (label[0, :, 14:] == 255).all()
    assert image[0, :, 0, 0].tolist() == list(FILL)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    samples = [make_sample(20 + 7 * i, 50 - 3 * i, seed=i) for i in range(6)]
    options = AugmentSettings(32, photometric=True)
    sizes = [tuple(sample.label.shape) for sample in samples]
    cuts = [draw(options, *size, (0, i)) for i, size in enumerate(sizes)]
    packed = [pack(sample) for sample in samples]
    offsets = np.cumsum([0, *map(len, packed)])[:-1].tolist()
    images, labels = crop_batch(torch.cat(packed), list(zip(offsets, sizes, strict=True)), cuts, (32, 32))
    for i in range(6):
        image, label = crop_batch(packed[i], [(0, sizes[i])], [cuts[i]], (32, 32))
        assert torch.equal(images[i], image[0])
        assert torch.equal(labels[i], label[0])


def test_large_windows_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = make_sample(60, 50)  # often smaller than the window
    cuts = [draw(AugmentSettings(64, photometric=True), 60, 50, (i,)) for i in range(12)]
    whole = [cut(sample, one, (64, 64)) for one in cuts]
    monkeypatch.setattr("tiss.data.augment.PIXELS_AT_ONCE", 1000)
    pieces = [cut(sample, one, (64, 64)) for one in cuts]
    assert len({one.flip for one in cuts}) == 2
    assert any((label == 255).all(0).any() for _, label in whole)
    for expected, found in zip(whole, pieces, strict=True):
        assert torch.equal(expected[0], found[0])
        assert torch.equal(expected[1], found[1])


@settings(max_examples=80, deadline=None)
@given(
    height=st.integers(1, 60),
    width=st.integers(1, 60),
    crop=st.integers(1, 48),
    seed=st.integers(0, 10**6),
    resize=st.none() | st.integers(1, 40),
)
def test_labels_are_never_invented(height: int, width: int, crop: int, seed: int, resize: int | None) -> None:
    sample = make_sample(height, width, seed, labels=(1, 9, 200))
    one = draw(AugmentSettings(crop, resize), height, width, (seed,))
    _, label = cut(sample, one, (crop, crop))
    assert set(label.unique().tolist()) <= {*sample.label.unique().tolist(), 255}
    assert (label != 255).any()  # the window always meets the image


def test_draws_are_a_function_of_the_key_and_cover_their_ranges() -> None:
    options = AugmentSettings(50)
    assert draw(options, 80, 100, (3, "a", 1)) == draw(options, 80, 100, (3, "a", 1))
    draws = [draw(options, 80, 100, (0, i)) for i in range(400)]
    factors = np.array([one.height / 80 for one in draws])
    assert factors.min() < 0.52
    assert factors.max() > 1.98
    assert abs(factors.mean() - 1.25) < 0.08
    assert 150 < sum(one.flip for one in draws) < 250
    assert all(min(0, one.height - 50) <= one.top <= max(0, one.height - 50) for one in draws)
    assert not any(draw(AugmentSettings(50, flip=False), 80, 100, (0, i)).flip for i in range(20))


def test_photometric_changes_colours_within_bounds_and_no_label() -> None:
    sample = make_sample(32, 32)
    plain = draw(AugmentSettings(32), 32, 32, (5,))
    loud = draw(AugmentSettings(32, photometric=True), 32, 32, (5,))
    assert (plain.height, plain.top, plain.flip) == (loud.height, loud.top, loud.flip)
    image, label = cut(sample, plain, (32, 32))
    other, same = cut(sample, loud, (32, 32))
    assert torch.equal(label, same)
    assert not torch.equal(image, other)
    grey = Sample(torch.full((3, 8, 8), 128, dtype=torch.uint8), torch.zeros(8, 8, dtype=torch.uint8), "g")
    for i in range(20):
        one = draw(AugmentSettings(8, scale=(1.0, 1.0), photometric=True), 8, 8, (i,))
        pixel = cut(grey, one, (8, 8))[0][:, 4, 4].int()
        assert (pixel.max() - pixel.min()) <= 1  # hue and saturation leave grey grey
        assert 95 <= pixel[0] <= 161


def test_test_images() -> None:
    assert centre(100, 200, 50) == Augmentation(50, 100, 0, 25)
    assert centre(201, 100, 100) == Augmentation(201, 100, 50, 0)
    assert shrink(100, 200, 50) == Augmentation(50, 100, 0, 0)
