"""The kernels on a real GPU, against the float64 definition there."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def gpu_check():
    pytest.importorskip("triton")
    from tests.losses import gpu_check

    return gpu_check


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_kernels_within_tolerance(gpu_check, kind):
    for name, case in (gpu_check.CASES | gpu_check.LARGE).items():
        assert gpu_check.check(name, case, kind), name


def test_deterministic(gpu_check):
    assert gpu_check.check_determinism()


def test_argmax(gpu_check):
    assert gpu_check.check_argmax()


def test_contrast(gpu_check):
    assert gpu_check.check_contrast()


def test_no_logits_of_pixels_are_held(gpu_check):
    """The peak stays far below one full-resolution tensor of all classes."""
    task = gpu_check.LARGE["ADE20K, batch 1"].make(device="cuda")
    _, peak = gpu_check.milliseconds(gpu_check.step(gpu_check.fused_cross_entropy, task, True, True), 1)
    assert peak < 151 * 512 * 512 * 4 / 2**20 / 10


def test_a_growing_head_compiles_nothing_new(gpu_check):
    from tiss.losses import triton_kernels

    def kernels():
        return sum(len(cache[0]) for cache in triton_kernels.forward_kernel.device_caches.values())

    gpu_check.check("first", gpu_check.Case(1, 16, 1, (8, 8), (128, 128), (128, 128)), torch.float32)
    before = kernels()
    for old in (17, 18, 19):
        gpu_check.check("grown", gpu_check.Case(1, old, 1, (8, 8), (128, 128), (128, 128)), torch.float32)
    assert kernels() == before


@pytest.mark.parametrize("deterministic", [False, True])
def test_one_sigmoid_a_class_in_a_graph(deterministic):
    """Rows at a time on the GPU, captured and replayed, against the float64 definition on the CPU."""
    from tests.losses.cases import CASES
    from tiss.losses import binary_cross_entropy

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
