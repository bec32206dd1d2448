"""The kernels' logic on a CPU, in Triton's interpreter.

The interpreter is chosen once, when triton is first imported: this module is also run as a process of its own, which
prints the measured errors and their limits as JSON.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.losses.cases import CASES, errors, evaluate
from tiss.losses import patch_contrast, patches
from tiss.losses.chunked import Task

# of triton 3.6's interpreter itself, at the first loop whose bounds are arguments
UNFIT = "InterpreterError: TypeError('only 0-dimensional arrays can be converted to Python scalars')"


def test_every_kernel_is_within_its_limits() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.losses.test_triton"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if UNFIT in done.stderr:
        pytest.skip("this triton's interpreter does not go with numpy 2.4 or later (3.9 does)")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert len(measured) > 4 * len(CASES)
    assert {name: pair for name, pair in measured.items() if not pair[0] <= pair[1]} == {}


def measure():
    """(name, error, limit) of both losses, their gradient, the argmax and the contrast."""
    from tiss.losses.triton_pixels import argmax, fused_cross_entropy

    tasks = {name: (case.make(), False) for name, case in CASES.items()}
    tasks["half"] = CASES["odd size"].make(kind=torch.bfloat16), False
    tasks["channels last"] = CASES["odd size"].make(), True
    for name, (task, channels_last) in tasks.items():
        for part, error in errors(fused_cross_entropy, task, channels_last).items():
            rounded = 1e-2 if name == "half" else 1e-4  # a bf16 gradient has 8 bits
            yield f"{part} of {name}", error, rounded if part == "gradient" else 1e-5
        chosen = argmax(task.logits, task.to, torch.uint8).long().unsqueeze(1)
        pixels = task.to.upsample(task.logits.float())
        yield f"argmax of {name}", float((pixels.amax(1) - pixels.gather(1, chosen).squeeze(1)).max()), 1e-4
    yield "argmax of ties", int(argmax(torch.zeros(1, 5, 2, 2), task.to, torch.uint8).sum()), 0

    # each loss alone equals the same loss beside the other
    task = CASES["one new class"].make()
    alone = Task(task.logits, task.split, task.to, labels=task.labels)
    loss, nothing = fused_cross_entropy(alone)
    weightless = replace(task, image_weights=None)
    yield "one loss alone", abs(float(loss) - evaluate(fused_cross_entropy, weightless)[0]), 1e-6
    yield "the loss that is not asked for", float(nothing), 0
    yield from measure_contrast()


def measure_contrast():
    """Relative errors of the kernels' contrast against float64: value and both gradients."""
    from tiss.losses.triton_contrast import contrast

    for signed, tau, budget in ((False, 1.0, 10**6), (True, 0.1, 10), (False, 0.05, 25), (False, 1.0, 10)):
        patches.CHUNK_ELEMENTS["cpu"] = budget
        generator = torch.Generator().manual_seed(3)
        pair = [torch.randn(2, 6, 5, generator=generator).transpose(1, 2).requires_grad_() for _ in range(2)]
        doubles = [tokens.detach().double().requires_grad_() for tokens in pair]
        found = contrast(*pair, signed, tau)
        exact = patch_contrast(*doubles, signed=signed, tau=tau, fused="off")
        yield (
            f"contrast {signed} {tau} {budget}",
            abs(float(found.detach()) / float(exact.detach()) - 1),
            1e-5,
        )
        gradients = zip(torch.autograd.grad(found, pair), torch.autograd.grad(exact, doubles), strict=True)
        for side, (mine, right) in enumerate(gradients):
            error = float((mine - right).abs().max() / right.abs().max())
            yield f"gradient {side} of contrast {signed} {tau} {budget}", error, 1e-4


if __name__ == "__main__":
    from tiss.losses import triton_pixels

    triton_pixels.ELEMENTS = 8192  # fewer and larger steps: the interpreter's time goes by steps
    print(json.dumps({name: (error, limit) for name, error, limit in measure()}))
