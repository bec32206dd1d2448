"""The marked blocks of README.md: `<!-- results: NAME -->` … `<!-- /results -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiss.cli.tables import format_table
from tiss.errors import TissError
from tiss.evaluation.scores import percent
from tiss.report.render import to_markdown
from tools.results.bench import where
from tools.results.kept import Block, benchmarks, blocks, compared
from tools.results.page import IMAGES, main_table
from tools.results.tasks import tasks_tables

BLOCK = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)
WAITING = (
    "Runs on Pascal VOC with a pretrained encoder are under way; what has been learnt so far stands in "
    "`docs/LOG.md`."
)


def readme(root: Path) -> str:
    """README.md with its blocks filled."""
    texts = {"voc": voc(root), "tasks": tasks(root), "shapes": shapes(root), "speed": speed(root)}

    def fill(match: re.Match[str]) -> str:
        if match["name"] not in texts:
            raise TissError(f"README.md: no block of results is called {match['name']!r}: {', '.join(texts)}")
        return f"{match[1]}{texts[match['name']].strip()}\n{match[3]}"

    return BLOCK.sub(fill, (root / "README.md").read_text(encoding="utf-8"))


def headline(block: Block) -> str:
    """The main table without times, which stand in docs/results.md."""
    table = main_table(block)
    kept = [i for i, column in enumerate(table.columns) if column.name not in ("minutes", "images/s")]
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in table.rows)
    return to_markdown(replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows))


def voc(root: Path) -> str:
    """The headline: VOC 15-1 overlapped with a transformer, and its curves."""
    for block in compared(blocks(root / "results")):
        one = block.experiment
        if (one.data, one.task, one.setup) == ("voc", "15-1", "overlapped") and not one.holdout:
            image = f"![mIoU step by step]({IMAGES.as_posix()}/results-{block.name}-steps.png)"
            text = f"**{block.heading}**, mean ± sample deviation over seeds; b: the background."
            return f"{text}\n\n{headline(block)}\n{image}"
    return WAITING


def tasks(root: Path) -> str:
    """All classes, task by task, of the methods that were run on each."""
    tables = tasks_tables(blocks(root / "results"), ("all",), complete=True)
    return "\n".join(map(to_markdown, tables))


def shapes(root: Path) -> str:
    """The demo's table, with what it shows in a sentence."""
    for block in blocks(root / "results"):
        if block.experiment.data == "shapes":
            return f"{sentence(block)}\n\n{headline(block)}"
    return ""


def sentence(block: Block) -> str:
    """Who forgets the first classes, and what the others keep of what offline training reaches there."""
    told = []
    bound = None if block.offline is None else block.last(block.offline, "old")
    for series in block.experiment.series:
        first, last = series.value(0, lambda scores: scores.old.headline), block.last(series, "old")
        if series.at_once or first is None or last is None:
            continue
        lost = first.mean - last.mean
        if lost > 0.4 * first.mean:
            told.append(f"{series.label} loses {percent(lost)} points on the first classes")
        elif bound is not None:
            told.append(
                f"{series.label} keeps {100 * last.mean / bound.mean:.0f} % of what offline reaches there"
            )
    return f"{'; '.join(told)}." if told else ""


def speed(root: Path) -> str:
    """The speed of one update, and the memory it takes."""
    for name, values in benchmarks(root / "results").items():
        if name.startswith("step"):
            head = ("", "plain img/s", "fast img/s", "fast : plain", "plain GiB", "fast GiB")
            lines = [speed_line(row) for row in values["rows"]]
            return f"{where(values)}\n\n{format_table(head, lines, 'markdown')}"
    return ""


def speed_line(row: Mapping[str, Any]) -> list[str]:
    speeds = [f"{row[way]['images_per_second']:.0f}" for way in ("plain", "fast")]
    memory = [f"{row[way]['peak_gib']:.1f}" for way in ("plain", "fast")]
    channels = f"{row['name']}, {row['old'] + row['new']} channels"
    return [channels, *speeds, f"{row['speedup']:.1f}", *memory]
