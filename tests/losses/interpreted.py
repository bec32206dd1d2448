"""Runs the Triton kernels in Triton's interpreter and prints errors as JSON, one line.

A process of its own, because the interpreter is chosen once, when triton is first imported.
"""

from __future__ import annotations

import json

import torch

from tests.losses.cases import CASES, errors, evaluate
from tiss.losses import contrast, triton_backend, triton_contrast
from tiss.losses.grouped import Task


def main():
    triton_backend.ELEMENTS = 8192  # fewer and larger steps: the interpreter's time goes by steps
    results = {name: errors(triton_backend.fused_cross_entropy, case.make()) for name, case in CASES.items()}
    results["half"] = errors(triton_backend.fused_cross_entropy, CASES["odd size"].make(kind=torch.bfloat16))
    results["channels last"] = errors(
        triton_backend.fused_cross_entropy, CASES["odd size"].make(), channels_last=True
    )
    print(
        json.dumps({"errors": results, "single": single(), "argmax": argmax(), "contrast": contrast_rows()})
    )


def single():
    """Each loss by itself equals the same loss beside the other; distillation over the old channels alone."""
    task = CASES["one new class"].make()
    together = evaluate(triton_backend.fused_cross_entropy, task, weights=(1.0, 0.0))
    alone = Task(task.logits, task.split, task.total, task.to, labels=task.labels)
    alone.logits.requires_grad_()
    loss, none = triton_backend.fused_cross_entropy(alone)
    assert none is None
    plain_task = Task(task.logits, task.split, task.split, task.to, teacher=task.teacher)
    _, soft = triton_backend.fused_cross_entropy(plain_task)
    (gradient,) = torch.autograd.grad(soft, task.logits)
    weightless = Task(task.logits, task.split, task.total, task.to, task.labels, task.teacher)
    return {
        "hard": abs(float(loss) - evaluate(triton_backend.fused_cross_entropy, weightless)[0]),
        "finite": bool(together[2].isfinite().all()),
        "untouched": float(gradient[:, task.split :].abs().max()),
        "kd gradient": float(gradient.abs().max()),
    }


def argmax():
    """Pixels at which the kernel's class is not that of the largest upsampled logit."""
    wrong = {}
    for name, case in CASES.items():
        task = case.make()
        pixels = task.to.upsample(task.logits)
        found = triton_backend.argmax(task.logits, task.to, torch.uint8).long()
        chosen = pixels.gather(1, found.unsqueeze(1)).squeeze(1)
        wrong[name] = int((chosen < pixels.amax(1) - 1e-4).sum())
    ties = torch.zeros(1, 5, 2, 2)
    wrong["ties"] = int(triton_backend.argmax(ties, task.to, torch.uint8).sum())
    return wrong


def contrast_rows():
    """Largest difference between the kernel's rows and the same by torch, losses and gradients."""
    worst = 0.0
    for signed in (False, True):
        for first in (0, 2):
            similarity = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(first)) * 4
            similarity[0, 0] = 0.0
            expected = contrast.reduce_rows(similarity.clone(), first, signed, True)
            found = triton_contrast.reduce_rows(similarity.clone(), first, signed, True)
            worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True)))
            losses, _ = triton_contrast.reduce_rows(similarity.clone(), first, signed, False)
            assert torch.equal(losses, found[0])
    return worst


if __name__ == "__main__":
    main()
