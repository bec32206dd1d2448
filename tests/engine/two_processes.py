"""What tests run in several processes, by torchrun: `cases` of test_distributed, `gradients` of test_device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from tests.methods.toy import toy_config
from tiss import Learner
from tiss.engine.device import World
from tiss.engine.progress import Reporter
from tiss.engine.run import run_experiment
from tiss.scenarios import load_scenario


def run_cases(cases: dict[str, dict[str, Any]], folder: Path) -> None:
    """Runs every case, into `folder`/<name>."""
    for name, case in cases.items():
        run_experiment(toy_config(**case, out=str(folder / name)), reporter=Reporter())


def check_gradients(root: str) -> None:
    """Each update sends every trainable parameter once."""
    sent: list[int] = []
    plain_wrap = World.wrap

    def count(group, bucket):  # DDP refuses annotations that are strings
        sent.append(bucket.buffer().numel() * bucket.buffer().element_size())
        return allreduce_hook(group, bucket)

    def wrap(world: World, model: nn.Module) -> nn.Module:
        wrapped = plain_wrap(world, model)
        wrapped.register_comm_hook(None, count)  # type: ignore[operator]
        return wrapped

    World.wrap = wrap  # type: ignore[method-assign]
    train = {"epochs": 2, "batch": 4, "device": "cpu", "recipe": "tuned", "accumulate": 2}
    data = {"name": "folder", "root": root, "crop": 32}
    learner = Learner("mib", encoder="vit_micro_patch8", reporter=Reporter(), train=train, data=data)
    for step in load_scenario("folder", root=root, task="2-2"):
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
    if sys.argv[1] == "gradients":
        check_gradients(sys.argv[2])
    else:
        given = json.loads(Path(sys.argv[2]).read_text())
        run_cases(given["cases"], Path(given["folder"]))
