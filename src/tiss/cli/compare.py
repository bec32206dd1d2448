"""What a new model gained and what it lost. --data is a labelled folder (images/, masks/, classes.txt; images/test is
used if it exists) or any folder of images. Classes with labels get their IoU under both models. Every old class gets
the area that it covers under both, in red where it shrinks. --out also writes a page with the images that lost most.

Examples:
  tiss compare first second --data warehouse
  tiss compare first second --data shots --out difference
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from tiss.config import REQUIRED, setting


@dataclass(frozen=True)
class Options:
    old: str = setting(REQUIRED, "the model before: a model folder, run folder or hub name", positional=True)
    new: str = setting(REQUIRED, "the model after", positional=True)
    data: str = setting(REQUIRED, "folder of images, labelled or not")
    out: str | None = setting(None, "folder for report.html and the images that lost most (None: text only)")
    size: int | None = setting(None, "shorter side at which both models see images (None: each its own)")
    json: bool = setting(False, "print the result as JSON")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def run(options: Options) -> int:
    from tiss.engine.progress import TerminalReporter
    from tiss.user.compare import compare_models, describe, open_images
    from tiss.user.model_source import check_out, find_source, open_predictor
    from tiss.user.page import write_comparison

    out = check_out(options.out) if options.out else None
    sources = find_source(options.old), find_source(options.new)
    old, new = (open_predictor(source, options.size, False, options.device) for source in sources)
    images = open_images(options.data, old.classes, new.classes)
    result = compare_models(old, new, images, TerminalReporter())
    if out is not None:
        write_comparison(out, f"{options.old} and {options.new}", result, images, old, new)
    if options.json:
        print(json.dumps(result.to_json(), indent=2))
        return 0
    print("\n".join(describe(result)))
    for name, value in result.worst:
        print(f"  {name}: {value:.1f} % of its pixels {result.verb}")
    for line in result.broken:
        print(f"tiss: left out: {line}", file=sys.stderr)
    if out is not None:
        print(f"open {out / 'report.html'}")
    return 0
