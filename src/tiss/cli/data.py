"""`tiss data`: download, verify, look at and convert data sets."""

from __future__ import annotations

import argparse
from typing import NoReturn

from tiss.cli.flags import own_names
from tiss.errors import TissError

EPILOG = """examples:
  tiss data download voc --root data
  tiss data verify voc --root VOCdevkit
  tiss data stats voc --root VOCdevkit --task 15-1 --plot voc.svg
  tiss data convert coco annotations.json --images photos --out my-data
  tiss data verify folder --root my-data
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, as everywhere."""

    def error(self, message: str) -> NoReturn:
        raise TissError(f"{self.prog}: {message}; `{self.prog} --help` shows what it takes")


def main(arguments: list[str]) -> int:
    """Runs one of the data commands; returns the exit code: 0, or 1 where verify found a fault."""
    parser = Parser(
        prog="tiss data",
        description="Get data sets, check them, look at them, and bring your own into shape.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    _add_download(commands)
    _add_verify(commands)
    _add_stats(commands)
    _add_convert(commands)
    options = parser.parse_args(arguments)
    with own_names(vars(options)):
        code: int = options.run(options)
    return code


def _add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "data", metavar="DATA", help="voc, ade20k, cityscapes, folder, huggingface or a plug-in's"
    )
    command.add_argument("--root", metavar="DIR", help="folder that holds the data set")


def _add_verify(commands: argparse._SubParsersAction[Parser]) -> None:
    command = commands.add_parser(
        "verify",
        help="check every file, and every step's list against the published one",
        description="Reads every picture and mask and lists all faults at once; then makes each step's list "
        "of images from the masks and compares it with the published count and SHA-256. The output can go "
        "into an appendix as it is. Exit code 1 if anything is wrong.",
    )
    _add_data(command)
    command.add_argument(
        "--task", action="append", metavar="A-B", help="tasks to list (default: all published)"
    )
    command.add_argument("--lists", metavar="DIR", help="published lists, TASK-SETUP/train-K.txt or .npy")
    command.add_argument("--quick", action="store_true", help="do not decode pictures, only headers and ends")
    command.add_argument(
        "--table", choices=("text", "markdown", "latex"), default="text", help="form of the table"
    )
    command.set_defaults(run=_verify)


def _add_download(commands: argparse._SubParsersAction[Parser]) -> None:
    command = commands.add_parser(
        "download",
        help="fetch voc or ade20k; say how to get cityscapes",
        description="Fetches a benchmark, checks its bytes and unpacks it. A transfer that broke off goes on "
        "where it ended when the same command is run again. VOC needs two files: VOC 2012 itself, and SBD, "
        "whose masks make the 10,582 training pictures that every published figure uses.",
    )
    command.add_argument("data", choices=("voc", "ade20k", "cityscapes"))
    command.add_argument("--root", metavar="DIR", default="data", help="where to put it (default: data)")
    command.add_argument("--url", help="another address of the first file")
    command.add_argument(
        "--checksum", metavar="KIND:HEX", help="its checksum, or none; default: the published one"
    )
    command.add_argument("--sbd-url", help="voc: another address of SBD's benchmark.tgz")
    command.add_argument("--sbd-checksum", metavar="KIND:HEX", help="voc: its checksum, or none")
    command.add_argument("--sbd", metavar="DIR", help="voc: SBD's unpacked benchmark_RELEASE, if you have it")
    command.add_argument("--keep", action="store_true", help="keep the archives after unpacking")
    command.set_defaults(run=_download)


def _download(options: argparse.Namespace) -> int:
    from pathlib import Path

    from tiss.data import benchmarks
    from tiss.data.download import parse_checksum

    root = Path(options.root).expanduser()
    if options.data == "cityscapes":
        print(benchmarks.CITYSCAPES.format(root=root / "cityscapes"))
        return 0
    first = benchmarks.VOC2012 if options.data == "voc" else benchmarks.ADE20K
    checksum = parse_checksum(options.checksum) if options.checksum else None
    first = benchmarks.redirected(first, options.url, checksum, bool(options.checksum))
    if options.data == "voc":
        checksum = parse_checksum(options.sbd_checksum) if options.sbd_checksum else None
        sbd = benchmarks.redirected(benchmarks.SBD, options.sbd_url, checksum, bool(options.sbd_checksum))
        place = benchmarks.download_voc(root, first, Path(options.sbd) if options.sbd else sbd, options.keep)
    else:
        place = benchmarks.download_ade20k(root, first, options.keep)
    print(f"{place} is ready; check it with: tiss data verify {options.data} --root {place}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from tiss.cli.verify import verify_data

    return verify_data(
        options.data, options.root, options.task, options.lists, not options.quick, options.table
    )


def _add_stats(commands: argparse._SubParsersAction[Parser]) -> None:
    command = commands.add_parser(
        "stats",
        help="classes, pixels, and the images of each step",
        description="Counts pixels and images of every class, and the images of every step of a task in both "
        "setups; as tables, and as a plot.",
    )
    _add_data(command)
    command.add_argument(
        "--task", metavar="A-B", help="task whose steps are shown (default: the data set's own)"
    )
    command.add_argument("--order", help="order of the classes: names or numbers with commas, or random:SEED")
    command.add_argument("--plot", metavar="FILE", help="also draw it: .png, .svg or .pdf")
    command.add_argument(
        "--table", choices=("text", "markdown", "latex"), default="text", help="form of the tables"
    )
    command.set_defaults(run=_stats)


def _stats(options: argparse.Namespace) -> int:
    from tiss.cli.stats import print_stats

    return print_stats(options.data, options.root, options.task, options.order, options.plot, options.table)


def _add_convert(commands: argparse._SubParsersAction[Parser]) -> None:
    command = commands.add_parser(
        "convert",
        help="bring labels of COCO, CVAT, labelme or Supervisely into the folder layout",
        description="Draws labels as masks: a pixel belongs to an outline if its centre lies inside; where "
        "objects overlap, the one with fewer pixels is on top. Nothing is written if any label is broken.",
    )
    command.add_argument("kind", choices=("coco", "cvat", "labelme", "supervisely"))
    command.add_argument("source", metavar="SRC", help="coco: the JSON file; the others: the exported folder")
    command.add_argument(
        "--out", metavar="DIR", required=True, help="new folder for images, masks and classes.txt"
    )
    command.add_argument(
        "--images", metavar="DIR", help="where the pictures are, if not where the tool puts them"
    )
    command.add_argument("--classes", help="classes to keep, in order, with commas; others become background")
    command.add_argument(
        "--test-share", type=float, default=0.2, help="share of pictures for the test, by a hash of the id"
    )
    command.add_argument(
        "--overlap",
        choices=("smaller", "order"),
        default="smaller",
        help="on top: the smaller object, or the later one",
    )
    command.add_argument("--link", action="store_true", help="link pictures instead of copying them")
    command.set_defaults(run=_convert)


def _convert(options: argparse.Namespace) -> int:
    from pathlib import Path

    from tiss.cli.convert import print_conversion
    from tiss.data.convert import CONVERTERS, Options, write_folder

    source, out = Path(options.source).expanduser(), Path(options.out).expanduser()
    if not source.exists():
        raise TissError(f"{source}: no such file or folder")
    images = Path(options.images).expanduser() if options.images else None
    chosen = tuple(name.strip() for name in options.classes.split(",")) if options.classes else None
    found = CONVERTERS[options.kind](source, images)
    written = write_folder(found, out, Options(options.test_share, options.overlap, options.link, chosen))
    print_conversion(options.kind, found, written, out)
    return 0
