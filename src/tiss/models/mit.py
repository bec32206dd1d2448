"""SegFormer's encoder, the mix transformer (MiT), native; parameter names are those of current transformers.

Four stages of overlapping patches and blocks whose keys and values are reduced in space. A block's feature is
its output; the last one's, and each map of the pyramid, is taken after its stage's norm.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tiss.models.encoder import ENCODERS, Encoder, EncoderOptions, Level, Maps, Need, Tuned
from tiss.models.layers import DropPath, as_map, drop_rates, initialise_transformer


@dataclass(frozen=True)
class MitSettings:
    """The shape of one mix transformer."""

    widths: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    decoder_channels: int
    heads: tuple[int, int, int, int] = (1, 2, 5, 8)
    reductions: tuple[int, int, int, int] = (8, 4, 2, 1)
    hub: str | None = None


# of older transformers, which the hub's files still have
OLDER_NAMES = (
    (r"^(?:encoder\.)?patch_embeddings\.(\d)\.", r"stages.\1.patch_embeddings."),
    (r"^(?:encoder\.)?layer_norm\.(\d)\.", r"stages.\1.layer_norm."),
    (r"^(?:encoder\.)?block\.(\d)\.(\d+)\.", r"stages.\1.blocks.\2."),
    (r"\.layer_norm_1\.", ".layernorm_before."),
    (r"\.layer_norm_2\.", ".layernorm_after."),
    (r"\.attention\.self\.query\.", ".attention.q_proj."),
    (r"\.attention\.self\.key\.", ".attention.k_proj."),
    (r"\.attention\.self\.value\.", ".attention.v_proj."),
    (r"\.attention\.self\.sr\.", ".attention.sequence_reduction.sequence_reduction."),
    (r"\.attention\.self\.layer_norm\.", ".attention.sequence_reduction.layer_norm."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.mlp\.dense(\d)\.", r".mlp.fc\1."),
)


class MixTransformer(Encoder):
    """Stage by stage: patches, blocks, norm."""

    family = "hierarchical"
    default_decoder = "mlp"
    tuned = Tuned("adamw", lr=6e-4, step_lr=6e-5, encoder_lr=0.1, weight_decay=0.01, warmup=500, clip=1.0)
    stride = 32
    other_names = OLDER_NAMES

    def __init__(self, name: str, settings: MitSettings, options: EncoderOptions) -> None:
        super().__init__()
        self.name, self.hub = name, settings.hub
        self.decoder_channels = settings.decoder_channels
        self.depth = sum(settings.depths)
        self.channels = settings.widths[-1]
        self.pyramid = tuple(Level(width, 4 << stage) for stage, width in enumerate(settings.widths))
        ends = [sum(settings.depths[: stage + 1]) - 1 for stage in range(4)]
        self.pod_needs = tuple(ends)
        self.contrast_blocks = (ends[2] + 1, ends[3])  # stages differ in shape: those of the last one
        rates = iter(drop_rates(options.drop_path, self.depth))
        self.stages: Any = nn.ModuleList()
        before = 3
        shapes = zip(settings.widths, settings.depths, settings.heads, settings.reductions, strict=True)
        for width, depth, heads, reduction in shapes:
            patches = OverlappingPatches(before, width, *((3, 2) if self.stages else (7, 4)))
            blocks = nn.ModuleList(MixBlock(width, heads, reduction, next(rates)) for _ in range(depth))
            norm = nn.LayerNorm(width)
            self.stages.append(
                nn.ModuleDict({"patch_embeddings": patches, "blocks": blocks, "layer_norm": norm})
            )
            before = width
        self.apply(initialise_transformer)

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        wanted = self.resolve(needs)
        found: dict[Need, Tensor] = {}
        pyramid: list[Tensor] = []
        maps, index = images, 0
        for stage in self.stages:
            maps = stage["patch_embeddings"](maps)
            for block in stage["blocks"]:
                maps = self.run_block(block, maps)
                if index in wanted:
                    found[index] = maps
                index += 1
            maps = norm_map(stage["layer_norm"], maps)
            pyramid.append(maps)
        found[self.depth - 1] = maps
        return tuple(pyramid), tuple(found[need] for need in wanted)


class OverlappingPatches(nn.Module):
    """A strided convolution and a norm: N × C × H × W to N × D × h × w."""

    def __init__(self, before: int, width: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(before, width, kernel, stride, padding=kernel // 2)
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, maps: Tensor) -> Tensor:
        return norm_map(self.layer_norm, self.proj(maps))


class MixBlock(nn.Module):
    """Attention with reduced keys and values, then an MLP with a depthwise convolution in it."""

    def __init__(self, width: int, heads: int, reduction: int, drop_path: float) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(width)
        self.attention = ReducedAttention(width, heads, reduction)
        self.layernorm_after = nn.LayerNorm(width)
        self.mlp = MixMlp(width, 4 * width)
        self.drop_path = DropPath(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        size = (maps.shape[-2], maps.shape[-1])
        tokens = maps.flatten(2).transpose(1, 2)
        tokens = tokens + self.drop_path(self.attention(self.layernorm_before(tokens), size))
        tokens = tokens + self.drop_path(self.mlp(self.layernorm_after(tokens), size))
        return as_map(tokens, *size)


class ReducedAttention(nn.Module):
    """Queries from every token; keys and values from a map `reduction` times smaller."""

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.o_proj = nn.Linear(width, width)
        self.sequence_reduction = SpatialReduction(width, reduction) if reduction > 1 else None

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        context = self.sequence_reduction(tokens, size) if self.sequence_reduction else tokens
        query, key, value = (
            layer(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # N × heads × n × D/heads
            for layer, source in ((self.q_proj, tokens), (self.k_proj, context), (self.v_proj, context))
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class SpatialReduction(nn.Module):
    """Tokens of a map to those of a smaller one: a convolution without overlap, then a norm."""

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        self.sequence_reduction = nn.Conv2d(width, width, reduction, reduction)
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        reduced = self.sequence_reduction(as_map(tokens, *size))
        return self.layer_norm(reduced.flatten(2).transpose(1, 2))


class MixMlp(nn.Module):
    """An MLP with a depthwise 3×3 convolution inside, which takes the place of position embeddings."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.dwconv = nn.ModuleDict({"dwconv": nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)})
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        hidden = self.dwconv["dwconv"](as_map(self.fc1(tokens), *size))
        return self.fc2(F.gelu(hidden.flatten(2).transpose(1, 2)))


def norm_map(norm: nn.Module, maps: Tensor) -> Tensor:
    """A norm over the channels of N × D × h × w."""
    return norm(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


MICRO = MitSettings((4, 4, 8, 8), (1, 1, 1, 2), 8, heads=(1, 1, 2, 2))
ENCODERS.register("mit_micro")(partial(MixTransformer, "mit_micro", MICRO))
DEPTHS = ((2, 2, 2, 2), (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 18, 3), (3, 8, 27, 3), (3, 6, 40, 3))
for index, depths in enumerate(DEPTHS):
    widths = (64, 128, 320, 512) if index else (32, 64, 160, 256)
    settings = MitSettings(widths, depths, 768 if index > 1 else 256, hub=f"nvidia/mit-b{index}")
    ENCODERS.register(f"mit_b{index}")(partial(MixTransformer, f"mit_b{index}", settings))
