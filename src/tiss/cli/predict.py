"""Segments images, whole folders, patterns such as 'shots/*.jpg' and videos. Writes into --out
  masks/      PNGs whose pixel values are class numbers, at the image's own size
  overlays/   the image with each class in its colour and a legend
  shares.csv  the share of each image that each class covers; shares.json has the same
The same command resumes after a stop. Files that cannot be read are listed in broken.txt; the exit code is then 1.

Examples:
  tiss predict second shots --out segmented
  tiss predict second 'shots/*.jpg' night.mp4 --every 10 --out segmented
  tiss predict second aerial.tif --native --out segmented
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tiss.config import REQUIRED, setting
from tiss.errors import TissError


@dataclass(frozen=True)
class Options:
    model: str = setting(REQUIRED, "model folder, run folder or hub name", positional=True)
    path: tuple[str, ...] = setting(REQUIRED, "images, folders, patterns, videos", positional=True)
    out: str = setting("predictions", "folder for the results")
    size: int | None = setting(None, "shorter side at which the model sees images (None: the model's own)")
    native: bool = setting(False, "keep large images at their own size and slide a window over them")
    batch: int = setting(8, "images of one size segmented at once")
    every: int = setting(1, "of a video, take one frame out of this many")
    opacity: float = setting(0.55, "opacity of the colours in the overlays, 0 to 1")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")

    def __post_init__(self) -> None:
        for name in ("batch", "every"):
            if getattr(self, name) < 1:
                raise TissError(f"{getattr(self, name)}: must be 1 or more", setting=name)


def run(options: Options) -> int:
    from tiss.engine.progress import TerminalReporter
    from tiss.user.model_source import find_source, open_predictor
    from tiss.user.predict import SETTINGS, find_items, import_av, predict_items

    out = Path(options.out).expanduser()
    items = find_items(options.path, out if (out / SETTINGS).is_file() else None)
    if any(item.is_video for item in items):
        import_av()
    source = find_source(options.model)
    done = predict_items(
        open_predictor(source, options.size, options.native, options.device),
        items,
        out,
        model_hash=source.hash(),
        batch=options.batch,
        every=options.every,
        opacity=options.opacity,
        reporter=TerminalReporter(),
    )
    before = f" ({done.resumed} of them earlier)" if done.resumed else ""
    print(f"{len(done.shares)} images{before}; masks, overlays and shares.csv are in {out}")
    for line in done.broken:
        print(f"tiss: left out: {line}", file=sys.stderr)
    return 1 if done.broken else 0
