"""Losses as pure functions: every formula of the paper and of the methods it compares."""

from tiss.losses.patches import feature_distillation, patch_contrast, patch_similarity
from tiss.losses.pixel import (
    binary_cross_entropy,
    binary_distillation,
    cross_entropy,
    distillation,
    unbiased_cross_entropy,
    unbiased_distillation,
    unbiased_losses,
)
from tiss.losses.plop import EntropyThresholds, entropy_and_class, local_pod, pseudo_labels
from tiss.losses.prototypes import (
    Prototypes,
    centre_labels,
    class_sums,
    feature_sparsity,
    prototype_attraction,
    prototype_labels,
    prototype_matching,
    prototype_repulsion,
)
from tiss.losses.upsampling import upsampled_argmax
