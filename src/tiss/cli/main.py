"""The command line: finds the command, runs it, prints a TissError as one line and returns exit code 2."""

import errno
import os
import sys
import time
from importlib import import_module

from tiss import __version__
from tiss.errors import TissError, suggest

# command → (function in tiss.cli, what it is for); a `main` parses its own words
COMMANDS = {
    "demo": ("grid:demo", "what forgetting is and what prevents it: five minutes, no data needed"),
    "run": ("run:main", "one experiment: a data set, a task, a method"),
    "eval": ("run:evaluate", "test a saved step again"),
    "report": ("report:report", "tables and a page from finished runs"),
    "figure": ("report:figure", "curves, maps, predictions and similarities as SVG and PNG"),
    "grid": ("grid:grid", "a table of runs with shared first steps, on any number of workers"),
    "tune": ("grid:tune", "the same number of trials for each method of a grid, on held-out images"),
    "bench": ("bench:bench", "speed and memory of this machine"),
    "bench data": ("bench:loaders", "speed of the data loaders"),
    "train": ("models:train", "a first model from your own labelled images"),
    "extend": ("models:extend", "teach a model new classes from a few of your images"),
    "forget": ("models:forget", "remove classes from a model, without any image"),
    "merge": ("models:merge", "one model of two that learned different classes from the same base"),
    "predict": ("use:predict", "segment images, folders, videos"),
    "suggest": ("use:suggest", "which images to label next, with a contact sheet"),
    "compare": ("use:compare", "two models side by side on your images"),
    "export": ("use:export", "a model as ONNX or torch.export, checked against the original"),
    "push": ("models:push", "upload a model folder to a hub"),
    "app": ("models:app", "a web page: drop an image, slide through the steps; or teach a class"),
    "methods": ("models:methods", "list the methods and the encoders they work with"),
    "encoders": ("models:encoders", "list the encoders"),
    "data download": ("data:download", "get voc or ade20k; how to get cityscapes"),
    "data verify": ("data:verify", "check every file, and every step's list against the published one"),
    "data stats": ("data:stats", "classes, pixels, and the images of each step"),
    "data convert": (
        "data:convert",
        "labels of COCO, CVAT, Label Studio, YOLO and others as a labelled folder",
    ),
}

# how a command that was stopped resumes
RESUMED = dict.fromkeys(("demo", "run", "train", "extend"), " with --resume") | dict.fromkeys(
    ("grid", "tune", "predict"), ""
)

ABOUT = """tiss: incremental semantic segmentation.

A segmentation model learns new classes step by step, from images in which only the new classes are labelled,
without the old data, and does not forget the old classes."""


START = (
    "start here:",
    "  tiss demo",
    "  tiss run --data voc --data.root VOCdevkit --task 15-1 --method tiss",
)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return dispatch(words)
    except TissError as error:
        report(error)
        return 2
    except KeyboardInterrupt:
        again = f"; the same command{RESUMED[words[0]]} resumes" if words[0] in RESUMED else ""
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
    """Prints the error once, however many processes raise it: the first process speaks for all."""
    rank = os.environ.get("RANK", "0")
    if error.reported:
        return
    text = f"--{error}" if error.setting else str(error)
    if rank != "0":
        time.sleep(3)  # where the first process failed too, the launcher ends this one meanwhile
        text = f"rank {rank}: {text}"
    print(f"tiss: {text}", file=sys.stderr)


def dispatch(words: list[str]) -> int:
    """Runs the command that `words` begin with."""
    if not words or words[0] in ("--help", "-h", "help"):
        print(overview())
        return 0
    if words[0] in ("--version", "-V"):
        print(f"tiss {__version__}")
        return 0
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    command, rest = " ".join(words[:length]), words[length:]
    if command not in COMMANDS:
        family = [name.removeprefix(f"{command} ") for name in COMMANDS if name.startswith(f"{command} ")]
        if not family:
            raise TissError(suggest(command, COMMANDS, "command"))
        if rest and rest[0] not in ("--help", "-h"):
            raise TissError(suggest(rest[0], family, f"command of tiss {command}"))
        print(overview(f"{command} "))
        return 0
    module, _, name = COMMANDS[command][0].partition(":")
    function = getattr(import_module(f"tiss.cli.{module}"), name)
    if name == "main":
        code: int = function(rest)
        return code
    from tiss.cli.flags import execute

    return execute(command, function, rest)


def overview(family: str = "") -> str:
    """What `tiss --help` prints, and `tiss data --help` of the commands that begin with `data`."""
    lines = [
        f"usage: tiss {family}COMMAND [options]     tiss {family}COMMAND --help explains the command",
        "",
    ]
    lines += [f"  {name:<13} {text}" for name, (_, text) in COMMANDS.items() if name.startswith(family)]
    return "\n".join(lines if family else [ABOUT, "", *lines, "", *START])
