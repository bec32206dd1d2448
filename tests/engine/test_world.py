"""The machine a run has: devices, shares of a batch, what processes exchange."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.processes import run_module
from tiss.config import TrainConfig
from tiss.engine.world import World, choose_device, is_broken_connection
from tiss.errors import TissError


def test_an_update_sends_every_trainable_parameter_once(tiny_folder: Path):
    run_module("tests.engine.count_gradients", str(tiny_folder))


def test_a_process_alone_has_nobody_to_wait_for():
    world = World(TrainConfig(device="cpu"))
    assert (world.rank, world.size, world.is_main) == (0, 1, True)
    model = torch.nn.Linear(2, 2)
    assert world.wrap(model) is model
    assert world.union(["b", "a", "b"]) == ["a", "b"]
    with world.together():
        world.wait()


def test_a_batch_that_cannot_be_shared_out_is_refused():
    world = World(TrainConfig(device="cpu"))
    assert world.share_of(12, 3) == 4
    with pytest.raises(TissError, match=r"--train.batch 10 .* take 9"):
        world.share_of(10, 3)


def test_devices_that_are_not_there():
    assert choose_device("cpu") == "cpu"
    with pytest.raises(TissError, match="not 'gpu'"):
        choose_device("gpu")


def test_what_another_process_s_end_looks_like():
    assert is_broken_connection(torch.distributed.DistNetworkError("connection lost"))
    assert is_broken_connection(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert not is_broken_connection(RuntimeError("size mismatch"))
    assert not is_broken_connection(KeyError("gloo"))
