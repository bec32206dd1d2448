"""The pages about our figures say what results/ says, and decide claims by their rule."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tools.results.claims_page import claims_page, summary
from tools.results.compare import ALONE, HOLDS, NOT, OPEN, REVERSE, Finding, decide, spearman
from tools.results.contrast import Reading, answer, contrast_page, one_seed, seeds_text, sentence, signed
from tools.results.kept import blocks
from tools.results.page import results_page
from tools.results.pages import make_pages
from tools.results.readme import readme
from tools.results.tasks import tasks_tables

from tests.docs.pages import ROOT
from tests.report.fakes import folder, results
from tiss.errors import TissError
from tiss.report.records import collect
from tiss.report.runs import Result, Series, Value
from tiss.report.similarity import MethodSimilarity, Similarities, StepSimilarity


def test_pages_are_up_to_date_with_the_kept_runs() -> None:
    texts, figures = make_pages(ROOT)
    old = [str(path) for path, text in texts.items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert not old, f"python -m tools.results has to be run again: {', '.join(old)}"
    assert [str(path) for path in figures if not (ROOT / path).is_file()] == []


def test_kept_files_are_small_and_name_no_folder_of_a_machine() -> None:
    for path in (ROOT / "results").rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 40_000, path
        assert not [word for word in ("/work", "/home", "/root", "/tmp") if word in text], path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with runs on a task of three steps, called VOC, with a transformer and a CNN."""
    (tmp_path / "README.md").write_text("# x\n<!-- results: voc -->\nold\n<!-- /results -->\nend\n")
    (tmp_path / "results" / "bench").mkdir(parents=True)
    shutil.copy(ROOT / "results" / "bench" / "step-h200.json", tmp_path / "results" / "bench")
    return tmp_path


def keep(root: Path, methods: str, seeds: int = 3, into: str = "voc", **others: Any) -> None:
    runs = root / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir()
    for method in methods.split():
        for seed in range(seeds):
            values = results(method, seed, **{"data": "voc", "task": "15-1", **others})
            path = folder(runs, values)
            config = (path / "config.yaml").read_text()
            (path / "config.yaml").write_text(
                config + "data: {name: voc, root: /there/VOCdevkit, crop: 448}\n"
            )
            task = "" if values["task"] == "15-1" else f"{values['task']}-"
            path.rename(runs / f"voc-{task}{values['encoder']}-{method}-seed{seed}")
    _, left_out = collect(sorted(runs.iterdir()), root / "results" / into)
    assert not left_out
    (root / "results" / into / "about.json").write_text('{"title": "VOC", "side": 256}')


def test_a_table_for_each_architecture_with_size_share_and_command(root: Path) -> None:
    keep(root, "ft mib offline", encoder="vit_small_patch16_384")
    keep(root, "mib", 1, encoder="resnet50", decoder="deeplabv3")
    text, figures = results_page(root)
    assert "## VOC 15-1 overlapped, vit_small_patch16_384 with linear" in text
    assert "## VOC 15-1 overlapped, resnet50 with deeplabv3" in text
    assert text.count("pictures of 256 px, enlarged to 448") == 2
    assert "`tiss run --method mib --data voc --data.root VOCdevkit --data.crop 448" in text
    assert "(and `--seed` 1, 2)" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| MiB | 3 |")]
    assert 0.8 < float(row.split("|")[-2]) < 1  # of offline
    (alone,) = [line for line in text.splitlines() if line.startswith("| MiB | 1 |")]
    assert "±" not in alone
    assert len(figures) == 4  # curves of both, what the transformer forgot, and the speed of a step


def test_offline_training_of_one_task_serves_them_all(root: Path) -> None:
    keep(root, "mib offline")
    keep(root, "mib", task="15-5")
    text, _ = results_page(root)
    rows = [line for line in text.splitlines() if line.startswith("| MiB | 3 |")]
    shares = [float(row.split("|")[-2]) for row in rows]
    assert len(shares) == 2 and shares[0] == shares[1] > 0  # the made-up scores do not depend on the task


def test_runs_of_another_length_stand_apart(root: Path) -> None:
    keep(root, "ft mib offline")
    keep(root, "mib", 1, "voc-long")
    about = {"title": "VOC", "side": 256, "apart": "30 epochs a step"}
    (root / "results" / "voc-long" / "about.json").write_text(json.dumps(about))
    text, figures = results_page(root)
    (section,) = [part for part in text.split("\n## ") if "with linear, 30 epochs a step\n" in part]
    assert "| MiB | 1 |" in section
    assert "all / offline" not in section  # its bound would need as many epochs
    assert not any("30-epochs" in path.name for path in figures)
    claims = claims_page(root)
    assert "30 epochs" not in claims
    assert "undecided" not in claims.partition("\n## 2.")[0].partition("\n## 1.")[2]
    assert "| MiB | 3 |" in readme(root) and "| MiB | 1 |" not in readme(root)


def test_all_tasks_stand_in_one_table(root: Path) -> None:
    keep(root, "ft mib offline")
    keep(root, "mib", 1, "voc-15-5", task="15-5")
    assert "All tasks at a glance" not in results_page(root)[0]  # two of them
    keep(root, "ft mib", 1, "voc-19-1", task="19-1")
    text, _ = results_page(root)
    (section,) = [part for part in text.split("\n## ") if part.startswith("All tasks at a glance")]
    head, _, *rows = [line for line in section.splitlines() if line.startswith("|")]
    names = ["15-1 overlapped new", "15-1 overlapped all", "15-5 overlapped new"]
    assert [cell.strip() for cell in head.split("|")[2:5]] == names
    assert [row.split("|")[1].strip() for row in rows] == ["FT", "MiB", "offline"]
    assert rows[0].split("|")[4].strip() == "–"  # not run there
    (table,) = tasks_tables(blocks(root / "results"), ("all",), complete=True)
    assert [row.labels[0] for row in table.rows] == ["MiB", "offline"]


def test_claims_are_decided_by_the_spread(root: Path) -> None:
    keep(root, "ft mib mib+cd offline", encoder="vit_small_patch16_384")
    text = claims_page(root)
    lines = [line for line in text.splitlines() if line.startswith("| ") and line.endswith("|")]
    verdicts = {int(line.split("|")[1]): line.split("|")[3].strip() for line in lines if line[2].isdigit()}
    assert verdicts[1] == "**holds**"
    assert verdicts[2] == "not measured yet"
    assert verdicts[8] == "**does not hold** (within the spread)"
    assert "`voc-vit_small_patch16_384-ft-seed0` and 1, 2" in text
    assert "256 px, enlarged to 448" in text


def test_a_run_done_twice_is_compared_and_counts_once(root: Path) -> None:
    keep(root, "mib", 1)
    again = root / "results" / "voc-again"
    again.mkdir()
    (path,) = (root / "results" / "voc").glob("*seed0.json")
    values = json.loads(path.read_text())
    values["steps"][-1]["iou"]["disc"] += 1.5
    values["steps"][-1]["scores"]["all"]["with_background"] += 0.25
    (again / path.name).write_text(json.dumps(values))
    text, _ = results_page(root)
    assert "agrees within 0.25 points" in text
    assert "| 1.50 |" in text
    assert text.count("## VOC 15-1") == 1


def test_memory_is_a_table_of_cards(root: Path) -> None:
    row = {"encoder": "vit", "checkpointing": True, "peak_gib": [2.0, 4.0], "largest_batch": {"24": 44}}
    (root / "results" / "bench" / "memory.json").write_text(json.dumps({"memory": [row]}))
    text, _ = results_page(root)
    assert "batch on 24 GiB" in text
    assert "| vit     | yes           | 2, 4" in text


def test_one_seed_decides_nothing(root: Path) -> None:
    keep(root, "ft mib", 1)
    assert "| undecided: one seed |" in claims_page(root)


def test_held_out_scores_decide_nothing(root: Path) -> None:
    keep(root, "ft mib", holdout=0.2)
    assert "holds" not in claims_page(root).partition("| | claim")[2]


def test_a_transformer_is_compared_with_a_cnn_by_what_it_keeps(root: Path) -> None:
    keep(root, "mib offline", encoder="vit_small_patch16_384")
    keep(root, "ft mib offline", encoder="resnet50", decoder="deeplabv3")
    text = claims_page(root)
    assert "old as a share of offline: MiB vit_small_patch16_384 0." in text


def test_similarities_are_drawn_and_asked(root: Path) -> None:
    methods = []
    for index, name in enumerate(("ft", "lwf", "mib", "tiss")):
        near, score = 0.5 + index / 10, 10.0 + 20 * index
        step = StepSimilarity(1, (near, 1 - near), (0.2, 0.1 + index / 10), score, score)
        methods.append(MethodSimilarity(name.upper(), name, "vit", 0, (step,)))
    measured = Similarities("voc", "15-1", "overlapped", "paper", 0.0, 500, "with_background", tuple(methods))
    (root / "results" / "voc").mkdir()
    (root / "results" / "voc" / "similarity.json").write_text(json.dumps(measured.to_json()))
    lines = claims_page(root).splitlines()
    assert any(line.startswith("| 15 |") and line.endswith("**holds** (one seed) |") for line in lines)
    assert any(line.startswith("| 16 |") and line.endswith("**holds** (one seed) |") for line in lines)
    assert any(line.startswith("| 17 |") and "does not hold" in line for line in lines)
    assert any(line.startswith("| 18 |") and "the reverse" in line for line in lines)
    text, figures = results_page(root)
    assert "over 500 test pictures" in text
    assert any(path.name.endswith("similarity.png") for path in figures)


def reading(label: str, seeds: int, **parts: tuple[float, float]) -> Reading:
    """MiB at 50 ± 1 where there are seeds, the reading so many points above it with a deviation of its own."""
    spread = seeds > 1
    pairs = {
        part: (Value(50 + change, own if spread else None, seeds), Value(50, 1.0 if spread else None, seeds))
        for part, (change, own) in parts.items()
    }
    return Reading(Series(label, (Result({"method": "mib+cd"}, None, {}),)), seeds, pairs)


def test_sentences_about_readings_follow_from_their_figures() -> None:
    rows = [
        reading("A", 1, new=(1.5, 0.0)),
        reading("B (tau 0.1)", 1, new=(-1.5, 0.0)),
        reading("C", 1, new=(1.3, 0.0)),
        reading("D", 3, new=(1.5, 1.0)),  # its own seeds decide, not the yardstick
        reading("E", 3, new=(5.0, 2.0)),
        reading("F", 3, new=(-5.0, 2.0)),
        reading("G", 3, new=(-5.0, 3.0)),
    ]
    assert sentence("new", rows, 0.7) == (
        "**New classes.** Lifted by: A +1.5; E +5.0. Lowered by: B (tau 0.1) -1.5; F -5.0. "
        "Within the spread: C +1.3; D +1.5; G -5.0."
    )
    assert sentence("new", rows[:2], None) == (
        "**New classes.** Lifted by: none. Lowered by: none. One seed: A +1.5; B (tau 0.1) -1.5."
    )
    assert answer(rows[1:], {"old": None, "new": 0.7}) == (
        "**In short**: of 6 readings, none lifts the old classes beyond the spread, none lower them; "
        "1 lifts the new classes beyond the spread, 2 lower them."
    )
    assert one_seed(rows) == "One seed decides nothing: A; B (tau 0.1); C."
    assert one_seed(rows[:3]) == "One seed decides nothing: every reading here has one."
    assert one_seed(rows[3:]) == ""
    assert seeds_text(rows) == "1 to 3 seeds a reading"
    assert seeds_text(rows[:1]) == "1 seed a reading"
    assert signed(-0.04) == "+0.0"


def test_readings_stand_beside_mib_of_the_same_seeds(root: Path) -> None:
    text, figures = contrast_page(root)
    assert "No reading was run" in text
    assert not figures
    keep(root, "mib mib+cd mib+l1 ft", encoder="vit_small_patch16_384")
    keep(root, "mib recall", 3, "voc-holdout", holdout=0.2, encoder="vit_small_patch16_384")
    keep(root, "tiss", 1, "voc-holdout", holdout=0.2, encoder="vit_small_patch16_384")
    text, figures = contrast_page(root)
    assert [path.name for path in figures] == ["results-contrast.png"]
    assert text.count("256 px, enlarged to 448") == 4  # the figure, its caption and two tables
    held, tested = text.split("## ")[1:]
    (row,) = [line for line in held.splitlines() if line.startswith("| TISS | 1 |")]
    seed_0 = [
        json.loads((root / f"results/voc-holdout/voc-vit_small_patch16_384-{name}-seed0.json").read_text())
        for name in ("tiss", "mib")
    ]
    new = [values["steps"][-1]["scores"]["new"]["with_background"] for values in seed_0]
    assert row.split("|")[7].strip() == signed(new[0] - new[1])
    first = seed_0[0]["steps"][0]["scores"]["all"]["with_background"]
    assert row.split("|")[9].strip() == f"{first:.1f}"
    assert "recall" not in held
    assert "One seed decides nothing" in held
    assert "| MiB | 3 |" in tested
    assert "MiB+L1" in tested and "FT" not in tested
    (drawn,) = (draw() for draw in figures.values())
    assert [len(axis.get_yticks()) for axis in drawn.axes] == [1, 2]


def test_readme_carries_the_headline_or_says_that_it_waits(root: Path) -> None:
    text = readme(root)
    assert "under way" in text
    assert text.startswith("# x\n") and text.endswith("\nend\n")
    keep(root, "ft mib", encoder="vit_small_patch16_384")
    text = readme(root)
    assert "| MiB | 3 |" in text
    assert "old\n<!--" not in text
    (root / "README.md").write_text("<!-- results: vox -->\n<!-- /results -->\n")
    with pytest.raises(TissError, match="vox"):
        readme(root)


def test_the_rule() -> None:
    def value(mean: float, deviation: float | None) -> Value:
        return Value(mean, deviation, 3 if deviation else 1)

    assert decide(value(60, 1.0), value(57.9, 0.1)) == HOLDS
    assert decide(value(60, 0.1), value(58.1, 1.0)) == NOT
    assert decide(value(55, 1.0), value(58, 1.0)) == REVERSE
    assert decide(value(60, None), value(10, 1.0)) == OPEN
    assert decide(value(60, None), value(10, 1.0), assumed=3.0) == HOLDS + ALONE
    assert decide(value(10, None), value(60, None), assumed=3.0) == REVERSE + ALONE
    assert decide(value(60, None), value(54, 1.0), assumed=3.0) == OPEN
    assert (
        decide(value(60, None), value(52, 5.0), assumed=3.0) == OPEN
    )  # the known deviation is the larger one
    assert decide(value(60, 1.0), value(57, 1.0), assumed=9.0) == HOLDS  # not needed


def test_what_is_undecided_is_counted_beside_what_is_decided() -> None:
    def told(*verdicts: str) -> str:
        return summary([Finding("", "", (), verdict) for verdict in verdicts])

    assert told() == "not measured yet"
    assert told(OPEN) == "undecided: one seed"
    assert told(HOLDS) == "**holds**"
    assert told(HOLDS, HOLDS + ALONE, OPEN) == "**holds** (2 of 3; 1 by one seed; 1 undecided)"
    assert told(HOLDS + ALONE) == "**holds** (one seed)"
    assert told(HOLDS, NOT) == "**holds in 1 of 2**"
    assert told(HOLDS + ALONE, REVERSE + ALONE) == "**holds in 1 of 2** (one seed)"
    assert told(REVERSE, REVERSE + ALONE) == "**does not hold** (the reverse; 1 by one seed)"
    assert told(HOLDS + ALONE, OPEN, OPEN) == "holds (1 of 3; one seed; 2 undecided)"
    assert told(NOT, REVERSE, OPEN) == "**does not hold** (within the spread; the reverse; 1 undecided)"


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3], [2, 4, 9]) == 1
    assert spearman([1, 2, 3], [3, 2, 1]) == -1
    assert spearman([1, 1, 1], [3, 2, 1]) == 0
