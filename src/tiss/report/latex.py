"""Text for LaTeX: what means something to it, and what its fonts lack, escaped."""

from __future__ import annotations

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "–": "--",
    "…": r"\dots{}",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "→": r"$\to$",
    "−": "$-$",
} | {letter: "\\" + letter for letter in "&%$#_{}"}


def escape_latex(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(escape_latex("L_cd ± 5 %"))
    L\_cd $\pm$ 5 \%
    """
    return "".join(LATEX.get(letter, letter) for letter in text)
