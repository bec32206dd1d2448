"""Batch norm over two processes equals batch norm over the whole batch in one."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

from tests.models.tester import make_model
from tiss.models.syncbn import SyncBatchNorm, convert_sync_batch_norm, has_batch_norm


def make_network() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)
    )
    nn.init.normal_(network[1].weight)
    return network


def make_inputs() -> Tensor:
    return 3 + 2 * torch.randn(5, 3, 6, 7, generator=torch.Generator().manual_seed(1))


def loss_of(output: Tensor) -> Tensor:
    return (output * torch.linspace(-1, 1, output[0].numel()).view_as(output[0])).square().sum()


def run_process(rank: int, folder: str) -> None:
    """One of two: three samples here, two there."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    network = convert_sync_batch_norm(make_network())
    inputs = make_inputs()[:3] if rank == 0 else make_inputs()[3:]
    inputs.requires_grad_(True)
    output = network(inputs)
    loss_of(output).backward()
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
    gradients = [parameter.grad for parameter in network.parameters()]
    torch.save((output, inputs.grad, gradients, network.state_dict()), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    multiprocessing.spawn(run_process, (str(tmp_path),), nprocs=2)
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    network, inputs = make_network(), make_inputs().requires_grad_(True)
    output = network(inputs)
    loss_of(output).backward()
    torch.testing.assert_close(torch.cat([half[0] for half in halves]), output, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.cat([half[1] for half in halves]), inputs.grad, atol=1e-4, rtol=1e-4)
    expected = [parameter.grad for parameter in network.parameters()]
    for half in halves:
        torch.testing.assert_close(half[2], expected, atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(dict(half[3]), dict(network.state_dict()), atol=1e-5, rtol=1e-5)


def test_one_process_is_plain_batch_norm() -> None:
    network, inputs = make_network(), make_inputs()
    converted = convert_sync_batch_norm(copy.deepcopy(network))
    assert isinstance(converted[1], SyncBatchNorm)
    assert torch.equal(converted(inputs), network(inputs))


def test_conversion_keeps_tensors_and_names() -> None:
    model = make_model("resnet_micro", "deeplabv3")
    before = dict(model.named_parameters())
    names = list(model.state_dict())
    assert convert_sync_batch_norm(model) is model
    assert list(model.state_dict()) == names
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert not any(type(module) is nn.BatchNorm2d for module in model.modules())


def test_knows_whether_there_is_any() -> None:
    assert has_batch_norm(make_model("resnet_micro"))
    assert not has_batch_norm(make_model("vit_micro_patch8"))
