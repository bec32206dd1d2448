"""Flags from dataclasses: `--train.lr 0.1` is the field `lr` of the section `train`, and nothing else.

A command is a function `run(options: Options) -> int`. `Options` is a dataclass, and the help is the docstring of the
function; what follows "Examples:" is printed last.
"""

import dataclasses
import inspect
import os
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiss.config import TRUTHS, describe_type, from_mapping, warn_renamed
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
    hints, dot = typing.get_type_hints(cls), f"{prefix}." if prefix else ""
    for field in dataclasses.fields(cls):
        path, hint = dot + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint):
            for flag in flags_of(typing.cast(type, hint), path):  # a name is the first field
                named = flag.path == f"{path}.name"
                yield dataclasses.replace(flag, path=path, sets=(flag.path,)) if named else flag
        else:
            given: dict[str, Any] = dict(field.metadata)
            given["aliases"] = tuple(dot + name for name in given.get("aliases", ()))
            yield Flag(path, hint, field.default, **given)


@dataclass(frozen=True)
class NoOptions:
    """Of a command that takes none."""


def execute(command: str, run: Callable[[Any], int], words: Sequence[str]) -> int:
    """Runs a command on the words after its name."""
    options = typing.get_type_hints(run)["options"]
    # what must be given first: dataclasses that share options inherit them
    flags = sorted(flags_of(options), key=lambda flag: (not flag.positional, not flag.required))
    if wants_help(words):
        print(help_text(command, str(run.__doc__), flags))
        return 0
    values = parse_flags(command, words, flags)
    with settings_as_flags(flags):
        return run(from_mapping(options, values))


def is_first_process() -> bool:
    """Whether this process prints: of those that torchrun started, the first."""
    return os.environ.get("RANK", "0") == "0"


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
        values[section] = inner if isinstance(inner, dict) else {} if inner is None else {"name": inner}
        values = values[section]
    if isinstance(values.get(last), dict) and not isinstance(value, dict):
        values, last = values[last], "name"
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
    kind = describe_type(flag.hint)
    choices = f" ({kind})" if "one of" in kind else ""
    silent = any(flag.default is one for one in (None, False, dataclasses.MISSING))
    return f"  {flag.shown:<28} {flag.help}{choices}" + ("" if silent else f" [{_show(flag.default)}]")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
