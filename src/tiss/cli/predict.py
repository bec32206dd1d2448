"""`tiss predict`: segment pictures, folders and videos."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss predict MODEL PATH... [options]"
ABOUT = """
Segments pictures, whole folders, patterns such as 'shots/*.jpg' and videos. Into --out come
  masks/      PNGs whose pixel values are class numbers, of the picture's own size
  overlays/   the picture with each class in its colour and a legend
  shares.csv  the share of each picture that each class covers; shares.json is the same
Started again, it goes on where it stopped. A file that cannot be read is listed in broken.txt and passed
over; the exit code is then 1.
"""
EXAMPLES = """
tiss predict second shots --out segmented
tiss predict second 'shots/*.jpg' night.mp4 --every 10 --out segmented
tiss predict second aerial.tif --native --out segmented
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class PredictOptions:
    out: str = setting("predictions", "folder for the results")
    size: int | None = setting(
        None, "shorter side at which the model looks, and its window (None: the model's own)"
    )
    native: bool = setting(False, "leave large pictures at their own size and slide the window over them")
    batch: int = setting(8, "pictures of one size segmented together")
    every: int = setting(1, "of a video, one frame in so many")
    opacity: float = setting(0.55, "of the colours in the overlays, 0 to 1")
    device: str = setting("auto", "auto, cpu, cuda or mps")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(PredictOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="MODEL PATH")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(PredictOptions, values)
    if len(rest) < 2:
        raise TissError("tiss predict takes a model and pictures, for example: tiss predict second shots")
    for name in ("batch", "every"):
        if getattr(options, name) < 1:
            raise TissError(f"--{name} must be 1 or more")
    return predict(rest[0], rest[1:], options)


@own_names(PredictOptions)
def predict(model: str, paths: list[str], options: PredictOptions) -> int:
    from tiss.engine.progress import TerminalReporter
    from tiss.user.inputs import find_items, import_av
    from tiss.user.predicting import SETTINGS, predict_items
    from tiss.user.source import find_source, open_segmenter

    out = Path(options.out).expanduser()
    items = find_items(paths, out if (out / SETTINGS).is_file() else None)
    if any(item.is_video for item in items):
        import_av()
    source = find_source(model)
    segmenter = open_segmenter(source, options.size, options.native, options.device)
    done = predict_items(
        segmenter,
        items,
        out,
        model_hash=source.hash(),
        batch=options.batch,
        every=options.every,
        opacity=options.opacity,
        reporter=TerminalReporter(),
    )
    before = f" ({done.resumed} of them earlier)" if done.resumed else ""
    print(f"{len(done.shares)} pictures{before}; masks, overlays and shares.csv are in {out}")
    for line in done.broken:
        print(f"tiss: passed over: {line}", file=sys.stderr)
    return 1 if done.broken else 0
