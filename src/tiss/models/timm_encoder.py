"""timm's networks as encoders, Swin among them: the one file that imports timm, when one is built."""

import sys
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tiss.errors import TissError
from tiss.models.encoder import (
    ENCODERS,
    Encoder,
    EncoderOptions,
    Level,
    Maps,
    MissingPackageError,
    Need,
    Tuned,
)
from tiss.models.layers import as_map

SWIN = (
    "swin_tiny_patch4_window7_224",
    "swin_small_patch4_window7_224",
    "swin_base_patch4_window7_224",
    "swin_base_patch4_window12_384",
)
MICRO = {"img_size": 64, "window_size": 4, "embed_dim": 8, "depths": (1, 1, 1, 2), "num_heads": (1, 1, 2, 2)}


@cache
def import_timm() -> ModuleType:
    """timm, which imports torchvision; if it is missing, an error says how to install it."""
    declare_torchvision_operators()
    try:
        import timm
    except ImportError as error:
        raise MissingPackageError(f"this encoder needs timm: pip install 'tiss[timm]' ({error})") from error
    return timm


def declare_torchvision_operators() -> None:
    """Lets torchvision's CUDA wheel be imported beside a CPU-only torch.

    Its operators fail to load there, and its import registers kernels for them (pytorch/vision issue 9077).
    """
    if torch.version.cuda is not None or "torchvision" in sys.modules:
        return
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)


def knows(name: str) -> bool:
    """Whether timm is installed and has a model of that name."""
    try:
        return bool(import_timm().is_model(name))
    except MissingPackageError:
        return False


def create(name: str, **settings: Any) -> Any:
    """A network of timm with fresh weights; settings that this kind of network does not take are left out."""
    optional = ("img_size", "dynamic_img_size", "strict_img_size", "drop_path_rate")
    while True:
        try:
            return import_timm().create_model(name, pretrained=False, num_classes=0, **settings)
        except TypeError as error:
            refused = [key for key in optional if key in settings and repr(key) in str(error)]
            if not refused:
                raise
            if refused[0] == "drop_path_rate" and settings["drop_path_rate"] > 0:
                message = f"{settings['drop_path_rate']:g}: {name} has no stochastic depth; leave it at 0"
                raise TissError(message, setting="model.drop_path") from error
            settings.pop(refused[0])


class TimmEncoder(Encoder):
    """Any network of timm that returns intermediate maps.

    If all its maps have one resolution it is a vision transformer and every block can be asked for. Otherwise
    its stages count as blocks, and there are no patch tokens of equal shape for the contrast losses.
    """

    network: Any
    _checkpointing = False

    def __init__(self, name: str, options: EncoderOptions) -> None:
        super().__init__()
        self.name = name
        size, drop_path = options.image_size, options.drop_path
        network = create(name, img_size=size, dynamic_img_size=True, drop_path_rate=drop_path)
        if not hasattr(network, "forward_intermediates"):
            message = f"{name}: timm gives no intermediate maps for it; take another"
            raise TissError(message, setting="model.encoder")
        strides = [info["reduction"] for info in network.feature_info]
        channels = [info["num_chs"] for info in network.feature_info]
        self.depth, self.channels, self.stride = len(strides), channels[-1], max(strides)
        levels = tuple(Level(*level) for level in zip(channels, strides, strict=True))
        plain = len(set(strides)) == 1
        self.family = "vit" if plain else "cnn"
        self.contrast_blocks = (0, self.depth - 1) if plain else None
        self.pod_needs = tuple(range(2, self.depth, 3)) if plain else tuple(range(self.depth))
        self.pyramid = levels[-1:] if plain else tuple(level for level in levels if level.stride >= 4)
        self.default_decoder = "linear" if plain else "deeplabv3"
        network.prune_intermediate_layers(self.depth, prune_norm=False, prune_head=True)
        if hasattr(network, "head"):  # what pruning leaves of it would never get a gradient
            network.head = nn.Identity()
        self.network = network
        self.take_configuration(network.pretrained_cfg)

    @property
    def checkpointing(self) -> bool:
        """Recompute blocks in the backward pass; the network does it itself."""
        return self._checkpointing

    @checkpointing.setter
    def checkpointing(self, value: bool) -> None:
        self._checkpointing = value
        self.network.set_grad_checkpointing(value)

    def take_configuration(self, configuration: dict[str, Any]) -> None:
        self.mean, self.std = tuple(configuration["mean"]), tuple(configuration["std"])
        self.default_image_size = configuration["input_size"][-1]
        self.hub = configuration.get("hf_hub_id")

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        wanted = self.resolve(needs)
        final, maps = self.network.forward_intermediates(images, output_fmt="NCHW")
        last = final  # tokens or a map in any order
        if final.ndim == 3:
            last = as_map(final[:, getattr(self.network, "num_prefix_tokens", 0) :], *maps[-1].shape[-2:])
        elif getattr(self.network, "output_fmt", "") == "NHWC":
            last = final.permute(0, 3, 1, 2)
        maps = (*maps[:-1], last)
        return maps[-len(self.pyramid) :], tuple(maps[int(need)] for need in wanted)

    def convert_pretrained(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """timm's own conversion of a published file, then the names within this encoder."""
        tensors = {name.removeprefix("network."): tensor for name, tensor in tensors.items()}
        fit = getattr(sys.modules[type(self.network).__module__], "checkpoint_filter_fn", None)
        if fit is not None:
            tensors = fit(tensors, self.network)
        known = self.network.state_dict().keys()
        return {
            f"network.{name}": tensor
            for name, tensor in tensors.items()
            if name in known or not name.startswith(("head", "fc", "classifier"))
        }


class SwinEncoder(TimmEncoder):
    """timm's Swin, run block by block, so that every block can be asked for.

    `settings` are where it differs from the tiny one; empty for a network that timm has under this name.
    """

    family = "hierarchical"
    default_decoder = "mlp"
    tuned = Tuned("adamw", lr=6e-4, step_lr=6e-5, encoder_lr=0.1, weight_decay=0.01, warmup=500, clip=1.0)

    def __init__(self, name: str, settings: dict[str, Any], options: EncoderOptions) -> None:
        Encoder.__init__(self)
        self.name = name
        # windows never larger than at the published size: the tables of relative positions keep their shapes
        own = settings.get("img_size") or int(name[-3:])
        size = max(options.image_size or own, own)
        base = "swin_tiny_patch4_window7_224" if settings else name
        settings = settings | {"img_size": size, "strict_img_size": False}
        self.network = create(base, drop_path_rate=options.drop_path, **settings)
        depths = [len(layer.blocks) for layer in self.network.layers]
        ends = [sum(depths[: stage + 1]) - 1 for stage in range(len(depths))]
        self.depth = sum(depths)
        self.pyramid = tuple(Level(info["num_chs"], info["reduction"]) for info in self.network.feature_info)
        self.channels, self.stride = self.pyramid[-1].channels, self.pyramid[-1].stride
        self.decoder_channels = min(512, 4 * self.pyramid[0].channels)
        self.pod_needs = tuple(ends)
        self.contrast_blocks = (ends[-2] + 1, ends[-1])  # stages differ in shape: those of the last one
        self.take_configuration(self.network.pretrained_cfg)
        self.default_image_size = own

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        wanted = self.resolve(needs)
        found: dict[Need, Tensor] = {}
        pyramid: list[Tensor] = []
        maps, index = self.network.patch_embed(images), 0  # N × h × w × D throughout
        for layer in self.network.layers:
            maps = layer.downsample(maps)
            for block in layer.blocks:
                maps = self.run_block(block, maps)
                if index in wanted:
                    found[index] = maps.permute(0, 3, 1, 2)
                index += 1
            pyramid.append(maps.permute(0, 3, 1, 2))
        pyramid[-1] = self.network.norm(maps).permute(0, 3, 1, 2)
        found[self.depth - 1] = pyramid[-1]
        return tuple(pyramid), tuple(found[need] for need in wanted)


for swin, different in [*((name, {}) for name in SWIN), ("swin_micro", MICRO)]:
    ENCODERS.register(swin)(partial(SwinEncoder, swin, different))
