"""The command line: finds the command, runs it, turns a TissError into one line and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
import time
from importlib import import_module

from tiss import __version__
from tiss.errors import TissError, suggest

# command → (module, what it is for); the module's `main(arguments) -> int` does the rest
COMMANDS = {
    "demo": ("tiss.cli.demo", "five minutes, no data needed: see what forgetting is and what stops it"),
    "run": ("tiss.cli.run", "one experiment: a data set, a task, a method"),
    "eval": ("tiss.cli.eval", "test a saved step again"),
    "report": ("tiss.cli.report", "tables and a page from finished runs"),
    "figure": ("tiss.cli.figure", "curves, maps, predictions and similarities as SVG and PNG"),
    "grid": ("tiss.cli.grid", "a table of runs, shared first steps, any number of workers"),
    "bench": ("tiss.cli.bench", "how fast this machine is, plain path against fast path"),
    "train": ("tiss.cli.train", "a first model from your own labelled pictures"),
    "extend": ("tiss.cli.extend", "teach a model new classes from a few of your pictures"),
    "predict": ("tiss.cli.predict", "segment pictures, folders, videos"),
    "compare": ("tiss.cli.compare", "two models side by side on your pictures"),
    "export": ("tiss.cli.export", "a model as ONNX or torch.export, checked against itself"),
    "push": ("tiss.cli.push", "a model folder to a hub"),
    "app": ("tiss.cli.app", "a web page: drop a picture, slide through the steps"),
    "methods": ("tiss.cli.methods", "list the methods and what they go with"),
    "encoders": ("tiss.cli.encoders", "list the encoders"),
    "data": ("tiss.cli.data", "download, verify, look at and convert data sets"),
}

RESUMED = {"demo": " with --resume", "run": " with --resume", "grid": ""}  # commands that keep checkpoints

ABOUT = """tiss: incremental semantic segmentation.

A segmentation model learns new classes step by step, from images where only the new classes are labelled,
without the old data, and does not forget the old classes."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return dispatch(words)
    except TissError as error:
        report(error)
        return 2
    except KeyboardInterrupt:
        again = f"; the same command{RESUMED[words[0]]} goes on" if words[0] in RESUMED else ""
        print(f"tiss: stopped{again}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        print(f"tiss: {TissError(f'{error.filename or words[0]}: {error.strerror}')}", file=sys.stderr)
        return 2


def report(error: TissError) -> None:
    """Prints the error once, however many processes found it: the first one has the word."""
    rank = os.environ.get("RANK", "0")
    if error.reported:
        return
    text = f"--{error.setting} {error.message}" if error.setting else error.message
    if rank != "0":
        time.sleep(3)  # where the first process failed too, the launcher ends this one meanwhile
        print(f"tiss: rank {rank}: {text}", file=sys.stderr)
        return
    print(f"tiss: {text}", file=sys.stderr)


def dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(overview())
        return 0
    if words[0] in ("--version", "-V"):
        print(f"tiss {__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        raise TissError(suggest(command, COMMANDS, "command"))
    module = import_module(COMMANDS[command][0])
    code: int = module.main(rest)
    return code


def overview() -> str:
    lines = [ABOUT, "", "usage: tiss COMMAND [options]     tiss COMMAND --help teaches the command", ""]
    lines += [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    lines += [
        "",
        "start here:",
        "  tiss demo",
        "  tiss run --data voc --data.root VOCdevkit --task 15-1 --method tiss",
    ]
    return "\n".join(lines)
