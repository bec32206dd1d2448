"""From a model and test images to one confusion matrix."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.data.base import IGNORE, Batch
from tiss.losses import upsampled_argmax
from tiss.methods.base import all_sum
from tiss.models import choose_labels, comparable


def confusion_matrix(prediction: Tensor, label: Tensor, classes: int) -> Tensor:
    """Counts pixels: row = true class, column = predicted class, int64 classes × classes.

    Whole numbers only, so that the sum over batches and processes is exact.
    `prediction` and `label` hold channel numbers, in the same shape; pixels whose label is 255 do not count.

    >>> confusion_matrix(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 255]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    if prediction.shape != label.shape:
        raise ValueError(f"prediction and label differ in shape: {prediction.shape} and {label.shape}")
    if prediction.numel() and int(prediction.max()) >= classes:
        raise ValueError(f"prediction {int(prediction.max())} is not one of {classes} channels")
    label, prediction = label.long(), prediction.long()
    # ignored pixels get a bin of their own: selecting the others would cost a copy of both tensors
    bins = torch.where(label == IGNORE, 0, 1 + label * classes + prediction)
    counts = torch.bincount(bins.flatten(), minlength=classes * classes + 1)
    if len(counts) > classes * classes + 1:
        wrong = (len(counts) - 2) // classes
        raise ValueError(f"label {wrong} is neither one of {classes} channels nor {IGNORE}")
    return counts[1:].reshape(classes, classes)


def evaluate(
    model: Any,
    loader: Iterable[Batch],
    classes: int,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int], Any] | None = None,
) -> Tensor:
    """The confusion matrix of `model` over the loader's images, summed over all processes; int64, on the CPU.

    Square crops are predicted at once. A whole image (not square, or with a label of another size) is covered
    by windows as wide as its shorter side, and its logits are brought to the label's size.
    """
    model.eval()
    total = torch.zeros(classes, classes, dtype=torch.int64, device=device)
    with torch.inference_mode():
        for batch in loader:
            batch = batch.to(device)
            total += confusion_matrix(predict_batch(model, batch), batch.label, classes)
            if progress is not None:
                progress(len(batch.ids))
    return all_sum(total).cpu()


def predict_batch(model: Any, batch: Batch) -> Tensor:
    """Channel numbers N × H × W at the size of the batch's labels."""
    height, width = batch.image.shape[-2:]
    size = tuple(batch.label.shape[-2:])
    if height == width and size == (height, width):
        output = model(batch.image)
        return upsampled_argmax(comparable(output.logits, model.rule), output.resolution).long()
    logits = slide_logits(model, batch.image, window=min(height, width))
    if size != (height, width):
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
    return choose_labels(logits, model.rule)


def slide_logits(model: Any, images: Tensor, window: int) -> Tensor:
    """Logits N × C × H × W of whole images, averaged where windows overlap.

    Windows have the side `window` (less where the image is smaller), are evenly spaced, and overlap by a third or more.
    """
    height, width = images.shape[-2:]
    if height <= window and width <= window:
        return model(images).pixels().float()
    total, count = torch.empty(0), torch.zeros(1, 1, height, width, device=images.device)
    for rows, columns in product(window_slices(height, window), window_slices(width, window)):
        logits = model(images[..., rows, columns]).pixels().float()
        if not len(total):
            total = logits.new_zeros(*logits.shape[:2], height, width)
        total[..., rows, columns] += logits
        count[..., rows, columns] += 1
    return total / count


def window_slices(length: int, window: int) -> list[slice]:
    """The windows along one side of an image, which may be shorter than a window."""
    window = min(window, length)
    return [slice(start, start + window) for start in window_starts(length, window)]


def window_starts(length: int, window: int) -> list[int]:
    """Where windows begin along one side: evenly from edge to edge, no more than two thirds of one apart.

    >>> window_starts(500, 256)
    [0, 122, 244]
    """
    gaps = -(-3 * (length - window) // (2 * window))
    return [round(index * (length - window) / gaps) for index in range(gaps + 1)] if gaps else [0]
