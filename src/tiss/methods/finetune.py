"""FT and offline: plain cross-entropy, the lower and the upper bound."""

from __future__ import annotations

from torch import Tensor

from tiss.data.base import Batch
from tiss.losses import cross_entropy
from tiss.methods.base import Method, register_method
from tiss.models.contract import Output


@register_method("ft", "fine-tuning: plain cross-entropy, new channels random; forgets", title="FT")
class FineTuning(Method):
    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(output.logits, batch.label, to=output.resolution)}


@register_method("offline", "all classes at once, all labels: the upper bound")
class Offline(FineTuning):
    joint = True
