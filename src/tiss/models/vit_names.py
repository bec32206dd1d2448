"""Published vision transformers under timm's names: DINOv2's own files and those of transformers."""

from __future__ import annotations

import re

import torch
from torch import Tensor

# transformers' names for ViT, DeiT and DINOv2, as patterns, and what timm calls the same tensor
RENAMED = (
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


def to_timm_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames what is renamed, joins query, key and value, leaves everything else alone."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name in UNUSED:
            continue
        for pattern, replacement in RENAMED:
            name, count = re.subn(pattern, replacement, name)
            if count:
                break
        renamed[name] = tensor
    for name in [name for name in renamed if ".attn.query." in name]:
        parts = [renamed.pop(name.replace("query", part), None) for part in ("query", "key", "value")]
        if all(part is not None for part in parts):
            renamed[name.replace("query", "qkv")] = torch.cat(parts)  # type: ignore[arg-type]
    return renamed
