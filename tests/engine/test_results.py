"""Damaged or foreign results end in one line with the file's name and the remedy."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.fakes import results
from tiss.engine.results import MisfitError, check_results, read_results
from tiss.errors import TissError
from tiss.report.runs import Result, experiments
from tiss.report.tables import report_tables

WHOLE = json.dumps(results())
REPLACEMENTS = (None, 7, -3.5, 1e300, 1 << 70, True, "x", [], [None], {}, {"x": None})


def places(value: Any, where: tuple = ()) -> Iterator[tuple]:
    """Where something stands in a tree; of a list only its last item, of IoUs only one class."""
    if isinstance(value, dict):
        keys = list(value)[-1:] if where and where[-1] in ("iou", "forgetting") else list(value)
    else:
        keys = [len(value) - 1] if isinstance(value, list) and value else []
    for key in keys:
        yield (*where, key)
        yield from places(value[key], (*where, key))


def changed(values: dict, where: tuple, new: Any, remove: bool = False) -> dict:
    values = copy.deepcopy(values)
    inner: Any = values
    for key in where[:-1]:
        inner = inner[key]
    if remove:
        del inner[where[-1]]
    else:
        inner[where[-1]] = new
    return values


def test_whatever_passes_the_check_can_be_tabled() -> None:
    good = results("ft", groups=((1, 2), (3,)), classes=("background", "a", "b", "c"))
    passed = refused = 0
    for where in places(good):
        variants = [changed(good, where, new) for new in REPLACEMENTS] + [changed(good, where, None, True)]
        for values in variants:
            try:
                check_results(values)
            except MisfitError:
                refused += 1
                continue
            passed += 1
            if values["steps"]:
                for experiment in experiments([Result(values, None, {})]):
                    report_tables(experiment)
    assert passed > 50
    assert refused > 300


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        *(("results.json", WHOLE[: int(share * len(WHOLE))], r"\bresume") for share in (0.0, 0.3, 0.999)),
        ("results.json", json.dumps(results(format=0)), "format 0, this tiss reads format 1; tiss run"),
        (
            "voc.json",
            json.dumps(results(config=[1])),
            "config: a mapping expected; tiss report RUN --collect",
        ),
    ],
)
def test_a_damaged_file_names_itself_and_the_remedy(
    tmp_path: Path, name: str, text: str, expected: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TissError, match=expected) as caught:
        read_results(path)
    assert str(path) in str(caught.value)


def test_what_a_run_writes_passes() -> None:
    for method in ("ft", "offline"):
        values = json.loads(json.dumps(results(method)))
        assert check_results(values) is values
