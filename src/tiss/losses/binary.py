"""Binary cross-entropy of one sigmoid per class, a few pixel rows at a time.

As in `tiss.losses.chunked`, the gradient is computed with the loss and nothing of full resolution is kept.
With z the logits of the foreground classes at a pixel of class y,

    loss = Σ_c softplus(z_c) − z_y        (the background has no logit: nothing is subtracted there)
    gradient of z_c = σ(z_c) − [c = y]
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.data.base import IGNORE
from tiss.losses.upsampling import Rows, exact_products, full_precision, without_autocast
from tiss.models.contract import Resolution

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 23}  # of a chunk's logits; a GPU needs fewer, larger pieces


def binary_cross_entropy(logits: Tensor, labels: Tensor, *, to: Resolution | None = None) -> Tensor:
    """Σ over foreground classes of the binary cross-entropy, mean over all pixels; ignored ones (255) add 0.

    `logits` N × C × h × w, of which channel 0, the background's, takes no part; `labels` N × H × W. A pixel of class c
    is wanted at 1 by the sigmoid of c and at 0 by all others, a background pixel at 0 by all.

    >>> import torch
    >>> logits = torch.tensor([9.0, 0.0, 2.0]).view(1, 3, 1, 1)
    >>> round(float(binary_cross_entropy(logits, torch.tensor([[[2]]]))), 4)  # log 2 + log(1 + e⁻²)
    0.8201
    """
    to = to or Resolution.of(*labels.shape[-2:])
    with without_autocast(logits), exact_products():
        if to.fused == "off":
            return _plain(logits, labels, to)
        loss: Tensor = _Binary.apply(logits, labels, to)
        return loss


def _plain(logits: Tensor, labels: Tensor, to: Resolution) -> Tensor:
    """The definition, with autograd's gradients, holding all pixels."""
    pixels = to.upsample(full_precision(logits)[:, 1:])
    channels = torch.arange(1, logits.shape[1], device=labels.device).view(1, -1, 1, 1)
    wanted = (labels.unsqueeze(1) == channels).to(pixels.dtype)
    error = F.binary_cross_entropy_with_logits(pixels, wanted, reduction="none").sum(dim=1)
    return (error * (labels != IGNORE)).mean()


class _Binary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, to: Resolution) -> Tensor:
        small = full_precision(logits.detach())[:, 1:]
        rows = Rows(small, to, CHUNK_ELEMENTS.get(logits.device.type, CHUNK_ELEMENTS["cpu"]))
        wide = rows.widen(small)
        gradients = torch.zeros_like(wide) if ctx.needs_input_grad[0] else None
        scale, loss = 1 / labels.numel(), small.new_zeros(())
        for part in rows.parts:
            error, gradient = _rows(rows.pixels(wide, part), labels[:, part].transpose(0, 1))
            loss += error * scale
            if gradients is not None:
                rows.add(gradients, part, gradient, scale)
        if gradients is not None:
            ctx.save_for_backward(F.pad(rows.narrow(gradients), (0, 0, 0, 0, 1, 0)))
        ctx.kind = logits.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (upstream * gradient).to(ctx.kind), None, None


def _rows(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the loss over some rows, R × N × C × W against R × N × W, and its gradient; uses up `pixels`.

    Targets are compared, not looked up: no index can be out of range, and nothing is added in a changing order.
    """
    labels = labels.long().unsqueeze(2)
    counted = (labels != IGNORE).to(pixels.dtype)
    classes = torch.arange(1, pixels.shape[2] + 1, device=labels.device).view(1, 1, -1, 1)
    wanted = (labels == classes).to(pixels.dtype)  # never where a pixel is ignored: no class has that number
    loss = (F.softplus(pixels).sum(2, keepdim=True) * counted).sum() - (pixels * wanted).sum()
    return loss, pixels.sigmoid_().mul_(counted).sub_(wanted)
