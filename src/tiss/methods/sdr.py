"""SDR: features gather around their class's prototype, classes keep apart, features become sparse."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND, IGNORE, Batch
from tiss.losses import (
    Prototypes,
    class_sums,
    feature_sparsity,
    prototype_attraction,
    prototype_labels,
    prototype_matching,
    prototype_repulsion,
    unbiased_losses,
)
from tiss.methods.base import Method, all_sum, register_method
from tiss.methods.baselines import LwF, LwFSettings
from tiss.methods.mib import MiB, MiBSettings
from tiss.models import Need, Output, SegmentationModel
from tiss.scenarios import Step


@dataclass(frozen=True)
class PrototypeSettings:
    matching: float = setting(0.01, "weight that holds old classes at their prototypes")
    attraction: float = setting(0.001, "weight that pulls features to their class's prototype")
    repulsion: float = setting(0.001, "weight that keeps the classes' mean features apart")
    sparsity: float = setting(0.001, "weight of the sparsity of the features")
    official: bool = setting(
        True,
        "as the published code: unbiased losses, attraction and repulsion from step 1 on, no prototype of the "
        "background (false: plain losses, all terms at every step, every class)",
    )


class WithPrototypes(Method):
    """Adds SDR's four terms on the encoder's output to the losses of another method.

    A batch is compared with the prototypes of all batches before it, of all processes, and joins them afterwards.
    With `official`, background features join no prototype in the overlapped setup or after step 0, since old and
    future classes hide among them.
    """

    uses_teacher = True

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.prototypes = Prototypes.empty(0, 0)

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return (-1,)

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        channels, device = model.encoder.channels, next(model.parameters()).device
        known = self.prototypes if step.index > 0 else Prototypes.empty(0, channels)
        self.prototypes = widen(known, step.seen, channels, device)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms, weights, step = super().losses(batch, output, teacher), self.settings, self.step
        features, (height, width), padded = (
            output.features[0],
            output.resolution.size,
            output.resolution.padded,
        )
        # the features reach into the padding, so the labels must do so before they shrink
        labels = F.pad(batch.label, (0, padded[1] - width, 0, padded[0] - height), value=IGNORE)
        size = (features.shape[2], features.shape[3])
        labels = prototype_labels(labels, size, None if teacher is None else teacher.logits)
        known = Prototypes(self.prototypes.mean.float(), self.prototypes.count)
        if step.index > 0 or not weights.official:
            terms["attraction"] = weights.attraction * prototype_attraction(features, labels, known)
            terms["repulsion"] = weights.repulsion * prototype_repulsion(features, labels, step.seen)
        terms["sparsity"] = weights.sparsity * feature_sparsity(features, labels, step.seen)
        if step.index > 0:
            terms["matching"] = weights.matching * prototype_matching(features, labels, known, step.old)
        if weights.official and (step.setup not in ("disjoint", "sequential") or step.index > 0):
            labels = labels.masked_fill(labels == BACKGROUND, IGNORE)
        sums, counts = class_sums(features.detach(), labels, step.seen)
        both = all_sum(torch.cat([sums, counts.unsqueeze(1)], dim=1).to(self.prototypes.mean))  # K × (D + 1)
        updated = self.prototypes.update(both[:, :-1], both[:, -1])
        self.prototypes.mean.copy_(
            updated.mean
        )  # in place: a captured CUDA graph keeps using the same tensors
        self.prototypes.count.copy_(updated.count)
        return terms

    def state(self) -> dict[str, Tensor]:
        return {"prototypes": self.prototypes.mean, "prototype_counts": self.prototypes.count}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            known, own = Prototypes(state["prototypes"], state["prototype_counts"]), self.prototypes
            rows = max(len(known.count), len(own.count))
            self.prototypes = widen(known, rows, known.mean.shape[1], own.mean.device)

    def base_settings(self) -> dict[str, Any]:
        names = ["sparsity", "official", *(() if self.settings.official else ("attraction", "repulsion"))]
        return {name: getattr(self.settings, name) for name in names}


def widen(known: Prototypes, classes: int, channels: int, device: torch.device) -> Prototypes:
    """`known` on `device`, with empty rows up to `classes`.

    In float64 where the device has it: counts pass 2^24, where float32 stops counting.
    """
    precision = torch.float32 if device.type == "mps" else torch.float64
    mean = torch.zeros(classes, channels, dtype=precision, device=device)
    count = torch.zeros(classes, dtype=precision, device=device)
    if len(known.count):
        mean[: len(known.count)], count[: len(known.count)] = known.mean, known.count
    return Prototypes(mean, count)


class OfficialLwF(LwF):
    """LwF with MiB's unbiased losses, as the published SDR has it, or plain ones."""

    domains = False  # its cross-entropy takes labelled old classes for background

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        if teacher is None or not self.settings.official:
            return super().losses(batch, output, teacher)
        hard, distilled = unbiased_losses(output.logits, batch.label, teacher.logits, to=output.resolution)
        return {"cross_entropy": hard, "distillation": self.settings.distillation * distilled}


@dataclass(frozen=True)
class SDRSettings(PrototypeSettings, LwFSettings):
    pass


@register_method(
    "sdr", "unbiased losses + prototype matching, attraction, repulsion and sparsity of features", title="SDR"
)
class SDR(WithPrototypes, OfficialLwF):
    """Our reading of its formulas: the published code reshapes wrongly for batches of more than one image."""

    Settings = SDRSettings
    knobs = LwF.knobs | {"method.matching": (1e-3, 1e-1)}


@dataclass(frozen=True)
class SDRMiBSettings(PrototypeSettings, MiBSettings):
    pass


@register_method("sdr+mib", "MiB + SDR's four terms", title="SDR+MiB")
class SDRWithMiB(WithPrototypes, MiB):
    Settings = SDRMiBSettings
    knobs = MiB.knobs | {"method.matching": (1e-3, 1e-1)}
