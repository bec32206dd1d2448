"""`tiss extend`: a model that exists learns new classes from a few of your pictures."""

from __future__ import annotations

from dataclasses import dataclass

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = 'tiss extend MODEL --data FOLDER --classes "forklift,pallet" --out NEW [options]'
ABOUT = """
One step: MODEL, which stays as it is, learns new classes from FOLDER and becomes NEW. Only the new classes
need labels; where the pictures show old ones, they may stay unlabelled. MODEL is a model folder, a run folder
(its last step), or a SegFormer in transformers' format, here or on the hub. NEW can be extended again.
FOLDER holds images/ and masks/ with pictures of the same name; masks are PNGs: 0 = anything else, 255 =
ignore, class numbers in the order of classes.txt or, without that file, of --classes (1, 2, …).
At the end: how well the new classes are learnt on held-out pictures, and what became of the old ones.
"""
EXAMPLES = """
tiss extend first --data tonight --classes forklift --out second
tiss extend runs/voc-15-1-overlapped-mib-seed0 --data mine --classes "forklift,pallet" --out with-forklift
tiss extend nvidia/segformer-b0-finetuned-ade-512-512 --data mine --classes forklift --out segformer-forklift
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class ExtendOptions:
    data: str | None = setting(None, "folder with the new pictures and their masks")
    classes: str | None = setting(
        None, "names of the new classes, with commas (None: those the model does not know)"
    )
    out: str | None = setting(None, "the model folder to write; nothing may be there yet")
    method: str = setting(
        "auto", "recall, mib, … (auto: recall where the model kept its classes' statistics, else mib)"
    )
    epochs: int | None = setting(None, "times every picture is looked at (None: by the number of pictures)")
    batch: int | None = setting(None, "pictures an update (None: by the number of pictures)")
    lr: float | None = setting(None, "learning rate (None: the encoder's own)")
    size: int | None = setting(None, "side of the training crop (None: the model's)")
    holdout: float = setting(0.2, "share of the pictures kept for the test where there is no images/test")
    seed: int = setting(0, "seed of every random choice")
    device: str = setting("auto", "auto, cpu, cuda or mps")
    allow_pickle: bool = setting(False, "also read a hub model's .bin file; safetensors need no such trust")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(ExtendOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="MODEL")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(ExtendOptions, values)
    if len(rest) != 1 or options.data is None or options.out is None:
        raise TissError(f"tiss extend takes a model, --data and --out: {USAGE}")
    return extend_model(rest[0], options)


@own_names(ExtendOptions)
def extend_model(model: str, options: ExtendOptions) -> int:
    from tiss.engine.progress import TerminalReporter
    from tiss.user.choices import Wishes
    from tiss.user.learning import extend

    wishes = Wishes(
        options.method, options.epochs, options.batch, options.lr, options.size, options.seed, options.device
    )
    assert options.data is not None
    assert options.out is not None
    outcome = extend(
        model,
        options.data,
        options.classes,
        options.out,
        wishes,
        options.holdout,
        options.allow_pickle,
        TerminalReporter(),
    )
    print(outcome.text())
    print(f"\nmodel: {outcome.out}; pictures of the largest changes: {outcome.out / 'report.html'}")
    return 0
