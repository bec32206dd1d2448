"""`tiss train`: the first model from a folder of labelled pictures."""

from __future__ import annotations

from dataclasses import dataclass

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss train FOLDER --out MODEL [options]"
ABOUT = """
The first model, when there is none: learns every class of a labelled folder and writes a model folder that
`tiss extend`, `predict`, `export` and `app` take. FOLDER holds images/, masks/ (PNG, pixel value = class
number) and classes.txt (one name a line, `background` first); `tiss data convert` makes one from exports of
CVAT, labelme, COCO or Supervisely.
Pictures in images/test are kept for the test; without that folder, a fifth of the pictures is.
All that is not set follows from the number and the size of the pictures.
"""
EXAMPLES = """
tiss train warehouse --out first
tiss train warehouse --out first --encoder vit_small_patch16_384 --epochs 30
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class TrainOptions:
    out: str | None = setting(None, "the model folder to write; nothing may be there yet")
    encoder: str | None = setting(
        None, "encoder, see `tiss encoders` (None: a small ViT on a GPU, a tiny one elsewhere)"
    )
    decoder: str | None = setting(None, "decoder (None: the encoder's own)")
    pretrained: str | None = setting(
        "auto", "file, folder or hub name of pretrained weights; none: from nothing"
    )
    method: str = setting(
        "auto", "method, see `tiss methods` (auto: recall, which keeps what later steps need)"
    )
    epochs: int | None = setting(None, "times every picture is looked at (None: by the number of pictures)")
    batch: int | None = setting(None, "pictures an update (None: by the number of pictures)")
    lr: float | None = setting(None, "learning rate (None: the encoder's own)")
    size: int | None = setting(
        None, "side of the training crop (None: the pictures' usual size, 512 at most)"
    )
    freeze: bool = setting(
        False, "leave the pretrained encoder as it is: quick on a CPU, wise with few pictures"
    )
    holdout: float = setting(0.2, "share of the pictures kept for the test where there is no images/test")
    seed: int = setting(0, "seed of every random choice")
    device: str = setting("auto", "auto, cpu, cuda or mps")
    allow_pickle: bool = setting(False, "also read pretrained .pth files; safetensors need no such trust")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(TrainOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="FOLDER")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(TrainOptions, values)
    if len(rest) != 1 or options.out is None:
        raise TissError(
            "tiss train takes one folder and --out, for example: tiss train warehouse --out first"
        )
    return train_folder(rest[0], options)


@own_names(TrainOptions)
def train_folder(folder: str, options: TrainOptions) -> int:
    from tiss.config import ModelConfig
    from tiss.engine.progress import TerminalReporter
    from tiss.user.choices import Wishes, choose_encoder, choose_pretrained
    from tiss.user.learning import train

    encoder = options.encoder or choose_encoder(options.device)
    pretrained = choose_pretrained(encoder, options.pretrained)
    model = ModelConfig(encoder, options.decoder, pretrained, allow_pickle=options.allow_pickle)
    wishes = Wishes(
        options.method, options.epochs, options.batch, options.lr, options.size, options.seed, options.device
    )
    assert options.out is not None
    outcome = train(folder, options.out, model, wishes, options.holdout, TerminalReporter(), options.freeze)
    print(outcome.text())
    print(f"\nmodel: {outcome.out}; pictures and tables: {outcome.out / 'report.html'}")
    return 0
