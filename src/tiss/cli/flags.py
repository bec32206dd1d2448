"""Flags from dataclasses: `--train.lr 0.1` is the field `lr` of the section `train`, and nothing else.

A command is a module with a docstring (its help; what follows "Examples:" is printed last), a dataclass `Options`
and a function `run(options) -> int`.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiss.config import describe_type, from_mapping, warn_renamed
from tiss.errors import TissError, suggest


@dataclass(frozen=True)
class Flag:
    """One flag of a command: where its value goes, and what its help says."""

    path: str
    hint: Any
    default: Any = None
    help: str = ""
    sets: tuple[str, ...] = ()  # settings of a run that it sets under another name
    aliases: tuple[str, ...] = ()  # names of an earlier version
    positional: bool = False

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def shown(self) -> str:
        """As on the command line: --out, or FOLDER where it is positional."""
        return self.path.upper() if self.positional else f"--{self.path}"

    @property
    def takes_many(self) -> bool:
        return typing.get_origin(self.hint) is tuple


def flags_of(cls: type, prefix: str = "") -> Iterator[Flag]:
    """Every flag that the dataclass `cls` gives; a section with a `name` is itself a flag."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        path = f"{prefix}.{field.name}" if prefix else field.name
        hint, about = hints[field.name], field.metadata
        if dataclasses.is_dataclass(hint):
            inner = list(flags_of(typing.cast(type, hint), path))
            named = [flag for flag in inner if flag.path == f"{path}.name"]
            yield from (dataclasses.replace(flag, path=path, sets=(flag.path,)) for flag in named)
            yield from (flag for flag in inner if flag not in named)
        else:
            aliases = tuple(f"{prefix}.{name}" if prefix else name for name in about.get("aliases", ()))
            positional = about.get("positional", False)
            yield Flag(
                path, hint, field.default, about.get("help", ""), about.get("sets", ()), aliases, positional
            )


def execute(command: str, module: Any, words: list[str]) -> int:
    """Runs a command on the words after its name."""
    # what must be given first: dataclasses that share options inherit them
    flags = sorted(flags_of(module.Options), key=lambda flag: (not flag.positional, not flag.required))
    if wants_help(words):
        print(help_text(command, module.__doc__, flags))
        return 0
    options = from_mapping(module.Options, parse_flags(command, words, flags))
    with settings_as_flags(flags):
        code: int = module.run(options)
    return code


def wants_help(words: Sequence[str]) -> bool:
    return "--help" in words or "-h" in words


@contextmanager
def settings_as_flags(flags: Sequence[Flag]) -> Iterator[None]:
    """An error's setting becomes the flag that sets it; a setting without a flag stays as it is."""
    try:
        yield
    except TissError as error:
        shown = {name: flag.shown for flag in flags for name in (*flag.sets, flag.path)}
        if error.setting:
            error.args = (f"{shown.get(error.setting, error.setting)} {error.message}",)
            error.setting = None
        raise


def parse_flags(command: str, words: Sequence[str], flags: Sequence[Flag]) -> dict[str, Any]:
    """The words after a command as a nested mapping."""
    known = {name: flag for flag in flags if not flag.positional for name in (flag.path, *flag.aliases)}
    values: dict[str, Any] = {}
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--"):
            rest.append(word)
            continue
        name, equals, inline = word[2:].partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise TissError(suggest(f"--{name}", [f"--{flag.path}" for flag in known.values()], "flag"))
        flag = known[name]
        if name != flag.path:
            warn_renamed(f"--{name}", flag.shown)
        if equals:
            value: Any = inline
        elif flag.hint is bool and (not queue or queue[0].lower() not in TRUTHS):
            value = True
        elif not queue or queue[0].startswith("--"):
            raise TissError(f"{flag.shown} needs a value: {describe_type(flag.hint)}")
        else:
            value = queue.pop(0)
        set_path(values, flag.path, value)
    _take_positional(command, rest, flags, values)
    return values


TRUTHS = ("true", "false", "yes", "no", "on", "off")


def _take_positional(command: str, rest: list[str], flags: Sequence[Flag], values: dict[str, Any]) -> None:
    usage = f"usage: {usage_of(command, flags)}"
    for flag in flags:
        if flag.positional and rest:
            values[flag.path], rest = (rest, []) if flag.takes_many else (rest[0], rest[1:])
    if rest:
        raise TissError(f"unexpected argument {rest[0]!r}: every option starts with --; {usage}")
    missing = [flag.shown for flag in flags if flag.required and flag.path not in values]
    if missing:
        raise TissError(f"{' and '.join(missing)} missing; {usage}")


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
    from tiss import files  # which imports torch: not for a help text

    try:
        loaded = files.read_yaml(path)
    except TissError as error:
        raise TissError(f"{given} {error}") from None
    if not isinstance(loaded, dict):
        raise TissError(f"{given} {path}: expected key: value pairs")
    return loaded


def usage_of(command: str, flags: Sequence[Flag]) -> str:
    """One line: the command with all that it needs."""
    words = [flag.shown + ("..." if flag.takes_many else "") for flag in flags if flag.positional]
    words += [f"{flag.shown} {flag.path.upper()}" for flag in flags if flag.required and not flag.positional]
    return " ".join(["tiss", command, *words, "[options]"])


def help_text(command: str, about: str, flags: Sequence[Flag]) -> str:
    """The help of a command: usage, what it does, every flag by section with its default, examples."""
    text, _, examples = inspect.cleandoc(about).partition("\nExamples:\n")
    sections: dict[str, list[Flag]] = {}
    for flag in flags:
        section = flag.path.split(".")[0] if "." in flag.path else "options"
        sections.setdefault("arguments" if flag.positional else section, []).append(flag)
    lines = [f"usage: {usage_of(command, flags)}", "", text.strip(), ""]
    for section, members in sections.items():
        lines += [f"{section}:", *(_help_line(flag) for flag in members), ""]
    return "\n".join([*lines, "examples:", examples.rstrip()]) if examples else "\n".join(lines[:-1])


def _help_line(flag: Flag) -> str:
    silent = any(flag.default is one for one in (None, False, dataclasses.MISSING))
    default = "" if silent else f" [{_show(flag.default)}]"
    choices = f" ({describe_type(flag.hint)})" if "one of" in describe_type(flag.hint) else ""
    return f"  {flag.shown:<28} {flag.help}{choices}{default}"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the terminal; a heading that starts with ">" aligns its column to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for index, heading in enumerate(headings):
        justify: Any = "right" if heading.startswith(">") else "left"
        table.add_column(heading.removeprefix(">"), justify=justify, no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
