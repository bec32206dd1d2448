"""What the paper claims, in our words, with its own figures, and how our runs are asked about each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tiss.report.similarity import Similarities
from tools.results.compare import (
    Finding,
    above_each,
    architectures,
    best_of_all,
    by_eye,
    follows,
    harder,
    kept_share,
    never,
    of_part,
    ratio,
    versus,
)
from tools.results.kept import Block

ABLATION = ("mib", "mib+l1", "mib+l2", "mib+cd", "mib+ct")
RIVALS = ("ft", "lwf", "ilt", "mib", "plop", "sdr", "sdr+mib")
POSITIVE, NEGATIVE = 0, 1
ONE_RATE = "The CNN's rates were tried at one value only."


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, the paper's own figures for it, and how our runs are asked."""

    text: str
    paper: str
    ask: Callable[[Sequence[Block], Sequence[Similarities]], Iterator[Finding]]
    caution: str = ""  # what keeps our figures from saying more


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "Plain fine-tuning forgets the old classes, whatever the network; distillation (MiB) keeps them.",
        "VOC 15-1 overlapped, ViT-small, old: FT 4.7, MiB 64.9",
        partial(versus, "mib", "ft", ("old",), None),
    ),
    Claim(
        "Transformers forget less than CNNs: with MiB, a ViT keeps a larger share of what it reaches offline on the "
        "old classes.",
        "ADE20K 100-10, lost against offline: ViT-small 21.7 %, ResNet-101 40.2 %",
        partial(
            architectures,
            kept_share,
            "old as a share of offline",
            3,
            [("mib", "mib"), ("mib", "mib+frozenbn")],
        ),
        ONE_RATE
        + " With its batch norm frozen the CNN keeps as large a share of its old classes as the ViT.",
    ),
    Claim(
        "MiB is better with a transformer than with a CNN.",
        "VOC 15-1 overlapped, all: ViT-small 60.4 (56.4 by its own columns), ResNet-101 29.7",
        partial(architectures, of_part("all"), "all", 1, [("mib", "mib")]),
        ONE_RATE,
    ),
    Claim(
        "MiB with a transformer rivals PLOP with a CNN where classes come one after another.",
        "VOC 15-1 overlapped, all: 60.4 against 54.6, averaged in different ways",
        partial(architectures, of_part("all"), "all", 1, [("mib", "plop")]),
        ONE_RATE
        + " PLOP has its published weights and MiB's rates, nothing of it was chosen here, and with the "
        "ResNet it stays far below what is published with a larger one on larger pictures: this is no contest of "
        "PLOP at its best.",
    ),
    Claim(
        "Batch norm is a cause of forgetting: freezing it after the first step helps the old classes of a CNN.",
        "4.8 % more on the old classes of VOC (relative, mean over tasks)",
        partial(versus, "mib+frozenbn", "mib", ("old",), False),
    ),
    Claim(
        "L1 distillation of patch tokens makes MiB worse in every respect.",
        "ADE20K 100-10: all 30.7 → 28.0, old 35.4 → 32.7, new 21.2 → 18.4",
        partial(versus, "mib", "mib+l1", ("old", "new", "all"), True),
    ),
    Claim(
        "L2 distillation of patch tokens makes MiB worse in every respect.",
        "ADE20K 100-10: all 30.7 → 28.4, old 35.4 → 33.2, new 21.2 → 18.8",
        partial(versus, "mib", "mib+l2", ("old", "new", "all"), True),
    ),
    Claim(
        "The contrastive distillation L_cd lifts the old classes.",
        "ADE20K, 12.4 % more on the old classes (relative, mean over tasks)",
        partial(versus, "mib+cd", "mib", ("old",), True),
    ),
    Claim(
        "The contrastive loss L_ct lifts the new classes.",
        "ADE20K, 11.9 % more on the new classes (relative, mean over tasks)",
        partial(versus, "mib+ct", "mib", ("new",), True),
    ),
    Claim(
        "Both losses together (TISS) lift old classes, new classes and all of them over MiB.",
        "ADE20K, relative: 10.0 % old, 5.8 % new, 9.0 % all; VOC 15-1 overlapped, all: 60.4 → 72.1",
        partial(versus, "tiss", "mib", ("old", "new", "all"), True),
    ),
    Claim(
        "Both together are the best of the ablation, over all classes.",
        "ADE20K 100-10, all: TISS 35.2, +cd 34.9, +ct 31.0, MiB 30.7",
        partial(best_of_all, "tiss", ABLATION),
    ),
    Claim(
        "TISS is better than every other method of the paper's comparison (not of its ablation).",
        "VOC 15-1 overlapped, all: TISS 72.1, the best other 60.4",
        partial(best_of_all, "tiss", RIVALS),
    ),
    Claim(
        "TISS comes near offline training: 0.887 of it on VOC 15-1 overlapped, all classes.",
        "72.1 of 81.3",
        partial(ratio, "tiss", 0.887),
    ),
    Claim(
        "Classes that come one after another (15-1) are harder than the same classes at once (15-5).",
        "VOC overlapped, MiB ViT-small, all: 70.9 → 60.4",
        harder,
    ),
    Claim(
        "Similarity explains it: the closer a patch stays to itself in the model before (S+), the more of the old "
        "classes is kept.",
        "shown as a figure, ADE20K 100-10",
        partial(follows, "previous", POSITIVE, "old", 1),
    ),
    Claim(
        "Similarity explains it: the less a patch resembles other patches in the model before (S−), the more of the "
        "old classes is kept.",
        "shown as a figure, ADE20K 100-10",
        partial(follows, "previous", NEGATIVE, "old", -1),
    ),
    Claim(
        "Similarity explains it: the closer last and first layer are at the same patch (S+), the better the new "
        "classes.",
        "shown as a figure, ADE20K 100-10",
        partial(follows, "depth", POSITIVE, "new", 1),
    ),
    Claim(
        "Similarity explains it: the less last and first layer resemble each other at different patches (S−), the "
        "better the new classes.",
        "shown as a figure, ADE20K 100-10",
        partial(follows, "depth", NEGATIVE, "new", -1),
    ),
    Claim(
        "A transformer's feature maps stay orderly step after step, a CNN's do not.",
        "shown as a figure, ADE20K 100-10",
        by_eye,
    ),
    Claim(
        "The gains carry over to larger backbones (ViT-base) and to other transformers (Swin, SegFormer).",
        "ADE20K 100-10, all: ViT-base 39.9 → 41.1",
        never,
    ),
    Claim(
        "The gains carry over to ADE20K and Cityscapes.",
        "ADE20K 100-10, all: 30.7 → 35.2",
        never,
    ),
)

OWN = "not in the paper: our own aim"
AIMS: tuple[Claim, ...] = (
    Claim(
        "Our `recall` reaches at least the paper's ratio to offline, 0.887, on VOC 15-1 overlapped, all classes.",
        OWN,
        partial(ratio, "recall", 0.887),
    ),
    Claim(
        "Our `recall` is above each baseline, over all classes.",
        OWN,
        partial(above_each, "recall", ("ft", "lwf", "ilt", "mib", "plop", "tiss", "frozen")),
    ),
)
