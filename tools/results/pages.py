"""All pages that results/ decides, in memory: the command writes them, a test compares them."""

from __future__ import annotations

from pathlib import Path

from tools.results.claims_page import claims_page
from tools.results.contrast import contrast_page
from tools.results.page import Figures, results_page
from tools.results.readme import readme


def make_pages(root: Path) -> tuple[dict[Path, str], Figures]:
    """Texts and figures by their path from the root."""
    text, figures = results_page(root)
    contrast, more = contrast_page(root)
    texts = {
        Path("docs/results.md"): text,
        Path("docs/claims.md"): claims_page(root),
        Path("docs/contrast.md"): contrast,
        Path("README.md"): readme(root),
    }
    return texts, figures | more
