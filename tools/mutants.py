"""Changes the source of the package, one small place at a time, and counts how often the tests notice.

    python -m tools.mutants --areas losses methods --mutants 40

Each mutant is tried on a copy of the tree with the tests of its area. It is killed if they fail or take far too long.
"""

import argparse
import ast
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

# Area → its sources below src/tiss and its tests below tests
AREAS = {
    "losses": ("losses/[!t]*.py", "losses/test_[!gt]*.py"),  # without Triton, which needs a GPU
    "methods": ("methods/*.py", "methods/test_*.py"),
    "scenarios": ("scenarios/*.py", "scenarios/test_*.py"),
    "scores": ("evaluation/*.py", "evaluation/test_*.py"),
    "resume": (
        "engine/run.py engine/checkpoint.py engine/loop.py engine/session.py engine/run_folder.py",
        "engine/test_run_folder.py engine/test_checkpoint.py engine/test_loop.py cli/test_run.py",
    ),
}
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


class Mutation(ast.NodeTransformer):
    """Makes change number `wanted` of a file; `places` tells of all that were possible."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.places, self.what, self.line = wanted, list[str](), "", ""

    def due(self, node: Any, what: str) -> bool:
        found = len(self.places) == self.wanted
        self.places.append(f"{what}: {ast.unparse(node)} in {self.line}")
        self.what = f"{node.lineno}: {what}" if found else self.what
        return found

    def visit(self, node: Any) -> Any:
        if isinstance(node, ast.stmt):
            self.line = ast.unparse(node).partition("\n")[0]
        match node:
            case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
                return node
            case ast.FunctionDef():  # neither decorators nor annotations
                node.args.defaults = [self.visit(value) for value in node.args.defaults]
                node.body = [self.visit(statement) for statement in node.body]
                return node
            case ast.ClassDef():
                node.body = [self.visit(statement) for statement in node.body]
                return node
            case ast.AnnAssign():
                node.value = self.visit(node.value) if node.value else None
                return node
            case (
                ast.Raise()
                | ast.AugAssign()
                | ast.Expr(value=ast.Call())
                | ast.Assign(targets=[ast.Attribute()])
            ):
                if self.due(node, f"without {ast.unparse(node)[:60]}"):
                    return ast.copy_location(ast.Pass(), node)
                if isinstance(node, ast.Raise):
                    return node
            case (
                ast.BinOp(right=ast.Constant(value=str()) | ast.JoinedStr())
                | ast.BinOp(left=ast.Constant(value=str()))
            ):
                pass  # paths and texts, not numbers
            case ast.BinOp() | ast.BoolOp() if type(node.op) in SWAPS:
                swap = SWAPS[type(node.op)]
                node.op = swap() if self.due(node, swap.__name__) else node.op
            case ast.Compare():
                swaps = [SWAPS[type(one)] for one in node.ops]
                node.ops = [
                    new() if self.due(node, new.__name__) else old
                    for new, old in zip(swaps, node.ops, strict=True)
                ]
            case ast.UnaryOp(op=ast.Not()) if self.due(node, "without not"):
                return self.visit(node.operand)
            case ast.Constant(value=bool()) if self.due(node, f"not {node.value}"):
                return ast.Constant(not node.value)
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                steps = [step for step in (1, -1) if self.due(node, f"{node.value} {step:+}")]
                return ast.Constant(node.value + steps[0]) if steps else node
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in NAMES:
                if self.due(node, NAMES[name]):
                    setattr(node.func, "id" if isinstance(node.func, ast.Name) else "attr", NAMES[name])
        return self.generic_visit(node)


def sample(files: list[Path], count: int) -> list[tuple[Path, int]]:
    """Places of change, by a hash of their code: the same ones in two versions that share it."""
    ranked = []
    for file in files:
        mutation = Mutation()
        mutation.visit(ast.parse(file.read_text()))
        for index, place in enumerate(mutation.places):
            number = mutation.places[:index].count(place)  # of places that read the same
            ranked.append((sha256(f"{place} {number}".encode()).hexdigest(), file, index))
    return [(file, index) for _, file, index in sorted(ranked)[:count]]


def passes(tree: Path, tests: list[Path], limit: float) -> bool:
    """Runs the tests in a forked process, which has torch already."""
    pid = os.fork()
    if not pid:
        os.setsid()
        os.chdir(tree)
        os.environ["PYTHONPATH"] = f"{tree}/src:{tree}"
        sys.path[:0] = [f"{tree}/src", str(tree)]
        log = os.open(tree / "mutants.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not gpu"]
        os._exit(import_module("pytest").main([*options, *map(str, tests)]))
    deadline, ended, status = time.monotonic() + limit, 0, 1
    while not ended and time.monotonic() < deadline:
        time.sleep(0.05)
        ended, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what took too long, and what the tests left running
    if not ended:
        os.waitpid(pid, 0)
    return bool(ended) and status == 0


def find(folder: Path, patterns: str) -> list[Path]:
    found = {pattern: sorted(folder.glob(pattern)) for pattern in patterns.split()}
    if gone := [pattern for pattern, files in found.items() if not files]:
        raise SystemExit(f"{folder}: no such file: {', '.join(gone)}")
    return [file for files in found.values() for file in files]


def try_area(tree: Path, area: str, count: int) -> None:
    sources, tests = find(tree / "src/tiss", AREAS[area][0]), find(tree / "tests", AREAS[area][1])
    start = time.monotonic()
    if not passes(tree, tests, 1000):
        raise SystemExit(
            f"{area}: the tests fail without a change\n{(tree / 'mutants.log').read_text()[-3000:]}"
        )
    seconds = time.monotonic() - start
    killed, mutants = 0, sample(sources, count)
    for file, place in mutants:
        text, mutation = file.read_text(), Mutation(place)
        file.write_text(ast.unparse(ast.fix_missing_locations(mutation.visit(ast.parse(text)))))
        near = sorted(tests, key=lambda test: file.stem not in test.stem)
        survived = passes(tree, near, 30 + 4 * seconds)
        file.write_text(text)
        killed += not survived
        print(
            f"  {'SURVIVED' if survived else 'killed'} {file.relative_to(tree)}:{mutation.what}", flush=True
        )
    print(f"{area}: {killed} of {len(mutants)} killed, {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--areas", nargs="+", default=list(AREAS), choices=list(AREAS))
    parser.add_argument("--mutants", type=int, default=40, help="for each area")
    parser.add_argument("--tree", type=Path, default=Path("."), help="project folder")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    for name in ("torch", "accelerate", "yaml", "rich.progress", "PIL.Image", "hypothesis", "pytest"):
        import_module(name)
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        shutil.copytree(
            options.tree, tree, ignore=shutil.ignore_patterns(".*", "runs", "__pycache__", "results")
        )
        for area in options.areas:
            try_area(tree, area, options.mutants)


if __name__ == "__main__":
    main()
