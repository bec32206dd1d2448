"""Every command in the documentation exists; those marked to run do run, at the smallest size."""

import contextlib
import io
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of, pages, prepare
from tests.user.story import Patch
from tiss.cli.main import COMMANDS, main
from tiss.data.shapes import Shapes
from tiss.methods.base import METHODS

# What makes a shown command small enough to run here; the command itself stays as it is shown.
SMALL = {
    "train": "--encoder vit_micro_patch8 --epochs 10 --batch 8 --lr 0.01",
    "extend": "--epochs 4 --lr 0.01",
    "run": "--train.epochs 1 --train.batch 8 --model.encoder vit_micro_patch8 --data.crop 32",
}
NOT_RUN = ("app", "push")  # these serve or need a network: they have tests of their own
# An example that says that it needs no tiss must not import it.
ALONE = "sys.modules['torch'] = sys.modules['tiss'] = None; "
RUNS = "import runpy, sys; sys.argv = sys.argv[1:]; {}runpy.run_path(sys.argv[0], run_name='__main__')"

SHOWN = [(page.name, words) for page in pages() for block in blocks_of(page) for words in block.commands]


@cache
def help_of(*words: str) -> str:
    """The help text of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue().replace("-", "_")


def unknown_flags(words: list[str]) -> list[str]:
    """The flags of a command line that its help does not list."""
    method = words[words.index("--method") + 1] if "--method" in words else "tiss"
    own = method not in METHODS  # a page may show a method of the reader's own
    more = words[2:3] if words[1] == "data" else ["--method", method] if words[1] == "run" and not own else []
    flags = [word.split("=")[0].replace("-", "_") for word in words[2:] if re.match("--[a-z]", word)]
    listed = set(re.findall(r"__[\w.]+", help_of(words[1], *more)))
    return [flag for flag in flags if flag not in listed and not (own and flag.startswith("__method."))]


def test_commands_and_flags_exist():
    wrong = []
    for page, words in SHOWN:
        if words[0] == "tiss" and len(words) > 1 and words[1] != "COMMAND" and not words[1].startswith("-"):
            named = {words[1], " ".join(words[1:3])} & COMMANDS.keys()
            wrong += [] if named or words[1] == "data" else [f"{page}: no command {words[1]}"]
            wrong += [f"{page}: {words[1]} has no flag {flag}" for flag in unknown_flags(words)]
        elif words[:2] == ["python", "-m"] and words[2].startswith("tools."):
            source = ROOT.joinpath(*words[2].split(".")).with_suffix(".py").read_text(encoding="utf-8")
            flags = [word for word in words if word.startswith("--")]
            wrong += [f"{page}: {words[2]} has no flag {flag}" for flag in flags if f'"{flag}"' not in source]
    assert len(SHOWN) > 30 and not wrong


RUN = [page for page in pages() if any(block.note == "run" for block in blocks_of(page))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: Patch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(Shapes.__init__, "__defaults__", (None, 0, 64, 60, 20))  # few images
    prepare(page.name, tmp_path)
    for block in blocks_of(page):
        if block.note.startswith("file: "):
            (tmp_path / block.note.removeprefix("file: ")).write_text(block.text)
        for words in block.commands if block.note == "run" else ():
            if words[0] == "tiss" and words[1] not in NOT_RUN:
                assert main([*words[1:], *SMALL.get(words[1], "").split()]) == 0, words
            elif words[0] == "python":
                alone = "" if "import tiss" in (tmp_path / words[1]).read_text() else ALONE
                command = [sys.executable, "-c", RUNS.format(alone), *words[1:]]
                assert subprocess.run(command, check=False).returncode == 0, words


def test_links_between_pages_lead_somewhere():
    missing = []
    for page in pages():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.name}: {target}")
    assert not missing
