"""transformers imports torchvision too, and meets the same trap beside a CPU-only torch as timm does."""

from tiss.models.timm_encoder import declare_torchvision_operators

declare_torchvision_operators()
