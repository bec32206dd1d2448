"""A first model from a labelled folder, for `tiss extend`, `predict`, `export` and `app`. FOLDER holds images/, masks/
(PNG, pixel value = class number) and classes.txt (one name per line, `background` first); `tiss data convert` makes
one from exports of CVAT, labelme, COCO or Supervisely. Images in images/test are kept for the test; without that
folder, a fifth of the images is. Settings that are not given follow from the number and the size of the images.

Examples:
  tiss train warehouse --out first
  tiss train warehouse --out first --encoder vit_small_patch16_384 --epochs 30
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiss.config import REQUIRED, setting

if TYPE_CHECKING:
    from tiss.user import choices


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What `tiss train` and `tiss extend` have in common."""

    out: str = setting(REQUIRED, "the model folder to write; it must not exist")
    method: str = setting(
        "auto", "method, see `tiss methods` (auto: recall if possible, else mib)", sets="method.name"
    )
    epochs: int | None = setting(
        None, "passes over the images (None: by their number)", sets="train.epochs train.step_epochs"
    )
    batch: int | None = setting(None, "images per optimizer step (None: by their number)", sets="train.batch")
    lr: float | None = setting(None, "learning rate (None: the encoder's own)", sets="train.lr train.step_lr")
    size: int | None = setting(
        None,
        "training crop (None: the model's; of a first model the images' usual size, at most 512); thin objects need "
        "a large one",
        sets="data.crop eval.size",
    )
    holdout: float = setting(0.2, "share of the images kept for the test where there is no images/test")
    seed: int = setting(0, "seed of every random choice")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    allow_pickle: bool = setting(
        False,
        "also read weights in .pth and .bin files; safetensors need no such trust",
        sets="model.allow_pickle",
    )
    resume: bool = setting(False, "resume from the last checkpoint of the same command")

    def choices(self) -> choices.Options:
        from tiss.user import choices

        return choices.Options(
            self.method, self.epochs, self.batch, self.lr, self.size, self.seed, self.device
        )


@dataclass(frozen=True, kw_only=True)
class Options(StepOptions):
    folder: str = setting(REQUIRED, "labelled folder", positional=True, sets="data.root")
    encoder: str | None = setting(
        None,
        "encoder, see `tiss encoders` (None: a small ViT on a GPU, a tiny one on a CPU)",
        sets="model.encoder",
    )
    decoder: str | None = setting(None, "decoder (None: the encoder's own)", sets="model.decoder")
    pretrained: str | None = setting(
        "auto", "file, folder or hub name of pretrained weights; none: from scratch", sets="model.pretrained"
    )
    freeze: bool = setting(False, "do not train the pretrained encoder: fast on a CPU, good with few images")


def run(options: Options) -> int:
    from tiss.config import ModelConfig
    from tiss.engine.progress import TerminalReporter
    from tiss.user.choices import choose_encoder, choose_pretrained
    from tiss.user.train import train

    encoder = options.encoder or choose_encoder(options.device)
    pretrained = choose_pretrained(encoder, options.pretrained)
    outcome = train(
        options.folder,
        options.out,
        ModelConfig(encoder, options.decoder, pretrained, allow_pickle=options.allow_pickle),
        options.choices(),
        options.holdout,
        TerminalReporter(),
        freeze=options.freeze,
        resume=options.resume,
    )
    print(outcome.text())
    print(f"\nmodel: {outcome.out}; images and tables: {outcome.out / 'report.html'}")
    return 0
