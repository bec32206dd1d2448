"""Flags ↔ nested configuration: `--train.lr 0.1` is the field `lr` of the section `train`, and nothing else."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiss import files
from tiss.config import describe_type
from tiss.errors import TissError, suggest


@dataclass(frozen=True)
class Flag:
    """One flag of a command: where it goes in the configuration, and what its help says."""

    path: str
    hint: Any
    default: Any
    help: str

    @property
    def is_switch(self) -> bool:
        return self.hint is bool


def flags_of(cls: type, prefix: str = "") -> Iterator[Flag]:
    """Every flag that the dataclass `cls` gives; a section with a `name` is itself a flag."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        path = f"{prefix}.{field.name}" if prefix else field.name
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            inner = list(flags_of(typing.cast(type, hint), path))
            named = [flag for flag in inner if flag.path == f"{path}.name"]
            yield from (Flag(path, flag.hint, flag.default, flag.help) for flag in named)
            yield from (flag for flag in inner if flag not in named)
        else:
            default = None if field.default is dataclasses.MISSING else field.default
            yield Flag(path, hint, default, field.metadata.get("help", ""))


# a flag of `tiss run` within a section; not a part of somebody's path
SECTIONS = r"(?<![\w./~-])--(?:data|model|train|eval|method|protocol)\.(\w+)"


@contextmanager
def own_names(known: type | Collection[str]) -> Iterator[None]:
    """Errors from below name the flags of `tiss run` (--train.device); here they get the command's own (--device).

    `known` is the command's options or the names of its flags. A flag that the command does not have stays as it is.
    Goes round a command's work, not round the reading of its flags: what the user wrote is quoted as it stands.
    """
    try:
        yield
    except TissError as error:
        names = {flag.path for flag in flags_of(known)} if isinstance(known, type) else set(known)

        def own(found: re.Match[str]) -> str:
            return f"--{found[1]}" if found[1] in names else found[0]

        error.args = (re.sub(SECTIONS, own, error.message),)
        section, _, name = (error.setting or "").rpartition(".")
        if section and name in names:
            error.setting = name
        raise


def parse_flags(
    arguments: list[str], flags: list[Flag], switches: Mapping[str, str], positional: str | None = None
) -> tuple[dict[str, Any], set[str], list[str]]:
    """Splits `arguments` into a nested mapping, the switches given, and what stands without a flag.

    `switches` are flags of the command itself that take no value (name → help).
    """
    known = {flag.path: flag for flag in flags}
    values: dict[str, Any] = {}
    given: set[str] = set()
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--"):
            if positional is None:
                raise TissError(f"unexpected argument {word!r}: every option starts with --")
            rest.append(word)
            continue
        name, _, inline = word[2:].partition("=")
        name = name.replace("-", "_")
        if name in switches:
            given.add(name)
            continue
        if name not in known:
            message = suggest(f"--{name}", [f"--{key}" for key in (*known, *switches)], "flag")
            raise TissError(message)
        if "=" in word:
            value: Any = inline
        elif known[name].is_switch and (not queue or queue[0].startswith("--")):
            value = True
        elif not queue or (queue[0].startswith("--")):
            raise TissError(f"--{name} needs a value: {describe_type(known[name].hint)}")
        else:
            value = queue.pop(0)
        set_path(values, name, value)
    return values, given, rest


def set_path(values: dict[str, Any], path: str, value: Any) -> None:
    """values["a"]["b"] = value for path "a.b"; a plain value already there becomes that section's name."""
    *sections, last = path.split(".")
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {"name": inner}
            values[section] = inner
        values = inner
    if isinstance(values.get(last), dict) and not isinstance(value, dict):
        values[last]["name"] = value
    else:
        values[last] = value


def read_yaml(path: str | Path, given: str = "--config") -> dict[str, Any]:
    """A YAML file of key: value pairs; `given` is what the user gave it to, for errors."""
    try:
        loaded = files.read_yaml(path)
    except TissError as error:
        raise TissError(f"{given} {error}") from None
    if not isinstance(loaded, dict):
        raise TissError(f"{given} {path}: expected key: value pairs")
    return loaded


def help_text(usage: str, about: str, flags: list[Flag], switches: Mapping[str, str], examples: str) -> str:
    """The help of a command: usage, what it does, every flag by section with its default, examples."""
    lines = [f"usage: {usage}", "", *about.strip().splitlines(), ""]
    sections: dict[str, list[Flag]] = {}
    for flag in flags:
        section = flag.path.split(".")[0] if "." in flag.path else ""
        sections.setdefault(section, []).append(flag)
    for section, members in sections.items():
        lines.append(f"{section}:" if section else "experiment:")
        lines += [_help_line(flag) for flag in members]
        lines.append("")
    lines.append("command:")
    lines += [f"  --{name:<26} {text}" for name, text in switches.items()]
    return "\n".join([*lines, "", "examples:", *(f"  {line}" for line in examples.strip().splitlines())])


def _help_line(flag: Flag) -> str:
    default = "" if flag.default is None else f" [{_show(flag.default)}]"
    choices = f" ({describe_type(flag.hint)})" if "one of" in describe_type(flag.hint) else ""
    return f"  --{flag.path:<26} {flag.help}{choices}{default}"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
