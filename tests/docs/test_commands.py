"""Every command in the documentation exists; those marked to run do run, at the smallest size."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tools.encoders import SOURCES

from tests.docs.fixtures import FIXTURES
from tests.docs.pages import ROOT, Block, blocks_of, pages, runnable
from tiss.cli.main import COMMANDS, main
from tiss.data.shapes import Shapes
from tiss.methods.base import METHODS

# What makes a shown command small enough to run here; the command itself stays as it is shown.
MICRO = [
    "--train.epochs",
    "1",
    "--train.batch",
    "8",
    "--model.encoder",
    "vit_micro_patch8",
    "--data.crop",
    "32",
]
SMALL = {
    "train": ["--encoder", "vit_micro_patch8", "--epochs", "30", "--batch", "8", "--lr", "0.01"],
    "extend": ["--epochs", "10", "--lr", "0.01"],
    "run": MICRO,
}
# These serve or need a network: they have tests of their own, and here only their flags are checked.
NOT_RUN = ("app", "push")
BLOCK = (
    "import sys; sys.modules['torch'] = sys.modules['tiss'] = None; sys.argv = sys.argv[1:]; import runpy; "
)


def commands() -> list[tuple[str, list[str]]]:
    return [
        (page.name, words)
        for page in pages()
        for block in blocks_of(page)
        if block.kind == "console"
        for words in block.commands
        if "tiss" in words[:1]
    ]


@cache
def help_of(*words: str) -> str:
    """The help text of a command, whichever way it is printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue().replace("-", "_")


@pytest.mark.parametrize(
    ("page", "words"), commands(), ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_command_and_flags_exist(page: str, words: list[str]) -> None:
    if len(words) == 1 or words[1].startswith("-"):
        return
    assert words[1] in COMMANDS or words[1] == "COMMAND", f"{page}: no command {words[1]}"
    if words[1] == "COMMAND":
        return
    name = words[words.index("--method") + 1] if "--method" in words and words[1] == "run" else None
    method = ["--method", name] if name in METHODS else []  # a page may show a method of the reader's own
    text = help_of(words[1], *(words[2:3] if words[1] == "data" else method))
    for word in words[2:]:
        own = word.startswith("--method.") and name not in METHODS
        if word.startswith("--") and word != "--help" and not own:
            flag = word.split("=")[0].replace("-", "_")
            assert re.search(rf"{re.escape(flag)}\b", text), f"{page}: {words[1]} has no flag {word}"


def run_words(words: list[str], folder: Path) -> None:
    """Runs one command of a page in its folder."""
    if words[0] == "tiss" and words[1] not in NOT_RUN:
        assert main([*words[1:], *SMALL.get(words[1], [])]) == 0, words
    elif words[0] == "python":
        code = BLOCK + "runpy.run_path(sys.argv[0], run_name='__main__')"
        done = subprocess.run([sys.executable, "-c", code, *words[1:]], cwd=folder, check=False)
        assert done.returncode == 0, words


def act(block: Block, folder: Path) -> None:
    if block.note == "run":
        for words in block.commands:
            run_words(words, folder)
    elif block.note.startswith("file: "):
        (folder / block.note.removeprefix("file: ")).write_text(block.text)


@pytest.mark.parametrize("page", [page for page in pages() if runnable(page)], ids=lambda page: page.name)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    monkeypatch.setattr(Shapes.__init__, "__defaults__", (None, 0, 64, 60, 20))  # few pictures
    if page.name in FIXTURES:
        FIXTURES[page.name](tmp_path)
    for block in blocks_of(page):
        act(block, tmp_path)


def test_links_between_pages_lead_somewhere() -> None:
    missing = []
    for page in pages():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.name}: {target}")
    assert not missing


def test_tools_that_pages_name_exist_with_their_flags() -> None:
    found = [
        words[2:]
        for page in pages()
        for block in blocks_of(page)
        if block.kind == "console"
        for words in block.commands
        if words[:2] == ["python", "-m"] and words[2].startswith("tools.")
    ]
    assert {words[0] for words in found} >= {"tools.encoders", "tools.shrink_voc"}
    for name, *rest in found:
        source = (ROOT / Path(*name.split("."))).with_suffix(".py").read_text(encoding="utf-8")
        assert not [word for word in rest if word.startswith("--") and f'"{word}"' not in source], name


def test_the_agreement_to_expect_is_the_one_measured() -> None:
    (measured,) = re.findall(
        r"`all` agrees within ([\d.]+) points", (ROOT / "docs/results.md").read_text(encoding="utf-8")
    )
    text = (ROOT / "docs/repeat.md").read_text(encoding="utf-8")
    assert f"| {measured} points of `all`" in text and f"plus the {measured} for" in text


def test_the_headline_commands_are_those_of_the_results() -> None:
    results = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    for name in ("README.md", "docs/repeat.md"):
        shown = [
            " ".join(words)
            for block in blocks_of(ROOT / name)
            for words in block.commands
            if "vit_small.safetensors" in words and words[1] == "run"
        ]
        assert shown and all(f"`{command}`" in results for command in shown), name


def test_digests_of_the_weights_are_those_that_the_tool_compares() -> None:
    text = (ROOT / "docs/repeat.md").read_text(encoding="utf-8")
    assert all(f"`{source.digest}`" in text for source in SOURCES.values())
