"""`tiss compare`: two models side by side."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss compare OLD NEW --data FOLDER [options]"
ABOUT = """
What a new model gained and what it lost. FOLDER is a labelled folder (images/, masks/, classes.txt), of which
images/test is taken where it is there, or any folder of pictures. Classes with labels get their IoU under
both models; classes without get the agreement of the two. --out also writes a page with the pictures that got
worst.
"""
EXAMPLES = """
tiss compare first second --data warehouse
tiss compare first second --data shots --out difference
"""
SWITCHES = {"json": "print the result as JSON", "help": "this text"}


@dataclass(frozen=True)
class CompareOptions:
    data: str | None = setting(None, "folder of pictures, labelled or not")
    out: str | None = setting(None, "folder for report.html and the worst pictures (None: text only)")
    size: int | None = setting(None, "shorter side at which both models look (None: each its own)")
    device: str = setting("auto", "auto, cpu, cuda or mps")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(CompareOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="OLD NEW")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(CompareOptions, values)
    if len(rest) != 2 or options.data is None:
        raise TissError(f"tiss compare takes two models and --data: {USAGE}")
    return compare(rest[0], rest[1], options, "json" in given)


@own_names(CompareOptions)
def compare(old: str, new: str, options: CompareOptions, as_json: bool) -> int:
    import json

    from tiss.engine.progress import TerminalReporter
    from tiss.user.comparing import compare_on
    from tiss.user.comparison import describe
    from tiss.user.learning import check_out
    from tiss.user.source import find_source, open_segmenter

    assert options.data is not None
    out = check_out(options.out) if options.out else None
    models = [open_segmenter(find_source(name), options.size, False, options.device) for name in (old, new)]
    result = compare_on(models[0], models[1], options.data, f"{old} and {new}", out, TerminalReporter())
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
        return 0
    print("\n".join(describe(result)))
    verb = "got worse" if result.judged else "changed"
    for name, value in result.worst:
        print(f"  {name}: {value:.1f} % of its pixels {verb}")
    for line in result.broken:
        print(f"tiss: passed over: {line}", file=sys.stderr)
    if out is not None:
        print(f"open {out / 'report.html'}")
    return 0
