"""`tiss bench`: how fast this machine does an incremental step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import TrainConfig, from_mapping, setting
from tiss.errors import TissError, suggest

USAGE = "tiss bench [data] [--suite NAME] [options]"
ABOUT = """
Times one update of an incremental step (student forward and backward, teacher forward, all losses, optimiser) on
whatever device there is: the plain path, the fast path and the fast path without any loss, in one run, so that the
ratios mean something. `tiss bench data` times the loaders instead.

suites: step (ViT-S/16 at 512, VOC and ADE20K sizes; needs a GPU), demo (the demo's own step), small (a toy), and
memory (the largest batch of ViT-S, B and L that fits on cards of 8 to 80 GiB, from peaks measured on this GPU).
"""
EXAMPLES = """
tiss bench
tiss bench --suite step --limit 790 --out bench.json
tiss bench --suite memory --out memory.json
tiss bench --deterministic true
tiss bench data --data voc --root VOCdevkit --crop 256
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class BenchOptions:
    suite: str | None = setting(None, "step, demo, small or memory (None: step on a GPU, demo on a CPU)")
    updates: int = setting(50, "updates that are timed for each way of doing a row")
    limit: float | None = setting(None, "TFLOP/s that the device can do at best, for the share of it")
    device: str = setting("auto", "auto, cpu, cuda or mps")
    precision: str = setting("auto", "auto, float32 or bf16")
    deterministic: bool = setting(False, "also time the fast path with --train.deterministic true")
    out: str | None = setting(None, "file for the figures as JSON")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    if arguments[:1] == ["data"]:
        from tiss.cli.bench_data import main as bench_data

        return bench_data(arguments[1:])
    flags = list(flags_of(BenchOptions))
    values, given, _ = parse_flags(arguments, flags, SWITCHES)
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    return bench_step(from_mapping(BenchOptions, values))


@own_names(BenchOptions)
def bench_step(options: BenchOptions) -> int:
    from tiss.engine.bench import SUITES, run_suite
    from tiss.engine.bench_memory import run_memory_suite
    from tiss.engine.progress import TerminalReporter
    from tiss.engine.world import choose_device
    from tiss.files import write_json

    device = choose_device(options.device)
    suite = options.suite or ("step" if device == "cuda" else "demo")
    train = replace(from_mapping(TrainConfig, {"precision": options.precision}, "train"), device=device)
    if suite == "memory":
        if options.deterministic:
            raise TissError("--deterministic true: the suite memory times nothing; take step, demo or small")
        results = run_memory_suite(train, TerminalReporter())
        print_memory(results)
    elif suite in SUITES:
        train = replace(train, deterministic=options.deterministic)
        results = run_suite(SUITES[suite], train, options.updates, options.limit, TerminalReporter())
        print_table(results)
    else:
        raise TissError(suggest(suite, [*SUITES, "memory"], "suite"))
    if options.out:
        write_json(Path(options.out), results)
        print(f"figures: {options.out}")
    return 0


def print_table(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"one update on {results['environment']['device']}", title_justify="left", show_edge=False
    )
    headings = (
        "row",
        "plain img/s",
        "fast img/s",
        "speed-up",
        "of no loss",
        "plain GiB",
        "fast GiB",
        "of limit",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "row" else "right", no_wrap=heading == "row")
    for row in results["rows"]:
        plain, fast = row["plain"], row["fast"]
        table.add_row(
            row["name"],
            f"{plain['images_per_second']:.0f}",
            f"{fast['images_per_second']:.0f}",
            f"{row['speedup']:.2f}×",
            f"{row['of_no_loss']:.2f}",
            _number(plain["peak_gib"]),
            _number(fast["peak_gib"]),
            _number(fast["share_of_limit"]),
        )
    Console().print(table)
    for row in results["rows"]:
        if "cost_of_determinism" in row:
            print(f"{row['name']}: deterministic takes {row['cost_of_determinism']:+.1%} time")


def print_memory(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    device = results["environment"]["device"]
    table = Table(title=f"largest batch, measured on {device}", title_justify="left", show_edge=False)
    cards = list(results["memory"][0]["largest_batch"])
    columns = (
        "encoder",
        "classes",
        "checkpointing",
        "GiB fixed",
        "GiB a picture",
        *(f"{c} GiB" for c in cards),
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "encoder" else "right")
    for row in results["memory"]:
        batches = [str(row["largest_batch"][card]) for card in cards]
        fixed, each = f"{row['fixed_gib']:.2f}", f"{row['gib_per_image']:.3f}"
        kept = "yes" if row["checkpointing"] else "no"
        table.add_row(row["encoder"], str(row["classes"]), kept, fixed, each, *batches)
    Console().print(table)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
