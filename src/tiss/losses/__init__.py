"""Losses as pure functions: every formula of the paper and of the methods it compares."""

from tiss.losses.binary import binary_cross_entropy
from tiss.losses.patches import feature_distillation, patch_contrast, patch_similarity
from tiss.losses.pixel import (
    cross_entropy,
    distillation,
    unbiased_cross_entropy,
    unbiased_distillation,
    unbiased_losses,
)
from tiss.losses.pod import local_pod
from tiss.losses.prototypes import (
    Prototypes,
    class_sums,
    feature_sparsity,
    prototype_attraction,
    prototype_labels,
    prototype_matching,
    prototype_repulsion,
)
from tiss.losses.pseudo import EntropyThresholds, entropy_and_class, pseudo_labels
from tiss.losses.upsampling import upsampled_argmax

__all__ = [
    "EntropyThresholds",
    "Prototypes",
    "binary_cross_entropy",
    "class_sums",
    "cross_entropy",
    "distillation",
    "entropy_and_class",
    "feature_distillation",
    "feature_sparsity",
    "local_pod",
    "patch_contrast",
    "patch_similarity",
    "prototype_attraction",
    "prototype_labels",
    "prototype_matching",
    "prototype_repulsion",
    "pseudo_labels",
    "unbiased_cross_entropy",
    "unbiased_distillation",
    "unbiased_losses",
    "upsampled_argmax",
]
