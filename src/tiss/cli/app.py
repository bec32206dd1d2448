"""`tiss app`: a web page for a run or a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss app RUN|MODEL [options]"
ABOUT = """
A page to try a model: drop a picture and see it segmented, slide through the steps to see what the model knew
when, rest the pointer on a place to read its class, tick classes off and on, put old and new side by side, and
look at the run's curves and table. The slider follows a run's steps, or a model's parents as far as their folders
are there. Only this machine can open it, unless --address says otherwise and a password is set.
"""
EXAMPLES = """
tiss app third
tiss app runs/demo/tiss-seed0 --port 8000
TISS_APP_PASSWORD=... tiss app third --address 0.0.0.0
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class AppOptions:
    address: str = setting("127.0.0.1", "address to serve at; any other than loopback needs a password")
    port: int = setting(7860, "port to serve at")
    user: str = setting("tiss", "name to log in with, where there is a password")
    password: str | None = setting(
        None, "password (better in TISS_APP_PASSWORD: others can see command lines)"
    )
    device: str = setting("auto", "auto, cpu, cuda or mps")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(AppOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="RUN|MODEL")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(AppOptions, values)
    if len(rest) != 1:
        raise TissError("tiss app takes one run or model, for example: tiss app third")
    return show(rest[0], options)


@own_names(AppOptions)
def show(name: str, options: AppOptions) -> int:
    from tiss.app.server import PASSWORD, Place, check_place, import_gradio, serve
    from tiss.app.stations import open_stations

    place = Place(options.address, options.port, options.user, options.password or os.environ.get(PASSWORD))
    check_place(place)
    import_gradio()
    stations = open_stations(name, options.device)
    try:
        serve(
            stations,
            Path(name).expanduser(),
            place,
            lambda address: print(f"{address}  (stop with Ctrl-C)", flush=True),
        )
    except KeyboardInterrupt:
        print("stopped")
    return 0
