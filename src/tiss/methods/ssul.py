"""SSUL: a frozen network with sigmoids, and an "unknown" class that new classes start from.

Cha et al., "SSUL: Semantic Segmentation with Unknown Label for Exemplar-based Class-Incremental Learning",
NeurIPS 2021 (arXiv:2106.11562).
"""

from typing import Any

import torch
from torch import Tensor, nn

from tiss.data.base import BACKGROUND, Batch
from tiss.losses import binary_cross_entropy, upsampled_argmax
from tiss.methods.base import Batches, register_method
from tiss.methods.baselines import Frozen, FrozenSettings
from tiss.models import Output, SegmentationModel
from tiss.scenarios import Step


@register_method(
    "ssul",
    "network and old rows fixed after step 0; sigmoids with an unknown class, from which new classes start",
    title="SSUL",
)
class SSUL(Frozen):
    """As the published code runs it where there are no saliency maps (ADE20K).

    Pixels of no current class are unknown, unless the old model gives them an old class with more than `confidence`
    (.7) and more than its unknown class. So background and unknown class are one channel, 0. It has a sigmoid like
    the others, is trained at every step, and its row is copied to new classes (weight transfer). The largest sigmoid
    is predicted.

    With saliency maps the paper calls only salient pixels unknown and gives the others a background class of its own,
    whose sigmoid is added to the unknown one's for prediction; in the code it is then trained 10⁴ times more slowly.
    """

    Settings = FrozenSettings
    initialise = "copy"
    heads = ("linear", "cosine")  # whose old logits do not depend on new rows
    first: list[nn.Parameter]  # of each of the head's lists, step 0's entry, with the unknown class's row
    held: list[Tensor]  # as it was before the step

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        model.rule = "softmax"  # the largest sigmoid is the largest logit
        self.first = [parameters[0] for parameters in model.head.growing()]
        self.held = [parameter.detach().clone() for parameter in self.first]
        for parameter in self.first:
            parameter.requires_grad_(True)

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        if teacher is None:
            return batch.label
        self.hold()
        label = super().targets(batch, teacher)
        unknown = upsampled_argmax(teacher.logits, teacher.resolution) == BACKGROUND
        return torch.where(unknown, batch.label, label)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        channels = torch.arange(output.logits.shape[1], device=output.logits.device).view(1, -1, 1, 1)
        fixed = (channels != BACKGROUND) & (channels < self.step.old)
        logits = torch.where(fixed, output.logits.detach(), output.logits)
        return {"binary": binary_cross_entropy(logits, batch.label, to=output.resolution, first=0)}

    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        if step.index > 0:
            self.hold()

    def base_settings(self) -> dict[str, Any]:
        return {"loss": "binary, with the background's"}

    @torch.no_grad()
    def hold(self) -> None:
        """Puts the old classes' rows of step 0 back: an optimizer's weight decay shrinks a parameter as a whole."""
        for parameter, before in zip(self.first, self.held, strict=True):
            parameter[1:] = before[1:].to(parameter.device)
