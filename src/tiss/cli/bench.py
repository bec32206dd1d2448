"""Times one update of an incremental step (student forward and backward, teacher forward, all losses, optimizer) on
this machine in three ways: the plain path, the fast path, and the fast path without any loss. All run in one process,
so that their ratios are comparable. `tiss bench data` times the data loaders instead.

Suites: step (ViT-S/16 at 512, VOC and ADE20K sizes; needs a GPU), demo (the demo's own step), small (a toy), and
memory (the largest batch of ViT-S, B and L on cards of 8 to 80 GiB, from peaks measured on this GPU).

Examples:
  tiss bench
  tiss bench --suite step --limit 790 --out bench.json
  tiss bench --suite memory --out memory.json
  tiss bench --deterministic
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiss.cli.flags import print_table
from tiss.config import TrainConfig, from_mapping, setting
from tiss.errors import TissError, suggest


@dataclass(frozen=True)
class Options:
    suite: str | None = setting(None, "step, demo, small or memory (None: step on a GPU, demo on a CPU)")
    updates: int = setting(50, "updates that are timed per row and way")
    limit: float | None = setting(None, "peak TFLOP/s of the device, to show the share that is reached")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    precision: str = setting("auto", "auto, float32 or bf16", sets="train.precision")
    deterministic: bool = setting(
        False, "also time the fast path with train.deterministic", sets="train.deterministic"
    )
    out: str | None = setting(None, "write the figures as JSON into this file")


def run(options: Options) -> int:
    from tiss.engine.bench import SUITES, run_memory_suite, run_suite
    from tiss.engine.device import choose_device
    from tiss.engine.progress import TerminalReporter
    from tiss.files import write_json

    device = choose_device(options.device)
    suite = options.suite or ("step" if device == "cuda" else "demo")
    train = replace(from_mapping(TrainConfig, {"precision": options.precision}, "train"), device=device)
    if suite == "memory":
        if options.deterministic:
            raise TissError("does not go with the suite memory, which times nothing", setting="deterministic")
        results = run_memory_suite(train, TerminalReporter())
        print_memory(results)
    elif suite in SUITES:
        train = replace(train, deterministic=options.deterministic)
        results = run_suite(SUITES[suite], train, options.updates, options.limit, TerminalReporter())
        print_speed(results)
    else:
        raise TissError(suggest(suite, [*SUITES, "memory"], "suite"))
    if options.out:
        write_json(Path(options.out), results)
        print(f"figures: {options.out}")
    return 0


def print_speed(results: dict[str, Any]) -> None:
    """One line per row of the suite."""
    headings = (
        "row",
        ">plain img/s",
        ">fast img/s",
        ">speed-up",
        ">of no loss",
        ">plain GiB",
        ">fast GiB",
        ">of limit",
    )
    rows = [
        (
            row["name"],
            f"{row['plain']['images_per_second']:.0f}",
            f"{row['fast']['images_per_second']:.0f}",
            f"{row['speedup']:.2f}×",
            f"{row['of_no_loss']:.2f}",
            _number(row["plain"]["peak_gib"]),
            _number(row["fast"]["peak_gib"]),
            _number(row["fast"]["share_of_limit"]),
        )
        for row in results["rows"]
    ]
    print_table(f"one update on {results['environment']['device']}", headings, rows)
    for row in results["rows"]:
        if "cost_of_determinism" in row:
            print(f"{row['name']}: deterministic takes {row['cost_of_determinism']:+.1%} time")


def print_memory(results: dict[str, Any]) -> None:
    """One line per encoder, number of classes and use of checkpointing."""
    cards = list(results["memory"][0]["largest_batch"])
    headings = (
        "encoder",
        ">classes",
        ">checkpointing",
        ">GiB fixed",
        ">GiB per image",
        *(f">{card} GiB" for card in cards),
    )
    rows = [
        (
            row["encoder"],
            str(row["classes"]),
            "yes" if row["checkpointing"] else "no",
            f"{row['fixed_gib']:.2f}",
            f"{row['gib_per_image']:.3f}",
            *(str(row["largest_batch"][card]) for card in cards),
        )
        for row in results["memory"]
    ]
    print_table(f"largest batch, measured on {results['environment']['device']}", headings, rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
