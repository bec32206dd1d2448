"""Writes docs/results.md, docs/claims.md, docs/contrast.md, their figures, and the blocks of README.md, from results/.

python -m tools.results
"""

from __future__ import annotations

from pathlib import Path

from tiss.files import write_text
from tiss.report.plots import save_figure
from tools.results.pages import make_pages

ROOT = Path(__file__).parents[2]


def main() -> None:
    texts, figures = make_pages(ROOT)
    for path, text in texts.items():
        write_text(ROOT / path, text)
        print(path)
    for path, draw in figures.items():
        save_figure(draw(), ROOT / path)
        print(path)
    for path in (ROOT / "docs/images").glob("results-*.png"):
        if path.relative_to(ROOT) not in figures:
            path.unlink()  # of runs that are no longer kept


if __name__ == "__main__":
    main()
