"""Prints the lowest versions that pyproject.toml allows, as a constraints file; `make test-lowest` tests them.

    python -m tools.lowest > lowest.txt

torch stays at the version of constraints.txt, and torchvision at whatever goes with it: the two are built for each
other.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIED = ("torch", "torchvision")
BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<version>[0-9.]+)")


def lowest(project: dict) -> dict[str, str]:
    """Package → its lower bound, over all extras; of several bounds for one package the highest holds."""
    bounds: dict[str, str] = {}
    for requirement in requirements(project):
        match = BOUND.match(requirement)
        if match and match["name"] not in TIED:
            name, version = match["name"].lower(), match["version"]
            bounds[name] = max(version, bounds.get(name, "0"), key=as_numbers)
    return bounds


def requirements(project: dict) -> Iterator[str]:
    yield from project["dependencies"]
    for extra in project["optional-dependencies"].values():
        yield from extra


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print((ROOT / "constraints.txt").read_text(), end="")
    for name, version in sorted(lowest(project).items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
