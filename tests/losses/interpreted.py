"""Runs the Triton kernels in Triton's interpreter and prints errors as JSON, one line.

A process of its own, because the interpreter is chosen once, when triton is first imported.
"""

from __future__ import annotations

import json

import torch

from tests.losses.cases import CASES, errors, evaluate
from tiss.losses import patch_contrast, patches, triton_contrast, triton_pixels
from tiss.losses.chunked import Task


def main():
    triton_pixels.ELEMENTS = 8192  # fewer and larger steps: the interpreter's time goes by steps
    results = {name: errors(triton_pixels.fused_cross_entropy, case.make()) for name, case in CASES.items()}
    results["half"] = errors(triton_pixels.fused_cross_entropy, CASES["odd size"].make(kind=torch.bfloat16))
    results["channels last"] = errors(
        triton_pixels.fused_cross_entropy, CASES["odd size"].make(), channels_last=True
    )
    print(json.dumps({"errors": results, "single": single(), "argmax": argmax(), "contrast": contrast()}))


def single():
    """Each loss by itself equals the same loss beside the other; distillation over the old channels alone."""
    task = CASES["one new class"].make()
    together = evaluate(triton_pixels.fused_cross_entropy, task, weights=(1.0, 0.0))
    alone = Task(task.logits, task.split, task.total, task.to, labels=task.labels)
    alone.logits.requires_grad_()
    loss, nothing = triton_pixels.fused_cross_entropy(alone)
    assert float(nothing) == 0
    plain_task = Task(task.logits, task.split, task.split, task.to, teacher=task.teacher)
    _, soft = triton_pixels.fused_cross_entropy(plain_task)
    (gradient,) = torch.autograd.grad(soft, task.logits)
    weightless = Task(task.logits, task.split, task.total, task.to, task.labels, task.teacher)
    return {
        "hard": abs(float(loss) - evaluate(triton_pixels.fused_cross_entropy, weightless)[0]),
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
        found = triton_pixels.argmax(task.logits, task.to, torch.uint8).long()
        chosen = pixels.gather(1, found.unsqueeze(1)).squeeze(1)
        wrong[name] = int((chosen < pixels.amax(1) - 1e-4).sum())
    ties = torch.zeros(1, 5, 2, 2)
    wrong["ties"] = int(triton_pixels.argmax(ties, task.to, torch.uint8).sum())
    return wrong


def contrast():
    """Largest relative errors of the kernels' contrast against float64: value and both gradients."""
    worst = {"value": 0.0, "gradient": 0.0}
    for signed, tau, budget in ((False, 1.0, 10**6), (True, 0.1, 10), (False, 0.05, 25), (False, 1.0, 10)):
        patches.CHUNK_ELEMENTS["cpu"] = budget
        generator = torch.Generator().manual_seed(3)
        pair = [torch.randn(2, 6, 5, generator=generator).transpose(1, 2).requires_grad_() for _ in range(2)]
        doubles = [tokens.detach().double().requires_grad_() for tokens in pair]
        found = triton_contrast.contrast(*pair, signed, tau)
        exact = patch_contrast(*doubles, signed=signed, tau=tau, fused="off")
        worst["value"] = max(worst["value"], abs(float(found.detach()) / float(exact.detach()) - 1))
        gradients = zip(torch.autograd.grad(found, pair), torch.autograd.grad(exact, doubles), strict=True)
        for mine, right in gradients:
            worst["gradient"] = max(worst["gradient"], float((mine - right).abs().max() / right.abs().max()))
    return worst


if __name__ == "__main__":
    main()
