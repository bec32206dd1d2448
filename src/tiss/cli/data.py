"""`tiss data`: download, verify, describe and convert data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiss.cli import verify
from tiss.cli.flags import execute
from tiss.config import REQUIRED, setting
from tiss.errors import TissError, suggest

ABOUT = """Gets data sets, checks them, describes them, and brings your own into shape.

usage: tiss data COMMAND [options]     tiss data COMMAND --help explains the command

  download   get voc or ade20k; how to get cityscapes
  verify     check every file, and every step's list against the published one
  stats      classes, pixels, and the images of each step
  convert    bring labels of COCO, CVAT, labelme or Supervisely into the folder layout

examples:
  tiss data download voc --root data
  tiss data verify voc --root VOCdevkit
  tiss data stats voc --root VOCdevkit --task 15-1 --plot voc.svg
  tiss data convert coco annotations.json --images photos --out my-data
  tiss data verify folder --root my-data"""

Form = Literal["text", "markdown", "latex"]


class Download:
    """Downloads a benchmark, checks its bytes and unpacks it. A transfer that broke off resumes when the same command
    is run again. VOC needs two files: VOC 2012 itself, and SBD, whose masks make the 10,582 training images that every
    published result uses.

    Examples:
      tiss data download voc --root data
    """

    @dataclass(frozen=True)
    class Options:
        data: Literal["voc", "ade20k", "cityscapes"] = setting(REQUIRED, "data set", positional=True)
        root: str = setting("data", "folder for it")
        url: str | None = setting(None, "another address of the first file")
        checksum: str = setting("", "its checksum, KIND:HEX, or none (default: the published one)")
        sbd: str | None = setting(None, "voc: SBD's unpacked benchmark_RELEASE, if you have it")
        sbd_url: str | None = setting(None, "voc: another address of SBD's benchmark.tgz")
        sbd_checksum: str = setting("", "voc: its checksum, KIND:HEX, or none")
        keep: bool = setting(False, "keep the archives after unpacking")

    @staticmethod
    def run(options: Options) -> int:
        from tiss.data import download

        root = Path(options.root).expanduser()
        if options.data == "cityscapes":
            print(download.CITYSCAPES.format(root=root / "cityscapes"))
            return 0
        if options.data == "voc":
            first = download.VOC2012.redirected(options.url, options.checksum)
            sbd = download.SBD.redirected(options.sbd_url, options.sbd_checksum)
            place = download.download_voc(
                root, first, Path(options.sbd) if options.sbd else sbd, options.keep
            )
        else:
            first = download.ADE20K.redirected(options.url, options.checksum)
            place = download.download_ade20k(root, first, options.keep)
        print(f"{place} is ready; check it with: tiss data verify {options.data} --root {place}")
        return 0


class Stats:
    """Counts pixels and images of every class, and the images of every step of a task in both setups: as tables, and as
    a plot.

    Examples:
      tiss data stats voc --root VOCdevkit --task 15-1 --plot voc.svg
    """

    @dataclass(frozen=True)
    class Options:
        data: str = setting(REQUIRED, "data set", positional=True, sets="data.name")
        root: str | None = setting(None, "folder that holds it", sets="data.root")
        task: str | None = setting(None, "task whose steps are shown (None: the data set's own)")
        order: str | None = setting(
            None, "order of the classes: names or numbers with commas, or random:SEED"
        )
        plot: str | None = setting(None, "also draw it: .png, .svg or .pdf")
        table: Form = setting("text", "form of the tables")

    @staticmethod
    def run(options: Options) -> int:
        from tiss.cli.tables import format_table
        from tiss.data.base import DATASETS, SPLITS
        from tiss.data.stats import count_classes, plot_counts
        from tiss.scenarios.scenario import load_scenario

        dataset = DATASETS.get(options.data)(options.root)
        scenarios, problems = {}, {}
        for setup in ("overlapped", "disjoint"):
            try:
                scenarios[setup] = load_scenario(
                    dataset=dataset, task=options.task, setup=setup, order=options.order
                )
            except TissError as error:  # disjoint may leave a step without images
                problems[setup] = error
        if not scenarios:
            raise problems["overlapped"]
        counts = count_classes(dataset)
        totals = {split: max(1, sum(row.pixels[split] for row in counts)) for split in SPLITS}
        rows = [[str(row.label), row.name] for row in counts]
        for row, cells in zip(counts, rows, strict=True):
            for split in SPLITS:
                share = f"{100 * row.pixels[split] / totals[split]:.2f}"
                cells += [str(row.images[split]), str(row.pixels[split]), share]
        header = ("label", "class", "train images", "train pixels", "%", "test images", "test pixels", "%")
        print(f"{dataset.name} at {dataset.root_path()}\n" if dataset.root_path() else f"{dataset.name}\n")
        print(format_table(header, rows, options.table))
        first = next(iter(scenarios.values()))
        rows = []
        for step in first:
            names = ", ".join(step.new_classes[:6]) + (", …" if step.new > 6 else "")
            images = [str(len(scenario.lists[step.index])) for scenario in scenarios.values()]
            rows.append([str(step.index), str(step.new), names, *images, str(len(step.test))])
        header = ("step", "new", "classes", *(f"{setup} images" for setup in scenarios), "test images")
        print(f"\ntask {first.task}\n")
        print(format_table(header, rows, options.table))
        for setup, error in problems.items():
            print(f"{setup}: {error.message}")
        if options.plot:
            lists = {setup: [len(ids) for ids in scenario.lists] for setup, scenario in scenarios.items()}
            title = f"{dataset.name}, task {first.task}"
            plot_counts(counts, first.values, lists, title, Path(options.plot))
            print(f"\nplot: {options.plot}")
        return 0


class Convert:
    """Draws labels as masks: a pixel belongs to an outline if its centre is inside; where objects overlap, the one with
    fewer pixels is on top. Nothing is written if any label is broken.

    Examples:
      tiss data convert coco annotations.json --images photos --out my-data
      tiss data convert labelme labels --out my-data
    """

    @dataclass(frozen=True)
    class Options:
        kind: Literal["coco", "cvat", "labelme", "supervisely"] = setting(REQUIRED, "tool", positional=True)
        source: str = setting(
            REQUIRED, "coco: the JSON file; the others: the exported folder", positional=True
        )
        out: str = setting(REQUIRED, "new folder for images, masks and classes.txt")
        images: str | None = setting(None, "where the images are, if not where the tool puts them")
        classes: str | None = setting(
            None, "classes to keep, in order, with commas; others become background"
        )
        test_share: float = setting(0.2, "share of images for the test, by a hash of the id")
        overlap: Literal["smaller", "order"] = setting(
            "smaller", "on top: the smaller object, or the later one"
        )
        link: bool = setting(False, "link images instead of copying them")

    REMEDIES = {  # noqa: RUF012
        "coco": "To keep them, list them in the file's images; one without annotations is background.",
        "cvat": "To keep them, give them masks in SegmentationClass; an all-black one is background.",
        "labelme": "To keep them, label them; one with nothing on it takes an outline named background.",
        "supervisely": "To keep them, give them files in ann; one without objects is background.",
    }

    @staticmethod
    def run(options: Options) -> int:
        from tiss.cli.tables import format_table
        from tiss.data import convert

        source, out = Path(options.source).expanduser(), Path(options.out).expanduser()
        if not source.exists():
            raise TissError(f"{source}: no such file or folder")
        images = Path(options.images).expanduser() if options.images else None
        chosen = tuple(name.strip() for name in options.classes.split(",")) if options.classes else None
        found = convert.CONVERTERS[options.kind](source, images)
        how = convert.Options(options.test_share, options.overlap, options.link, chosen)
        written = convert.write_folder(found, out, how)
        print(
            f"{out}: {written.train} training and {written.test} test images, {len(written.classes)} classes\n"
        )
        rows = [
            [
                one.name,
                str(one.images),
                "" if one.objects is None else str(one.objects),
                f"{100 * one.share:.2f}",
            ]
            for one in convert.summarise(found, written)
        ]
        print(format_table(["class", "images", "objects", "% of pixels"], rows), end="\n\n")
        groups = [g for g in convert.find_lookalikes(found.classes) if set(g) & set(written.classes)]
        for group in groups:
            names = ", ".join(map(repr, group[:-1])) + f" and {group[-1]!r}"
            print(f"look: {names} differ only in upper and lower case, spaces or hyphens")
        if groups:
            print("  If they are one class, give them one name in the labels and convert again.")
        missing = convert.find_unlabelled(found)
        if missing:
            named = ", ".join(map(str, missing[:3])) + (", …" if len(missing) > 3 else "")
            plural = "s" if len(missing) > 1 else ""
            print(
                f"left out: {len(missing)} image{plural} without labels: {named}\n  {Convert.REMEDIES[options.kind]}"
            )
        for what, count in sorted(found.left_out.items()):
            print(f"left out: {count} {what}")
        print(f"check it with: tiss data verify folder --root {out}")
        return 0


COMMANDS = {"download": Download, "verify": verify, "stats": Stats, "convert": Convert}


def main(words: list[str]) -> int:
    """Runs one of the data commands; returns the exit code: 0, or 1 where verify found a fault."""
    if not words or words[0] in ("--help", "-h"):
        print(ABOUT)
        return 0
    if words[0] not in COMMANDS:
        raise TissError(suggest(words[0], COMMANDS, "command of tiss data"))
    return execute(f"data {words[0]}", COMMANDS[words[0]], words[1:])
