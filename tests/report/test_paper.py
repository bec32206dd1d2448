"""The paper's figures, and that what is said about them follows from them."""

from __future__ import annotations

import pytest

from tiss.errors import TissError
from tiss.report.paper import (
    OWN,
    Published,
    blocks_of,
    caption_of,
    dataset_of,
    disagreements,
    notes_on,
    published,
    rows_of,
    table_names,
)

PER_CLASS = ("19-1d", "19-1o", "15-5d", "15-5o", "15-1d", "15-1o")


def find(table: str, method: str, source: str, backbone: str) -> Published:
    (row,) = [r for r in rows_of(table) if (r.method, r.source, r.backbone) == (method, source, backbone)]
    return row


def test_every_figure_is_there() -> None:
    assert sum(len(row.figures) for row in published()) == 1914
    assert table_names()[:3] == ["voc", "ade", "ablation"]
    assert find("voc", "TISS", OWN, "ViT-small").figures["15-1", "overlapped", "all"] == 72.1


def class_means(row: Published) -> tuple[float, float, float, float]:
    """Headline and per-class mean of the old classes, then of all."""
    (block,) = {(task, setup) for task, setup, _ in row.figures}
    old = int(block[0].split("-")[0])
    classes = [value for (_, _, group), value in row.figures.items() if group[0].isalpha() and group != "all"]
    assert len(classes) == 20
    headline = row.figures[(*block, f"1-{old}")], row.figures[(*block, "all")]
    return headline[0], sum(classes[:old]) / old, headline[1], sum(classes) / 20


@pytest.mark.parametrize("table", PER_CLASS)
@pytest.mark.parametrize(
    ("method", "source", "backbone"),
    [("FT", "MiB paper", "ResNet-101"), ("MiB", "MiB paper", "ResNet-101"), ("FT", OWN, "ViT-small")],
)
def test_rows_without_background_equal_their_class_means(
    table: str, method: str, source: str, backbone: str
) -> None:
    row = find(table, method, source, backbone)
    old, old_mean, everything, mean = class_means(row)
    assert row.average == "without b"
    assert old == pytest.approx(old_mean, abs=0.1)
    assert everything == pytest.approx(mean, abs=0.1)


@pytest.mark.parametrize("table", PER_CLASS)
def test_unclear_and_underivable_rows_are_just_that(table: str) -> None:
    tiss = find(table, "TISS", OWN, "ViT-small")
    _, _, everything, mean = class_means(tiss)
    assert tiss.average == "unclear"
    assert 89 < 21 * everything - 20 * mean < 94  # the background that would have to be added
    mib = find(table, "MiB", OWN, "ViT-small")
    _, _, everything, mean = class_means(mib)
    assert mib.average == "not derivable"
    assert 21 * everything - 20 * mean > 113
    offline = find(table, "offline", OWN, "ViT-small")
    _, _, everything, mean = class_means(offline)
    assert offline.average == "not derivable"
    assert 40 < 21 * everything - 20 * mean < 78


@pytest.mark.parametrize("source", ["SDR paper", "PLOP paper"])
def test_rows_with_background_combine_so(source: str) -> None:
    rows = [row for row in rows_of("voc") if row.source == source and row.method != "offline"]
    assert rows
    for row in rows:
        assert row.average == "with b"
        for task in ("15-5", "15-1"):
            if (task, "overlapped", "all") in row.figures:
                old, new, everything = (row.figures[task, "overlapped", g] for g in ("1-15", "16-20", "all"))
                assert everything == pytest.approx((16 * old + 5 * new) / 21, abs=0.12)


def test_cityscapes_rows_count_differently() -> None:
    for row in rows_of("cityscapes"):
        old, new, everything = (row.figures["14-1", "unstated", group] for group in ("1-14", "15-19", "all"))
        count = 15 if row.average == "with b" else 14
        assert everything == pytest.approx((count * old + 5 * new) / (count + 5), abs=0.1)


def test_columns_are_in_the_paper_s_order() -> None:
    assert blocks_of("cityscapes") == {
        ("14-1", "unstated"): ["1-14", "15", "16", "17", "18", "19", "15-19", "all"]
    }
    assert next(iter(blocks_of("voc"))) == ("19-1", "disjoint")
    assert blocks_of("ade")["100-50", "disjoint"] == ["1-100", "101-150", "all"]


def test_cells_that_differ_between_tables_are_found() -> None:
    texts = disagreements(rows_of("voc"), [("15-1", "overlapped")])
    assert texts == [
        "TISS ViT-small (TISS paper) 15-1 overlapped, 1-15: 78.9 here, 78.7 in 15-1o.",
        "TISS ViT-small (TISS paper) 15-1 overlapped, 16-20: 51.7 here, 51.1 in 15-1o.",
    ]
    assert len(disagreements(rows_of("ade-base"), blocks_of("ade-base"))) == 9


def test_notes_belong_to_what_is_shown() -> None:
    shown = " ".join(notes_on(rows_of("voc"), [("15-1", "overlapped")]))
    assert "56.4 from its own 64.9 and 30.7" in shown
    assert "15-5 disjoint" not in shown
    assert "SDR paper are with b" in shown
    assert all(row.explanation for row in published())


def test_names() -> None:
    assert [dataset_of(name) for name in ("voc", "15-1o", "ablation", "cityscapes")] == [
        "voc",
        "voc",
        "ade20k",
        "cityscapes",
    ]
    assert caption_of("15-1o") == "Pascal VOC 2012, 15-1 overlapped, class by class"
    with pytest.raises(TissError, match="unknown table of the paper 'vox': did you mean 'voc'"):
        rows_of("vox")
