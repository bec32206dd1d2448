"""Networks of other libraries as encoders: all of a network before its classifier, whose rows become the head's.

A description in the model folder rebuilds the network: the library, and the library's own configuration. A module that
was given to `tiss.wrap` cannot be rebuilt: whoever opens its folder calls `tiss.wrap` with the module first.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tiss.errors import TissError
from tiss.models.encoder import Encoder, EncoderOptions, Level, Maps, Need, Tuned
from tiss.models.libraries import LIBRARIES, Features
from tiss.models.pretrained import first_line

MODULE = "module"  # in place of a library's name: a module of the user's own


class Gap(nn.Identity):
    """In the classifier's place; some networks ask it for these."""

    stride = kernel_size = dilation = (1, 1)


class Wrapped(Encoder):
    """A network without its classifier. Its one map is what the classifier reads, so the head is the classifier.

    Batch norms keep the statistics of the images that the network was trained on: a few new images would replace them.
    """

    family = "cnn"  # whatever it is: only its last map can be asked for
    depth = 1
    contrast_blocks = None
    pod_needs = (0,)
    tuned = Tuned("adamw", lr=3e-3, step_lr=3e-3, encoder_lr=0.02, weight_decay=0.01, clip=1.0)

    def __init__(
        self, name: str, network: nn.Module, description: dict[str, Any], features: Features
    ) -> None:
        super().__init__()
        self.name, self.network, self.features = name, network, features
        self.stride, self.aligned = description["stride"], description["aligned"]
        self.bgr = description.get("bgr", False)
        layer = network.get_submodule(description["classifier"])
        width, self.kernel = read_layer(layer, description["classifier"])
        self.row_shape = tuple(layer.state_dict()["weight"].shape[1:])  # of the classifier's weights
        network.set_submodule(description["classifier"], Gap())
        self.channels = width * self.kernel**2
        self.pyramid = (Level(self.channels, description["scale"]),)

    def train(self, mode: bool = True) -> "Wrapped":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        wanted = self.resolve(needs)
        maps = neighbourhoods(
            self.features(self.network, images.flip(1) if self.bgr else images), self.kernel
        )
        return (maps,), (maps,) * len(wanted)


def read_layer(layer: nn.Module, name: str) -> tuple[int, int]:
    """The channels that a classifier reads, and the side of its kernel."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, 1
    if isinstance(layer, nn.Conv2d):
        kernel, same = layer.kernel_size[0], (layer.kernel_size[0] // 2,) * 2
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
        if plain and kernel % 2 and layer.kernel_size == (kernel, kernel) and layer.padding == same:
            return layer.in_channels, kernel
    raise TissError(
        f"{name} is a {type(layer).__name__}: the classifier must be a linear layer, or a convolution that keeps sizes"
    )


def neighbourhoods(maps: Tensor, kernel: int) -> Tensor:
    """N × D × h × w to N × D·k² × h × w: with each position its k × k neighbours, 0 outside the map.

    A k × k convolution of the map is then a linear layer at each position.
    """
    if kernel == 1:
        return maps
    height, width = maps.shape[-2:]
    padded = F.pad(maps, [kernel // 2] * 4)
    corners = [(top, left) for top in range(kernel) for left in range(kernel)]
    return torch.stack([padded[..., y : y + height, x : x + width] for y, x in corners], 2).flatten(1, 2)


KNOWN: dict[
    str, Callable[[EncoderOptions], Encoder]
] = {}  # what this process has opened, by the encoder's name


def register(description: dict[str, Any], own: tuple[nn.Module, Features] | None = None) -> str:
    """Makes the network of a description known to `make_encoder`; returns the encoder's name.

    `own` is the user's module, of which every model gets a copy, and what makes its map.
    """
    library, kind = str(description.get("library")), description.get("kind")
    name = f"{library}:{kind}-{digest(description)}"
    if own is not None:
        KNOWN[name] = lambda options: Wrapped(name, copy.deepcopy(own[0]), description, own[1])
    elif name not in KNOWN and library == MODULE:
        raise TissError(
            f"its network, a {kind}, exists in Python only: call tiss.wrap with it as before, then "
            "tiss.from_pretrained; on the command line use its ONNX file"
        )
    elif name not in KNOWN and library not in LIBRARIES:
        raise TissError(f"{library!r}: this version knows models of {', '.join(LIBRARIES)}")
    elif name not in KNOWN:
        KNOWN[name] = partial(build, name, description)
    return name


def build(name: str, description: dict[str, Any], options: EncoderOptions) -> Encoder:
    library = LIBRARIES[description["library"]]
    library.load()
    try:
        network = library.build(description["config"], classes=2)
        library.remove_head(network)
        return Wrapped(name, network, description, library.features)
    except Exception as error:  # another version of the library, or a damaged description
        raise TissError(f"{name}: {library.package} cannot rebuild it: {first_line(error)}") from error


def digest(description: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:8]
