"""The definitions once more, in numpy and loops, sharing nothing with the package."""

import math
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parent.parent / "fixtures"


def bilinear(logits: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear resize with half-pixel centres and clamped borders, one output pixel after another."""
    rows, columns = logits.shape[-2:]
    result = np.zeros((*logits.shape[:-2], height, width))
    for y in range(height):
        for x in range(width):
            row = max((y + 0.5) * rows / height - 0.5, 0.0)
            column = max((x + 0.5) * columns / width - 0.5, 0.0)
            top, left = min(math.floor(row), rows - 1), min(math.floor(column), columns - 1)
            below, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
            dy, dx = row - top, column - left
            upper = (1 - dx) * logits[..., top, left] + dx * logits[..., top, right]
            lower = (1 - dx) * logits[..., below, left] + dx * logits[..., below, right]
            result[..., y, x] = (1 - dy) * upper + dy * lower
    return result


def softmax(values: np.ndarray) -> np.ndarray:
    weights = [math.exp(value - max(values)) for value in values]
    return np.array([weight / sum(weights) for weight in weights])


def cross_entropy(logits: np.ndarray, labels: np.ndarray, old: int = 1) -> float:
    """Unbiased cross-entropy; plain for old = 1."""
    total = 0.0
    for n, y, x in np.ndindex(labels.shape):
        label = int(labels[n, y, x])
        if label == 255:
            continue
        probability = softmax(logits[n, :, y, x])
        total -= math.log(probability[:old].sum() if label < old else probability[label])
    return total / labels.size


def unbiased_distillation(logits: np.ndarray, teacher: np.ndarray, divide: bool = True) -> float:
    count, old, height, width = teacher.shape
    total = 0.0
    for n, y, x in np.ndindex(count, height, width):
        target = softmax(teacher[n, :, y, x])
        probability = softmax(logits[n, :, y, x])
        background = probability[0] + probability[old:].sum()
        total -= target[0] * math.log(background)
        total -= sum(target[c] * math.log(probability[c]) for c in range(1, old))
    return total / (count * height * width) / (old if divide else 1)


def distillation(logits: np.ndarray, teacher: np.ndarray) -> float:
    count, old, height, width = teacher.shape
    total = 0.0
    for n, y, x in np.ndindex(count, height, width):
        target, probability = softmax(teacher[n, :, y, x]), softmax(logits[n, :old, y, x])
        total -= sum(t * math.log(p) for t, p in zip(target, probability, strict=True))
    return total / (count * height * width * old)


def cosines(tokens: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """cos(tokens_i, reference_j) of one image, by loops."""
    result = np.zeros((len(tokens), len(reference)))
    for i, a in enumerate(tokens):
        for j, b in enumerate(reference):
            result[i, j] = a @ b / math.sqrt(a @ a) / math.sqrt(b @ b)
    return result
