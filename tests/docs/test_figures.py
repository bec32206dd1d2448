"""Figures, settings and signatures on the pages are those of the code and of results/."""

import csv
import inspect
import json
import pkgutil
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from tools.encoders import SOURCES

import tiss
from tests.docs.pages import ROOT, blocks_of, table_after, text_of
from tiss.engine.recipes import recipe_values
from tiss.methods.base import METHODS
from tiss.models import outline

DESIGN = ROOT / "docs" / "design.md"


def last_scores(path: Path) -> dict[str, float]:
    """mIoU with the background after the last step, of one record in results/."""
    scores = json.loads(path.read_text(encoding="utf-8"))["steps"][-1]["scores"]
    return {part: scores[part]["with_background"] for part in ("old", "new", "all")}


def test_the_agreement_to_expect_is_the_one_measured():
    again = sorted((ROOT / "results/voc-again").glob("voc-*.json"))
    there = [ROOT / "results/voc" / path.name for path in again]
    apart = [abs(last_scores(a)["all"] - last_scores(b)["all"]) for a, b in zip(again, there, strict=True)]
    assert f"| {max(apart):.2f} points of `all`" in text_of("docs/repeat.md")


def test_the_row_to_repeat_is_that_of_the_record():
    record = json.loads(text_of("results/voc/voc-15-1-overlapped-recall-seed0.json"))
    shown = [" ".join(words) for block in blocks_of(ROOT / "docs/repeat.md") for words in block.commands]
    assert record["command"] in shown


def test_the_table_of_the_readme_is_that_of_the_records():
    rows = [line for line in text_of("README.md").splitlines() if line.count(" ± ") == 3]
    assert rows
    for row in rows:
        method, *cells = (cell.strip() for cell in row.split("|")[1:-1])
        records = (ROOT / "results/voc").glob(f"voc-15-1-overlapped-{method.split()[0].lower()}-seed*.json")
        scores = [last_scores(path) for path in records]
        columns = [[one[part] for one in scores] for part in ("old", "new", "all")]
        assert cells == [f"{mean(column):.1f} ± {stdev(column):.1f}" for column in columns], method


def test_published_and_re_measured_figures_are_those_of_the_paper_s_tables_and_the_records():
    rows = [line.strip("|").split("|") for line in text_of("docs/published.md").splitlines() if "|" in line]
    measured = [row for row in rows[2:] if row[5] != "not measured"]
    assert len(measured) == 7
    for name, there, network, *_, ours, difference in measured:
        method = name.rstrip(" ¹²³⁴⁵")
        file = {"MiB (frozen BN)": "mib+frozenbn"}.get(method, method.lower())
        cnn = network.startswith("ResNet")
        folder, backbone = ("voc-resnet50", "ResNet-101") if cnn else ("voc", "ViT-small")
        average = "without_background" if "¹" in name else "with_background"
        paths = (ROOT / "results" / folder).glob(f"voc-15-1-overlapped-{file}-seed*.json")
        scores = [
            json.loads(path.read_text(encoding="utf-8"))["steps"][-1]["scores"]["all"] for path in paths
        ]
        expected = round(mean(one[average] for one in scores), 1)
        assert (ours, difference) == (f"{expected:.1f}", f"{expected - float(there):+.1f}"), name
        assert float(there) in published_means()[method, backbone], name


def published_means() -> dict[tuple[str, str], set[float]]:
    """mIoU of all classes on VOC 15-1 overlapped, by method and backbone, in the paper's tables."""
    found: dict[tuple[str, str], set[float]] = {}
    for row in csv.DictReader(text_of("src/tiss/report/paper_results.csv").splitlines()):
        if (row["dataset"], row["task"], row["setup"], row["group"]) == (
            "voc2012",
            "15-1",
            "overlapped",
            "all",
        ):
            found.setdefault((row["method"], row["backbone"]), set()).add(float(row["miou"]))
    return found


def test_digests_of_the_weights_are_those_that_the_tool_compares():
    assert all(f"`{source.digest}`" in text_of("docs/repeat.md") for source in SOURCES.values())


ROWS = ("optimizer", "lr", "step_lr", "encoder_lr", "weight_decay", "warmup", "clip", "epochs", "batch")
COLUMNS = {
    "`paper`": ("paper", "vit_small_patch16_384"),
    "`tuned`, ViT": ("tuned", "vit_small_patch14_dinov2"),
    "`tuned`, Swin, SegFormer": ("tuned", "mit_b0"),
    "`tuned`, ResNet": ("tuned", "resnet50"),
    "`demo`": ("demo", "vit_demo_patch8"),
}


def cell(values: dict[str, Any], row: str) -> Any:
    """One setting as the page has it."""
    if row == "epochs":
        return f"{values['epochs']}, {values.get('step_epochs', values['epochs'])}"
    value = values.get(row)
    return {"sgd": "SGD", "adamw": "AdamW", "None": "–"}.get(str(value), value)


def test_the_table_of_recipes():
    (_, *head), *rows = table_after("docs/methods.md", "Recipes")
    assert head == list(COLUMNS)
    for index, (name, encoder) in enumerate(COLUMNS.values(), 1):
        values = recipe_values(name, "voc", outline(encoder), METHODS.get("mib"))
        for row, shown in zip(ROWS, rows, strict=True):
            expected = cell(values, row)
            if isinstance(expected, str):
                assert shown[index] == expected, (name, row)
            else:
                assert float(shown[index]) == pytest.approx(expected), (name, row)


def test_signatures():
    (block,) = [block for block in blocks_of(DESIGN) if block.note == "signatures"]
    for line in block.text.splitlines():
        name, _, arguments = line.removesuffix(")").partition("(")
        parameters = list(inspect.signature(pkgutil.resolve_name(name)).parameters)
        shown = arguments.split(", ")
        assert parameters == shown if shown[-1] != "..." else parameters[: len(shown) - 1] == shown[:-1], name


def test_folders_and_files_exist():
    named = re.findall(
        r"^\| (`[^|]+`) \|", text_of("docs/design.md").partition("## Contracts")[0], re.MULTILINE
    )
    paths = [path for line in named for path in re.findall(r"`([a-z_]+(?:/[a-z_.]*|\.py))`", line)]
    assert "losses/" in paths and not [
        path for path in paths if not (Path(tiss.__file__).parent / path).exists()
    ]


def test_the_example_of_results_is_one():
    from tiss.engine.results import check_results

    (block,) = [block for block in blocks_of(DESIGN) if block.kind == "json"]
    check_results(json.loads(block.text))
