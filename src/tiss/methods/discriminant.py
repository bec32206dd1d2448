"""Linear discriminant analysis from sums, with patches that nobody labelled shared out among the classes.

A head that is solved needs of a step's images only sums over patch features φ: of all patches Σ w φφᵀ, of each class
its weight Σ w and Σ w φ. Sums of several steps add up to those of all images at once. What they cannot know is what an
unlabelled patch shows, since the images of a step are labelled with its own classes only. So a sample of these patches
is kept, and at every solve each is shared out among the background and the classes that its step did not label. Nothing
depends on the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from tiss.data.base import BACKGROUND
from tiss.errors import TissError

ABSENT = -1e4  # the logit of a class of which no patch was seen
CERTAIN = 0.99  # canonical correlations squared above this are sampling errors of the unlabelled patches
Project = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sums:
    """Sums of M features over the patches of S steps for C channels, and the K unlabelled patches kept, D wide.

    The features are P parts of m = M / P, and the head is the mean of a head on each.
    """

    scatter: Tensor  # P × m(m+1)/2, float32: the upper triangles of Σ w φφᵀ over all patches, part by part
    counts: Tensor  # C, float64: weight of the patches labelled with each class
    sums: Tensor  # C × M, float32: their Σ w φ
    open_sum: Tensor  # M, float32: Σ w φ of the unlabelled patches
    open_counts: Tensor  # S, float64: their weight, step by step
    labelled: Tensor  # S × C, uint8: whether a step's images are labelled with a class
    patches: Tensor  # K × D, int8
    scales: Tensor  # K, float32: a patch is its int8 row times this
    weights: Tensor  # K, float32: the unlabelled share of its pixels
    steps: Tensor  # K, int16: its step; a step's patches are in random order
    encoder: Tensor  # 1, float64: a checksum of the weights before the head
    own_rows: (
        Tensor  # C × M, float32: a class's log odds against the background in its own steps, times its count
    )
    own_biases: Tensor  # C, float32

    @classmethod
    def empty(cls, channels: int, width: int, parts: int = 1) -> Sums:
        """Sums over no patch; `channels` is D, `width` M."""
        own = width // parts
        return cls(
            scatter=torch.zeros(parts, own * (own + 1) // 2),
            counts=torch.zeros(0, dtype=torch.float64),
            sums=torch.zeros(0, width),
            open_sum=torch.zeros(width),
            open_counts=torch.zeros(0, dtype=torch.float64),
            labelled=torch.zeros(0, 0, dtype=torch.uint8),
            patches=torch.zeros(0, channels, dtype=torch.int8),
            scales=torch.zeros(0),
            weights=torch.zeros(0),
            steps=torch.zeros(0, dtype=torch.int16),
            encoder=torch.zeros(1, dtype=torch.float64),
            own_rows=torch.zeros(0, width),
            own_biases=torch.zeros(0),
        )

    @property
    def classes(self) -> int:
        return len(self.counts)

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], channels: int, width: int, parts: int) -> Sums:
        """From tensors of a file, refused where names or shapes do not fit a head on `channels` features."""
        expected = cls.empty(channels, width, parts).tensors()
        fits = set(tensors) == set(expected) and all(
            tensors[name].ndim == tensor.ndim
            and tensors[name].dtype == tensor.dtype
            and (tensor.ndim == 0 or tensors[name].shape[-1] == tensor.shape[-1] or tensor.shape[-1] == 0)
            for name, tensor in expected.items()
        )
        fits = fits and len(tensors["scatter"]) == parts
        if not fits:
            raise TissError(
                "the sums kept with the model do not fit its encoder, or are of another version: make it again with "
                "this one, or extend it with mib",
                setting="method",
            )
        return cls(**{name: tensors[name] for name in expected})

    def grown(self, classes: int) -> Sums:
        """The same sums with room for `classes` channels."""
        more = classes - self.classes
        return replace(
            self,
            counts=torch.cat([self.counts, self.counts.new_zeros(more)]),
            sums=torch.cat([self.sums, self.sums.new_zeros(more, self.sums.shape[1])]),
            labelled=torch.cat([self.labelled, self.labelled.new_zeros(len(self.labelled), more)], dim=1),
            own_rows=torch.cat([self.own_rows, self.own_rows.new_zeros(more, self.own_rows.shape[1])]),
            own_biases=torch.cat([self.own_biases, self.own_biases.new_zeros(more)]),
        )

    def added(self, other: Sums) -> Sums:
        """The sums of both; the steps of `other` come after this one's."""
        classes = max(self.classes, other.classes)
        one, two = self.grown(classes), other.grown(classes)
        return Sums(
            scatter=one.scatter + two.scatter,
            counts=one.counts + two.counts,
            sums=one.sums + two.sums,
            open_sum=one.open_sum + two.open_sum,
            open_counts=torch.cat([one.open_counts, two.open_counts]),
            labelled=torch.cat([one.labelled, two.labelled]),
            patches=torch.cat([one.patches, two.patches]),
            scales=torch.cat([one.scales, two.scales]),
            weights=torch.cat([one.weights, two.weights]),
            steps=torch.cat([one.steps, (two.steps + len(one.open_counts)).to(torch.int16)]),
            encoder=two.encoder,
            own_rows=one.own_rows + two.own_rows,
            own_biases=one.own_biases + two.own_biases,
        )

    def since(self, base: Sums, first: int) -> Sums:
        """What was added after `base`, with the classes that it lacks from channel `first` on.

        So `one.added(two.since(base, one.classes))` holds what `one` and `two` learned after `base`.
        """
        steps, old = len(base.open_counts), base.classes
        place = [*range(old), *range(first, first + self.classes - old)]
        room = Sums.empty(self.patches.shape[1], self.sums.shape[1]).grown(first + self.classes - old)
        before, own = base.grown(self.classes), self.steps >= steps
        counts, sums, own_rows, own_biases = (
            tensor.clone() for tensor in (room.counts, room.sums, room.own_rows, room.own_biases)
        )
        counts[place], sums[place] = self.counts - before.counts, self.sums - before.sums
        own_rows[place], own_biases[place] = (
            self.own_rows - before.own_rows,
            self.own_biases - before.own_biases,
        )
        labelled = room.labelled.new_zeros(len(self.open_counts) - steps, len(counts))
        labelled[:, place] = self.labelled[steps:]
        return Sums(
            scatter=self.scatter - base.scatter,
            counts=counts,
            sums=sums,
            open_sum=self.open_sum - base.open_sum,
            open_counts=self.open_counts[steps:],
            labelled=labelled,
            patches=self.patches[own],
            scales=self.scales[own],
            weights=self.weights[own],
            steps=(self.steps[own] - steps).to(torch.int16),
            encoder=self.encoder,
            own_rows=own_rows,
            own_biases=own_biases,
        )

    def without(self, channel: int) -> Sums:
        """As if `channel` had never been labelled: its patches are background, whose label is certain."""
        kept = [other for other in range(self.classes) if other != channel]
        counts, sums = self.counts.clone(), self.sums.clone()
        counts[BACKGROUND] += counts[channel]
        sums[BACKGROUND] += sums[channel]
        return replace(
            self,
            counts=counts[kept],
            sums=sums[kept],
            labelled=self.labelled[:, kept],
            own_rows=self.own_rows[kept],
            own_biases=self.own_biases[kept],
        )

    def thinned(self, most: int) -> Sums:
        """At most `most` unlabelled patches: of every step the first, equally many."""
        kept: list[Tensor] = []
        quota = most // max(1, len(self.open_counts))
        for step in range(len(self.open_counts)):
            kept.append((self.steps == step).nonzero()[:quota, 0])
        index = torch.cat([*kept, self.steps.new_zeros(0, dtype=torch.int64)])
        names = ("patches", "scales", "weights", "steps")
        return replace(self, **{name: getattr(self, name)[index] for name in names})


def quantize(features: Tensor) -> tuple[Tensor, Tensor]:
    """Rows K × D as int8 and a scale for each."""
    scales = features.abs().amax(dim=1).clamp(min=1e-12) / 127
    return (features / scales[:, None]).round().to(torch.int8), scales


def pack(matrices: Tensor) -> Tensor:
    """The upper triangles of symmetric matrices P × m × m, float32."""
    rows, columns = torch.triu_indices(*matrices.shape[1:], device=matrices.device)
    return matrices[:, rows, columns].float()


def unpack(triangles: Tensor, width: int) -> Tensor:
    """The symmetric matrices P × m × m of upper triangles, float64."""
    rows, columns = torch.triu_indices(width, width, device=triangles.device)
    matrices = torch.zeros(len(triangles), width, width, dtype=torch.float64, device=triangles.device)
    matrices[:, rows, columns] = matrices[:, columns, rows] = triangles.double()
    return matrices


def solve(sums: Sums, project: Project, ridge: float, shared: bool = True) -> tuple[Tensor, Tensor]:
    """Rows C × M and biases C of the head: logits are log posteriors up to a constant.

    With Σ the covariance within classes, w_c = Σ⁻¹ μ_c and b_c = −½ μ_cᵀ Σ⁻¹ μ_c + log π_c. Σ is the total covariance T
    (plus `ridge` times its mean variance) less that between classes, of rank C. `shared`: unlabelled patches are
    shared out, else all are background.
    """
    unlabelled = project(sums.patches.float() * sums.scales[:, None])  # K × M, float32
    weight = open_weights(sums)
    total = sums.counts.sum() + sums.open_counts.sum()
    mean = (sums.sums.double().sum(dim=0) + sums.open_sum.double()) / total.clamp(min=1e-12)
    factors = factored(sums, mean, total, ridge)
    parts = len(factors)

    def head(share: Tensor) -> tuple[Tensor, Tensor]:
        counts = sums.counts + (weight[:, None] * share).double().sum(dim=0)
        weighted = sums.sums.double() + (weight[:, None] * share).T.mm(unlabelled).double()
        means = weighted / counts.clamp(min=1e-12)[:, None] - mean
        heads = [
            discriminants(part, counts / total, factor)
            for part, factor in zip(means.chunk(parts, dim=1), factors, strict=True)
        ]
        rows = torch.cat([rows for rows, _ in heads], dim=1) / parts
        biases = torch.stack([biases for _, biases in heads]).mean(dim=0)
        return rows.float(), (biases - rows @ mean).float()

    share = unlabelled.new_zeros(len(unlabelled), sums.classes)
    share[:, BACKGROUND] = 1
    found = head(share)
    return head(share_out(sums, unlabelled, *found)) if shared else found


def share_out(sums: Sums, unlabelled: Tensor, rows: Tensor, biases: Tensor) -> Tensor:
    """Each class's share K × C of unlabelled patches K × M, from log odds against the background.

    In a step's own images what is unlabelled is certainly none of its classes, so the head that it gives alone knows
    a background in which no class hides. But it knows only what its images show. So it decides where it has seen at
    least twice as much as the step that a patch comes from; elsewhere the mean of its log odds and those of the head
    `rows`, `biases`, which takes all that is unlabelled for background.
    """
    logits = unlabelled @ rows.T + biases
    common = logits - logits[:, :1]
    own = (unlabelled @ sums.own_rows.T + sums.own_biases) / sums.counts.clamp(min=1e-12).float()
    told = sums.labelled.double()
    sizes = sums.open_counts + told @ sums.counts  # of each step
    trusted = (told.T @ sizes >= 2 * sizes[:, None])[sums.steps.long()]
    odds = torch.where(trusted, own, (own + common) / 2)
    odds[:, BACKGROUND] = 0
    allowed = (sums.labelled[sums.steps.long()] == 0) & (sums.counts > 0)
    allowed[:, BACKGROUND] = True
    return odds.masked_fill(~allowed, -torch.inf).softmax(dim=1)


def factored(sums: Sums, mean: Tensor, total: Tensor, ridge: float) -> list[Tensor]:
    """The Cholesky factor of T for each part of the features."""
    means = mean.view(len(sums.scatter), -1)
    moments = unpack(sums.scatter, means.shape[1]) / total.clamp(min=1e-12)
    return [cholesky(one, ridge) for one in moments - means[:, :, None] * means[:, None, :]]


def cholesky(covariance: Tensor, ridge: float) -> Tensor:
    """The factor with `ridge` times the mean variance added, or more where that is too little."""
    usual = covariance.diagonal().mean().clamp(min=1e-12)
    covariance.diagonal().add_(ridge * usual)
    if not torch.isfinite(covariance).all():
        raise TissError(
            "the features of the step's images are not finite: was the encoder's training broken?"
        )
    factor, fault = torch.linalg.cholesky_ex(covariance)
    while fault and ridge < 1:  # fewer patches than features, and sums in float32: more is needed
        covariance.diagonal().add_(9 * ridge * usual)
        ridge *= 10
        factor, fault = torch.linalg.cholesky_ex(covariance)
    if fault:
        raise TissError("the features of the step's images depend on one another", setting="method.ridge")
    return factor


def with_own_head(sums: Sums, project: Project, ridge: float) -> Sums:
    """The sums of one step with the head that this step gives alone: see `share_out`."""
    rows, biases = solve(sums, project, ridge, shared=False)
    if not sums.open_counts.sum():  # all is labelled: as if one average patch were not
        biases[BACKGROUND] = -sums.counts.sum().log()
    known = (sums.counts > 0) & (torch.arange(sums.classes, device=rows.device) != BACKGROUND)
    weight = torch.where(known, sums.counts, 0).float()
    return replace(
        sums,
        own_rows=weight[:, None] * (rows - rows[BACKGROUND]),
        own_biases=weight * (biases - biases[BACKGROUND]),
    )


def open_weights(sums: Sums) -> Tensor:
    """The weight of each kept patch, so that those of a step together have the weight of all its unlabelled ones."""
    step = sums.steps.long()
    kept = torch.zeros_like(sums.open_counts).index_add(0, step, sums.weights.double())
    return (sums.weights.double() * (sums.open_counts / kept.clamp(min=1e-12))[step]).float()


def discriminants(means: Tensor, shares: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and biases from class means less the total mean, the classes' shares and T's Cholesky factor.

    Σ⁻¹ U = T⁻¹ U (I − P Uᵀ T⁻¹ U)⁻¹ by Woodbury, P the shares, with the eigenvalues of P^½ Uᵀ T⁻¹ U P^½ (squared
    canonical correlations) kept below one: sampled means may exceed it.
    """
    live = shares > 0
    used, root = means[live], shares[live].sqrt()
    solved = torch.cholesky_solve(used.T, factor)  # M × k
    between = root[:, None] * (used @ solved) * root
    values, vectors = torch.linalg.eigh(between)
    inverse = (vectors / (1 - values.clamp(max=CERTAIN))) @ vectors.T
    found = (solved @ (root[:, None] * inverse / root)).T
    rows = torch.zeros_like(means)
    rows[live] = found
    biases = torch.full_like(shares, ABSENT)
    biases[live] = shares[live].log() - 0.5 * (found * used).sum(dim=1)
    return rows, biases
