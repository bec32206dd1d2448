"""docs/claims.md: the paper's claims beside our figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.results.claims import AIMS, CLAIMS, Claim
from tools.results.compare import ALONE, HOLDS, STRONG, UNDECIDED, Finding, largest_deviation, of_part
from tools.results.kept import Block, blocks, compared, similarities
from tools.results.page import MADE

MISSING = "not measured yet"
DEVIATIONS = "<deviations>"
INTRODUCTION = f"""
# The paper's claims, and what our runs say

Each claim of the paper's text in our words, its own figures, and ours. One rule decides: **A is above B when the means
differ by more than twice the larger of the two sample deviations over seeds.** If so, and in the claimed direction, the
claim *holds* there; if the difference is smaller, or goes the other way, it *does not hold*. A side with one seed has
no deviation: it is given the largest that any method here showed over three seeds ({DEVIATIONS}). What is
within twice of that stays undecided, what goes beyond is decided and marked *one seed*.
Similarities are measured on one seed a method; there a claim holds when methods rank by similarity as they rank by mIoU
after the last step: not with a rank correlation below {STRONG:g}, and only where chance would rank them as well at most
one time in twenty (of four methods it gives {STRONG:g} or more one time in six). Means are with the background.
A share of offline is held against the stated one, mean over seeds. The last two are aims of ours, not the paper's.
Only runs scored on the test set count, each method with its default settings. Runs and settings: [results](results.md).
Other readings of the paper's two losses, also on a holdout: [contrast](contrast.md).
"""


def claims_page(root: Path) -> str:
    """The text of docs/claims.md."""
    kept, measured = compared(blocks(root / "results")), similarities(root / "results")
    answers = [(claim, list(claim.ask(kept, measured))) for claim in (*CLAIMS, *AIMS)]
    size = source_of(kept)
    lines = [f"| | claim | ours{size} |", "|---:|---|---|"]
    parts = []
    for number, (claim, findings) in enumerate(answers, 1):
        lines.append(f"| {number} | {claim.text} | {summary(findings)} |")
        parts.append(claim_section(number, claim, findings, size))
    notes = source_note(kept)
    introduction = INTRODUCTION.replace(DEVIATIONS, deviations(kept))
    text = "\n".join([MADE + introduction, notes, "\n".join(lines), "", "\n\n".join(parts)])
    return text.strip() + "\n"


def summary(findings: Sequence[Finding]) -> str:
    """One cell: how often a claim holds among the comparisons that our runs allow."""
    if not findings:
        return MISSING
    decided = [finding for finding in findings if not finding.verdict.startswith(UNDECIDED)]
    if not decided:
        return findings[0].verdict
    held = sum(finding.verdict.startswith(HOLDS) for finding in decided)
    alone = sum(finding.verdict.endswith(ALONE) for finding in decided)
    if held == 0:
        verdict, details = "does not hold", list(dict.fromkeys(_why(finding) for finding in decided))
    elif held < len(decided):
        verdict, details = f"holds in {held} of {len(decided)}", []
    else:
        verdict, details = HOLDS, [f"{held} of {len(findings)}"] if len(findings) > 1 else []
    details += ["one seed" if alone == len(decided) else f"{alone} by one seed"] if alone else []
    open_ones = len(findings) - len(decided)
    details += [f"{open_ones} undecided"] if open_ones else []
    firm = alone < len(decided) or open_ones <= len(decided)
    return (f"**{verdict}**" if firm else verdict) + (f" ({'; '.join(details)})" if details else "")


def _why(finding: Finding) -> str:
    return finding.verdict.removesuffix(ALONE).partition(": ")[2]


def claim_section(number: int, claim: Claim, findings: Sequence[Finding], size: str = "") -> str:
    """The claim, the paper's figures, ours with their runs."""
    lines = [f"## {number}. {claim.text}", "", f"Paper: {claim.paper}.", ""]
    if not findings:
        return "\n".join([*lines, f"Ours: {MISSING}."])
    lines += [f"| where | ours{size} | verdict |", "|---|---|---|"]
    lines += [f"| {one.where} | {one.figures} | {one.verdict} |" for one in findings]
    lines += ["", claim.caution] if claim.caution else []
    names = sorted({name for finding in findings for name in finding.runs})
    if names:
        lines += ["", f"Runs: {', '.join(names)}."]
    return "\n".join(lines)


def deviations(kept: Sequence[Block]) -> str:
    """The deviations that stand in for unknown ones."""
    known = [(part, largest_deviation(kept, of_part(part))) for part in ("old", "new", "all")]
    told = [f"{part} {value:.1f}" for part, value in known if value is not None]
    return f"{', '.join(told)} points" if told else "none yet"


def source_of(kept: Sequence[Block]) -> str:
    """How large the pictures were, to stand beside figures; nothing while no run on real data is kept."""
    sizes = dict.fromkeys(block.source for block in kept if block.experiment.data != "shapes")
    return f" (pictures of {'; '.join(sizes)})" if sizes else ""


def source_note(kept: Sequence[Block]) -> str:
    """What the sizes mean, beside the paper's."""
    if not source_of(kept):
        return "No run on real data is kept yet.\n"
    return f"Ours{source_of(kept)} stand beside the paper's, which had the original size and crops of 512.\n"
