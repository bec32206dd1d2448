"""`tiss bench` and `tiss bench data`: speed and memory of this machine."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiss.config import TrainConfig, from_mapping, setting
from tiss.errors import TissError, suggest


@dataclass(frozen=True)
class BenchOptions:
    suite: str | None = setting(
        None, "step, demo, small, solve or memory (None: step on a GPU, demo on a CPU)"
    )
    updates: int = setting(50, "updates that are timed per row and way")
    limit: float | None = setting(None, "peak TFLOP/s of the device, to show the share that is reached")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    precision: str = setting("auto", "auto, float32 or bf16", sets="train.precision")
    deterministic: bool = setting(False, "also time a deterministic fast path", sets="train.deterministic")
    out: str | None = setting(None, "write the figures as JSON into this file")


def bench(options: BenchOptions) -> int:
    """Times one update of an incremental step (student forward and backward, teacher forward, all losses, optimizer) on
    this machine in three ways: the plain path, the fast path, and the fast path without any loss. All run in one
    process, so that their ratios are comparable. `tiss bench data` times the data loaders instead.

    Suites: step (ViT-S/16 at 512, VOC and ADE20K sizes; needs a GPU), demo (the demo's own step), small (a toy), and
    memory (the largest batch of ViT-S, B and L on cards of 8 to 80 GiB, from peaks measured on this GPU). The suite
    solve times a step of --method analytic: a pass with its sums beside the encoder alone, and the solve.

    Examples:
      tiss bench
      tiss bench --suite step --limit 790 --out bench.json
      tiss bench --suite memory --out memory.json
      tiss bench --suite solve --updates 10
      tiss bench --deterministic
    """
    from tiss.engine.bench import SUITES, run_memory_suite, run_suite
    from tiss.engine.bench_solve import ROWS, run_solve_suite
    from tiss.engine.device import choose_device
    from tiss.engine.progress import TerminalReporter

    device = choose_device(options.device)
    suite = options.suite or ("step" if device == "cuda" else "demo")
    train = replace(from_mapping(TrainConfig, {"precision": options.precision}, "train"), device=device)
    if suite == "memory":
        if options.deterministic:
            raise TissError("does not go with the suite memory, which times nothing", setting="deterministic")
        results = run_memory_suite(train, TerminalReporter())
        print_memory(results)
    elif suite in ROWS:
        results = run_solve_suite(ROWS[suite], train, options.updates, TerminalReporter())
        print_solve(results)
    elif suite in SUITES:
        train = replace(train, deterministic=options.deterministic)
        results = run_suite(SUITES[suite], train, options.updates, options.limit, TerminalReporter())
        print_speed(results)
    else:
        raise TissError(suggest(suite, [*SUITES, *ROWS, "memory"], "suite"))
    write_figures(options.out, results)
    return 0


def write_figures(path: str | None, results: dict[str, Any]) -> None:
    from tiss.files import write_json

    if path:
        write_json(Path(path), results)
        print(f"figures: {path}")


def print_speed(results: dict[str, Any]) -> None:
    """One line per row of the suite."""
    from tiss.report.render import format_table

    def text(value: float | None, form: str = ".2f") -> str:
        return "–" if value is None else f"{value:{form}}"

    rows = []
    for row in results["rows"]:
        plain, fast = row["plain"], row["fast"]
        speeds = [text(way["images_per_second"], ".0f") for way in (plain, fast)]
        peaks = [text(way["peak_gib"]) for way in (plain, fast)]
        shares = [text(row[key]) for key in ("speedup", "of_no_loss")]
        rows.append([row["name"], *speeds, *shares, *peaks, text(fast["share_of_limit"])])
    heads = "row|plain img/s|fast img/s|speed-up|of no loss|plain GiB|fast GiB|of limit"
    table = format_table(heads.split("|"), rows)
    print(f"one update on {results['environment']['device']}\n\n{table}")
    for row in results["rows"]:
        if "cost_of_determinism" in row:
            print(f"{row['name']}: deterministic takes {row['cost_of_determinism']:+.1%} time")


def print_solve(results: dict[str, Any]) -> None:
    """One line per number of classes."""
    from tiss.report.render import format_table

    rows = []
    for row in results["solve"]:
        speeds = (f"{row['encoder_images_per_second']:.1f}", f"{row['pass_images_per_second']:.1f}")
        peak = "–" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}"
        figures = (f"{row['share']:.2f}", f"{row['solve_seconds']:.1f}", f"{row['state_mb']:.1f}", peak)
        rows.append((row["name"], str(row["classes"]), *speeds, *figures))
    heads = "row|classes|encoder img/s|pass img/s|share|solve s|state MB|peak GiB"
    table = format_table(heads.split("|"), rows)
    print(f"one solved step on {results['environment']['device']}\n\n{table}")


def print_memory(results: dict[str, Any]) -> None:
    """One line per encoder, number of classes and use of checkpointing."""
    from tiss.report.render import format_table

    rows = []
    for row in results["memory"]:
        how = (row["encoder"], str(row["classes"]), "yes" if row["checkpointing"] else "no")
        figures = (f"{row['fixed_gib']:.2f}", f"{row['gib_per_image']:.3f}")
        rows.append((*how, *figures, *map(str, row["largest_batch"].values())))
    cards = [f"{card} GiB" for card in results["memory"][0]["largest_batch"]]
    heads = ("encoder", "classes", "checkpointing", "GiB fixed", "GiB per image", *cards)
    print(f"largest batch, measured on {results['environment']['device']}\n\n{format_table(heads, rows)}")


@dataclass(frozen=True)
class LoaderOptions:
    data: str = setting("shapes", "data set", sets="data.name")
    root: str | None = setting(None, "folder that holds it", sets="data.root")
    crops: tuple[int, ...] | None = setting(None, "sides of the crop, with commas (None: the data set's own)")
    workers: tuple[int, ...] = setting((0, 2), "numbers of worker processes, with commas")
    images: int = setting(500, "number of images")
    seconds: float = setting(3.0, "seconds for which each row is timed")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    out: str | None = setting(None, "write the figures as JSON into this file")


def loaders(options: LoaderOptions) -> int:
    """Times the loaders on a data set: without worker processes, with two, and with the decoded images in memory.

    Examples:
      tiss bench data
      tiss bench data --data voc --root VOCdevkit --crops 256,512 --out loaders.json
    """
    from tiss.engine.device import choose_device
    from tiss.report.render import format_table
    from tiss.scenarios import load_scenario

    train = load_scenario(options.data, root=options.root)[0].train
    device = choose_device(options.device)
    figures = list(measure_loaders(train, options, device))
    rows = []
    for one in figures:
        speed, start = f"{one['images_per_second']:.0f}", f"{one['start_seconds']:.1f}"
        rows.append((one["loader"], str(one["crop"]), speed, start))
    table = format_table(("loader", "crop", "images/s", "seconds to the first batch"), rows)
    print(f"{options.data}: training crops on {device}\n\n{table}")
    write_figures(options.out, {"data": options.data, "rows": figures})
    return 0


def measure_loaders(split: Any, options: LoaderOptions, device: str) -> Iterator[dict[str, Any]]:
    """Each number of workers, and the memory loader, at each crop; what does not fit in memory is said and left out.

    The start lasts until the first batch: decoding, or starting the processes.
    """
    import torch

    from tiss.data.augment import AugmentSettings
    from tiss.data.loader import TrainLoader

    split = replace(split, ids=split.ids[: options.images], every=frozenset())
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    fixed: Any = {"batch": min(12, len(split.ids)), "seed": 0, "step": 0, "device": device}
    ways: list[tuple[str, Any]] = [
        *((f"workers {one}", {"kind": "workers", "workers": one}) for one in options.workers),
        (f"memory ({device})", {"kind": "memory"}),
    ]
    for crop, (name, way) in itertools.product(options.crops or (split.dataset.default_crop,), ways):
        begin = time.perf_counter()
        try:
            with TrainLoader(split, AugmentSettings(crop), **fixed, **way) as loader:
                batches = itertools.chain.from_iterable(map(loader.epoch, itertools.count()))
                next(batches)
                wait()
                started, count = time.perf_counter(), 0
                while count == 0 or time.perf_counter() - started < options.seconds:
                    next(batches)
                    count += 1
                wait()
                rate = count * fixed["batch"] / (time.perf_counter() - started)
        except TissError as error:
            print(f"tiss: {error}")
            continue
        times = {"images_per_second": rate, "start_seconds": started - begin}
        yield {"loader": name, "crop": crop, **times}
