"""The plain vision transformer, with timm's parameter names: timm, DINOv2 and hub checkpoints load strictly.

Features are the patch tokens after each block, the last after the final norm (which is what a decoder reads);
class and register tokens take part in attention and are left out of every map.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.models.encoder import (
    ENCODERS,
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Colours,
    Encoder,
    EncoderOptions,
    Level,
    Maps,
    Need,
    Tuned,
)
from tiss.models.layers import Block, as_map, drop_rates, initialise_transformer

# SGD at 1e-2 destroys a pretrained ViT in its first updates, and even with the encoder at 3e-4 the loss rises
# before it falls (docs/LOG.md); AdamW with a warm-up and clipped gradients preserves it.
FINE_TUNED = Tuned("adamw", lr=1e-3, step_lr=2e-4, encoder_lr=0.02, weight_decay=0.01, warmup=100, clip=1.0)


@dataclass(frozen=True)
class VitSettings:
    """The shape of one vision transformer."""

    width: int
    depth: int
    heads: int
    patch: int
    image_size: int
    mean: Colours = HALF
    std: Colours = HALF
    class_position: bool = True  # whether the class token has a position of its own
    registers: int = 0
    layer_scale: float | None = None
    tuned: Tuned = FINE_TUNED
    hub: str | None = None


# transformers' names for ViT, DeiT and DINOv2, as patterns, and what timm calls the same tensor
OTHER_NAMES = (
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.", r"blocks.\1.attn.\2."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"blocks.\1.attn.proj."),
    (r"^encoder\.layer\.(\d+)\.layer_scale(\d)\.lambda1$", r"blocks.\1.ls\2.gamma"),
    (r"^encoder\.layer\.(\d+)\.layernorm_before\.", r"blocks.\1.norm1."),
    (r"^encoder\.layer\.(\d+)\.layernorm_after\.", r"blocks.\1.norm2."),
    (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"blocks.\1.mlp.fc1."),
    (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"blocks.\1.mlp.fc2."),
    (r"^encoder\.layer\.(\d+)\.(norm1|norm2|mlp\.fc1|mlp\.fc2)\.", r"blocks.\1.\2."),
    (r"^layernorm\.", "norm."),
    (r"^register_tokens$", "reg_token"),  # DINOv2's own
)
UNUSED = ("mask_token", "embeddings.mask_token")  # of DINOv2's training, no part of the encoder


class VisionTransformer(Encoder):
    """Patches, positions, pre-norm blocks, a final norm."""

    family = "vit"
    any_size = True
    named_needs = ("before_norm",)  # the last block's tokens before the final norm
    other_names = OTHER_NAMES

    def __init__(self, name: str, settings: VitSettings, options: EncoderOptions) -> None:
        super().__init__()
        self.name, self.settings = name, settings
        self.mean, self.std, self.tuned, self.hub = settings.mean, settings.std, settings.tuned, settings.hub
        self.depth = settings.depth
        self.channels = settings.width
        self.stride = settings.patch
        self.pyramid = (Level(settings.width, settings.patch),)
        self.contrast_blocks = (0, settings.depth - 1)
        self.pod_needs = tuple(range(2, settings.depth, 3))
        self.default_image_size = settings.image_size
        side = -(-(options.image_size or settings.image_size) // settings.patch)
        self.grid = (side, side)

        self.patch_embed = PatchEmbedding(settings.width, settings.patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, settings.width))
        if settings.registers:
            self.reg_token = nn.Parameter(torch.empty(1, settings.registers, settings.width))
        self.prefix = 1 + settings.registers  # tokens before the patches
        positions = side * side + settings.class_position
        self.pos_embed = nn.Parameter(torch.empty(1, positions, settings.width))
        self.blocks = nn.ModuleList(
            Block(settings.width, settings.heads, layer_scale=settings.layer_scale, drop_path=rate)
            for rate in drop_rates(options.drop_path, self.depth)
        )
        self.norm = nn.LayerNorm(settings.width, eps=1e-6)
        self.apply(initialise_transformer)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        if settings.registers:
            nn.init.normal_(self.reg_token, std=1e-6)

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Maps, Maps]:
        wanted = self.resolve(needs)
        height, width = images.shape[-2] // self.stride, images.shape[-1] // self.stride
        tokens = self.embed(images, (height, width))
        found: dict[Need, Tensor] = {}
        for index, block in enumerate(self.blocks):
            tokens = self.run_block(block, tokens)
            if index in wanted and index < self.depth - 1:
                found[index] = as_map(tokens[:, self.prefix :], height, width)
        last = as_map(self.norm(tokens)[:, self.prefix :], height, width)
        found[self.depth - 1] = last
        if "before_norm" in wanted:
            found["before_norm"] = as_map(tokens[:, self.prefix :], height, width)
        return (last,), tuple(found[need] for need in wanted)

    def embed(self, images: Tensor, grid: tuple[int, int]) -> Tensor:
        """Patches with positions, after the class and register tokens: N × (prefix + n) × D."""
        patches = self.patch_embed(images)  # N × n × D
        positions = resize_positions(self.pos_embed, self.grid, grid)
        first: Tensor = self.cls_token
        if self.settings.class_position:
            first, positions = first + positions[:, :1], positions[:, 1:]
        before = [first, self.reg_token] if self.settings.registers else [first]
        return torch.cat(
            [*(token.expand(images.shape[0], -1, -1) for token in before), patches + positions], dim=1
        )

    def convert_pretrained(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """timm's names, query, key and value joined, and positions resized to this encoder's grid, as timm does."""
        tensors = {name: tensor for name, tensor in tensors.items() if name not in UNUSED}
        tensors = super().convert_pretrained(tensors)
        for name in [name for name in tensors if ".attn.query." in name]:
            parts = [tensors.pop(name.replace("query", part), None) for part in ("query", "key", "value")]
            if all(part is not None for part in parts):
                tensors[name.replace("query", "qkv")] = torch.cat(parts)  # type: ignore[arg-type]
        positions = tensors.get("pos_embed")
        if positions is None or positions.ndim != 3 or positions.shape[-1] != self.channels:
            return tensors
        side = math.isqrt(positions.shape[1])
        first = positions.shape[1] - side * side
        if first == 1 and not self.settings.class_position and "cls_token" in tensors:
            # DINOv2's own files keep a position for the class token where timm has added it in
            tensors["cls_token"] = tensors["cls_token"] + positions[:, :1]
            positions, first = positions[:, 1:], 0
        if first <= 1:
            tensors["pos_embed"] = resize_positions(positions, (side, side), self.grid)
        return tensors


class PatchEmbedding(nn.Module):
    """Cuts an image into patches and projects each: N × 3 × H × W to N × n × D."""

    def __init__(self, channels: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, channels, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        if not images.is_cuda:
            return self.proj(images).flatten(2).transpose(1, 2)
        # cuDNN has no fast kernel for this convolution: cut out the patches, and it is one matrix product
        count, (side, _) = len(images), self.proj.kernel_size
        cut = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # N × 3 × h × side × w × side
        patches = cut.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, 3 * side * side)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


def resize_positions(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Positions 1 × (k + h·w) × D of the grid `old` for the grid `new`; the first k stay.

    Bicubic with antialiasing, as timm resizes them for its own and for DINOv2's weights.
    """
    if old == new:
        return positions
    first = positions.shape[1] - old[0] * old[1]
    patches = as_map(positions[:, first:], *old).float().contiguous()
    resized = F.interpolate(patches, new, mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([positions[:, :first], resized.flatten(2).transpose(1, 2).to(positions.dtype)], dim=1)


SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}


AUGREG = {  # published for these; weights trained on ImageNet-21k, tuned on ImageNet-1k
    *(f"vit_{size}_patch16_{side}" for size in SIZES for side in (224, 384)),
    *(f"vit_{size}_patch32_{side}" for size in ("small", "base") for side in (224, 384)),
    "vit_base_patch8_224",
}


def all_settings() -> Iterator[tuple[str, VitSettings]]:
    """Names are timm's, so its documentation applies; `deit` and `dinov2` differ in mean and deviation."""
    for size, (width, depth, heads) in SIZES.items():
        for patch, side in product((8, 14, 16, 32), (224, 384)):
            name = f"vit_{size}_patch{patch}_{side}"
            hub = f"timm/{name}.augreg_in21k_ft_in1k" if name in AUGREG else None
            if side % patch == 0:
                yield name, VitSettings(width, depth, heads, patch, side, hub=hub)
        imagenet = VitSettings(width, depth, heads, 16, 224, IMAGENET_MEAN, IMAGENET_STD)
        if size != "large":
            name = f"deit_{size}_patch16_224"
            yield name, replace(imagenet, hub=f"timm/{name}.fb_in1k")
        if size != "tiny":
            name = f"vit_{size}_patch14_dinov2"
            dinov2 = replace(imagenet, patch=14, image_size=518, layer_scale=1e-5, hub=f"timm/{name}.lvd142m")
            yield name, dinov2
            name = f"vit_{size}_patch14_reg4_dinov2"
            yield name, replace(dinov2, registers=4, class_position=False, hub=f"timm/{name}.lvd142m")
    scratch = Tuned("adamw", lr=1e-3, step_lr=5e-4, encoder_lr=1.0, weight_decay=0.05, warmup=100, clip=1.0)
    yield "vit_micro_patch8", VitSettings(16, 3, 2, 8, 32, tuned=scratch)
    yield "vit_demo_patch8", VitSettings(128, 3, 4, 8, 64, tuned=scratch)


for encoder, settings in all_settings():
    ENCODERS.register(encoder)(partial(VisionTransformer, encoder, settings))
