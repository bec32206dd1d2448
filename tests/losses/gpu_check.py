"""One command that checks and times the losses on a CUDA device: `python -m tests.losses.gpu_check [--sweep]`.

Prints the errors of the kernels against float64, the gradient of `F.interpolate` for both memory layouts, and
milliseconds (forward and backward) and peak memory of every loss at the sizes of the step benchmark. Needs no
pytest; ends with code 1 if a tolerance is broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import torch
import torch.nn.functional as F

from tests.losses.cases import CASES, Case, errors, evaluate
from tiss.losses import patch_contrast, triton_backend, upsampled_argmax
from tiss.losses.chunked import chunked
from tiss.losses.grouped import Task, plain
from tiss.losses.triton_backend import fused_cross_entropy

LARGE = {
    "VOC, batch 2": Case(2, 16, 5, (32, 32), (512, 512), (512, 512)),
    "ADE20K, batch 1": Case(1, 101, 50, (32, 32), (512, 512), (512, 512)),
    "patch 14, odd": Case(2, 16, 1, (32, 31), (440, 433), (448, 434)),
    "stride 4": Case(1, 16, 5, (64, 64), (256, 256), (256, 256)),
    "stride 8": Case(1, 16, 5, (65, 65), (513, 513), (513, 513)),
    "patch 32": Case(1, 16, 5, (16, 16), (512, 512), (512, 512)),
}
BENCH = {  # images, old, new: ViT-S/16 at 512 × 512
    "VOC batch 12": (12, 16, 5),
    "VOC batch 48": (48, 16, 5),
    "ADE20K batch 8": (8, 101, 50),
    "ADE20K batch 24": (24, 101, 50),
}


def check(name, case, kind):
    """Errors of the kernels for one case; contiguous and channels-last logits."""
    task = case.make(kind=kind, device="cuda")
    limit = 1e-4 if kind == torch.float32 else 1e-2  # a half-precision gradient is rounded when it is stored
    good = True
    for channels_last in (False, True):
        found = errors(fused_cross_entropy, task, channels_last)
        fine = found["hard"] < 1e-5 and found["soft"] < 1e-5 and found["gradient"] < limit
        good &= fine
        layout = "channels last" if channels_last else "contiguous"
        figures = "  ".join(f"{key} {value:.1e}" for key, value in found.items())
        print(f"{'ok ' if fine else 'BAD'} {name:26} {str(kind)[6:]:9} {layout:14} {figures}")
    return good


def check_determinism():
    task = LARGE["ADE20K, batch 1"].make(device="cuda")
    first, second = (evaluate(fused_cross_entropy, task) for _ in range(2))
    same = first[:2] == second[:2] and torch.equal(first[2], second[2])
    print(f"{'ok ' if same else 'BAD'} two runs give the same bits")
    return same


def check_argmax():
    good = True
    for name, case in (CASES | LARGE).items():
        task = case.make(device="cuda")
        pixels = task.to.upsample(task.logits.double())
        found = upsampled_argmax(task.logits, task.to).long()
        chosen = pixels.gather(1, found.unsqueeze(1)).squeeze(1)
        fine = bool((chosen >= pixels.amax(1) - 1e-4 * case.spread).all())
        good &= fine
        print(
            f"{'ok ' if fine else 'BAD'} argmax {name}: {int((found != pixels.argmax(1)).sum())} pixels differ"
        )
    return good


def check_interpolate():
    """The gradient of F.interpolate itself, for both layouts, against float64; only reported."""
    for kind in (torch.float32, torch.bfloat16):
        for channels in (21, 151):
            logits = torch.randn(2, channels, 32, 32, device="cuda", dtype=kind)
            weight = torch.randn(2, channels, 512, 512, device="cuda", dtype=kind)
            gradients = {}
            for layout in (torch.contiguous_format, torch.channels_last):
                leaf = logits.clone(memory_format=layout).requires_grad_()
                pixels = F.interpolate(leaf, (512, 512), mode="bilinear", align_corners=False)
                gradients[layout] = torch.autograd.grad((pixels * weight).sum(), leaf)[0].double()
            leaf = logits.double().requires_grad_()
            pixels = F.interpolate(leaf, (512, 512), mode="bilinear", align_corners=False)
            (exact,) = torch.autograd.grad((pixels * weight.double()).sum(), leaf)
            for layout, gradient in gradients.items():
                error = float((gradient - exact).abs().max() / exact.abs().max())
                print(
                    f"    F.interpolate gradient {str(kind)[6:]:9} {channels:3} {str(layout)[6:]:18} {error:.1e}"
                )


def check_contrast():
    """Against float64. Without its sign, a cosine near zero may fall to either side: a handful of rows then differ."""
    good = True
    generator = torch.Generator("cuda").manual_seed(0)
    cases = ((3, 1024, True, 1.0), (2, 77, True, 0.1), (9, 1024, True, 0.05), (9, 1024, False, 0.05))
    for precision, value_limit, limit in (("highest", 1e-5, 1e-4), ("high", 1e-4, 5e-3)):
        torch.set_float32_matmul_precision(precision)
        for images, patches, signed, tau in cases:
            pair = [torch.randn(images, patches, 384, device="cuda", generator=generator) for _ in range(2)]
            singles = [tokens.clone().requires_grad_() for tokens in pair]
            doubles = [tokens.double().requires_grad_() for tokens in pair]
            found = patch_contrast(*singles, signed=signed, tau=tau)
            exact = patch_contrast(*doubles, signed=signed, tau=tau, fused="off")
            value = abs(float(found.detach()) - float(exact.detach())) / float(exact.detach())
            gradients = zip(
                torch.autograd.grad(found, singles), torch.autograd.grad(exact, doubles), strict=True
            )
            worst = max(_distance(a.double(), b, signed) for a, b in gradients)
            fine = value < value_limit and worst < limit
            good &= fine
            how = f"{images} × {patches}, {precision}, {'signed' if signed else 'unsigned'}, tau {tau}"
            print(f"{'ok ' if fine else 'BAD'} contrast {how}: value {value:.1e} gradient {worst:.1e}")
    torch.set_float32_matmul_precision("highest")
    return good


def _distance(found, exact, largest):
    """The largest error over the largest value, or the error's length over the value's."""
    error = found - exact
    return float(error.abs().max() / exact.abs().max() if largest else error.norm() / exact.norm())


def milliseconds(function, repeats=20):
    """Median time on the device, and peak memory beyond what was there before, in MiB."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    return sorted(times)[len(times) // 2], peak


def step(backend, task, hard, soft):
    """Forward and backward of one or both losses."""
    task = dataclasses.replace(
        task, labels=task.labels if hard else None, teacher=task.teacher if soft else None, image_weights=None
    )

    def run():
        leaf = task.logits.detach().requires_grad_()
        found = backend(Task(leaf, task.split, task.total, task.to, task.labels, task.teacher))
        sum(loss for loss in found if loss is not None).backward()

    return run


def bench(kind=torch.bfloat16):
    for name, (images, old, new) in BENCH.items():
        task = Case(images, old, new, (32, 32), (512, 512), (512, 512)).make(kind=kind, device="cuda")
        task = dataclasses.replace(task, logits=task.logits.contiguous(memory_format=torch.channels_last))
        print(f"{name}, {old + new} classes, {str(kind)[6:]}")
        report("uce, kernel", step(fused_cross_entropy, task, True, False))
        report("ukd, kernel", step(fused_cross_entropy, task, False, True))
        report("both, kernel", step(fused_cross_entropy, task, True, True))
        if images * (old + new) < 2000:
            report("both, chunked", step(chunked, task, True, True), 5)
            report("both, plain", step(plain, task, True, True), 5)
        report("argmax, kernel", lambda task=task: upsampled_argmax(task.logits, task.to))
        bench_contrast(images)


def bench_contrast(images):
    for precision in ("highest", "high"):  # float32, TF32
        torch.set_float32_matmul_precision(precision)
        for fused in ("auto", "off"):
            for both in (False, True):
                tokens = torch.randn(images, 1024, 384, device="cuda", requires_grad=True)
                reference = torch.randn(images, 1024, 384, device="cuda", requires_grad=both)

                def run(tokens=tokens, reference=reference, fused=fused):
                    patch_contrast(tokens, reference, fused=fused).backward()

                report(f"contrast, fused {fused}, {precision}, gradient to {'both' if both else 'one'}", run)
    torch.set_float32_matmul_precision("highest")


def report(name, function, repeats=20):
    time, peak = milliseconds(function, repeats)
    print(f"    {name:46} {time:8.3f} ms  {peak:9.1f} MiB", flush=True)


def sweep():
    """Which tile is fastest."""
    for side in (8, 16):
        for elements in (1024, 2048, 4096):
            triton_backend.LARGEST_SIDE, triton_backend.ELEMENTS = side, elements
            times = []
            for images, old, new in BENCH.values():
                task = Case(images, old, new, (32, 32), (512, 512), (512, 512)).make(
                    kind=torch.bfloat16, device="cuda"
                )
                times.append(milliseconds(step(fused_cross_entropy, task, True, True), 10)[0])
            print(
                f"    side {side:2} elements {elements:4}: " + "  ".join(f"{t:.3f}" for t in times),
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="also try other tile sizes")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    good = True
    for name, case in (CASES | LARGE).items():
        good &= check(name, case, torch.float32)
    good &= check("VOC, batch 2", LARGE["VOC, batch 2"], torch.bfloat16)
    good &= check_determinism()
    good &= check_argmax()
    good &= check_contrast()
    check_interpolate()
    bench()
    if arguments.sweep:
        sweep()
    print("all within tolerance" if good else "TOLERANCE BROKEN")
    sys.exit(not good)


if __name__ == "__main__":
    main()
