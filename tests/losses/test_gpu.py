"""The kernels on a real GPU, against the float64 definition there."""

import pytest
import torch

from tests.losses.cases import CASES, Case, errors, evaluate
from tiss.losses import binary_cross_entropy, patch_contrast, upsampled_argmax

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LARGE = {
    "VOC, batch 2": Case(2, 16, 5, (32, 32), (512, 512), (512, 512)),
    "ADE20K, batch 1": Case(1, 101, 50, (32, 32), (512, 512), (512, 512)),
    "patch 14, odd": Case(2, 16, 1, (32, 31), (440, 433), (448, 434)),
    "stride 4": Case(1, 16, 5, (64, 64), (256, 256), (256, 256)),
    "stride 8": Case(1, 16, 5, (65, 65), (513, 513), (513, 513)),
    "patch 32": Case(1, 16, 5, (16, 16), (512, 512), (512, 512)),
}


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton")
    from tiss.losses import triton_pixels

    return triton_pixels


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*CASES, *LARGE])
def test_kernels_within_tolerance(kernels, name, kind):
    task = (CASES | LARGE)[name].make(kind=kind, device="cuda")
    for channels_last in (False, True):
        found = errors(kernels.fused_cross_entropy, task, channels_last)
        assert found["hard"] < 1e-5
        assert found["soft"] < 1e-5
        assert found["gradient"] < (1e-4 if kind == torch.float32 else 1e-2)  # rounded when it is stored


def test_deterministic(kernels):
    task = LARGE["ADE20K, batch 1"].make(device="cuda")
    first, second = (evaluate(kernels.fused_cross_entropy, task) for _ in range(2))
    assert first[:2] == second[:2]
    assert torch.equal(first[2], second[2])


@pytest.mark.parametrize("name", [*CASES, *LARGE])
def test_argmax(name):
    case = (CASES | LARGE)[name]
    task = case.make(device="cuda")
    pixels = task.to.upsample(task.logits.double())
    found = upsampled_argmax(task.logits, task.to).long()
    chosen = pixels.gather(1, found.unsqueeze(1)).squeeze(1)
    assert (chosen >= pixels.amax(1) - 1e-4 * case.spread).all()


@pytest.mark.parametrize(("precision", "close", "limit"), [("highest", 1e-5, 1e-4), ("high", 1e-4, 5e-3)])
@pytest.mark.parametrize(
    ("images", "patches", "signed", "tau"),
    [(3, 1024, True, 1.0), (2, 77, True, 0.1), (9, 1024, True, 0.05), (9, 1024, False, 0.05)],
)
def test_contrast(images, patches, signed, tau, precision, close, limit):
    """Without its sign, a cosine near zero may have either sign, and a handful of rows differ: lengths are compared."""
    generator = torch.Generator("cuda").manual_seed(0)
    pair = [torch.randn(images, patches, 384, device="cuda", generator=generator) for _ in range(2)]
    singles = [tokens.clone().requires_grad_() for tokens in pair]
    doubles = [tokens.double().requires_grad_() for tokens in pair]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        found = patch_contrast(*singles, signed=signed, tau=tau)
        gradients = torch.autograd.grad(found, singles)
    finally:
        torch.set_float32_matmul_precision(before)
    exact = patch_contrast(*doubles, signed=signed, tau=tau, fused="off")
    assert float(found.detach()) == pytest.approx(float(exact.detach()), rel=close)
    for ours, right in zip(gradients, torch.autograd.grad(exact, doubles), strict=True):
        error = ours.double() - right
        worst = error.abs().max() / right.abs().max() if signed else error.norm() / right.norm()
        assert float(worst) < limit


def test_no_logits_of_pixels_are_held(kernels):
    """The peak stays far below one full-resolution tensor of all classes."""
    task = LARGE["ADE20K, batch 1"].make(device="cuda")
    evaluate(kernels.fused_cross_entropy, task)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    evaluate(kernels.fused_cross_entropy, task)
    assert torch.cuda.max_memory_allocated() - before < 151 * 512 * 512 * 4 / 10


def test_a_growing_head_compiles_nothing_new(kernels):
    def compiled(old):
        case = Case(1, old, 1, (8, 8), (128, 128), (128, 128))
        evaluate(kernels.fused_cross_entropy, case.make(device="cuda"))
        return sum(len(cache[0]) for cache in kernels.forward_kernel.device_caches.values())

    assert compiled(16) == compiled(17) == compiled(19)


@pytest.mark.parametrize("deterministic", [False, True])
def test_one_sigmoid_per_class_in_a_graph(deterministic):
    """Rows at a time on the GPU, captured and replayed, against the float64 definition on the CPU."""
    task = CASES["patch 16"].make()
    exact = task.logits.double().requires_grad_()
    expected = binary_cross_entropy(exact, task.labels, to=task.to)
    expected.backward()
    logits, labels = task.logits.cuda().requires_grad_(), task.labels.cuda()

    def both():
        loss = binary_cross_entropy(logits, labels, to=task.to)
        return loss.detach(), torch.autograd.grad(loss, logits)[0]

    torch.use_deterministic_algorithms(deterministic)
    try:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            both()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss, gradient = both()
        graph.replay()
    finally:
        torch.use_deterministic_algorithms(False)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert float((gradient.cpu() - exact.grad).abs().max() / exact.grad.abs().max()) < 1e-5
