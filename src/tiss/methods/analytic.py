"""Analytic: later steps are not trained. One pass over their images gives sums, and the head is solved from them.

The encoder is trained in step 0, then frozen. A patch's feature x becomes φ = relu((x − m) / s · R) with a fixed
Gaussian R, and the head is the linear discriminant of φ: see `discriminant.py`. Sums add up, so the head after any
number of steps is that of all images at once, except that unlabelled patches are shared out by the head itself. `lda`
is the same on x. Random features with a solved head are RanPAC's (McDonnell et al., NeurIPS 2023) for images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND
from tiss.errors import TissError
from tiss.losses.upsampling import exact_products, without_autocast
from tiss.methods.base import Batches, Method, Settings, all_rows, all_sum, register_method
from tiss.methods.discriminant import Project, Sums, pack, quantize, solve, with_own_head
from tiss.models import RandomHead, SegmentationModel, tokens
from tiss.randomness import seed_of
from tiss.scenarios import Step

HEADS = ("linear", "cosine", "random")  # those that read single patches
PURE = 0.5  # a patch counts as unlabelled if more than this share of it is, and no class has a pixel there
FIRST_BATCHES = 4  # give the mean and the deviation of the features
# patches of a class in an image, or of its unlabelled ones, that enter the sums, as others are much like them; and
# the same in all images of a step, so that few images give more each
MOST, ENOUGH = 32, 8192


@dataclass(frozen=True)
class AnalyticSettings(Settings):
    width: int = setting(2048, "random features per patch (0: the encoder's own features)")
    patches: int = setting(24576, "unlabelled patches kept of all steps together, a byte per feature")
    ridge: float = setting(1e-3, "regularization, as a share of the features' mean variance")

    def __post_init__(self) -> None:
        for name, least in (("width", 0), ("patches", 1)):
            if getattr(self, name) < least:
                raise TissError(f"{getattr(self, name)}: must be at least {least}", setting=f"method.{name}")
        if not self.ridge > 0:
            raise TissError(f"{self.ridge}: must be above 0", setting="method.ridge")


@register_method(
    "analytic", "encoder frozen after step 0; later steps are solved from sums, without training"
)
class Analytic(Method):
    Settings = AnalyticSettings
    domains = True
    knobs = {"method.ridge": (1e-5, 1e-1)}  # noqa: RUF012 - a class constant
    heads = HEADS
    frozen = "everything"
    solved = True

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.kept: dict[str, Tensor] = {}  # the sums of all steps so far, by name

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        self.seed = seed
        if step.index == 0:
            self.kept = {}

    @torch.no_grad()
    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        """Adds the step's sums to those kept, and solves the head."""
        model.eval()
        if step.index == 0:
            self.replace_head(model, batches)
        elif not self.kept:
            raise TissError(
                f"{self.name}: needs the sums of the earlier steps: begin at step 0", setting="method"
            )
        self.add(self.sums_of(step, model, batches), model)

    def add(self, found: Sums, model: SegmentationModel) -> None:
        """Adds the sums of one more step to those kept, and solves the head."""
        with without_autocast(model.head.rows[0]), exact_products():
            found = with_own_head(found, project_of(model), self.settings.ridge)
        if self.kept:
            found = self.known(model).added(found)
        self.kept = found.thinned(self.settings.patches).tensors()
        self.solve(model)

    def known(self, model: SegmentationModel) -> Sums:
        """The sums of the steps so far, checked to belong to `model`."""
        device, width = next(model.parameters()).device, model.head.rows[0].shape[1]
        kept = {name: tensor.to(device) for name, tensor in self.kept.items()}
        sums = Sums.of(kept, model.decoder.channels, width, parts_of(model))
        if not consistent(sums, len(model.classes)):
            raise TissError(
                "the sums kept with the model are damaged: copy its folder again", setting="method"
            )
        if not torch.allclose(sums.encoder, checksum(model), rtol=1e-6):
            raise TissError("the sums kept with the model come from another encoder", setting="method")
        return sums

    def solve(self, model: SegmentationModel) -> None:
        """Sets the head to what the sums say."""
        how, head = self.settings, model.head
        with without_autocast(head.rows[0]), exact_products():
            rows, biases = solve(self.known(model), project_of(model), how.ridge)
        sizes = model.group_sizes()
        for part, row, bias in zip(range(len(sizes)), rows.split(sizes), biases.split(sizes), strict=True):
            head.rows[part].data.copy_(row)
            head.biases[part].data.copy_(bias)

    def replace_head(self, model: SegmentationModel, batches: Batches) -> None:
        """A head to be solved for the one that step 0 was trained with."""
        width, parts = self.settings.width, model.decoder.parts
        model.set_head("random" if width else "linear", width // parts * parts)
        model.rule = "softmax"  # also where the encoder was trained with sigmoids
        if not isinstance(model.head, RandomHead):
            return
        sums = torch.zeros(3, model.decoder.channels, dtype=torch.float64, device=model.head.shift.device)
        for batch in islice(batches(), FIRST_BATCHES):
            features = tokens(model.body(batch.image)[0]).flatten(0, 1).double()
            sums += torch.stack([torch.ones_like(features), features, features.square()]).sum(dim=1)
        count, total, squares = all_sum(sums)
        model.head.shift.copy_(total / count)
        model.head.scale.copy_((squares / count - (total / count) ** 2).mean().clamp(min=1e-12).sqrt())

    def sums_of(self, step: Step, model: SegmentationModel, batches: Batches) -> Sums:
        """The sums over the images of one step: the same in one process and in several, up to rounding."""
        tally = Tally(model, step.seen, self.settings.patches, max(MOST, ENOUGH // len(step.train)))
        for batch in batches():
            decoded, _ = model.body(batch.image)
            padded = model.resolution(batch.image).padded
            shares = patch_shares(batch.label, decoded.shape[-2:], padded, step.seen)
            tally.add(tokens(decoded), shares, self.keys(batch.ids, shares.shape[1], decoded.device))
        return tally.sums(step.train.labelled)

    def keys(self, ids: list[str], patches: int, device: torch.device) -> Tensor:
        """Random numbers, images × patches, that depend on nothing but the seed and the image."""
        drawn = []
        for id in ids:
            seed = seed_of(self.seed, "patches", id) >> 1
            drawn.append(torch.rand(patches, generator=torch.Generator().manual_seed(seed)))
        return torch.stack(drawn).to(device)

    def state(self) -> dict[str, Tensor]:
        return dict(self.kept)

    def state_bytes(self, model: SegmentationModel, classes: int) -> int:
        channels = model.decoder.channels
        width = self.settings.width or channels
        return 4 * width * (width // 2 + 2 * classes + 3) + self.settings.patches * (channels + 10)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.kept = dict(state)


class Tally:
    """Adds up the sums of one step, patch by patch, whether their features were computed just now or kept."""

    def __init__(self, model: SegmentationModel, classes: int, patches: int, most: int) -> None:
        """`patches`: unlabelled ones to keep; `most`: of a class in an image that enter the sums."""
        rows, channels, parts = model.head.rows[0], model.decoder.channels, parts_of(model)
        device, width = rows.device, rows.shape[1]
        own = width // parts
        self.model, self.classes, self.patches, self.most = model, classes, patches, most
        self.scatter, self.class_sums, self.open_sum, self.counts, self.open_count = (
            torch.zeros(shape, dtype=torch.float64, device=device)
            for shape in ((parts, own, own), (classes, width), (width,), (classes,), (1,))
        )
        none = torch.empty(0, device=device)
        self.kept: tuple[Tensor, ...] = (none, none.view(0, channels), none)  # keys, features, weights

    def add(self, features: Tensor, shares: Tensor, keys: Tensor) -> None:
        """Features N × n × D, what `patch_shares` says of them N × n × C, and random numbers (see `Analytic.keys`)."""
        labelled = shares[..., 1:]
        some = labelled.sum(dim=2) > 0
        open_share = shares[..., BACKGROUND] * (~some & (shares[..., BACKGROUND] > PURE))
        owner = torch.where(some, labelled.argmax(dim=2) + 1, torch.where(open_share > 0, BACKGROUND, -1))
        factor = sampled(owner, keys, self.classes, self.most)
        used = factor > 0
        labelled, drawn = labelled[used] * factor[used, None], open_share[used] * factor[used]
        with without_autocast(features), exact_products():
            random = project_of(self.model)(features[used].float())
            weight = labelled.sum(dim=1) + drawn
            by_part = random.unflatten(1, self.scatter.shape[:2]).movedim(1, 0)  # parts × n × their width
            self.scatter += (by_part * weight[:, None]).mT @ by_part
            self.class_sums[1:] += labelled.T @ random
            self.open_sum += drawn @ random
        self.counts[1:] += labelled.double().sum(dim=0)
        self.open_count += drawn.double().sum()
        chosen = open_share > 0
        new = (keys[chosen], features[chosen].float(), open_share[chosen])
        self.kept = smallest(tuple(map(torch.cat, zip(self.kept, new, strict=True))), self.patches)

    def sums(self, labelled: Iterable[int]) -> Sums:
        """The sums over all processes; `labelled` are the channels that the step's images are labelled with."""
        for tensor in (self.scatter, self.class_sums, self.counts, self.open_sum, self.open_count):
            all_sum(tensor)
        _, patches, weights = smallest(tuple(map(all_rows, self.kept)), self.patches)
        quantized, scales = quantize(patches)
        device = patches.device
        told = torch.zeros(1, self.classes, dtype=torch.uint8, device=device)
        told[0, list(labelled)] = 1
        return Sums(
            scatter=pack(self.scatter),
            counts=self.counts,
            sums=self.class_sums.float(),
            open_sum=self.open_sum.float(),
            open_counts=self.open_count,
            labelled=told,
            patches=quantized,
            scales=scales,
            weights=weights,
            steps=torch.zeros(len(weights), dtype=torch.int16, device=device),
            encoder=checksum(self.model),
            own_rows=torch.zeros(self.classes, len(self.open_sum), device=device),
            own_biases=torch.zeros(self.classes, device=device),
        )


@dataclass(frozen=True)
class LdaSettings(AnalyticSettings):
    width: int = setting(0, "random features per patch (0: the encoder's own features)")


@register_method("lda", "as analytic, on the encoder's own features", title="LDA")
class Lda(Analytic):
    Settings = LdaSettings


def consistent(sums: Sums, classes: int) -> bool:
    """Whether the parts of sums from a file belong together, for at most `classes` channels."""
    steps, patches = len(sums.open_counts), len(sums.patches)
    return (
        len(sums.sums) == len(sums.own_rows) == len(sums.own_biases) == sums.classes <= classes
        and sums.labelled.shape == (steps, sums.classes)
        and all(len(part) == patches for part in (sums.scales, sums.weights, sums.steps))
        and bool(((sums.steps >= 0) & (sums.steps < steps)).all())
    )


def sampled(owner: Tensor, keys: Tensor, classes: int, most: int) -> Tensor:
    """How often each of N × n patches counts: where a class owns more than `most` in an image, a sample stands for all.

    The sample consists of the patches with the smallest keys. An owner of −1 is nobody.

    >>> sampled(torch.tensor([[1, 1, 1, 2, -1]]), torch.tensor([[0.3, 0.1, 0.2, 0.9, 0.5]]), classes=3, most=2)
    tensor([[0.0000, 1.5000, 1.5000, 1.0000, 0.0000]])
    """
    image = torch.arange(len(owner), device=owner.device)[:, None]
    group = torch.where(owner < 0, 0, image * classes + owner + 1).flatten()
    sizes = torch.bincount(group, minlength=len(owner) * classes + 1)
    order = keys.flatten().argsort(stable=True)
    order = order[group[order].argsort(stable=True)]  # by group, then by key
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[group[order]]
    factor = (sizes / sizes.clamp(max=most).clamp(min=1))[group]
    return torch.where((place < most) & (group > 0), factor, 0.0).view(owner.shape)


def smallest(rows: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    """The `count` rows with the smallest keys, which come first in `rows`, in their order."""
    order = rows[0].argsort(stable=True)[:count]
    return tuple(part[order] for part in rows)


def patch_shares(label: Tensor, grid: tuple[int, int], padded: tuple[int, int], classes: int) -> Tensor:
    """Each class's share of the pixels of a patch, N × n × classes, for N × H × W labels.

    `grid` are the rows and columns of patches that an image of size `padded` is cut into. Ignored pixels, and those
    beyond the image, are in no class's share.

    >>> patch_shares(torch.tensor([[[0, 2, 2, 255]]]), (1, 2), (1, 4), classes=3)
    tensor([[[0.5000, 0.0000, 0.5000],
             [0.0000, 0.0000, 0.5000]]])
    """
    count, height, width = label.shape
    (rows, columns), device = grid, label.device
    row = torch.arange(height, device=device) * rows // padded[0]
    column = torch.arange(width, device=device) * columns // padded[1]
    image = torch.arange(count, device=device)[:, None, None]
    patch = (image * rows + row[:, None]) * columns + column
    cells = patch * (classes + 1) + label.clamp(max=classes)
    found = torch.bincount(cells.flatten(), minlength=count * rows * columns * (classes + 1))
    area = (padded[0] // rows) * (padded[1] // columns)
    return found.view(count, rows * columns, classes + 1)[..., :classes].float() / area


def checksum(model: SegmentationModel) -> Tensor:
    """One number that tells the weights before the head from others."""
    sums = [parameter.detach().double().abs().sum() for parameter in model.body.parameters()]
    return torch.stack(sums).sum()[None]


def parts_of(model: SegmentationModel) -> int:
    """How many heads, each on a part of the features, the solved head is the mean of."""
    return model.head.parts if isinstance(model.head, RandomHead) else 1


def project_of(model: SegmentationModel) -> Project:
    """φ: patch features n × D to n × M."""
    return model.head.project if isinstance(model.head, RandomHead) else lambda features: features
