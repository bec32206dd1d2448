"""Commands that make models and pass them on: lists, training on one's own images, editing, upload, the web page."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tiss.cli.flags import NoOptions, is_first_process
from tiss.config import REQUIRED, setting
from tiss.user.options import ExtendOptions, TrainOptions

FAMILIES = {"vit": "ViT", "hierarchical": "Swin, SegFormer", "cnn": "CNN"}


def methods(options: NoOptions) -> int:
    """Lists every method, what it minimises, and the encoders that it works with."""
    from tiss.methods.base import METHODS
    from tiss.report.render import format_table

    rows = []
    for name in METHODS:
        method = METHODS.get(name)
        rows.append((name, method.summary, *("yes" if one in method.families else "no" for one in FAMILIES)))
    print(format_table(("name", "what it does", *FAMILIES.values()), rows))
    print("\ntiss run --method NAME --help shows a method's settings.")
    return 0


def encoders(options: NoOptions) -> int:
    """Lists every encoder with its size; timm's names work too if timm is installed."""
    from tiss.models import list_encoders
    from tiss.report.render import format_table

    heads = ("name", "family", "M parameters", "stride", "image size", "decoder")
    rows = []
    for one in list_encoders():
        count = sum(parameter.numel() for parameter in one.parameters())
        numbers = (f"{count / 1e6:.4g}", str(one.pyramid[-1].stride), str(one.default_image_size))
        rows.append((one.name, one.family, *numbers, one.default_decoder))
    print(format_table(heads, rows))
    print("\nAny other encoder of timm works by its name: pip install 'tiss[timm]'.")
    return 0


def train(options: TrainOptions) -> int:
    """A first model from a labelled folder, for `tiss extend`, `predict`, `export` and `app`. FOLDER holds images/,
    masks/ (PNG, pixel value = class number) and classes.txt (one name per line, `background` first); `tiss data
    convert` makes one from exports of CVAT, labelme, Label Studio, YOLO and others. Images in images/test are kept for
    the test; without that folder, a fifth of the images is. Settings that are not given follow from the number and the
    size of the images; thin objects need a large --size.

    Examples:
      tiss train warehouse --out first
      tiss train warehouse --out first --encoder vit_small_patch16_384 --epochs 30
    """
    from tiss.engine.progress import TerminalReporter
    from tiss.user import train as user

    text = user.train(options, TerminalReporter())
    if is_first_process():
        print(f"{text}\n\nmodel: {options.out}; images and tables: {options.out}/report.html")
    return 0


def extend(options: ExtendOptions) -> int:
    """One step: MODEL, which stays as it is, learns new classes from a folder and becomes a new model. Only the new
    classes need labels: old ones in the images may stay unlabelled. MODEL is a model folder, a run folder (its last
    step), or a model of another library: of transformers (SegFormer, UPerNet, DPT, BEiT and others) or
    segmentation_models.pytorch, local or on the hub, or a file of torchvision's weights (DeepLabV3, FCN). tiss export
    --format source writes these back with the new classes. The new model can be extended again.
    The folder holds images/ and masks/ with files of the same names. Masks are PNGs: 0 = anything else, 255 = ignore,
    class numbers in the order of classes.txt or, without that file, of --classes (1, 2, …).
    Prints how well the new classes are segmented on held-out images, and what happened to the old ones.

    Examples:
      tiss extend first --data tonight --classes forklift --out second
      tiss extend runs/voc-15-1-overlapped-mib-seed0 --data mine --classes "forklift,pallet" --out with-forklift
      tiss extend nvidia/segformer-b0-finetuned-ade-512-512 --data mine --classes forklift --out segformer-forklift
      tiss extend unet --names background,road,car --data mine --classes forklift --out unet-forklift
    """
    from tiss.engine.progress import TerminalReporter
    from tiss.user import train as user

    text = user.extend(options, TerminalReporter())
    if is_first_process():
        print(f"{text}\n\nmodel: {options.out}; images with the largest changes: {options.out}/report.html")
    return 0


@dataclass(frozen=True)
class ForgetOptions:
    model: str = setting(REQUIRED, "a model of analytic or lda", positional=True)
    classes: str = setting(REQUIRED, "the classes to remove, with commas")
    out: str = setting(REQUIRED, "the model folder to write; it must not exist")


def forget(options: ForgetOptions) -> int:
    """Removes classes from a model whose head was solved (--method analytic or lda, the default of `tiss train` with a
    pretrained encoder). MODEL stays as it is. No image is needed, and it takes seconds: the sums of the other classes
    stay, and the patches of a removed class count as background. So the result is the model that never had the class,
    except that these patches are background for certain, where that model would share them out among its classes.

    Examples:
      tiss forget second --classes forklift --out without
    """
    from tiss.user import edit

    print(edit.forget(options.model, options.classes, options.out))
    print(f"model: {options.out}")
    return 0


@dataclass(frozen=True)
class MergeOptions:
    one: str = setting(REQUIRED, "a model of analytic or lda", positional=True)
    two: str = setting(REQUIRED, "another one, made from the same base", positional=True)
    out: str = setting(REQUIRED, "the model folder to write; it must not exist")
    base: str | None = setting(None, "the model that both were made from (None: as their folders record it)")


def merge(options: MergeOptions) -> int:
    """Two people taught different classes to the same base model: makes the model that knows both. No image is needed,
    and it takes seconds. The result equals teaching both, one after the other in either order, up to rounding (and the
    order of the classes). Needs models whose head was solved (--method analytic or lda).

    Examples:
      tiss merge with-forklift with-pallet --out with-both
      tiss merge hers his --base first --out with-both
    """
    from tiss.user import edit

    print(edit.merge(options.one, options.two, options.out, options.base))
    print(f"model: {options.out}")
    return 0


@dataclass(frozen=True)
class PushOptions:
    model: str = setting(REQUIRED, "model folder or run folder", positional=True)
    name: str = setting(REQUIRED, "OWNER/NAME on the hub", positional=True)
    private: bool = setting(False, "make the repository private")
    message: str = setting("Add model", "commit message")


def push(options: PushOptions) -> int:
    """Uploads a model folder: config.json, model.safetensors and a card with its scenario, steps, scores, data and
    limits. Afterwards anyone can load it with tiss.from_pretrained("OWNER/NAME") and extend it with `tiss extend
    OWNER/NAME`. The access token is the hub's own (`hf auth login` or HF_TOKEN); HF_ENDPOINT names another hub.

    Examples:
      tiss push third my-team/forklifts
      tiss push runs/voc-15-1-overlapped-tiss-seed0/step-5 my-team/voc-15-1 --private
    """
    from tiss.user.model_source import find_source, push_model

    address = push_model(find_source(options.model), options.name, options.private, options.message)
    print(f"{address}\nload it with tiss.from_pretrained({options.name!r})")
    return 0


@dataclass(frozen=True)
class AppOptions:
    model: str = setting(REQUIRED, "run folder or model folder", positional=True)
    address: str = setting("127.0.0.1", "address to serve at; any but loopback needs a password")
    port: int = setting(7860, "port to serve at")
    user: str = setting("tiss", "name to log in with, if there is a password")
    password: str | None = setting(None, "better in TISS_APP_PASSWORD: others can see command lines")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    teach: bool = setting(False, "teach the model a class by painting it on a few images")
    images: str | None = setting(
        None, "with --teach: images to open: a folder, file or pattern (the first 64)"
    )
    out: str = setting("taught", "with --teach: the folder for what is saved there")


def app(options: AppOptions) -> int:
    """A page to try a model: drop an image and see it segmented, and slide through the steps to see what the model knew
    at each. Hover over the image to read the class of a pixel, tick classes off and on, put old and new side by side,
    and look at the run's curves and tables. The slider follows a run's steps, or a model's parents as far as their
    folders exist. Only this machine can open the page, unless --address says otherwise and a password is set.
    With --teach, for models of analytic and lda: open images, mark a new class on a few of them (a click proposes what
    looks alike), press Teach, see within seconds what the new model says on all of them, correct, and save the model
    and its labels below --out. All who open this page work on the same images.

    Examples:
      tiss app third
      tiss app third --teach --images shots
      tiss app runs/demo/tiss-seed0 --port 8000
      TISS_APP_PASSWORD=... tiss app third --address 0.0.0.0
    """
    from tiss.app import teach
    from tiss.app.server import PASSWORD, Place, build, check_place, import_gradio, serve
    from tiss.app.steps import open_steps

    password = options.password or os.environ.get(PASSWORD)
    place = Place(options.address, options.port, options.user, password)
    check_place(place)
    import_gradio()
    with ExitStack() as stack:
        if options.teach:
            teaching = teach.open_teaching(options.model, options.images, options.device)
            stack.callback(teaching.close)
            page = teach.page_of(teaching, Path(options.out).expanduser())
        else:
            steps, folder = open_steps(options.model, options.device), Path(options.model).expanduser()
            page = lambda gradio, _: build(gradio, steps, folder)  # noqa: E731
        try:
            serve(page, place, lambda url: print(f"{url}  (stop with Ctrl-C)", flush=True))
        except KeyboardInterrupt:
            print("stopped")
    return 0
