"""Losses as pure functions: every formula of the paper and of the methods it compares."""

from tiss.losses.patches import feature_distillation, patch_contrast, patch_similarity
from tiss.losses.pixel import cross_entropy, distillation, unbiased_cross_entropy, unbiased_distillation

__all__ = [
    "cross_entropy",
    "distillation",
    "feature_distillation",
    "patch_contrast",
    "patch_similarity",
    "unbiased_cross_entropy",
    "unbiased_distillation",
]
