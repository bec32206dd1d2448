"""The second and the third slot: decoders, from an encoder's pyramid to one map, and heads, one logit per class.

A head grows by one group of classes per step. The rows of each step are separate parameters, so that those of
earlier steps can be frozen exactly, weight decay included; the forward pass concatenates them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.errors import TissError
from tiss.models.encoder import Encoder, Need
from tiss.models.layers import Block, as_map, initialise_transformer
from tiss.registry import Registry

Initialise = Literal["background", "copy", "random"]

RATES = {16: (6, 12, 18), 8: (12, 24, 36)}  # of ASPP, by the stride of the map; the same reach in pixels


class Decoder(nn.Module):
    """Base of all decoders; a new one sets these attributes and writes `forward`."""

    channels: int  # of the map that it gives
    stride: int  # input pixels per pixel of the map
    needs: tuple[Need, ...] = ()  # features of the encoder that it reads before the pyramid
    halved: bool = False  # whether it reads, after the pyramid, the last map of the image at half its size
    parts: int = 1  # maps of equal width that its map consists of
    default_head: str = "linear"

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        """The features named in `needs`, then the encoder's maps, finest first, and perhaps half, to N × D × h × w."""
        raise NotImplementedError


DECODERS: Registry[Callable[[Encoder], Decoder]] = Registry("decoder", "decoders")


@DECODERS.register("linear")
class LinearDecoder(Decoder):
    """Hands on the encoder's last map: the paper's linear decoder is the head's one layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.channels = encoder.pyramid[-1].channels
        self.stride = encoder.pyramid[-1].stride

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        return pyramid[-1]


@DECODERS.register("levels")
class LevelsDecoder(Decoder):
    """Three maps of a vision transformer, each normalised: after three quarters of its blocks, after all, and after all
    of the image at half its size.

    The first changes less with light and season, the second knows most about objects, and the third sees more around
    a patch.
    """

    parts, halved = 3, True

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if not encoder.any_size:
            problem = f"levels needs a vision transformer of any input size, not {encoder.name}: use linear"
            raise TissError(problem, setting="model.decoder")
        self.needs = (max(1, encoder.depth * 3 // 4) - 1,)
        self.channels, self.stride = self.parts * encoder.channels, encoder.stride

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        early, last, half = (
            F.layer_norm(one.movedim(1, -1), one.shape[1:2]).movedim(-1, 1) for one in pyramid
        )
        height, width = last.shape[-2:]
        half = F.interpolate(half, scale_factor=2.0, mode="bilinear")[..., :height, :width]
        return torch.cat([early, last, half.to(last.dtype)], dim=1)


class ConvNormAct(nn.Sequential):
    """Convolution, batch norm, ReLU."""

    def __init__(self, channels: int, out: int, kernel: int, dilation: int = 1) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(
            nn.Conv2d(channels, out, kernel, padding=padding, dilation=dilation, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )


class AtrousPyramid(nn.Module):
    """ASPP: a 1×1 convolution, three dilated 3×3 ones and the mean of the map, concatenated and projected."""

    def __init__(self, channels: int, out: int, rates: tuple[int, int, int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [ConvNormAct(channels, out, 1), *(ConvNormAct(channels, out, 3, rate) for rate in rates)]
        )
        # no batch norm on the mean: with one image per batch each channel has a single value and no deviation
        self.pool = nn.Conv2d(channels, out, 1)
        self.project = ConvNormAct(5 * out, out, 1)

    def forward(self, maps: Tensor) -> Tensor:
        joined = [branch(maps) for branch in self.branches]
        mean = F.relu(self.pool(maps.mean(dim=(2, 3), keepdim=True)))
        joined.append(mean.expand(-1, -1, *maps.shape[-2:]))
        return self.project(torch.cat(joined, dim=1))


@DECODERS.register("deeplabv3")
class DeepLabV3(Decoder):
    """ASPP over the encoder's last map, at its resolution."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        last = encoder.pyramid[-1]
        self.channels, self.stride = encoder.decoder_channels, last.stride
        self.aspp = AtrousPyramid(last.channels, self.channels, RATES.get(last.stride, RATES[16]))

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        return self.aspp(pyramid[-1])


@DECODERS.register("deeplabv3plus")
class DeepLabV3Plus(DeepLabV3):
    """ASPP, upsampled to the finest map's resolution, concatenated with it and refined."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        if len(encoder.pyramid) < 2:
            raise TissError(
                f"deeplabv3plus needs a finer map as well, and {encoder.name} has one resolution only: "
                "take deeplabv3, linear or mask",
                setting="model.decoder",
            )
        self.stride = encoder.pyramid[0].stride
        reduced = max(self.channels * 3 // 16, 1)  # 48 of 256, as published
        self.reduce = ConvNormAct(encoder.pyramid[0].channels, reduced, 1)
        self.refine = nn.Sequential(
            ConvNormAct(self.channels + reduced, self.channels, 3),
            ConvNormAct(self.channels, self.channels, 3),
        )

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        fine = self.reduce(pyramid[0])
        coarse = super().forward(pyramid)
        coarse = F.interpolate(coarse, fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.refine(torch.cat([coarse, fine], dim=1))


@DECODERS.register("mlp")
class MlpDecoder(Decoder):
    """SegFormer's: one linear layer per map, bilinear upsampling to the finest map, one fusing layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.channels, self.stride = encoder.decoder_channels, encoder.pyramid[0].stride
        self.projections = nn.ModuleList(
            nn.Conv2d(level.channels, self.channels, 1) for level in encoder.pyramid
        )
        self.fuse = ConvNormAct(len(encoder.pyramid) * self.channels, self.channels, 1)

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        size = pyramid[0].shape[-2:]
        projected = [layer(maps) for layer, maps in zip(self.projections, pyramid, strict=True)]
        finer = [F.interpolate(maps, size, mode="bilinear", align_corners=False) for maps in projected[1:]]
        return self.fuse(torch.cat([projected[0], *finer], dim=1))


@DECODERS.register("mask")
class MaskDecoder(Decoder):
    """Projects the patches for the mask transformer, which is the head, since its class tokens grow."""

    default_head = "mask"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if encoder.family != "vit":
            raise TissError(
                f"mask needs a plain vision transformer, not {encoder.name}", setting="model.decoder"
            )
        self.channels, self.stride = encoder.channels, encoder.stride
        self.project = nn.Conv2d(encoder.channels, self.channels, 1)
        nn.init.trunc_normal_(self.project.weight, std=0.02)

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        return self.project(pyramid[-1])


class Head(nn.Module):
    """Base of all heads: `rows` (k × D) and `biases` (k) for each group; the background is row 0."""

    named_needs: tuple[str, ...] = ()  # features that `read` gives by name and a method can ask for

    def __init__(self, channels: int, sizes: Sequence[int]) -> None:
        """`sizes` are the logits of each group; the first counts the background."""
        super().__init__()
        self.channels = channels
        self.rows = nn.ParameterList(nn.Parameter(0.02 * torch.randn(size, channels)) for size in sizes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

    def read(self, decoded: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits N × C × h × w of the decoder's map, and the features named in `named_needs`."""
        return self(decoded), {}

    def joined(self) -> tuple[Tensor, Tensor]:
        """All rows C × D and all biases C."""
        return torch.cat(list(self.rows)), torch.cat(list(self.biases))

    def growing(self) -> list[nn.ParameterList]:
        """The lists that get an entry with every group, the rows first, then biases."""
        return [self.rows, self.biases]

    @torch.no_grad()
    def grow(self, new: int, initialise: Initialise, generator: torch.Generator) -> None:
        """Adds `new` rows.

        "background": w_new = w_b, β_new = β_b − log(new + 1), and β_b gets the same value. Then the
        background and the new classes together have the probability that the background had, and that of no
        other class changes.
        "copy": w_new = w_b and β_new = β_b, the background unchanged: for heads of sigmoids.
        "random": new rows as at the start, biases 0, the background unchanged.
        """
        for biases in self.growing()[1:] if initialise == "background" else ():
            biases[0][0] -= math.log(new + 1)
        if initialise != "random":
            added = [p[0][:1].expand(new, *p[0].shape[1:]).clone() for p in self.growing()]
        else:
            random = 0.02 * torch.randn(new, self.channels, generator=generator)
            added = [random.to(self.rows[0]), *(p[0].new_zeros(new) for p in self.growing()[1:])]
        for parameters, values in zip(self.growing(), added, strict=True):
            parameters.append(nn.Parameter(values))


HEADS: Registry[Callable[..., Head]] = Registry("head", "heads")


@HEADS.register("linear")
class LinearHead(Head):
    """One linear layer: N × D × h × w to N × C × h × w."""

    def forward(self, decoded: Tensor) -> Tensor:
        rows, biases = self.joined()
        return F.conv2d(decoded, rows[:, :, None, None], biases)


@HEADS.register("random")
class RandomHead(Head):
    """One linear layer on φ = relu((x − shift) / scale · R) with a fixed Gaussian R, which is stored as its seed alone.

    Where x consists of several maps, each has an equal part of φ.

    Its rows are meant to be solved, not trained. It computes in float32: solved rows are large and of both signs.
    """

    seed = 0

    def __init__(self, channels: int, sizes: Sequence[int], width: int, parts: int = 1) -> None:
        """`width` is the number of random features; `parts` says of how many maps the decoder's consists."""
        super().__init__(width, sizes)
        self.parts = parts
        # RandomState's numbers are the same in every version of numpy, by its promise
        drawn = np.random.RandomState(self.seed).standard_normal((width, channels // parts))
        matrix = torch.from_numpy((drawn / math.sqrt(channels // parts)).astype(np.float32))
        self.register_buffer("matrix", torch.block_diag(*matrix.chunk(parts)), persistent=False)
        self.register_buffer("shift", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(()))

    matrix: Tensor
    shift: Tensor
    scale: Tensor

    def project(self, features: Tensor) -> Tensor:
        """Features n × D to n × width."""
        return F.relu(((features - self.shift) / self.scale) @ self.matrix.T)

    def forward(self, decoded: Tensor) -> Tensor:
        with torch.autocast(decoded.device.type, enabled=False):
            rows, biases = (part.float() for part in self.joined())
            shifted = (decoded.float() - self.shift[:, None, None]) / self.scale
            random = F.relu(F.conv2d(shifted, self.matrix.float()[:, :, None, None]))
            return F.conv2d(random, rows[:, :, None, None], biases).to(self.rows[0].dtype)


@HEADS.register("cosine")
class CosineHead(Head):
    """z_c = s · cos(w_c, x) + β_c with a learned scale s; the bias makes its growth exact."""

    def __init__(self, channels: int, sizes: Sequence[int]) -> None:
        super().__init__(channels, sizes)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, decoded: Tensor) -> Tensor:
        rows, biases = self.joined()
        rows = self.scale * F.normalize(rows, dim=1)
        return F.conv2d(F.normalize(decoded, dim=1), rows[:, :, None, None], biases)


@HEADS.register("mask")
class MaskHead(Head):
    """Segmenter's mask transformer: z_c = s · cos(patch, class token c) + β_c after two blocks over both.

    Growing it exactly takes two corrections. A class token is also a key in attention: copies of the background's
    would get its share of attention several times. So each class has a bias on its key's score, which is divided
    like the logit's. Then the copies together get the attention that the background had, and every token keeps
    its value. Segmenter's norm over the classes would undo this; a learned scale on the cosine takes its place.

    A method can ask for what the cosine compares: the projected patches N × D × h × w and classes N × D × C × 1.
    """

    named_needs = ("patch_embeddings", "class_embeddings")

    def __init__(self, channels: int, sizes: Sequence[int]) -> None:
        super().__init__(channels, sizes)
        self.key_biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        heads = max(channels // 64, 1)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(2))
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.patch_projection = nn.Linear(channels, channels, bias=False)
        self.class_projection = nn.Linear(channels, channels, bias=False)
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.apply(initialise_transformer)

    def growing(self) -> list[nn.ParameterList]:
        return [self.rows, self.biases, self.key_biases]

    def forward(self, decoded: Tensor) -> Tensor:
        return self.read(decoded)[0]

    def read(self, decoded: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        rows, biases = self.joined()
        count, _, height, width = decoded.shape
        patches = decoded.flatten(2).transpose(1, 2)  # N × n × D
        tokens = torch.cat([patches, rows.expand(count, -1, -1)], dim=1)
        # no bias on a patch's key, its class's on a class token's
        key_bias = F.pad(torch.cat(list(self.key_biases)), (height * width, 0)).view(1, 1, 1, -1)
        for block in self.blocks:
            tokens = block(tokens, key_bias.to(tokens.dtype))
        tokens = self.norm(tokens)
        patches = self.patch_projection(tokens[:, : height * width])
        classes = self.class_projection(tokens[:, height * width :])
        scaled = self.scale * F.normalize(patches, dim=-1)
        scores = scaled @ F.normalize(classes, dim=-1).transpose(1, 2) + biases  # N × n × C
        logits = as_map(scores, height, width)
        embeddings = (as_map(patches, height, width), as_map(classes, len(biases), 1))
        return logits, dict(zip(self.named_needs, embeddings, strict=True))
