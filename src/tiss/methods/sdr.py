"""SDR: features gather around their class's prototype, classes keep apart, features grow sparse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import IGNORE, Batch
from tiss.losses import (
    Prototypes,
    class_sums,
    feature_sparsity,
    prototype_attraction,
    prototype_labels,
    prototype_matching,
    prototype_repulsion,
)
from tiss.methods.base import Method, all_sum, register_method
from tiss.methods.lwf import LwF, LwFSettings
from tiss.methods.mib import MiB, MiBSettings
from tiss.models.contract import Need, Output
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step


@dataclass(frozen=True)
class PrototypeSettings:
    matching: float = setting(0.01, "weight that holds old classes at their prototypes")
    attraction: float = setting(0.001, "weight that pulls features to their class's prototype")
    repulsion: float = setting(0.001, "weight that keeps the classes' mean features apart")
    sparsity: float = setting(0.001, "weight of the sparsity of the features")


class WithPrototypes(Method):
    """Adds SDR's four terms on the encoder's output to whatever losses a method has.

    A batch is compared with the prototypes of all batches before it and joins them afterwards. Prototypes are
    the mean over all processes; the terms themselves look at each process's own images.
    """

    uses_teacher = True

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.prototypes: Prototypes | None = None

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return (-1,)

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        old = None if step.index == 0 else self.prototypes
        self.prototypes = widen(old, step.seen, model.encoder.channels)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
        features = output.features[0]
        labels = feature_labels(batch.label, output, teacher)
        terms |= self._prototype_terms(features, labels)
        self._update(features.detach(), labels)
        return terms

    def _prototype_terms(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        assert self.prototypes is not None, "begin() comes first"
        assert self.step is not None
        weights, classes = self.settings, self.step.seen
        self.prototypes = settle(self.prototypes, features.device)
        known = Prototypes(self.prototypes.mean.float(), self.prototypes.count)
        terms = {
            "attraction": weights.attraction * prototype_attraction(features, labels, known),
            "repulsion": weights.repulsion * prototype_repulsion(features, labels, classes),
            "sparsity": weights.sparsity * feature_sparsity(features, labels, classes),
        }
        if self.step.index > 0:
            terms["matching"] = weights.matching * prototype_matching(features, labels, known, self.step.old)
        return terms

    @torch.no_grad()
    def _update(self, features: Tensor, labels: Tensor) -> None:
        """The running means after this batch, all processes' images counted.

        In place: a captured CUDA graph goes on with the same tensors.
        """
        assert self.prototypes is not None
        sums, counts = class_sums(features, labels, len(self.prototypes.count))
        both = all_sum(torch.cat([sums, counts.unsqueeze(1)], dim=1).to(self.prototypes.mean))  # K × (D + 1)
        updated = self.prototypes.update(both[:, :-1], both[:, -1])
        self.prototypes.mean.copy_(updated.mean)
        self.prototypes.count.copy_(updated.count)

    def state(self) -> dict[str, Tensor]:
        if self.prototypes is None:
            return {}
        return {"prototypes": self.prototypes.mean, "prototype_counts": self.prototypes.count}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if "prototypes" in state:
            self.prototypes = Prototypes(state["prototypes"], state["prototype_counts"])

    def base_settings(self) -> dict[str, Any]:
        return {key: getattr(self.settings, key) for key in ("attraction", "repulsion", "sparsity")}


def feature_labels(labels: Tensor, output: Output, teacher: Output | None) -> Tensor:
    """The class of every position of the first feature map, N × h × w; 255 in the padding."""
    (height, width), (padded_height, padded_width) = output.resolution.size, output.resolution.padded
    # the features reach into the padding, so the labels must do so before they shrink
    padded = F.pad(labels, (0, padded_width - width, 0, padded_height - height), value=IGNORE)
    rows, columns = output.features[0].shape[-2:]
    return prototype_labels(padded, (rows, columns), None if teacher is None else teacher.logits)


def widen(known: Prototypes | None, classes: int, channels: int) -> Prototypes:
    """`known` with empty rows up to `classes`."""
    fresh = Prototypes.empty(classes, channels)
    if known is not None:
        fresh = settle(fresh, known.mean.device)
        fresh.mean[: len(known.count)], fresh.count[: len(known.count)] = known.mean, known.count
    return fresh


def settle(prototypes: Prototypes, device: torch.device) -> Prototypes:
    """On `device`, in float64 where it has that: counts pass 2^24, where float32 stops counting."""
    precision = torch.float32 if device.type == "mps" else torch.float64
    return Prototypes(prototypes.mean.to(device, precision), prototypes.count.to(device, precision))


@dataclass(frozen=True)
class SDRSettings(PrototypeSettings, LwFSettings):
    pass


@register_method("sdr", "LwF + prototype matching, attraction, repulsion and sparsity of features")
class SDR(WithPrototypes, LwF):
    """Our reading of its formulas: the published code reshapes wrongly for batches of more than one image."""

    Settings = SDRSettings


@dataclass(frozen=True)
class SDRMiBSettings(PrototypeSettings, MiBSettings):
    pass


@register_method("sdr+mib", "MiB + SDR's four terms")
class SDRWithMiB(WithPrototypes, MiB):
    Settings = SDRMiBSettings
