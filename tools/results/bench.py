"""Benchmarks as tables and one figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tiss.cli.tables import format_table
from tiss.engine.settings import flatten
from tiss.report.plots import legend_below, style

IMAGES = Path("docs/images")
# how a step's time was spent; Okabe and Ito's colours
WAYS = (("plain", "plain", "#d55e00"), ("fast", "fast", "#009e73"), ("no_loss", "no loss", "#7f7f7f"))


def bench_section(
    benchmarks: Mapping[str, Mapping[str, Any]], figures: dict[Path, Callable[[], Figure]]
) -> list[str]:
    """Every benchmark in results/bench: the speed of a step first, then whatever else was measured."""
    if not benchmarks:
        return []
    parts = ["## Speed and memory"]
    for name in sorted(benchmarks, key=lambda name: (not name.startswith("step"), name)):
        values = benchmarks[name]
        rows = values.get("rows") or values.get("memory") or []
        if rows and all("no_loss" in row for row in rows):
            parts += step_section(name, values, figures)
        elif rows:
            parts += [f"### `results/bench/{name}.json`", where(values), plain_table(rows)]
    return parts


def step_section(
    name: str, values: Mapping[str, Any], figures: dict[Path, Callable[[], Figure]]
) -> list[str]:
    """One update of training: the plain path, the fast path, and the fast path without any loss."""
    path = IMAGES / f"results-bench-{name}.png"
    figures[path] = partial(speed_figure, values["rows"])
    explained = (
        "Plain: eager, logits at every pixel. Fast: what `tiss run` does there. No loss: the fast path with the losses "
        "left out, which is what encoder and data movement cost alone."
    )
    return [
        f"### One update of training (`results/bench/{name}.json`)",
        f"{where(values)} {explained}",
        step_table(values["rows"]),
        f"![images a second: plain, fast, no loss](images/{path.name})",
    ]


def step_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Images a second and memory of the three ways."""
    head = (
        *("row", "encoder", "side", "plain img/s", "fast img/s", "no loss img/s"),
        *("fast : plain", "fast : no loss", "plain GiB", "fast GiB", "of the limit"),
    )
    lines = []
    for row in rows:
        speeds = [f"{row[way]['images_per_second']:.0f}" for way, _, _ in WAYS]
        ratios = [f"{row['speedup']:.1f}", f"{row['of_no_loss']:.2f}"]
        memory = [_gib(row[way].get("peak_gib")) for way in ("plain", "fast")]
        share = row["fast"].get("share_of_limit")
        limit = "–" if share is None else f"{100 * share:.0f} %"
        channels = f"{row['name']}, {row['old'] + row['new']} channels"
        lines.append([channels, row["encoder"], str(row["size"]), *speeds, *ratios, *memory, limit])
    return format_table(head, lines, "markdown")


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def where(values: Mapping[str, Any]) -> str:
    """The machine and the command of a benchmark."""
    environment = values.get("environment") or {}
    if not environment:
        return ""
    parts = [environment.get("device"), environment.get("precision")]
    parts += [f"torch {environment['packages']['torch']}"] if environment.get("packages") else []
    limit = f" The limit: {values['limit_tflops']:.0f} TFLOP/s." if values.get("limit_tflops") else ""
    words = command(environment)
    return ", ".join(str(part) for part in parts if part) + (f"; `{words}`." if words else ".") + limit


def command(environment: Mapping[str, Any]) -> str:
    """The recorded command, of paths only their last name."""
    return " ".join(
        Path(word).name if word.startswith("/") else word for word in environment.get("command") or []
    )


def plain_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Any list of rows: a column a key."""
    flat = [flatten(row) for row in rows]
    heads = list(dict.fromkeys(key for row in flat for key in row))
    lines = [[_text(row.get(head)) for head in heads] for row in flat]
    return format_table([_head(head) for head in heads], lines, "markdown")


def _head(key: str) -> str:
    """A key as a column's head: `largest_batch.24` counts the pictures that fit on a card of 24 GiB."""
    if key.startswith("largest_batch."):
        return f"batch on {key.removeprefix('largest_batch.')} GiB"
    return key.replace("_", " ").replace("gib", "GiB")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "–" if value is None else str(value)


def speed_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Images a second, three bars a row."""
    with style():
        drawn = Figure(figsize=(7.4, 0.62 * len(rows) + 1.0), layout="constrained")
        axis = drawn.subplots()
        for index, (way, label, colour) in enumerate(WAYS):
            places = [row + (index - 1) * 0.27 for row in range(len(rows))]
            speeds = [row[way]["images_per_second"] for row in rows]
            bars = axis.barh(places, speeds, height=0.25, color=colour, label=label)
            axis.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.margins(x=0.08)
        axis.set_xlabel("images a second")
        legend_below(drawn, axis)
    return drawn
