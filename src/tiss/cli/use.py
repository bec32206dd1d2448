"""Commands that use models: prediction, suggestions, comparison and export."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tiss.config import REQUIRED, setting
from tiss.errors import TissError


@dataclass(frozen=True)
class PredictOptions:
    model: str = setting(REQUIRED, "model folder, run folder or hub name", positional=True)
    path: tuple[str, ...] = setting(
        REQUIRED, "images, folders, patterns, videos, camera:0, - for raw frames from stdin", positional=True
    )
    out: str = setting("predictions", "folder for the results")
    size: int | None = setting(None, "shorter side at which the model sees images (None: the model's own)")
    native: bool = setting(False, "keep large images at their own size and slide a window over them")
    batch: int = setting(8, "images of one size segmented at once")
    every: int = setting(1, "of a video, take one frame out of this many")
    frames: int | None = setting(None, "of a video or camera, stop after this many frames")
    frame_size: str | None = setting(None, "of raw rgb24 frames from stdin, WIDTHxHEIGHT")
    opacity: float = setting(0.55, "opacity of the colours in the overlays, 0 to 1")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")

    def __post_init__(self) -> None:
        for name in ("batch", "every", "frames"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TissError(f"{value}: must be 1 or more", setting=name)
        if self.frame_size and not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}", self.frame_size):
            raise TissError(
                f"{self.frame_size}: give width and height, such as 640x480", setting="frame_size"
            )


def predict(options: PredictOptions) -> int:
    """Segments images, whole folders, patterns such as 'shots/*.jpg', videos, a camera (camera:0 is the first one,
    Ctrl-C stops it) and raw rgb24 frames from standard input (-). Writes into --out
      masks/      PNGs whose pixel values are class numbers, at the image's own size
      overlays/   the image with each class in its colour and a legend
      shares.csv  the share of each image that each class covers; shares.json has the same
    States the images per second. The same command resumes after a stop, except for streams. Files that cannot be read
    are listed in broken.txt; the exit code is then 1.

    Examples:
      tiss predict second shots --out segmented
      tiss predict second 'shots/*.jpg' night.mp4 --every 10 --out segmented
      tiss predict second aerial.tif --native --out segmented
      tiss predict second camera:0 --frames 100 --out live
      ffmpeg -i night.mp4 -f rawvideo -pix_fmt rgb24 - | tiss predict second - --frame-size 1280x720 --out segmented
    """
    from tiss.engine.progress import TerminalReporter
    from tiss.user.items import STDIN, find_items, import_av
    from tiss.user.model_source import find_source, open_predictor
    from tiss.user.predict import SETTINGS, predict_items

    out = Path(options.out).expanduser()
    items = find_items(options.path, out if (out / SETTINGS).is_file() else None)
    if any(item.is_video and str(item.path) != STDIN for item in items):
        import_av()
    size = tuple(map(int, options.frame_size.split("x"))) if options.frame_size else None
    source = find_source(options.model)
    predictor = open_predictor(source, options.size, options.native, options.device)
    how: Any = {"batch": options.batch, "every": options.every, "opacity": options.opacity}
    how |= {"frames": options.frames, "frame_size": size}
    done = predict_items(predictor, items, out, source.hash(), TerminalReporter(), **how)
    before = f" ({done.resumed} of them earlier)" if done.resumed else ""
    count = len(done.shares) - done.resumed
    speed = f", {count / done.seconds:.1f} per second with reading and writing" if count else ""
    print(f"{len(done.shares)} images{before}{speed}; masks, overlays and shares.csv are in {out}")
    for line in done.broken:
        print(f"tiss: left out: {line}", file=sys.stderr)
    return 1 if done.broken else 0


@dataclass(frozen=True)
class SuggestOptions:
    model: str = setting(REQUIRED, "model folder, run folder or hub name", positional=True)
    path: tuple[str, ...] = setting(REQUIRED, "images, folders or patterns to choose from", positional=True)
    count: int = setting(50, "number of images")
    labelled: str | None = setting(None, "images that have labels already: others like them come last")
    out: str = setting("suggested", "folder for list.txt and the contact sheet")
    size: int | None = setting(None, "shorter side at which the model sees images (None: the model's own)")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def suggest(options: SuggestOptions) -> int:
    """Which images to label next: those of which the model is unsure and that are unlike one another and unlike what
    is labelled. Near-duplicates are left out. Writes list.txt, one path per line, and sheet.png, a contact sheet.

    Examples:
      tiss suggest second shots --count 20
      tiss suggest second 'camera/*.jpg' --labelled warehouse --out next
    """
    from tiss.engine.progress import TerminalReporter
    from tiss.report.render import format_table
    from tiss.user import suggest as user
    from tiss.user.model_source import check_out

    out = check_out(options.out)
    known = [options.labelled] if options.labelled else ()
    how: Any = {
        "labelled": known,
        "size": options.size,
        "device": options.device,
        "reporter": TerminalReporter(),
    }
    found = user.suggest(options.model, options.path, options.count, **how)
    user.write_suggestions(out, found)
    rows = [(str(one.path), f"{one.uncertainty:.3f}", f"{one.novelty:.2f}") for one in found]
    print(format_table(("image", "uncertainty", "novelty"), rows))
    print(f"\n{len(found)} images: {out / 'list.txt'}, {out / 'sheet.png'}")
    return 0


@dataclass(frozen=True)
class CompareOptions:
    old: str = setting(REQUIRED, "the model before: a model folder, run folder or hub name", positional=True)
    new: str = setting(REQUIRED, "the model after", positional=True)
    data: str = setting(REQUIRED, "folder of images, labelled or not")
    out: str | None = setting(None, "folder for report.html and the images that lost most (None: text only)")
    size: int | None = setting(None, "shorter side at which both models see images (None: each its own)")
    images: str | None = setting(None, "more images on which to compare the area of the old classes")
    fail_below: str | None = setting(None, "limits, as in old:-1.0,new:50; exit code 1 below one of them")
    json: bool = setting(False, "print the result as JSON")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def compare(options: CompareOptions) -> int:
    """What a new model gained and what it lost. --data is a labelled folder (images/, masks/, classes.txt; images/test
    is used if it exists) or any folder of images. Classes with labels get their IoU under both models. Every old class
    gets the area that it covers under both, in red where it shrinks, and a warning names the classes that lost much.
    --out also writes a page with the images that lost most.
    --fail-below is for CI: limits for old (mean change of the old classes' IoU, in points), new (mean IoU of the new
    classes) and area (change of an old class's area in %, which needs no labels); a figure that cannot be measured on
    these images is below its limit.

    Examples:
      tiss compare first second --data warehouse
      tiss compare first second --data warehouse --fail-below old:-1.0,new:50
      tiss compare first second --data shots --out difference
    """
    from tiss.engine.progress import TerminalReporter
    from tiss.user.changes import check_limits, describe, read_limits
    from tiss.user.compare import compare_models, draw_worst, open_images, write_comparison
    from tiss.user.model_source import check_out, find_source, open_predictor

    limits = read_limits(options.fail_below) if options.fail_below else {}
    out = check_out(options.out) if options.out else None
    sources = find_source(options.old), find_source(options.new)
    old, new = (open_predictor(source, options.size, False, options.device) for source in sources)
    images = open_images(options.data, old.classes, new.classes)
    more = [open_images(options.images, old.classes, new.classes)] if options.images else []
    result = compare_models(old, new, images, TerminalReporter(), more)
    if out is not None:
        drawn = draw_worst(result, images, old, new)
        write_comparison(out, f"{options.old} and {options.new}", result, drawn)
    if options.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print("\n".join([*describe(result), *(f"  {caption}" for caption in result.captions().values())]))
        for line in result.broken:
            print(f"tiss: left out: {line}", file=sys.stderr)
        if out is not None:
            print(f"open {out / 'report.html'}")
    passed, line = check_limits(result, limits)
    if limits:
        print(line, file=sys.stderr if options.json else sys.stdout)
    return 0 if passed else 1


@dataclass(frozen=True)
class ExportOptions:
    model: str = setting(REQUIRED, "model folder, run folder or hub name", positional=True)
    format: Literal["onnx", "torch", "source"] = setting(
        "onnx", "onnx: for onnxruntime; torch: torch.export; source: of the library that the model came from"
    )
    out: str | None = setting(
        None, "file or folder to write (None: the model's name with .onnx, .pt2 or -source)"
    )
    data: str | None = setting(None, "images to check on: a file, folder or pattern (None: drawn ones)")
    size: int | None = setting(None, "shorter side of those images (None: the model's own)")
    fp16: bool = setting(False, "half precision: half the size, for GPUs and accelerators")


def export(options: ExportOptions) -> int:
    """One file that runs without tiss. Input: `images`, uint8, N × 3 × H × W, RGB (normalisation is inside the file).
    Output: `labels`, uint8, N × H × W, and `logits`. Batch and size are free where the model allows it; class names and
    colours are in NAME.labels.json beside it. The file is compared with the model on images and is not written if they
    differ. examples/run_onnx.py runs it without torch.
    --format source writes a model that was extended from another library's in that library's format, with more classes:
    a folder of transformers or segmentation_models.pytorch, or torchvision's weights.

    Examples:
      tiss export third --data shots
      tiss export third --fp16 --out third-fp16.onnx
      tiss export third --format torch --out third.pt2
      tiss export with-forklift --format source --out segformer-with-forklift
    """
    from tiss.user.export import SUFFIX, export_model, import_onnx, labels_path
    from tiss.user.foreign import save_source
    from tiss.user.model_source import check_out, find_source, open_predictor

    if options.format == "onnx":
        import_onnx()
    source = find_source(options.model)
    path = check_out(options.out or source.folder.resolve().name + SUFFIX[options.format])
    if options.format == "source":
        names = save_source(source.load(), path)
        print(f"{path}: {len(names)} classes: {', '.join(names)}")
        return 0
    predictor = open_predictor(source, options.size, False, "cpu")
    data = [options.data] if options.data else []
    check_out(str(labels_path(path)))
    done = export_model(predictor.model, path, options.format, predictor.size, data, options.fp16)
    print(
        f"{path}: free in {done.dynamic}; on {done.images} images {100 * done.equal:.2f} % of the pixels as "
        f"the model, logits within {done.difference:.1e}"
    )
    return 0
