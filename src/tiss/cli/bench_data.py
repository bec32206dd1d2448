"""`tiss bench data`: how many training crops a second each loader makes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting

USAGE = "tiss bench data [options]"
ABOUT = """
Times the loaders on a data set: without worker processes, with two, and with the decoded pictures in memory.
"""
EXAMPLES = """
tiss bench data
tiss bench data --data voc --root VOCdevkit --crops 256,512 --out loaders.json
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class BenchDataOptions:
    data: str = setting("shapes", "data set")
    root: str | None = setting(None, "folder that holds it")
    crops: tuple[int, ...] | None = setting(None, "sides of the crop, with commas (None: the data set's own)")
    workers: tuple[int, ...] = setting((0, 2), "numbers of worker processes, with commas")
    images: int = setting(500, "how many pictures")
    seconds: float = setting(3.0, "how long each row is timed")
    device: str = setting("auto", "auto, cpu, cuda or mps")
    out: str | None = setting(None, "file for the figures as JSON")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(BenchDataOptions))
    values, given, _ = parse_flags(arguments, flags, SWITCHES)
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    return bench_data(from_mapping(BenchDataOptions, values))


@own_names(BenchDataOptions)
def bench_data(options: BenchDataOptions) -> int:
    from rich.console import Console
    from rich.table import Table

    from tiss.data.bench import measure_loaders
    from tiss.engine.world import choose_device
    from tiss.files import write_json
    from tiss.scenarios.scenario import load_scenario

    scenario = load_scenario(options.data, root=options.root)
    crops = options.crops or (getattr(scenario.dataset, "default_crop", 512),)
    device = choose_device(options.device)
    figures = measure_loaders(
        scenario[0].train,
        crops=crops,
        workers=options.workers,
        seconds=options.seconds,
        images=options.images,
        device=device,
    )
    table = Table(title=f"{options.data}: training crops on {device}", title_justify="left", show_edge=False)
    for heading in ("loader", "crop", "images/s", "first batch after"):
        table.add_column(heading, justify="left" if heading == "loader" else "right")
    for figure in figures:
        rate = f"{figure.images_per_second:.0f}"
        table.add_row(figure.loader, str(figure.crop), rate, f"{figure.start_seconds:.1f} s")
    Console().print(table)
    if options.out:
        write_json(Path(options.out), {"data": options.data, "rows": [asdict(figure) for figure in figures]})
    return 0
