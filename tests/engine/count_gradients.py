"""Started in two processes by test_world.py: counts the bytes of gradients that each update sends."""

from __future__ import annotations

import sys

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from tiss import Learner
from tiss.engine.device import World
from tiss.engine.progress import Reporter
from tiss.scenarios import load_scenario

sent: list[int] = []


def count(group, bucket):  # DDP refuses annotations that are strings
    sent.append(bucket.buffer().numel() * bucket.buffer().element_size())
    return allreduce_hook(group, bucket)


def wrap(world: World, model: nn.Module) -> nn.Module:
    wrapped = plain_wrap(world, model)
    wrapped.register_comm_hook(None, count)  # type: ignore[operator]
    return wrapped


plain_wrap = World.wrap
World.wrap = wrap  # type: ignore[method-assign]


def main(root: str) -> None:
    scenario = load_scenario("folder", root=root, task="2-2")
    train = {"epochs": 2, "batch": 4, "device": "cpu", "recipe": "tuned", "accumulate": 2}
    settings = {"train": train, "data": {"name": "folder", "root": root, "crop": 32}}
    learner = Learner("mib", encoder="vit_micro_patch8", reporter=Reporter(), **settings)  # type: ignore[arg-type]
    for step in scenario:
        sent.clear()
        learner.fit(step)
        assert learner.model is not None
        updates = 2 * max(1, len(step.train) // 4)
        trainable = sum(p.numel() * p.element_size() for p in learner.model.parameters() if p.requires_grad)
        assert sum(sent) == updates * trainable, (sum(sent), updates, trainable)
    assert learner.session is not None
    teacher = learner.session.make_teacher()
    assert not any(p.requires_grad or p.grad is not None for p in teacher.parameters())


if __name__ == "__main__":
    main(sys.argv[1])
