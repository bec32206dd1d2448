"""Imports go one way along the line."""

import ast
from pathlib import Path

import tiss

PACKAGE = Path(tiss.__file__).parent
LINE = [
    *("errors", "registry", "randomness", "files", "palette"),
    *("config", "data", "scenarios", "models", "losses", "methods", "evaluation", "engine", "report"),
    *("user", "app", "cli"),
]
BASE = 5  # the first ones have no order among themselves


def layer(module: str) -> int | None:
    parts = module.split(".")
    return LINE.index(parts[1]) if len(parts) > 1 and parts[0] == "tiss" and parts[1] in LINE else None


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_imports_go_one_way():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        own = layer("tiss." + str(path.relative_to(PACKAGE).with_suffix("")).replace("/", "."))
        for module in imports_of(path):
            other = layer(module)
            if own is not None and other is not None and other > own and other >= BASE:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not wrong


def test_public_names_resolve():
    for name in tiss.__all__:
        assert getattr(tiss, name) is not None
