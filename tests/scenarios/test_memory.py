"""Images kept in memory: from earlier steps only, labelled as they were there, and the same after a resume."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.methods.tester import check_method
from tests.methods.toy import ToyData, toy_config
from tiss.data.augment import AugmentSettings
from tiss.data.loader import TrainLoader
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run, run_experiment
from tiss.errors import TissError
from tiss.report.runs import experiments, load_results
from tiss.report.tables import final_table, notes_of
from tiss.scenarios import load_scenario
from tiss.scenarios.task import balanced, draw_memory

GROUPS = ((1, 2), (3,), (4,))
PRESENT = {f"i{n:03}": frozenset({n % 4 + 1, n % 7 % 4 + 1}) for n in range(120)}
LISTS = [[id for id in PRESENT if PRESENT[id] & set(group)] for group in GROUPS]


@pytest.mark.parametrize("seed", range(5))
def test_only_images_and_labels_of_earlier_steps(seed: int) -> None:
    memory = draw_memory(LISTS, GROUPS, PRESENT, 12, seed)
    assert memory[0] == {}
    assert [len(one) for one in memory[1:]] == [12, 12]
    for step, kept in enumerate(memory):
        for id, known in kept.items():
            assert known and max(known) < step
            assert all(id in LISTS[earlier] for earlier in known)
            # nothing comes back that was given up
            assert step - 1 in known or id in memory[step - 1]
            assert set(known) - {step - 1} == set(memory[step - 1].get(id, ()))
    assert draw_memory(LISTS, GROUPS, PRESENT, 12, seed) == memory
    assert draw_memory(LISTS, GROUPS, PRESENT, 12, seed + 1) != memory
    assert draw_memory(LISTS[:2], GROUPS[:2], PRESENT, 12, seed) == memory[:2]  # later steps have no say


def test_classes_take_turns() -> None:
    """A rare class gives all its images before a frequent one fills up."""
    labelled = {f"a{n}": frozenset({1}) for n in range(50)} | {f"b{n}": frozenset({2}) for n in range(3)}
    labelled |= {"none": frozenset()}
    chosen = [balanced(labelled, 10, np.random.default_rng(seed)) for seed in range(4)]
    assert all(Counter(id[0] for id in one) == {"a": 7, "b": 3} for one in chosen)
    assert len({tuple(one) for one in chosen}) == 4
    assert len(balanced(labelled, 1000, np.random.default_rng(0))) == 53


@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_a_batch_has_the_labels_of_the_step_that_an_image_comes_from(kind: str) -> None:
    data = ToyData()
    scenario = load_scenario(data, task="2-1", setup="disjoint").with_memory(4)
    plain = load_scenario(data, task="2-1", setup="disjoint")
    step = scenario[2]
    assert len(step.memory) == 4
    assert step.train.ids == (*plain[2].train.ids, *step.memory)
    expected = {id: frozenset({4}) for id in plain[2].train.ids}
    for earlier in (0, 1):
        values = frozenset((1, 2)) if earlier == 0 else frozenset({3})
        expected |= {id: values for id in step.memory if id in plain[earlier].train.ids}
    present = data.classes_present("train")
    settings = AugmentSettings(36, None, (1.0, 1.0), False, False)
    with TrainLoader(step.train, settings, batch=2, seed=0, step=2, kind=kind, workers=0) as loader:
        seen = {
            id: label for batch in loader.once() for id, label in zip(batch.ids, batch.label, strict=True)
        }
    assert set(seen) == set(step.train.ids)
    for index, id in enumerate(step.train.ids):
        shown = set(seen[id].unique().tolist()) - {0, 255}
        assert shown == present[id] & expected[id], id
        assert torch.equal(step.train.read(index).label.unique(), seen[id].unique())


def test_an_image_that_comes_again_keeps_its_earlier_labels() -> None:
    scenario = load_scenario(ToyData(), task="2-1", setup="overlapped").with_memory(16)
    again = [id for id in scenario[1].memory if id in scenario[0].train.ids and id in load_ids(1)]
    assert again
    assert len(set(scenario[1].train.ids)) == len(scenario[1].train.ids)
    assert all(scenario[1].train.tables[id][:5].tolist() == [0, 1, 2, 3, 0] for id in again)


def load_ids(step: int) -> tuple[str, ...]:
    return load_scenario(ToyData(), task="2-1", setup="overlapped")[step].train.ids


@pytest.mark.parametrize("method", ["ft", "ssul"])
def test_a_resumed_run_is_the_same_to_the_last_bit(method: str, tmp_path: Path) -> None:
    check_method(method, tmp_path, memory=5)


def test_results_name_the_images_and_tables_mark_the_row(tmp_path: Path) -> None:
    folders = []
    for memory in (0, 3):
        config = toy_config("ft", memory=memory, out=str(tmp_path / str(memory)))
        run_experiment(config, reporter=Reporter())
        folders.append(tmp_path / str(memory))
    plain, results = (json.loads((folder / "results.json").read_text()) for folder in folders)
    steps = open_run(config).scenario
    assert results["memory"] == 3 and plain["memory"] == 0
    assert [entry["memory"] for entry in results["steps"]] == [list(step.memory) for step in steps]
    assert results["steps"][0]["memory"] == [] and len(results["steps"][2]["memory"]) == 3
    (experiment,) = experiments(load_results(folders))
    assert [row.labels[0] for row in final_table(experiment).rows] == ["FT", "FT (memory 3)"]
    assert any("images of earlier steps" in note for note in notes_of(experiment))
    assert open_run(toy_config("ft", memory=3)).folder.name == "toy-2-1-overlapped-ft-memory3-seed0"


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(TissError, match="give the number of images to keep") as caught:
        open_run(toy_config("ft", memory=-1))
    assert caught.value.setting == "memory"
