"""A collection of records becomes pages that say what the records say, and claims are decided by their rule."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tools.results import ALONE, HOLDS, OPEN, REVERSE, WITHIN, decide

from tests.report.fakes import Checker, folder, results
from tiss.report.pages import bench_tables, load_benchmarks, load_similarities, task_tables, write_results
from tiss.report.records import collect
from tiss.report.runs import Value
from tools import results as tool

ROOT = Path(__file__).parents[2]


def keep(root: Path, methods: str, seeds: int = 3, into: str = "voc", **others: Any) -> None:
    """Adds records of made-up runs on a task of three steps, called VOC."""
    runs = root / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir()
    for method in methods.split():
        for seed in range(seeds):
            settings = others.get("settings", {})
            values = results(method, seed, **{"data": "voc", "task": "15-1", **others})
            values.pop("settings", None)
            path = folder(runs, values, **settings)
            with (path / "config.yaml").open("a") as file:
                file.write("data: {name: voc, root: /there/VOCdevkit, crop: 448}\n")
            path.rename(runs / f"{values['task']}-{values['setup']}-{values['encoder']}-{method}-seed{seed}")
    _, left_out = collect(sorted(runs.iterdir()), root / "results" / into)
    assert not left_out
    (root / "results" / into / "about.json").write_text('{"title": "VOC", "side": 256}')


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "results" / "bench").mkdir(parents=True)
    return tmp_path


def verdicts(root: Path) -> dict[int, str]:
    found = tool.answered_claims(load_benchmarks(root / "results"), load_similarities(root / "results"))
    return {claim["number"]: claim["verdict"] for claim in found}


def test_the_pages_of_docs_are_short_and_say_what_the_records_say(tmp_path: Path):
    (tmp_path / "images").mkdir()
    tool.write_docs(ROOT / "results", tmp_path)
    for name, words in (("results", 2500), ("claims", 1500), ("contrast", 600)):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert len(text.split()) <= words
        both = text, (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        here, there = ([line for line in page.splitlines() if line.startswith("|")] for page in both)
        assert here == there, f"python -m tools.results writes {name}.md again"


def test_kept_files_are_small_and_name_no_folder_of_a_machine():
    for path in (ROOT / "results").rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 40_000, path
        assert not [word for word in ("/work", "/home", "/root", "/tmp") if word in text], path


def test_one_page_holds_everything(root: Path):
    keep(root, "ft mib mib+cd tiss offline", encoder="vit_small_patch16_384")
    keep(root, "mib", 1, encoder="resnet50", decoder="deeplabv3")
    row = {"encoder": "vit", "peak_gib": [2.0, 4.0], "largest_batch": {"24": 44}}
    (root / "results" / "bench" / "memory.json").write_text(json.dumps({"memory": [row]}))
    text = write_results(root / "results", root / "page.html").read_text()
    Checker(text)
    told = "VOC 15-1 overlapped, vit_small_patch16_384|VOC 15-1 overlapped, resnet50|largest batch 24"
    told += "|images of 256 px, enlarged to 448|tiss run --method mib --data voc --data.root VOCdevkit --data.crop 448"
    assert not [one for one in told.lower().split("|") if one not in text.lower()]
    assert bench_tables(root / "results")[0]["rows"] == [["vit", "2, 4", "44"]]


def test_offline_training_of_one_task_serves_them_all_and_tasks_share_a_table(root: Path):
    keep(root, "ft mib offline")
    keep(root, "mib", task="15-5")
    keep(root, "ft mib", 1, "voc-19-1", task="19-1")
    keep(root, "ft mib", 1, "voc-long")
    (root / "results" / "voc-long" / "about.json").write_text('{"apart": "30 epochs per step"}')
    found = load_benchmarks(root / "results")
    assert [one.experiment.task for one in found] == ["15-1", "15-1", "15-5", "19-1"]
    assert [one.bound is None for one in found] == [False, True, False, False]  # other epochs, another bound
    (table,) = task_tables(found)  # without the runs of other epochs
    groups = [column.group.split()[0] for column in table.columns[::2]]
    assert groups == ["15-1", "15-5", "19-1"]
    assert [row.labels[0] for row in table.rows] == ["FT", "MiB", "offline"]
    assert table.rows[0].cells[2] is None  # not run there


def test_claims_are_decided_by_the_deviation(root: Path):
    keep(root, "ft mib mib+cd offline", encoder="vit_small_patch16_384")
    found = verdicts(root)
    assert (found[1], found[2]) == ("holds", "not measured yet")
    assert "within the deviation" in found[8]
    keep(root, "ft mib offline", encoder="resnet50", decoder="deeplabv3")
    claims = tool.answered_claims(load_benchmarks(root / "results"), [])
    ((finding,),) = (one["findings"] for one in claims if one.get("measure") == "kept")
    assert "MiB vit_small_patch16_384 0." in finding.figures and "MiB resnet50 0." in finding.figures


@pytest.mark.parametrize(
    ("seeds", "others", "verdict"), [(1, {}, OPEN), (3, {"holdout": 0.2}, "not measured yet")]
)
def test_one_seed_and_held_out_scores_decide_nothing(
    root: Path, seeds: int, others: dict[str, float], verdict: str
):
    keep(root, "ft mib", seeds, **others)
    assert verdicts(root)[1] == verdict


def test_plop_with_the_exact_median_answers_no_claim(root: Path):
    keep(root, "mib")
    keep(root, "plop", encoder="resnet50", settings={"official": False})
    assert verdicts(root)[4].startswith("withdrawn")
    keep(root, "plop", encoder="resnet50", into="voc-new", settings={"official": True})
    assert not verdicts(root)[4].startswith("withdrawn")


def test_similarities_answer_by_rank(root: Path):
    for count, verdict in ((4, "undecided"), (6, HOLDS)):
        methods = []
        for index in range(count):
            near, score = 0.5 + index / 20, 10.0 + 10 * index
            step = {"step": 1, "previous": [near, 1 - near], "depth": [0.2, 0.1 + index / 20]}
            steps = [{**step, "old": score, "new": score}]
            methods.append({"label": str(index), "method": "ft", "steps": steps})
        place = {"data": "voc", "task": "15-1", "setup": "overlapped", "images": 500, "methods": methods}
        (root / "results" / "voc").mkdir(exist_ok=True)
        path = root / "results" / "voc" / "voc-similarity.json"
        path.write_text(json.dumps({"kind": "similarity", "format": 1, **place}))
        found = verdicts(root)
        assert [found[number].partition(" ")[0].rstrip(":") for number in (15, 16)] == [verdict] * 2
        assert "does not hold" in found[17]
        assert ("the reverse" in found[18]) == (count == 6)


def test_a_run_done_twice_is_compared_and_counts_once(root: Path):
    keep(root, "mib", 1)
    (root / "results" / "voc-again").mkdir()
    (path,) = (root / "results" / "voc").glob("*seed0.json")
    values = json.loads(path.read_text())
    values["steps"][-1]["iou"]["disc"] += 1.5
    (root / "results" / "voc-again" / path.name).write_text(json.dumps(values))
    ((name, *_, gap),) = tool.repeat_rows(root / "results")
    assert (name, gap) == (path.stem, "1.50")
    assert len(load_benchmarks(root / "results")) == 1


def test_readings_are_compared_with_mib_over_the_same_seeds(root: Path):
    keep(root, "mib recall", 3, holdout=0.2)
    keep(root, "tiss", 1, holdout=0.2)
    (one,) = load_benchmarks(root / "results")
    table = tool.reading_table(one)
    assert table is not None
    base, reading = table.rows
    assert (base.labels, reading.labels) == (("MiB", "3"), ("TISS", "1"))
    new = []
    for method in ("tiss", "mib"):
        (path,) = (root / "results" / "voc").glob(f"*-{method}-seed0.json")
        new.append(json.loads(path.read_text())["steps"][-1]["scores"]["new"]["with_background"])
    assert reading.cells[4] == f"{round(new[0] - new[1], 1) + 0.0:+.1f}"  # one seed: no arrow
    keep(root, "mib ft", into="other")
    assert [tool.reading_table(one) is None for one in load_benchmarks(root / "results")] == [True, False]


def test_the_rule():
    def value(mean: float, deviation: float | None) -> Value:
        return Value(mean, deviation, 3 if deviation else 1)

    assert decide(value(60, 1.0), value(57.9, 0.1)) == HOLDS
    assert decide(value(60, 0.1), value(58.1, 1.0)) == WITHIN
    assert decide(value(55, 1.0), value(58, 1.0)) == REVERSE
    assert decide(value(60, None), value(10, 1.0)) == OPEN
    assert decide(value(60, None), value(10, 1.0), assumed=3.0) == HOLDS + ALONE
    assert decide(value(10, None), value(60, None), assumed=3.0) == REVERSE + ALONE
    assert decide(value(60, None), value(54, 1.0), assumed=3.0) == OPEN
    assert decide(value(60, None), value(52, 5.0), assumed=3.0) == OPEN  # the known deviation is larger
    assert decide(value(60, 1.0), value(57, 1.0), assumed=9.0) == HOLDS  # not needed


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], "not measured yet"),
        ([OPEN], OPEN),
        ([HOLDS], "holds"),
        ([HOLDS, HOLDS + ALONE, OPEN], "holds (2 of 2; 1 by one seed; 1 undecided)"),
        ([HOLDS + ALONE], "holds (one seed)"),
        ([HOLDS, WITHIN], "holds in 1 of 2"),
        ([REVERSE, REVERSE + ALONE], "does not hold (the reverse; 1 by one seed)"),
        ([WITHIN, REVERSE, OPEN], "does not hold (within the deviation; the reverse; 1 undecided)"),
    ],
)
def test_what_is_undecided_is_counted_beside_what_is_decided(found: list[str], text: str):
    assert tool.summary({}, [tool.Finding("", "", verdict) for verdict in found]) == text


def test_rank_correlation():
    assert [tool.spearman([1, 2, 3], ys) for ys in ([2, 4, 9], [3, 2, 1])] == [1, -1]
    assert tool.spearman([1, 1, 1], [3, 2, 1]) == 0
