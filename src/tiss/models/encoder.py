"""Encoders, the first of a model's three slots: images to a decoder's pyramid and the features that a method needs.

Everything that a method, a recipe or a decoder must know about one is an attribute, so that a pair that makes no
sense is refused before anything is loaded.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tiss.errors import TissError
from tiss.registry import Registry

Family = Literal["vit", "hierarchical", "cnn"]
Colours = tuple[float, float, float]
Maps = tuple[Tensor, ...]
Need = (
    int | str
)  # a block's index (negative from the end), "decoder", or a name that encoder or head declares

IMAGENET_MEAN: Colours = (0.485, 0.456, 0.406)
IMAGENET_STD: Colours = (0.229, 0.224, 0.225)
HALF: Colours = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Tuned:
    """Optimizer settings that fine-tune an encoder without destroying it (the recipe "tuned")."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 1e-2  # of decoder and head, at step 0
    step_lr: float = 1e-3  # of decoder and head, at every later step
    encoder_lr: float = 0.03  # factor on both, for the encoder
    weight_decay: float = 1e-4
    warmup: int = 0  # iterations
    clip: float | None = None


@dataclass(frozen=True)
class Level:
    """One map of the pyramid that a decoder reads."""

    channels: int
    stride: int  # input pixels per pixel of the map


@dataclass(frozen=True)
class EncoderOptions:
    """What a user may set when any encoder is built."""

    image_size: int | None = None  # the side that position embeddings are made for (None: the encoder's own)
    drop_path: float = 0.0


class MissingPackageError(TissError):
    """An encoder needs a package that is not installed."""


class Encoder(nn.Module):
    """Base of all encoders; a new one sets these attributes and writes `forward`."""

    name: str
    family: Family
    depth: int  # how many blocks can be asked for: needs 0 … depth − 1, or negative from the end
    channels: int  # of the last block's map
    stride: int  # both sides of the input must be multiples of it; the model pads
    any_size: bool = False  # takes images of any size, such as that at half its size which `levels` adds
    aligned: bool = False  # logits become pixels with align_corners=True
    pyramid: tuple[Level, ...]  # finest first; the last is the last block's map
    mean: Colours = IMAGENET_MEAN  # of RGB in 0..1
    std: Colours = IMAGENET_STD
    named_needs: tuple[str, ...] = ()  # further features that can be asked for by name
    contrast_blocks: tuple[int, int] | None  # first and last block of L_ct, equal in shape; None: no tokens
    pod_needs: tuple[Need, ...]  # the maps of local POD, without the logits
    default_decoder: str = "linear"
    decoder_channels: int = 256  # width of a decoder that has one of its own
    tuned: Tuned = Tuned()
    hub: str | None = None  # where published weights are, as owner/name
    default_image_size: int = 512
    checkpointing: bool = False  # recompute each block in the backward pass
    other_names: tuple[tuple[str, str], ...] = ()  # patterns of other libraries' names and what replaces them

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        """Normalised N × 3 × H × W to (pyramid, features), all N × D × h × w, features ordered as `needs`.

        The last block's feature is what the decoder reads, after a final norm where there is one.
        """
        raise NotImplementedError

    def resolve(self, needs: Sequence[Need]) -> tuple[Need, ...]:
        """`needs` with negative indices counted from the end; one that does not exist is an error."""
        resolved: list[Need] = []
        for need in needs:
            if need in self.named_needs:
                resolved.append(need)
            elif isinstance(need, int) and -self.depth <= need < self.depth:
                resolved.append(need % self.depth)
            else:
                known = ", ".join([f"blocks 0 to {self.depth - 1}", *self.named_needs])
                raise TissError(f"encoder {self.name} has no feature {need!r}: it has {known}")
        return tuple(resolved)

    def convert_pretrained(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A published checkpoint's tensors under this encoder's names; override where more differs."""
        renamed = {}
        for name, tensor in tensors.items():
            for pattern, replacement in self.other_names:
                name = re.sub(pattern, replacement, name)
            renamed[name] = tensor
        return renamed

    def run_block(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        """Runs one block, recomputed in the backward pass where checkpointing is on."""
        if self.checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)


MODULES = tuple(f"tiss.models.{name}" for name in ("vit", "resnet", "mit", "timm_encoder"))
ENCODERS: Registry[Callable[[EncoderOptions], Encoder]] = Registry("encoder", "encoders", MODULES)


def make_encoder(name: str, options: EncoderOptions) -> Encoder:
    """The encoder called `name`, with fresh weights.

    A name that is not registered may be one of timm's, or of another library's model that was opened.
    """
    if name not in ENCODERS:
        from tiss.models import timm_encoder, wrapped

        if name in wrapped.KNOWN:
            return wrapped.KNOWN[name](options)
        if timm_encoder.knows(name):
            return timm_encoder.TimmEncoder(name, options)
    return ENCODERS.get(name)(options)


@lru_cache(maxsize=8)  # a run asks several times, and a large encoder takes a second
def outline(name: str) -> Encoder:
    """The encoder called `name` with shapes only, to be read: nothing is allocated or can be computed."""
    with torch.device("meta"):
        return make_encoder(name, EncoderOptions())
