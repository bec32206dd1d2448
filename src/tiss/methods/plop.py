"""PLOP: pseudo-labels where the old model is sure, local POD to hold its features. And PLOPLong."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND, Batch
from tiss.errors import TissError
from tiss.losses import EntropyThresholds, cross_entropy, entropy_and_class, local_pod, pseudo_labels
from tiss.methods.base import Batches, Method, Settings, all_sum, register_method
from tiss.models import LinearDecoder, Need, Output, SegmentationModel

# published factors of local POD, on features and on logits
POD = {"voc": 0.01, "ade20k": 0.001, "cityscapes": 0.0001}
POD_LOGITS = {"voc": 0.0005, "ade20k": 0.00001, "cityscapes": 0.0001}


@dataclass(frozen=True)
class PLOPSettings(Settings):
    pod: float | None = setting(
        None, "weight of local POD on features (None: .01, ADE20K .001, Cityscapes .0001)"
    )
    pod_logits: float | None = setting(
        None, "weight of local POD on logits (None: .0005, ADE20K .00001, Cityscapes .0001)"
    )
    official: bool = setting(
        True, "entropy thresholds of the published code, not the exact median of each class's entropy"
    )


@register_method("plop", "cross-entropy on pseudo-labels + local POD + head growth", title="PLOP")
class PLOP(Method):
    """Background pixels take the old model's class where its entropy is below that class's threshold.

    The thresholds are those of the published code (`official`), which normalises the entropy twice and sums bin
    indices in its search for the median. The exact median, which the paper describes, rejects half of the
    background pixels by construction, and the background's IoU collapses over the steps.
    """

    Settings = PLOPSettings
    domains = True
    knobs = Method.knobs | {"method.pod": (1e-4, 1e-1)}
    initialise = "background"
    uses_teacher = True
    normalised: ClassVar[bool] = False  # bring the POD embedding of each scale to length 1

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.thresholds = torch.empty(0)  # one per old channel, from prepare()
        self.weights = torch.empty(0)  # one per image of the current batch: targets() → losses()

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        # a linear decoder hands on the encoder's last map: it has no features of its own
        decoder: tuple[Need, ...] = () if isinstance(model.decoder, LinearDecoder) else ("decoder",)
        return (*model.encoder.pod_needs, *decoder)

    @torch.no_grad()
    def prepare(self, model: SegmentationModel, teacher: SegmentationModel | None, batches: Batches) -> None:
        """The thresholds, over all of the step's images and all processes."""
        if teacher is None:
            return
        device = next(teacher.parameters()).device
        medians = EntropyThresholds(len(teacher.classes), official=self.settings.official, device=device)
        for _ in range(medians.passes):
            for batch in batches():
                entropy, predicted = self._entropy(teacher(batch.image))
                medians.add(entropy, predicted, batch.label == BACKGROUND)
            all_sum(medians.counts)
            medians.finish()
        self.thresholds = medians.values

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        if teacher is None:
            return batch.label
        entropy, predicted = self._entropy(teacher)
        self.thresholds = self.thresholds.to(entropy.device)
        found = pseudo_labels(batch.label, entropy, predicted, self.thresholds, self.settings.official)
        labels, self.weights = found
        return labels

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        if teacher is None:
            return super().losses(batch, output, teacher)
        factors = self.published(self.settings.pod, POD), self.published(self.settings.pod_logits, POD_LOGITS)
        old = teacher.logits.shape[1]
        maps, old_maps = ([*each.features, each.logits] for each in (output, teacher))
        new = output.logits.shape[1] - old
        pod = local_pod(maps, old_maps, old, new, *factors, normalise=self.normalised)
        hard = cross_entropy(output.logits, batch.label, to=output.resolution, image_weights=self.weights)
        return {"cross_entropy": hard, "pod": pod}

    def state(self) -> dict[str, Tensor]:
        return {"thresholds": self.thresholds} if len(self.thresholds) else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.thresholds = state.get("thresholds", self.thresholds)

    def _entropy(self, teacher: Output) -> tuple[Tensor, Tensor]:
        """The old model's entropy and class of every pixel, N × H × W each."""
        twice = self.step.seen if self.settings.official else None
        return entropy_and_class(teacher.logits, teacher.resolution, official_classes=twice)


@dataclass(frozen=True)
class PLOPLongSettings(PLOPSettings):
    # embeddings of length 1 are at most 2 apart at each scale: PLOP's factors would leave nothing of them
    pod: float | None = setting(1.0, "weight of the normalised local POD on features (None: PLOP's)")
    pod_logits: float | None = setting(0.05, "weight of the normalised local POD on logits (None: PLOP's)")


@register_method(
    "ploplong",
    "PLOP + cosine classifier + normalised POD + frozen batch-norm statistics (our reading)",
    title="PLOPLong",
)
class PLOPLong(PLOP):
    """For many steps. No code was published: this is our reading of its description.

    The classifier compares directions only, the POD embedding of each scale has length 1, and from step 1 on
    the batch norms keep step 0's statistics while their weights are still trained.
    """

    Settings = PLOPLongSettings
    knobs = Method.knobs | {"method.pod": (0.1, 10.0)}
    head = "cosine"
    frozen = "statistics"
    normalised = True

    def check(self, model: SegmentationModel) -> None:
        super().check(model)
        if model.decoder.default_head not in ("linear", "cosine"):
            raise TissError(
                f"{self.name} has a cosine classifier, but the decoder {model.architecture.decoder} has a head "
                "of its own (take plop, or another model.decoder)",
                setting="method",
            )
