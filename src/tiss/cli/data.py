"""`tiss data`: download, verify, describe and convert data sets."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tiss import __version__
from tiss.config import REQUIRED, setting
from tiss.errors import TissError

if TYPE_CHECKING:
    from tiss.data.base import Dataset
    from tiss.data.checks import SplitReport
    from tiss.data.convert import Found, Written
    from tiss.scenarios.published import Comparison

Form = Literal["text", "markdown", "latex"]
Kind = Literal["coco", "colours", "cvat", "huggingface", "labelme", "labelstudio", "supervisely", "yolo"]
SETUPS = ("overlapped", "disjoint")


@dataclass(frozen=True)
class DownloadOptions:
    data: Literal["voc", "ade20k", "cityscapes"] = setting(REQUIRED, "data set", positional=True)
    root: str = setting("data", "folder for it")
    url: str | None = setting(None, "another address of the first file")
    checksum: str = setting("", "its checksum, KIND:HEX, or none (default: the published one)")
    sbd: str | None = setting(None, "voc: SBD's unpacked benchmark_RELEASE, if you have it")
    sbd_url: str | None = setting(None, "voc: another address of SBD's benchmark.tgz")
    sbd_checksum: str = setting("", "voc: its checksum, KIND:HEX, or none")
    keep: bool = setting(False, "keep the archives after unpacking")


def download(options: DownloadOptions) -> int:
    """Downloads a benchmark, checks its bytes and unpacks it. A transfer that broke off resumes when the same command
    is run again. VOC needs two files: VOC 2012 itself, and SBD, whose masks make the 10,582 training images that every
    published result uses.

    Examples:
      tiss data download voc --root data
    """
    from tiss.data import download as source

    root = Path(options.root).expanduser()
    if options.data == "cityscapes":
        print(source.CITYSCAPES.format(root=root / "cityscapes"))
        return 0
    if options.data == "voc":
        first = source.VOC2012.redirected(options.url, options.checksum)
        sbd = source.SBD.redirected(options.sbd_url, options.sbd_checksum)
        place = source.download_voc(root, first, Path(options.sbd) if options.sbd else sbd, options.keep)
    else:
        first = source.ADE20K.redirected(options.url, options.checksum)
        place = source.download_ade20k(root, first, options.keep)
    print(f"{place} is ready; check it with: tiss data verify {options.data} --root {place}")
    return 0


@dataclass(frozen=True)
class StatsOptions:
    data: str = setting(REQUIRED, "data set", positional=True, sets="data.name")
    root: str | None = setting(None, "folder that holds it", sets="data.root")
    task: str | None = setting(None, "task whose steps are shown (None: the data set's own)")
    order: str | None = setting(None, "order of the classes: names or numbers with commas, or random:SEED")
    plot: str | None = setting(None, "also draw it: .png, .svg or .pdf")
    table: Form = setting("text", "form of the tables")


def stats(options: StatsOptions) -> int:
    """Counts pixels and images of every class, and the images of every step of a task in both setups: as tables, and as
    a plot.

    Examples:
      tiss data stats voc --root VOCdevkit --task 15-1 --plot voc.svg
    """
    from tiss.data.base import DATASETS, SPLITS
    from tiss.data.checks import count_classes
    from tiss.report.render import format_table
    from tiss.scenarios import load_scenario

    dataset = DATASETS.get(options.data)(options.root)
    found, problems = {}, {}
    for setup in _setups(dataset):
        try:
            found[setup] = load_scenario(dataset=dataset, task=options.task, setup=setup, order=options.order)
        except TissError as error:  # disjoint may leave a step without images
            problems[setup] = error
    if not found:
        raise next(iter(problems.values()))
    counts = count_classes(dataset)
    rows = [[str(row.label), row.name] for row in counts]
    for split in SPLITS:
        total = max(1, sum(row.pixels[split] for row in counts))
        for row, cells in zip(counts, rows, strict=True):
            pixels = row.pixels[split]
            cells += [str(row.images[split]), str(pixels), f"{100 * pixels / total:.2f}"]
    heads = ("label", "class", "train images", "train pixels", "%", "test images", "test pixels", "%")
    print(f"{_place(dataset)}\n\n{format_table(heads, rows, options.table)}")
    scenario = next(iter(found.values()))
    steps = []
    for step in scenario:
        added = scenario.added(step)
        names = ", ".join(added[:6]) + (", …" if len(added) > 6 else "")
        lists = [str(len(one.lists[step.index])) for one in found.values()]
        steps.append([str(step.index), str(len(added)), names, *lists, str(len(step.test))])
    what = "domains" if scenario.domains else "classes"
    titles = ("step", "new", what, *(f"{setup} images" for setup in found), "test images")
    print(f"\ntask {scenario.task}\n\n{format_table(titles, steps, options.table)}")
    for setup, problem in problems.items():
        print(f"{setup}: {problem.message}")
    if options.plot:
        from tiss.report.plots import plot_counts

        sizes = {setup: [len(ids) for ids in one.lists] for setup, one in found.items()}
        title = f"{dataset.name}, task {scenario.task}"
        plot_counts(counts, scenario.values, sizes, title, Path(options.plot))
        print(f"\nplot: {options.plot}")
    return 0


def _setups(dataset: "Dataset") -> tuple[str, ...]:
    return ("domains",) if dataset.domains else SETUPS


def _place(dataset: "Dataset") -> str:
    return f"{dataset.name} at {dataset.root_path()}" if dataset.root_path() else dataset.name


@dataclass(frozen=True)
class ConvertOptions:
    kind: Kind = setting(REQUIRED, "tool", positional=True)
    source: str = setting(REQUIRED, "the tool's file or exported folder", positional=True)
    out: str = setting(REQUIRED, "new folder for images, masks and classes.txt")
    images: str | None = setting(None, "where the images are, if not where the tool puts them")
    classes: str | None = setting(None, "classes to keep, in order, with commas; others become background")
    test_share: float = setting(0.2, "share of images for the test, by a hash of the id")
    overlap: Literal["smaller", "order"] = setting("smaller", "on top: the smaller object, or the later one")
    link: bool = setting(False, "link images instead of copying them")


def convert(options: ConvertOptions) -> int:
    """Draws labels as masks: a pixel belongs to an outline if its centre is inside; where objects overlap, the one with
    fewer pixels is on top. Nothing is written if any label is broken; a broken image is named and left out. Look at
    contact.png in the new folder: it shows every class in colour on up to 20 images.

    What each tool takes:
      coco         the instances file
      colours      a folder with images, colour-coded masks and a legend (.csv or .txt: name,r,g,b), or the legend
      cvat         an export "CVAT for images 1.1" or "Segmentation mask"
      huggingface  a folder of Parquet files or of save_to_disk, with an image and a mask column
      labelme      a folder of JSON files
      labelstudio  the export "JSON", with --images DIR
      supervisely  the project's folder
      yolo         the folder with data.yaml, images and labels (Ultralytics, Roboflow)

    Examples:
      tiss data convert coco annotations.json --images photos --out my-data
      tiss data convert yolo roboflow-export --out my-data
    """
    from tiss.data import convert as tools
    from tiss.report.render import format_table

    source, out = Path(options.source).expanduser(), Path(options.out).expanduser()
    if not source.exists():
        raise TissError(f"{source}: no such file or folder")
    images = Path(options.images).expanduser() if options.images else None
    chosen = tuple(name.strip() for name in options.classes.split(",")) if options.classes else None
    tool = tools.TOOLS[options.kind]
    found = tool.read(source, images)
    done = tools.write_folder(
        found, out, tools.Options(options.test_share, options.overlap, options.link, chosen)
    )
    print(f"{out}: {done.train} training and {done.test} test images, {len(done.classes)} classes\n")
    rows = [
        [
            one.name,
            str(one.images),
            "" if one.objects is None else str(one.objects),
            str(one.pixels),
            f"{100 * one.share:.2f}",
        ]
        for one in (*done.classes, *([done.ignored] if done.ignored.pixels else []))
    ]
    print(format_table(["class", "images", "objects", "pixels", "% of pixels"], rows), end="\n\n")
    _print_findings(done, found, tool.keep)
    print(f"look at {out / 'contact.png'}, then: tiss data verify folder --root {out}")
    return 0


def _print_findings(done: "Written", found: "Found", keep: str) -> None:
    """What the user may want to correct in the labels."""
    from tiss.data import convert as tools

    alike = tools.find_lookalikes([one.name for one in done.classes], found.classes)
    for name, other in alike:
        print(f"look: {name!r} and {other!r} differ only in case, spaces, hyphens or one letter")
    if alike:
        print("  If they are one class, give them one name in the labels and convert again.")
    for problem in done.broken:
        print(f"not copied: {problem}")
    missing = tools.find_unlabelled(found)
    if missing:
        named = ", ".join(map(str, missing[:3])) + (", …" if len(missing) > 3 else "")
        print(f"left out: {len(missing)} without labels: {named}")
        print(f"  To keep them, {keep}.")
    for what, count in sorted(found.notes.items()):
        print(f"note: {count} {what}")


@dataclass(frozen=True)
class VerifyOptions:
    data: str = setting(REQUIRED, "voc, ade20k, cityscapes, folder, …", positional=True, sets="data.name")
    root: str | None = setting(None, "folder that holds the data set", sets="data.root")
    task: tuple[str, ...] | None = setting(None, "tasks to list, with commas (None: all published)")
    lists: str | None = setting(None, "folder of published lists, TASK-SETUP/train-K.txt or .npy")
    quick: bool = setting(False, "do not decode images, only check headers and ends")
    table: Form = setting("text", "form of the table")


def verify(options: VerifyOptions) -> int:
    """Reads every image and mask and lists all faults at once; then makes each step's list of images from the masks and
    compares it with the published count and SHA-256. The output can go into an appendix as it is. The exit code is 1 if
    anything is wrong.

    Examples:
      tiss data verify voc --root VOCdevkit
      tiss data verify voc --root VOCdevkit --task 15-1,19-1 --table latex
    """
    from tiss.data.base import SPLITS
    from tiss.data.checks import check_split, jpeg_masks, open_for_checking, shared_images
    from tiss.data.folder import Folder

    dataset, faults = open_for_checking(options.data, options.root)
    whole = not isinstance(dataset, Folder) or dataset.has_test()
    reports = [check_split(dataset, split, not options.quick) for split in (SPLITS if whole else SPLITS[:1])]
    _print_files(dataset, reports, options.quick)
    faults += [fault for report in reports for fault in report.faults]
    if faults:
        print("\n".join(f"fault: {fault}" for fault in faults))
        print(f"\nfaults: {len(faults)}; correct them and verify again: lists need whole data")
        return 1
    if not whole:
        print("test      no images/test: tiss train and extend hold some images out; tiss run needs one")
        return 0
    for warning in [*shared_images(dataset), *jpeg_masks(dataset)]:
        print(f"warning: {warning}")
    return _verify_lists(dataset, options)


def _print_files(dataset: "Dataset", reports: "list[SplitReport]", quick: bool) -> None:
    background = "0 = background" if dataset.has_background else "no background"
    how = "every mask decoded, images by header and end" if quick else "every image and mask decoded"
    print(f"data set  {_place(dataset)}, read by tiss {__version__}")
    print(f"classes   {len(dataset.classes)} ({background}, 255 = ignore); {how}")
    for report in reports:
        small, large = ("×".join(map(str, size)) for size in (report.smallest, report.largest))
        values = sorted(set(report.pixels) - {255})
        span = f"{values[0]} to {values[-1]}" if values else "none"
        void = 100 * report.pixels.get(255, 0) / max(1, sum(report.pixels.values()))
        print(
            f"{report.split:<9} {report.images} images, {small} to {large} pixels, labels {span}, "
            f"{void:.2f} % ignored, faults: {len(report.faults) or 'none'}"
        )


def _verify_lists(dataset: "Dataset", options: VerifyOptions) -> int:
    from tiss.data.base import SPLITS
    from tiss.data.checks import pixel_counts
    from tiss.report.render import format_table
    from tiss.scenarios import PARTITIONED, load_scenario
    from tiss.scenarios.published import compare_lists, compare_task, find_lists, published_tasks

    setups = _setups(dataset)
    asked = [(task, setup) for task in options.task or () for setup in setups]
    asked = asked or published_tasks(dataset.name)
    if not asked and not dataset.default_task:
        raise TissError(f"{dataset.name} has no task of its own; name one, such as 2-1", setting="task")
    given = Path(options.lists).expanduser() if options.lists else None
    if given and not given.is_dir():
        raise TissError(f"{given}: no such folder", setting="lists")
    pixels = pixel_counts(dataset, "train")
    differences = compare_lists(dataset.name, {split: dataset.ids(split) for split in SPLITS})
    rows: list[Comparison] = []
    impossible: dict[str, list[TissError]] = {}  # by task
    for task, setup in asked or [(dataset.default_task, setup) for setup in setups]:
        folder = find_lists(given, task, setup) if given else None
        if given and not folder:
            print(f"no lists of {task} {setup} in {given}: it needs a folder {task} or {task}-{setup} there")
        use = folder if dataset.name in PARTITIONED and setup == "disjoint" else None
        try:
            scenario = load_scenario(dataset=dataset, task=task, setup=setup, lists=use)
        except TissError as error:  # such as disjoint, where a step has no images: no fault of the data
            impossible.setdefault(task, []).append(error)
            if len(impossible[task]) == len(setups):
                raise
            print(f"not possible: {task} {setup}: {error.message}")
            continue
        rows += compare_task(pixels, scenario, folder, use is not None)
    heads = ("task", "setup", "step", "images", "published", "SHA-256 of the sorted ids", "")
    print(f"\n{format_table(heads, map(_row, rows), options.table)}")
    for row in rows:
        differences += [f"{row.task} {row.setup} step {row.step}: {line}" for line in row.explanation]
    for line in differences:
        print(f"difference: {line}")
    print(_summary(rows))
    if not all(row.comparable for row in rows):
        print(
            f"{dataset.name}'s published partition cannot be made again (its seed was lost): these rows are "
            "the package's own. With the published lists, --lists DIR (DIR/TASK/train-K.npy) compares them."
        )
    return 1 if differences or any(row.same is False for row in rows) else 0


def _row(row: "Comparison") -> tuple[str, ...]:
    published = "–" if row.published_images is None else str(row.published_images)
    verdict = {True: "same" if row.published_sha256 else "same count", False: "DIFFERS", None: ""}[row.same]
    verdict = verdict if row.comparable else "own partition"
    return (row.task, row.setup, str(row.step), str(row.images), published, row.sha256[:16], verdict)


def _summary(rows: "list[Comparison]") -> str:
    parts = []
    for hashed, words in ((True, "published lists confirmed by SHA-256"), (False, "by their count")):
        same = [row.same for row in rows if row.same is not None and bool(row.published_sha256) == hashed]
        parts += [f"{sum(same)} of {len(same)} {words}"] if same else []
    return f"{', '.join(parts)}." if parts else "Nothing is published of these lists."
