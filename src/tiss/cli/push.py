"""`tiss push`: a model folder to a hub."""

from __future__ import annotations

from dataclasses import dataclass

from tiss.cli.flags import flags_of, help_text, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss push MODEL OWNER/NAME [options]"
ABOUT = """
Uploads a model folder: config.json, model.safetensors and a card with its scenario, steps, scores, data and
limits. Afterwards anyone has it with tiss.from_pretrained("OWNER/NAME"), and `tiss extend OWNER/NAME` goes on
from it. The access token is the hub's own (`hf auth login` or HF_TOKEN); HF_ENDPOINT names another hub.
"""
EXAMPLES = """
tiss push third my-team/forklifts
tiss push runs/voc-15-1-overlapped-tiss-seed0/step-5 my-team/voc-15-1 --private
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class PushOptions:
    private: bool = setting(False, "only for those whom the owner lets in")
    message: str = setting("Add model", "what the commit says")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(PushOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="MODEL NAME")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(PushOptions, values)
    if len(rest) != 2:
        raise TissError("tiss push takes a model and a name, for example: tiss push third my-team/forklifts")
    from tiss.user.pushing import push_model
    from tiss.user.source import find_source

    address = push_model(find_source(rest[0]), rest[1], private=options.private, message=options.message)
    print(f"{address}\ntiss.from_pretrained({rest[1]!r}) gives it back")
    return 0
