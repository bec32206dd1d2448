"""TISS: MiB on a transformer with two patch-wise contrastive losses, and each of the two alone."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from tiss.config import setting
from tiss.data.base import Batch
from tiss.errors import TissError
from tiss.losses import patch_contrast
from tiss.methods.base import register_method
from tiss.methods.mib import MiB, MiBSettings
from tiss.models import Need, Output, SegmentationModel, tokens


@dataclass(frozen=True)
class TISSSettings(MiBSettings):
    cd: float = setting(0.1, "weight of the contrast with the old model's last layer (L_cd)")
    ct: float = setting(0.1, "weight of the contrast between last and first layer (L_ct)")
    signed: bool = setting(False, "leave out the absolute value of the cosine")
    tau: float = setting(1.0, "temperature of the contrast (paper: 1)")
    detach: bool = setting(False, "let no gradient of L_ct reach the first layer's tokens directly")
    ct_when: Literal["always", "base", "later"] = setting(
        "always", "steps with L_ct: all of them, only step 0, or only the later ones"
    )
    ct_block: int | None = setting(
        None, "block, counted from 0, that L_ct compares with the last one (None: the first one)"
    )
    cd_block: int | None = setting(
        None, "block, counted from 0, at which L_cd compares old and new model (None: the last one)"
    )
    final_norm: bool = setting(
        True, "take the last layer after the encoder's final norm; false: before it (plain ViTs)"
    )


@register_method("tiss", "MiB + .1 · L_cd + .1 · L_ct: the paper's method", title="TISS")
class TISS(MiB):
    """Eq. 12 and 13 on top of MiB; at step 0 cross-entropy and L_ct."""

    Settings = TISSSettings
    knobs = MiB.knobs | {"method.cd": (0.01, 1.0)}
    families = ("vit", "hierarchical")
    refusal = "contrasts patch tokens, which only transformers have (take mib or another encoder)"

    def check(self, model: SegmentationModel) -> None:
        super().check(model)
        first, last = contrast_blocks(model)
        if not self.settings.final_norm and "before_norm" not in model.encoder.named_needs:
            problem = f"{model.encoder.name} has no tokens before its final norm to offer: give true"
            raise TissError(problem, setting="method.final_norm")
        for name, end in (("ct_block", last - 1), ("cd_block", last)):
            block = getattr(self.settings, name)
            if block is not None and not first <= block <= end:
                raise TissError(
                    f"{block}: with {model.encoder.name} it takes {first} to {end}", setting=f"method.{name}"
                )

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        """The block that L_ct compares with the last one, the last one, and the block of L_cd."""
        first, end = contrast_blocks(model)
        last: Need = end if self.settings.final_norm else "before_norm"
        ct, cd = self.settings.ct_block, self.settings.cd_block
        return first if ct is None else ct, last, last if cd is None else cd

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
        first, last, compared = (tokens(f) for f in output.features)
        fused = output.resolution.fused
        how = {"signed": self.settings.signed, "tau": self.settings.tau, "fused": fused}
        when = {"always": True, "base": teacher is None, "later": teacher is not None}
        if self.settings.ct and when[self.settings.ct_when]:
            reference = first.detach() if self.settings.detach else first
            terms["ct"] = self.settings.ct * patch_contrast(last, reference, **how)
        if self.settings.cd and teacher is not None:
            old = tokens(teacher.features[2]).detach()
            terms["cd"] = self.settings.cd * patch_contrast(compared, old, **how)
        return terms

    def base_settings(self) -> dict[str, Any]:
        if not self.settings.ct or self.settings.ct_when == "later":
            return {}
        names = ["ct", "signed", "tau", "detach", "ct_block"]
        names += [] if self.settings.final_norm else ["final_norm"]  # names of first steps made before stay
        return {name: getattr(self.settings, name) for name in names}


def contrast_blocks(model: SegmentationModel) -> tuple[int, int]:
    """The encoder's first and last block with tokens of the same shape."""
    if model.encoder.contrast_blocks is None:
        raise TissError(f"{TISS.refusal}: {model.encoder.name} has none", setting="method")
    return model.encoder.contrast_blocks


@dataclass(frozen=True)
class OnlyDistilledSettings(TISSSettings):
    ct: float = setting(0.0, "weight of the contrast between last and first layer (L_ct)")


@register_method("mib+cd", "MiB + .1 · L_cd", title="MiB+cd")
class OnlyDistilled(TISS):
    Settings = OnlyDistilledSettings


@dataclass(frozen=True)
class OnlyContrastSettings(TISSSettings):
    cd: float = setting(0.0, "weight of the contrast with the old model's last layer (L_cd)")


@register_method("mib+ct", "MiB + .1 · L_ct", title="MiB+ct")
class OnlyContrast(TISS):
    Settings = OnlyContrastSettings
    knobs = MiB.knobs | {"method.ct": (0.01, 1.0)}  # each value has a first step of its own
