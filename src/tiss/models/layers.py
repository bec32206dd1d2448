"""Small layers that several encoders and decoders share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth: in training, drops the residual branch of a sample with probability `rate`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return branch
        keep = 1.0 - self.rate
        kept = branch.new_empty((branch.shape[0],) + (1,) * (branch.ndim - 1)).bernoulli_(keep)
        return branch * kept / keep


def drop_rates(last: float, depth: int) -> list[float]:
    """The rate of each block, from 0 up to `last`."""
    return [last * i / max(depth - 1, 1) for i in range(depth)]


class LayerScale(nn.Module):
    """One learned factor per channel of a residual branch."""

    def __init__(self, channels: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((channels,), initial))

    def forward(self, branch: Tensor) -> Tensor:
        return branch * self.gamma


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, hidden)
        self.fc2 = nn.Linear(hidden, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(tokens)))


class Attention(nn.Module):
    """Multi-head self-attention over N × n × D tokens.

    `key_bias`, N × 1 × 1 × n or anything that broadcasts to it, is added to every query's scores.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, tokens: Tensor, key_bias: Tensor | None = None) -> Tensor:
        n, length, channels = tokens.shape
        qkv = self.qkv(tokens).reshape(n, length, 3, self.heads, channels // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each N × heads × n × D/heads
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=key_bias)
        return self.proj(mixed.transpose(1, 2).reshape(n, length, channels))


class Block(nn.Module):
    """A pre-norm transformer block; parameter names are timm's."""

    def __init__(
        self, channels: int, heads: int, *, layer_scale: float | None = None, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attn = Attention(channels, heads)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(channels, layer_scale)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = Mlp(channels, 4 * channels)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(channels, layer_scale)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, tokens: Tensor, key_bias: Tensor | None = None) -> Tensor:
        tokens = tokens + self.drop_path1(self.ls1(self.attn(self.norm1(tokens), key_bias)))
        return tokens + self.drop_path2(self.ls2(self.mlp(self.norm2(tokens))))


def initialise_transformer(module: nn.Module) -> None:
    """Linear weights from a narrow normal, biases zero: for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def as_map(tokens: Tensor, height: int, width: int) -> Tensor:
    """Patch tokens N × n × D as a map N × D × h × w, a view."""
    return tokens.transpose(1, 2).unflatten(2, (height, width))
