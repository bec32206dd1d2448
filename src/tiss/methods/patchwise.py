"""TISS: MiB on a transformer with two patch-wise contrastive losses, and each of the two alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tiss.config import setting
from tiss.data.base import Batch
from tiss.losses import patch_contrast
from tiss.methods.base import register_method
from tiss.methods.mib import MiB, MiBSettings
from tiss.models.contract import Need, Output, tokens
from tiss.models.model import SegmentationModel


@dataclass(frozen=True)
class TISSSettings(MiBSettings):
    cd: float = setting(0.1, "weight of the contrast with the old model's last layer (L_cd)")
    ct: float = setting(0.1, "weight of the contrast between last and first layer (L_ct)")
    signed: bool = setting(False, "leave out the absolute value of the cosine")
    tau: float = setting(1.0, "temperature of the contrast (paper: 1)")
    detach: bool = setting(False, "let no gradient of L_ct reach the first layer's tokens directly")


@register_method("tiss", "MiB + .1 · L_cd + .1 · L_ct: the paper's method")
class TISS(MiB):
    """Eq. 12 and 13 on top of MiB; at step 0 cross-entropy and L_ct."""

    Settings = TISSSettings
    families = ("vit", "hierarchical")
    refusal = "contrasts patch tokens, which only transformers have (take --method mib or another encoder)"

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        assert model.encoder.contrast_blocks is not None, "check() comes first"
        return tuple(model.encoder.contrast_blocks)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
        first, last = (tokens(f) for f in output.features)
        fused = output.resolution.fused
        how = {"signed": self.settings.signed, "tau": self.settings.tau, "fused": fused}
        if self.settings.ct:
            reference = first.detach() if self.settings.detach else first
            terms["ct"] = self.settings.ct * patch_contrast(last, reference, **how)
        if self.settings.cd and teacher is not None:
            old_last = tokens(teacher.features[1]).detach()
            terms["cd"] = self.settings.cd * patch_contrast(last, old_last, **how)
        return terms

    def base_settings(self) -> dict[str, Any]:
        if not self.settings.ct:
            return {}
        return {key: getattr(self.settings, key) for key in ("ct", "signed", "tau", "detach")}


@dataclass(frozen=True)
class OnlyDistilledSettings(TISSSettings):
    ct: float = setting(0.0, "weight of the contrast between last and first layer (L_ct)")


@register_method("mib+cd", "MiB + .1 · L_cd")
class OnlyDistilled(TISS):
    Settings = OnlyDistilledSettings


@dataclass(frozen=True)
class OnlyContrastSettings(TISSSettings):
    cd: float = setting(0.0, "weight of the contrast with the old model's last layer (L_cd)")


@register_method("mib+ct", "MiB + .1 · L_ct")
class OnlyContrast(TISS):
    Settings = OnlyContrastSettings
