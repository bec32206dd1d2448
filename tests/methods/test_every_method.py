"""Every method on the ViT, every architecture with MiB and TISS, and (slow) every pair that is allowed.

Also slow: fine-tuning forgets the first classes; every other method keeps them. A wrong sign shows here.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.methods.tester import check_method
from tests.methods.toy import ToyData, toy_config
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run, run_experiment
from tiss.engine.session import Learner, Session
from tiss.errors import TissError
from tiss.methods.base import METHODS, batch_norms, check_pair

BUILT_IN = [name for name in METHODS if METHODS.get(name).__module__.startswith("tiss.")]
ARCHITECTURES: dict[str, tuple[str, str | None]] = {
    "vit": ("vit_micro_patch8", None),
    "vit+mlp": ("vit_micro_patch8", "mlp"),
    "segmenter": ("vit_micro_patch8", "mask"),
    "swin": ("swin_micro", None),
    "segformer": ("mit_micro", None),
    "deeplab": ("resnet_micro", None),
    "deeplab+": ("resnet_micro", "deeplabv3plus"),
}
REFUSED = {
    "vit": {"mib+frozenbn", "mbs"},
    "vit+mlp": {"mbs"},
    "segmenter": {"mib+frozenbn", "ploplong", "recall", "dkd", "ssul", "star"},
    "swin": {"mbs"},
    "segformer": {"mbs"},
    "deeplab": {"tiss", "mib+cd", "mib+ct", "mib+l1", "mib+l2", "mbs"},
    "deeplab+": {"tiss", "mib+cd", "mib+ct", "mib+l1", "mib+l2", "mbs"},
}
QUICK = {("vit", method) for method in BUILT_IN} | {(a, m) for a in ARCHITECTURES for m in ("mib", "tiss")}
QUICK |= {("deeplab", "mib+frozenbn"), ("vit+mlp", "mib+frozenbn"), ("vit+mlp", "dkd"), ("deeplab", "ssul")}
QUICK |= {("deeplab", "star"), ("segmenter", "mbs")}
PAIRS = [
    pytest.param(a, m, marks=() if (a, m) in QUICK else pytest.mark.slow, id=f"{a}-{m}")
    for a in ARCHITECTURES
    for m in BUILT_IN
    if m not in REFUSED[a]
]


@pytest.mark.parametrize(("architecture", "method"), PAIRS)
def test_every_pair(architecture: str, method: str, tmp_path: Path) -> None:
    skip_without_library(architecture)
    check_method(method, tmp_path, *ARCHITECTURES[architecture])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_matrix_of_refusals(architecture: str) -> None:
    skip_without_library(architecture)
    refused = {name for name in BUILT_IN if not fits(name, architecture)}
    assert refused == REFUSED[architecture]


def skip_without_library(architecture: str) -> None:
    if architecture == "swin" and find_spec("timm") is None:
        pytest.skip("Swin comes from timm")


def fits(method: str, architecture: str) -> bool:
    config = toy_config(method, *ARCHITECTURES[architecture])
    try:
        check_pair(config.method, config.model)
    except TissError as error:
        return error.setting != "method"
    return True


def test_training_mode_is_put_right_every_time() -> None:
    run = open_run(toy_config("mib+frozenbn", "resnet_micro"))
    session = Session.start(run.config, run.scenario[0], reporter=Reporter())
    session.learn(run.scenario[0])
    session.method.begin(run.scenario[1], session.model, seed=0)
    for _ in range(2):
        session.model.train()
        session.method.train_mode(session.model)
        assert session.model.training
        assert not any(norm.training for norm in batch_norms(session.model))


def test_a_refused_pair_reads_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: ToyData, root: str | None = None) -> None:
        raise AssertionError("the data set was opened")

    monkeypatch.setattr(ToyData, "__init__", load)
    config = toy_config("tiss", "resnet_micro", out=str(tmp_path / "run"))
    with pytest.raises(TissError, match="method tiss contrasts patch tokens"):
        run_experiment(config)
    assert list(tmp_path.iterdir()) == []


def test_every_method_is_on_the_page() -> None:
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    assert [name for name in BUILT_IN if f"`{name}`" not in text] == []


def test_every_method_has_its_name_for_tables() -> None:
    titles = {name: METHODS.get(name).title for name in BUILT_IN}
    assert len(set(titles.values())) == len(titles)
    assert {name: titles[name] for name in ("mib+frozenbn", "ploplong", "recall")} == {
        "mib+frozenbn": "MiB (frozen BN)",
        "ploplong": "PLOPLong",
        "recall": "recall",
    }


LONG = {"epochs": 60, "step_epochs": 30, "batch": 4, "lr": 2e-3, "step_lr": 1e-3}
KEEPING = [name for name in BUILT_IN if name not in ("ft", "offline", "mib+frozenbn")]


def kept(method: str) -> float:
    """IoU of the first two classes after the last step, as a share of what it was after step 0."""
    run = open_run(toy_config(method, decoder="mask" if method == "mbs" else None, train=LONG))
    learner, scenario = Learner(config=run.config, reporter=Reporter()), run.scenario
    means = []
    for step in scenario:
        learner.fit(step)
        found = learner.evaluate(step.test).iou
        means.append(sum(found[name] or 0.0 for name in scenario[0].new_classes) / 2)
    assert means[0] > 40
    return means[-1] / means[0]


@pytest.mark.slow
def test_fine_tuning_forgets() -> None:
    assert kept("ft") < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("method", KEEPING)
def test_the_others_remember(method: str) -> None:
    assert kept(method) > 0.7
