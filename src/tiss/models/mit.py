"""SegFormer's encoder, the mix transformer (MiT), native; parameter names are those of current transformers.

Four stages of overlapping patches and blocks whose keys and values are reduced in space. A block's feature is
its output; the last one's, and each map of the pyramid, is taken after its stage's norm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from tiss.models.contract import Need
from tiss.models.encoder import ENCODERS, Encoder, EncoderOptions, Level, Maps, Tuned
from tiss.models.layers import DropPath, as_map, initialise_transformer

FINE_TUNED = Tuned("adamw", lr=6e-4, step_lr=6e-5, encoder_lr=0.1, weight_decay=0.01, warmup=500, clip=1.0)


@dataclass(frozen=True)
class MitSettings:
    """The shape of one mix transformer."""

    widths: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    decoder_channels: int
    heads: tuple[int, int, int, int] = (1, 2, 5, 8)
    reductions: tuple[int, int, int, int] = (8, 4, 2, 1)
    hub: str | None = None


class MixTransformer(Encoder):
    """Stage by stage: patches, blocks, norm."""

    family = "hierarchical"
    default_decoder = "mlp"
    tuned = FINE_TUNED
    stride = 32

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
        rates = [options.drop_path * i / max(self.depth - 1, 1) for i in range(self.depth)]
        self.stages = nn.ModuleList()
        for stage, width in enumerate(settings.widths):
            before = settings.widths[stage - 1] if stage else 3
            own = rates[ends[stage] + 1 - settings.depths[stage] : ends[stage] + 1]
            heads, reduction = settings.heads[stage], settings.reductions[stage]
            self.stages.append(Stage(before, width, heads, reduction, own, stage == 0))
        self.apply(initialise_transformer)

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        wanted = self.resolve(needs)
        found: dict[Need, Tensor] = {}
        pyramid: list[Tensor] = []
        maps, index = images, 0
        for stage in self.stages:
            assert isinstance(stage, Stage)
            maps = stage.patch_embeddings(maps)
            for block in stage.blocks:
                maps = self.run_block(block, maps)
                if index in wanted:
                    found[index] = maps
                index += 1
            maps = norm_map(stage.layer_norm, maps)
            pyramid.append(maps)
        found[self.depth - 1] = maps
        return tuple(pyramid), tuple(found[need] for need in wanted)

    def convert_pretrained(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The names of older transformers, which the hub's files still have, as the current ones."""
        return {to_current_name(name): tensor for name, tensor in tensors.items()}


class Stage(nn.Module):
    """The parts of one stage; the encoder runs them, so that every block's output can be returned."""

    def __init__(
        self, before: int, width: int, heads: int, reduction: int, rates: list[float], first: bool
    ) -> None:
        super().__init__()
        self.patch_embeddings = OverlappingPatches(before, width, *((7, 4) if first else (3, 2)))
        self.blocks = nn.ModuleList(MixBlock(width, heads, reduction, rate) for rate in rates)
        self.layer_norm = nn.LayerNorm(width)


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


def to_current_name(name: str) -> str:
    for pattern, replacement in OLDER_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def register(name: str, settings: MitSettings) -> None:
    """Makes a mix transformer known by name."""
    ENCODERS.register(name)(partial(MixTransformer, name, settings))


DEPTHS = ((2, 2, 2, 2), (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 18, 3), (3, 8, 27, 3), (3, 6, 40, 3))


def register_all() -> None:
    """mit_b0 to mit_b5, and a very small one for tests."""
    for index, depths in enumerate(DEPTHS):
        widths = (32, 64, 160, 256) if index == 0 else (64, 128, 320, 512)
        decoder_channels = 256 if index < 2 else 768
        register(f"mit_b{index}", MitSettings(widths, depths, decoder_channels, hub=f"nvidia/mit-b{index}"))
    register("mit_micro", MitSettings((4, 4, 8, 8), (1, 1, 1, 2), 8, heads=(1, 1, 2, 2)))


register_all()
