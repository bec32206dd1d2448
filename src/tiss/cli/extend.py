"""One step: MODEL, which stays as it is, learns new classes from a folder and becomes a new model. Only the new classes
need labels: old ones in the images may stay unlabelled. MODEL is a model folder, a run folder (its last step), or a
SegFormer in transformers' format, local or on the hub. The new model can be extended again.
The folder holds images/ and masks/ with files of the same names. Masks are PNGs: 0 = anything else, 255 = ignore,
class numbers in the order of classes.txt or, without that file, of --classes (1, 2, …).
Prints how well the new classes are segmented on held-out images, and what happened to the old ones.

Examples:
  tiss extend first --data tonight --classes forklift --out second
  tiss extend runs/voc-15-1-overlapped-mib-seed0 --data mine --classes "forklift,pallet" --out with-forklift
  tiss extend nvidia/segformer-b0-finetuned-ade-512-512 --data mine --classes forklift --out segformer-forklift
"""

from __future__ import annotations

from dataclasses import dataclass

from tiss.cli.train import StepOptions
from tiss.config import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class Options(StepOptions):
    model: str = setting(REQUIRED, "the model to extend", positional=True)
    data: str = setting(REQUIRED, "folder with the new images and their masks", sets="data.root")
    classes: str | None = setting(None, "new classes, with commas (None: those that the model does not know)")
    images: str | None = setting(None, "more images on which to compare the area of the old classes")


def run(options: Options) -> int:
    from tiss.engine.progress import TerminalReporter
    from tiss.user.train import extend

    outcome = extend(
        options.model,
        options.data,
        options.classes,
        options.out,
        options.choices(),
        options.holdout,
        TerminalReporter(),
        images=options.images,
        allow_pickle=options.allow_pickle,
        resume=options.resume,
    )
    print(outcome.text())
    print(f"\nmodel: {outcome.out}; images with the largest changes: {outcome.out / 'report.html'}")
    return 0
