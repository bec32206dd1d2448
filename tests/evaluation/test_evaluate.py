"""The confusion matrix is exact; evaluation with a model that reads the class off the image."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tiss.data.base import Batch
from tiss.evaluation.evaluate import confusion_matrix, evaluate, slide_logits, window_starts
from tiss.models import Output, Resolution, choose_labels


class Oracle(nn.Module):
    """The red value of a pixel is its class; `seen` keeps the sizes of the inputs."""

    rule = "softmax"

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.seen: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Output:
        self.seen.append(tuple(images.shape))
        logits = nn.functional.one_hot(images[:, 0].long(), self.classes).permute(0, 3, 1, 2).float()
        return Output(logits, (), Resolution.of(*images.shape[-2:]))

    def predict_labels(self, output: Output) -> Tensor:
        return choose_labels(output.pixels(), "softmax")


def image_of(label: Tensor) -> Tensor:
    return label[:, None].expand(-1, 3, -1, -1).to(torch.uint8)


def test_crops_are_predicted_at_once() -> None:
    label = torch.randint(0, 3, (5, 8, 8), generator=torch.Generator().manual_seed(0))
    marked = label.clone()
    marked[0, 0, 0] = 255
    model, told = Oracle(3).train(), []
    parts = [
        Batch(image_of(label[:3]), marked[:3], list("abc")),
        Batch(image_of(label[3:]), marked[3:], list("de")),
    ]
    matrix = evaluate(model, parts, 3, progress=told.append)
    assert torch.equal(matrix, torch.diag(torch.bincount(label.flatten()[1:], minlength=3)))
    assert told == [3, 2]
    assert model.seen == [(3, 3, 8, 8), (2, 3, 8, 8)]
    assert not model.training


def test_whole_images_slide_and_are_scored_at_the_size_of_their_label() -> None:
    label = (torch.arange(40)[None, None] // 10).expand(1, 16, 40).contiguous()
    model = Oracle(4)
    matrix = evaluate(model, [Batch(image_of(label[:, ::2, ::2]), label, ["a"])], 4)
    assert matrix.sum() == label.numel()
    assert matrix.diagonal().sum() > 0.9 * label.numel()  # bilinear upsampling blurs the borders by a pixel
    assert all(shape[-2:] == (8, 8) for shape in model.seen)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 21), (13, 8), (5, 30), (20, 27)])
def test_windows_of_a_local_model_give_its_whole_answer(height: int, width: int) -> None:
    images = torch.randint(
        0, 5, (2, 3, height, width), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    expected = Oracle(5)(images).pixels()
    torch.testing.assert_close(slide_logits(Oracle(5), images, window=8), expected)


@pytest.mark.parametrize("length", [8, 9, 13, 14, 100])
def test_windows_cover_and_overlap(length: int) -> None:
    starts = window_starts(length, 8)
    assert starts[0] == 0
    assert starts[-1] == length - 8
    assert all(0 < after - before <= 6 for before, after in itertools.pairwise(starts))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 200), st.integers(0, 2**31))
def test_counts_like_a_loop(classes: int, pixels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prediction = rng.integers(0, classes, pixels)
    label = rng.choice([*range(classes), 255], pixels)
    expected = np.zeros((classes, classes), np.int64)
    for true, guess in zip(label, prediction, strict=True):
        if true != 255:
            expected[true, guess] += 1
    found = confusion_matrix(torch.from_numpy(prediction), torch.from_numpy(label), classes)
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found.numpy(), expected)


def test_takes_bytes_and_any_shape() -> None:
    label = torch.tensor([[[0, 1], [255, 1]]], dtype=torch.uint8)
    assert confusion_matrix(torch.ones_like(label), label, 2).tolist() == [[0, 1], [0, 2]]


@pytest.mark.parametrize(
    ("prediction", "label", "message"),
    [([0], [3], "label 3"), ([3], [0], "prediction 3"), ([0, 0], [0], "differ in shape")],
)
def test_impossible_numbers_are_refused(prediction: list[int], label: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        confusion_matrix(torch.tensor(prediction), torch.tensor(label), 3)
