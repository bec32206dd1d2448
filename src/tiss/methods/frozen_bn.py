"""Batch norm that stays as step 0 left it: MiB with frozen batch norm."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tiss.errors import TissError
from tiss.methods.base import Batches, register_method
from tiss.methods.mib import MiB
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step


def batch_norms(model: nn.Module) -> Iterator[_BatchNorm]:
    """Every batch norm in `model`, of whatever dimension, synchronised or not."""
    return (module for module in model.modules() if isinstance(module, _BatchNorm))


def freeze_statistics(model: nn.Module) -> None:
    """Puts every batch norm into evaluation mode; the next `train()` of the model undoes it."""
    for norm in batch_norms(model):
        norm.eval()


@register_method("mib+frozenbn", "MiB; batch norm, statistics and weights, frozen after step 0")
class MiBFrozenBatchNorm(MiB):
    """Goes with any model that has a batch norm: all CNNs, and transformers whose decoder has one.

    SegFormer's decoder and DeepLab's on any encoder do; a linear decoder on a transformer does not, and the
    pair is refused because it would be plain MiB under another name.
    """

    families = ("hierarchical", "cnn")  # that have one with their own decoder

    def check(self, model: SegmentationModel) -> None:
        if next(batch_norms(model), None) is None:
            architecture = model.architecture
            raise TissError(
                f"--method {self.name}: {architecture.encoder} with {architecture.decoder} has no batch norm "
                "to freeze (take --method mib, or a decoder with one)"
            )

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        if step.index > 0:
            for norm in batch_norms(model):
                norm.requires_grad_(False)

    def train_mode(self, model: nn.Module) -> None:
        super().train_mode(model)
        if self.step is not None and self.step.index > 0:
            freeze_statistics(model)

    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        model.requires_grad_(True)
