"""Models that somebody else trained, with another library, as models of tiss; and back into that library's format.

A model without a background channel gets one: its row is the mean of the classes' rows, and its bias makes its median
probability over the given images 0.01. The model is refused if this changes more than 1 % of its predictions.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiss.data.classes import BACKGROUND_NAMES
from tiss.engine.device import choose_device
from tiss.engine.predictor import resize
from tiss.errors import TissError
from tiss.evaluation.evaluate import slide_logits
from tiss.files import atomic_folder
from tiss.files.atomic import replacing
from tiss.models import SegmentationModel
from tiss.models.encoder import IMAGENET_MEAN, IMAGENET_STD, Colours, EncoderOptions, make_encoder
from tiss.models.libraries import LIBRARIES, Checkpoint, Features, read_lines
from tiss.models.model import Architecture
from tiss.models.pretrained import first_line
from tiss.models.wrapped import MODULE, Wrapped, read_layer, register
from tiss.user.options import ExtendOptions

PROBABILITY = 0.01  # of the added background, in the median
MUST_STAY = 0.99  # share of pixels whose class the added background must not change
MOST_CLASSES = 253


def from_foreign(
    library: str,
    path: Path,
    images: Sequence[Tensor],
    options: ExtendOptions,
) -> SegmentationModel:
    """The model of `library` at `path`, channel 0 the background; `images` (uint8 3 × H × W) set its bias."""
    found = LIBRARIES[library].read(path, options.allow_pickle)
    found = replace(found, size=options.size or found.size)
    given = found.names
    if options.names is not None:
        file = Path(options.names).expanduser()
        given = read_lines(file) if file.is_file() else [name.strip() for name in options.names.split(",")]
    if given is None:
        raise TissError(
            f"{path}: its files do not name its classes: give all of them in order, the background as 'background'",
            setting="names",
        )
    return convert(found, given, images, options.device, path)


def wrap(
    module: nn.Module,
    *,
    classifier: str,
    classes: Sequence[str],
    features: Features | None = None,
    mean: Colours = IMAGENET_MEAN,
    std: Colours = IMAGENET_STD,
    size: int = 512,
    stride: int = 32,
    images: Sequence[Tensor] = (),
    device: str = "auto",
) -> SegmentationModel:
    """Any network as a model of tiss, with a copy of its weights.

    Until the process ends, `tiss.from_pretrained` opens models that were made of it as well.

    Args:
        classifier: the name, within the module, of the last layer: a linear layer or a convolution.
        classes: one name for each of its outputs.
        features: from the module without its classifier and normalised images N × 3 × H × W to the map N × D × h × w
            that the classifier reads; None calls the module.
        mean: with `std`, of RGB in 0..1.
        size: the shorter side at which the module sees images.
        stride: both sides of an image are padded to a multiple of it.
        images: some images, uint8 3 × H × W; needed if no class is called background.
    """
    kind = type(module).__name__
    state = module.state_dict()
    if f"{classifier}.weight" not in state:
        raise TissError(f"{kind} has no layer {classifier!r} with weights", setting="classifier")
    read_layer(module.get_submodule(classifier), classifier)
    description = {
        "library": MODULE,
        "kind": kind,
        "classifier": classifier,
        "shapes": [[name, *tensor.shape] for name, tensor in state.items()],
        "stride": stride,
        "aligned": False,
    }

    def apply(network: nn.Module, pixels: Tensor) -> Tensor:
        return network(pixels) if features is None else features(network, pixels)

    own = copy.deepcopy(module).cpu(), apply
    found = Checkpoint(description, own[0].state_dict(), None, size, mean, std)
    return convert(found, list(classes), images, device, Path(kind), own)


def convert(
    found: Checkpoint,
    names: list[str],
    images: Sequence[Tensor],
    device: str,
    path: Path,
    own: tuple[nn.Module, Features] | None = None,
) -> SegmentationModel:
    """The model of a checkpoint, its channels reordered so that the background is the first."""
    layer, state = found.description["classifier"], dict(found.state)
    rows = state.pop(f"{layer}.weight").flatten(1)
    biases = state.pop(f"{layer}.bias", rows.new_zeros(len(rows)))
    background = next((index for index, name in enumerate(names) if name.lower() in BACKGROUND_NAMES), None)
    if len(rows) == 1 and len(names) == 1 + (background is not None):
        # a sigmoid: the same as a softmax over 0 and z
        background, names = 0, ["background", *(n for i, n in enumerate(names) if i != background)]
        rows, biases = (torch.cat([torch.zeros_like(one), one]) for one in (rows, biases))
    check_names(names, len(rows), path)
    order = sorted(range(len(names)), key=lambda index: index != background)  # the background first
    classes = ["background", *(names[index] for index in order if index != background)]
    description = found.description | {"labels": names}
    description["scale"] = map_stride(description, own, state, found.size, path)
    encoder = register(description, own)
    model = SegmentationModel(
        Architecture(encoder, "linear", "linear", found.size, network=description), classes
    )
    wrapped = model.encoder
    assert isinstance(wrapped, Wrapped)
    wrapped.mean, wrapped.std = found.mean, found.std
    model.body.take_colours()
    wrapped.network.load_state_dict(state)
    rows, biases = rows[order], biases[order]
    if background is None:  # its row is the mean of the others, with a bias to be set
        rows = torch.cat([rows.mean(dim=0, keepdim=True), rows])
        biases = torch.cat([biases.new_zeros(1), biases])
    with torch.no_grad():
        model.head.rows[0].copy_(rows)
        model.head.biases[0].copy_(biases)
    model.record = {"eval_size": found.size, "source": description["library"], "recipe": "tuned"}
    model.eval()
    if background is None:
        if not images:
            raise TissError(f"{path}: no class is called background: give some images", setting="images")
        add_background(model, images, found.size, choose_device(device), path)
    return model


def check_names(names: list[str], outputs: int, path: Path) -> None:
    if not 1 <= outputs <= MOST_CLASSES:
        raise TissError(f"{path}: {outputs} classes: between 1 and {MOST_CLASSES} can be extended")
    if len(names) != outputs:
        raise TissError(f"{path}: {len(names)} class names for {outputs} outputs of its classifier")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TissError(f"{path}: names the class {twice!r} twice: class names must be unique")


def map_stride(
    description: dict[str, Any],
    own: tuple[nn.Module, Features] | None,
    state: dict[str, Tensor],
    size: int,
    path: Path,
) -> int:
    """The input pixels per pixel of the map that the network gives without its classifier, which is run once."""
    encoder = make_encoder(register(description | {"scale": 1}, own), EncoderOptions()).eval()
    assert isinstance(encoder, Wrapped)
    encoder.network.load_state_dict(state)
    side = size + -size % encoder.stride
    try:
        with torch.inference_mode():
            ((maps,), _) = encoder(torch.zeros(1, 3, side, side))
        found = tuple(maps.shape)
    except Exception as error:  # a network may raise anything
        raise TissError(
            f"{path}: cannot be run on images of {side} × {side}: {first_line(error)}", setting="size"
        ) from error
    if len(found) != 4 or found[1] != encoder.channels:
        width = encoder.channels // encoder.kernel**2
        raise TissError(
            f"{path}: without its classifier it must give a map N × {width} × h × w, not {found}: give a function",
            setting="features",
        )
    return max(1, round(side / found[-1]))


def save_source(model: SegmentationModel, out: str | Path) -> list[str]:
    """Writes a model that came from another library in that library's format; returns its classes in their order there.

    Classes that it had keep their numbers. A module's weights become a file for `load_state_dict`.
    """
    out = Path(out)
    description = model.architecture.network
    if description is None:
        raise TissError("it was made by tiss, not by another library: use onnx or torch", setting="format")
    labels = description["labels"]
    own = next((name for name in labels if name.lower() in BACKGROUND_NAMES), "background")
    names = [own, *model.classes[1:]]
    order = sorted(
        range(len(names)), key=lambda i: labels.index(names[i]) if names[i] in labels else len(labels)
    )
    listed = [names[index] for index in order]
    rows, biases = (part.detach().cpu()[order] for part in model.head.joined())
    encoder, layer = model.encoder, description["classifier"]
    assert isinstance(encoder, Wrapped)
    state = {name: tensor.cpu() for name, tensor in encoder.network.state_dict().items()}
    state |= {f"{layer}.weight": rows.reshape(len(rows), *encoder.row_shape), f"{layer}.bias": biases}
    library = LIBRARIES.get(description["library"])
    out.parent.mkdir(parents=True, exist_ok=True)
    if library is None or library.one_file:
        with replacing(out) as temporary:
            torch.save(state, temporary)
        return listed
    network = library.build(description["config"], len(rows))
    network.load_state_dict(state)
    with atomic_folder(out) as folder:
        library.save(network, folder, listed, description)
    return listed


@torch.no_grad()  # in inference mode a parameter that moves to a GPU could never be trained again
def add_background(
    model: SegmentationModel, images: Sequence[Tensor], size: int, device: str, path: Path
) -> None:
    """Sets the bias of channel 0 so that the median of p_0 over all pixels is 0.01:
    β_0 = log(0.01 / 0.99) − median(z_0 − logsumexp(z_1, …)), since the logistic function is monotonic."""
    model.to(device)
    margins, best = [], []
    for image in images:
        logits = slide_logits(model, resize(image[None].to(device), size), window=size)[0]
        rest = logits[1:]
        margins.append((logits[0] - rest.logsumexp(dim=0)).flatten().cpu())
        best.append((logits[0] - rest.amax(dim=0)).flatten().cpu())
    bias = math.log(PROBABILITY / (1 - PROBABILITY)) - float(torch.cat(margins).median())
    stay = float((torch.cat(best) + bias <= 0).float().mean())
    if stay < MUST_STAY:
        raise TissError(
            f"{path}: has no background class, and one would change {100 * (1 - stay):.1f} % of its "
            "predictions on these images (more than 1 %): it cannot be extended"
        )
    model.head.biases[0][0] = bias
    model.to("cpu")
