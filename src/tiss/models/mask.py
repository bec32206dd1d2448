"""Segmenter's mask transformer: class tokens read the patches, and each class's mask is a product with them.

Growing it exactly takes two corrections. A class token is also a key in attention: copies of the background's
would get its share of attention several times. So each class has a bias on its key's score, which is divided
like the logit's: w_new = w_b, bias_new = bias_b − log(new + 1), and the same for the background. Then the copies
together get the attention that the background had, every token keeps its value, and the logits' biases do the
rest. Segmenter's norm over the classes would undo this; a learned scale on the cosine takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.errors import TissError
from tiss.models.decoder import DECODERS, Decoder
from tiss.models.encoder import Encoder
from tiss.models.head import HEADS, Head
from tiss.models.layers import Block, as_map, initialise_transformer

LAYERS = 2


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


@HEADS.register("mask")
class MaskHead(Head):
    """z_c = s · cos(patch, class token c) + β_c after a transformer over patches and class tokens."""

    def __init__(self, channels: int, sizes: Sequence[int]) -> None:
        super().__init__(channels, sizes)
        self.key_biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        heads = max(channels // 64, 1)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.patch_projection = nn.Linear(channels, channels, bias=False)
        self.class_projection = nn.Linear(channels, channels, bias=False)
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.apply(initialise_transformer)

    def growing(self) -> list[nn.ParameterList]:
        return [self.rows, self.biases, self.key_biases]

    def split_biases(self) -> list[nn.ParameterList]:
        return [self.biases, self.key_biases]

    def forward(self, decoded: Tensor) -> Tensor:
        rows, biases = self.joined()
        count, _, height, width = decoded.shape
        patches = decoded.flatten(2).transpose(1, 2)  # N × n × D
        tokens = torch.cat([patches, rows.expand(count, -1, -1)], dim=1)
        # no bias on a patch's key, its class's on a class token's
        key_bias = F.pad(torch.cat(list(self.key_biases)), (height * width, 0)).view(1, 1, 1, -1)
        for block in self.blocks:
            tokens = block(tokens, key_bias.to(tokens.dtype))
        tokens = self.norm(tokens)
        patches = F.normalize(self.patch_projection(tokens[:, : height * width]), dim=-1)
        classes = F.normalize(self.class_projection(tokens[:, height * width :]), dim=-1)
        scores = self.scale * patches @ classes.transpose(1, 2) + biases  # N × n × C
        return as_map(scores, height, width)
