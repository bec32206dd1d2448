"""Losses and measures on patch tokens N × n × D (no class or register token).

The contrast computes n × n similarities for some images or rows at a time and reduces them to their loss and their
gradient at once, which only scales with the upstream gradient; nothing of n × n is kept.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.losses.upsampling import full_precision, has_triton, without_autocast
from tiss.models import Fused

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 24}  # of similarities: a core's cache; tens of MB of a GPU


def patch_contrast(
    tokens: Tensor, reference: Tensor, signed: bool = False, tau: float = 1.0, *, fused: Fused = "auto"
) -> Tensor:
    """Patch-wise contrast: cross-entropy of row i of P against i, P_ij = |cos(tokens_i, reference_j)| / tau.

    L_cd (contrastive distillation): tokens h_t^L, reference h_{t-1}^L. L_ct: tokens h_t^L, reference h_t^1.
    Both N × n × D; the gradient reaches both, so detach a teacher. `signed` keeps the cosine's sign.
    `fused="off"` holds the n × n matrices of all images until the backward pass.

    >>> round(float(patch_contrast(torch.eye(2)[None], torch.eye(2)[None])), 4)  # log(1 + 1/e)
    0.3133
    """
    if fused != "off":
        with without_autocast(tokens):
            if tokens.is_cuda and has_triton():
                from tiss.losses import triton_contrast

                if triton_contrast.fits(tokens, reference):
                    return triton_contrast.contrast(tokens, reference, signed, tau)
            left = unit(tokens)
            left = left if tau == 1 else left / tau
            loss: Tensor = _DiagonalCrossEntropy.apply(left, unit(reference), signed)
            return loss
    similarity = _cosine(tokens, reference, signed) / tau
    target = torch.arange(similarity.shape[1], device=similarity.device).expand(similarity.shape[:2])
    return F.cross_entropy(similarity.flatten(0, 1), target.flatten())


def patch_similarity(tokens: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """S_positive and S_negative: the mean of P = |cos| over equal and over different patches of an image.

    Both arguments N × n × D; both results are means over the batch.

    >>> positive, negative = patch_similarity(torch.eye(2)[None], torch.eye(2)[None])
    >>> float(positive), float(negative)
    (1.0, 0.0)
    """
    similarity = _cosine(tokens, reference, signed=False)
    patches = similarity.shape[1]
    diagonal = similarity.diagonal(dim1=1, dim2=2)
    negative = (similarity.sum((1, 2)) - diagonal.sum(1)) / (patches * (patches - 1))
    return diagonal.mean(), negative.mean()


def feature_distillation(
    tokens: Sequence[Tensor],
    teacher_tokens: Sequence[Tensor],
    power: Literal[1, 2] = 1,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """L1 (`power=1`) or L2 (`power=2`) distance between two models' tokens, one tensor N × n × D a layer.

    `mean` over layers, images, patches and channels; `sum`, as the formula has it, over patches and channels,
    with the mean over layers and images. The teacher gets no gradient.

    >>> float(feature_distillation([torch.ones(1, 2, 3)], [torch.zeros(1, 2, 3)], power=2, reduction="sum"))
    6.0
    """
    layers = []
    for student, teacher in zip(tokens, teacher_tokens, strict=True):
        difference = full_precision(student) - full_precision(teacher.detach())
        distance = difference.abs() if power == 1 else difference.square()
        layers.append(distance.mean() if reduction == "mean" else distance.sum() / len(distance))
    return torch.stack(layers).mean()


def _cosine(tokens: Tensor, reference: Tensor, signed: bool) -> Tensor:
    """cos(tokens_i, reference_j) per image, N × n × n; without sign unless `signed`."""
    with without_autocast(tokens):
        cosine = unit(tokens) @ unit(reference).transpose(1, 2)
    return cosine if signed else cosine.abs()


def unit(tokens: Tensor) -> Tensor:
    """Tokens as unit vectors, in float32 at least."""
    return F.normalize(full_precision(tokens), dim=-1)


class _DiagonalCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, signed: bool) -> Tensor:
        with_left, with_right = ctx.needs_input_grad[:2]
        to_left = torch.empty_like(left) if with_left else None
        to_right = torch.zeros_like(right) if with_right else None
        losses = left.new_empty(left.shape[:2])
        for images, rows in chunks(left):
            similarity = left[images, rows] @ right[images].transpose(1, 2)
            own = rows.start  # column start + i belongs to row i
            log_probability = (similarity if signed else similarity.abs()).log_softmax(2)
            losses[images, rows] = -log_probability.diagonal(own, dim1=1, dim2=2)
            if not (with_left or with_right):
                continue
            gradient = log_probability.exp()
            gradient.diagonal(own, dim1=1, dim2=2).sub_(1)
            if not signed:
                gradient.mul_(similarity.sign_())
            if to_left is not None:
                to_left[images, rows] = gradient @ right[images]
            if to_right is not None:
                to_right[images].baddbmm_(gradient.transpose(1, 2), left[images, rows])
        ctx.save_for_backward(to_left, to_right)
        ctx.scale = 1 / losses.numel()
        return losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        scale = upstream * ctx.scale
        to_left, to_right = (None if saved is None else saved * scale for saved in ctx.saved_tensors)
        return to_left, to_right, None


def chunks(tokens: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of images and of rows of N × n × D tokens whose similarities fit into the budget."""
    count, patches = tokens.shape[:2]
    budget = CHUNK_ELEMENTS.get(tokens.device.type, CHUNK_ELEMENTS["cpu"])
    images = max(1, budget // (patches * patches))
    rows = patches if images > 1 else max(1, min(patches, budget // patches))
    for image in range(0, count, images):
        for row in range(0, patches, rows):
            yield slice(image, image + images), slice(row, min(row + rows, patches))
