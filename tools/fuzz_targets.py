"""The readers that strangers' files reach, each with small valid files to start from."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SMALLEST = "vit_micro_patch8"
TARGETS: dict[str, Target] = {}


@dataclass(frozen=True)
class Target:
    """`read` puts the bytes into a file in a folder of its own and reads it; `seeds` gives valid files."""

    name: str
    kind: str  # how its files are damaged: a key of tools.mutate.KINDS
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]


def target(
    kind: str, seeds: Callable[[], list[bytes]]
) -> Callable[[Callable[[bytes, Path], object]], Target]:
    def add(read: Callable[[bytes, Path], object]) -> Target:
        name = read.__name__.removeprefix("read_")
        TARGETS[name] = Target(name, kind, seeds, read)
        return TARGETS[name]

    return add


def place(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def some_tensors() -> list[bytes]:
    import torch

    from tiss.files import write_tensors

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        write_tensors(
            path, {"a.weight": torch.ones(2, 3), "b": torch.tensor([True]), "c": torch.tensor(1)}, {"k": "v"}
        )
        return [path.read_bytes()]


@target("json", lambda: [b'{"a": [1, 2.5, "x", null, {"b": true}]}', b"[[[]]]"])
def read_json(data: bytes, folder: Path) -> object:
    from tiss.files import read_json

    return read_json(place(data, folder, "a.json"), max_depth=16)


@target("tensors", some_tensors)
def read_tensors(data: bytes, folder: Path) -> object:
    from tiss.files import read_tensors

    return read_tensors(place(data, folder, "a.safetensors"))


@target("tensors", some_tensors)
def read_expected_tensors(data: bytes, folder: Path) -> object:
    from tiss.files import read_tensors

    expected = {"a.weight": ((2, 3), "float32"), "b": ((1,), "bool"), "c": ((), None)}
    return read_tensors(place(data, folder, "a.safetensors"), expected)


def some_leases() -> list[bytes]:
    holder = {"host": "a", "machine": "MACHINE", "pid": 1, "started": "1", "token": "x"}
    return [json.dumps(holder).encode(), json.dumps(holder | {"machine": "b"}).encode()]


@target("json", some_leases)
def read_lease(data: bytes, folder: Path) -> object:
    from tiss.files.lock import Lease, machine_name

    data = data.replace(b"MACHINE", machine_name().encode())
    lease = Lease(place(data, folder, "lease.json"))
    lease.acquire()
    lease.release()
    return True


@cache
def model_folder() -> tuple[bytes, bytes]:
    """config.json and weights of the smallest model."""
    from tiss.config import ModelConfig
    from tiss.models.build import build_model

    with tempfile.TemporaryDirectory() as name:
        model = build_model(ModelConfig(encoder=SMALLEST), ["background", "cat"], 32)
        model.save_pretrained(Path(name, "model"))
        return Path(name, "model", "config.json").read_bytes(), Path(
            name, "model", "model.safetensors"
        ).read_bytes()


@target("json", lambda: [model_folder()[0]])
def read_model_config(data: bytes, folder: Path) -> object:
    from tiss.models.folder import from_pretrained

    place(data, folder, "model/config.json")
    place(model_folder()[1], folder, "model/model.safetensors")
    return from_pretrained(folder / "model")


@target("tensors", lambda: [model_folder()[1]])
def read_model_weights(data: bytes, folder: Path) -> object:
    from tiss.models.folder import from_pretrained

    place(model_folder()[0], folder, "model/config.json")
    place(data, folder, "model/model.safetensors")
    return from_pretrained(folder / "model")


@target("json", lambda: [b'{"record": {"parent": {"path": "../parent", "sha256": "0", "name": "a"}}}'])
def read_parent(data: bytes, folder: Path) -> object:
    from tiss.user.source import line_of

    place(data, folder, "child/config.json")
    place(b"{}", folder, "parent/config.json")
    place(b"", folder, "parent/model.safetensors")
    return line_of(folder / "child")


@target("json", lambda: [b'{"size": {"height": 512, "width": 512}}', b'{"size": 640}'])
def read_preprocessor(data: bytes, folder: Path) -> object:
    from tiss.user.segformer import read_size

    place(data, folder, "preprocessor_config.json")
    return read_size(folder)


def run_config() -> list[bytes]:
    from tiss.config import RunConfig
    from tiss.engine.run_folder import dump_config

    return [dump_config(RunConfig(method={"name": "mib"})).encode(), b"method: tiss\ntrain: {epochs: 1}\n"]


@target("lines", run_config)
def read_run_config(data: bytes, folder: Path) -> object:
    from tiss.engine.run_folder import read_config

    place(data, folder, "config.yaml")
    return read_config(folder)


@target("lines", run_config)
def read_config_flag(data: bytes, folder: Path) -> object:
    from tiss.cli.run import config_from, method_name

    path = str(place(data, folder, "mine.yaml"))
    method_name(["--config", path])
    return config_from({"config": path})


def some_state() -> list[bytes]:
    position = {"step": 1, "iteration": 20, "metrics_bytes": 100, "train_seconds": 1.5}
    return [json.dumps({"format": 1, "position": position, "optimizer": {"0.step": 3}}).encode()]


@target("json", some_state)
def read_checkpoint_state(data: bytes, folder: Path) -> object:
    from tiss.engine.checkpoint import read_position

    place(data, folder, "state.json")
    return read_position(folder)


def some_results() -> list[bytes]:
    import torch

    from tiss.evaluation.scores import run_scores

    classes, groups = ["background", "a", "b"], [[1], [2]]
    matrices = [torch.eye(seen, dtype=torch.int64) for seen in (2, 3)]
    names = {"data": "shapes", "task": "1-1", "setup": "overlapped", "protocol": "paper", "method": "ft"}
    rest = {"seed": 0, "finished": True, "has_background": True, "classes": classes, "groups": groups}
    return [json.dumps({"format": 1, **names, **rest, **run_scores(matrices, classes, groups)}).encode()]


@target("json", some_results)
def read_results(data: bytes, folder: Path) -> object:
    from tiss.report.runs import experiments, load_results
    from tiss.report.tables import report_tables

    place(data, folder, "results.json")
    return [report_tables(experiment) for experiment in experiments(load_results([folder]))]


@target("json", lambda: [b'{"pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}}'])
def read_pretrained_colours(data: bytes, folder: Path) -> object:
    from tiss.models.pretrained import find_colours

    place(data, folder, "config.json")
    return find_colours(folder)


def some_pickles() -> list[bytes]:
    import torch

    buffer = io.BytesIO()
    torch.save({"state_dict": {"a": torch.ones(2), "b": torch.zeros(1, 2)}}, buffer)
    return [buffer.getvalue()]


@target("bytes", some_pickles)
def read_pickled_weights(data: bytes, folder: Path) -> object:
    from tiss.models.pretrained import read_weights

    return read_weights(place(data, folder, "a.pth"), allow_pickle=True)
