"""Steps that add images of another origin instead of classes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.methods.toy import ToyData, toy_config
from tests.user.conftest import said
from tests.user.story import Said
from tiss.config import RunConfig
from tiss.data.base import DATASETS
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run, run_experiment
from tiss.errors import TissError
from tiss.methods.base import METHODS
from tiss.scenarios import load_scenario

__all__ = ["said"]


@DATASETS.register("toy-domains")
class ToyDomains(ToyData):
    """The toy data; every fourth image is from one place."""

    name = "toy-domains"
    domains = ("north", "east", "south", "west")

    def domain(self, id: str) -> str:
        return self.domains[int(id[-2:]) % 4]


def config(method: str, **more: Any) -> RunConfig:
    return toy_config(method, setup="domains", data={"name": "toy-domains"}, **more)


def test_every_class_in_every_step_and_images_by_domain() -> None:
    scenario = load_scenario(ToyDomains(), task="2-1", setup="domains", order="west,north,east,south")
    assert scenario.task == "2-1"
    assert [step.new for step in scenario] == [4, 0, 0]
    assert [step.seen for step in scenario] == [5, 5, 5]
    assert [step.train.labelled for step in scenario] == [(1, 2, 3, 4)] * 3
    places = [{ToyDomains().domain(id) for id in step.train.ids} for step in scenario]
    assert places == [{"west", "north"}, {"east"}, {"south"}]
    tested = [{ToyDomains().domain(id) for id in step.test.ids} for step in scenario]
    assert tested == [{"west", "north"}, {"west", "north", "east"}, {*ToyDomains.domains}]
    assert "2: west, north" in str(scenario)
    joint = scenario.joint()[0]
    assert len(joint.train) == sum(len(step.train) for step in scenario)
    shown = scenario.with_memory(3)[2]
    assert {ToyDomains().domain(id) for id in shown.memory} <= {"west", "north", "east"}
    assert len(shown.memory) == 3


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS.get(name).domains])
def test_methods_train_without_new_classes(method: str, tmp_path: Path) -> None:
    found = run_experiment(config(method, out=str(tmp_path / "run")), reporter=Reporter())
    assert found["finished"]
    assert all(step["seen"] == 5 for step in found["steps"])
    for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines():
        assert all(value == value for value in json.loads(line).values()), "not a number"


def test_reports_and_figures_of_such_runs(tmp_path: Path, said: Said) -> None:
    run_experiment(config("ft", out=str(tmp_path / "run")), reporter=Reporter())
    text = said("report", tmp_path / "run", "--classes", "--html", tmp_path / "page.html")
    assert "toy-domains 2-1 domains" in text
    said("figure", "steps,classes,forgetting,confusion", tmp_path / "run", "--out", tmp_path / "figures")
    assert "domains" in said("data", "stats", "toy-domains", "--task", "2-1", "--plot", tmp_path / "plot.png")


def test_what_does_not_go_together_is_said() -> None:
    with pytest.raises(TissError, match=r"mib needs new classes in every step; take .*plop"):
        open_run(config("mib"))
    with pytest.raises(TissError, match="is divided by domain"):
        load_scenario(ToyDomains(), task="2-1")
    with pytest.raises(TissError, match="has no domains"):
        load_scenario(ToyData(), task="2-1", setup="domains")
    with pytest.raises(TissError, match="does not go with the setup domains"):
        load_scenario(ToyDomains(), task="2-1", setup="domains", lists="lists")
