"""`tiss export`: a model as ONNX or as a torch.export program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiss.cli.flags import flags_of, help_text, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss export MODEL [--format onnx|torch] [options]"
ABOUT = """
One file that runs without tiss. Input: `images`, uint8, N × 3 × H × W, RGB, as they are (the model's mean and
deviation are inside). Output: `labels`, uint8, N × H × W, and `logits`. Batch and size are free where the model
allows; the class names are in the file's metadata. The file is run against the model on pictures, and is not
written where they differ.
"""
EXAMPLES = """
tiss export third --data shots
tiss export third --format torch --out third.pt2
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class ExportOptions:
    format: Literal["onnx", "torch"] = setting(
        "onnx", "onnx for onnxruntime and others, torch for torch.export"
    )
    out: str | None = setting(None, "file to write (None: the model's name with .onnx or .pt2)")
    data: str | None = setting(None, "pictures to check on: a file, folder or pattern (None: drawn ones)")
    size: int | None = setting(None, "shorter side of those pictures (None: the model's own)")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(ExportOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="MODEL")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(ExportOptions, values)
    if len(rest) != 1:
        raise TissError("tiss export takes one model, for example: tiss export third")
    return export(rest[0], options)


def export(model: str, options: ExportOptions) -> int:
    from tiss.user.exporting import SUFFIX, export_model, import_onnx
    from tiss.user.learning import check_out
    from tiss.user.source import find_source, open_segmenter

    if options.format == "onnx":
        import_onnx()
    source = find_source(model)
    path = check_out(options.out or Path(source.folder).resolve().name + SUFFIX[options.format])
    segmenter = open_segmenter(source, options.size, False, "cpu")
    data = [options.data] if options.data else []
    done = export_model(segmenter.model, path, options.format, segmenter.size, data)
    print(
        f"{done.path}: free in {done.dynamic}; on {done.pictures} pictures {100 * done.equal:.2f} % of the "
        f"pixels as the model, logits within {done.difference:.1e}"
    )
    return 0
