"""One file that runs without tiss. Input: `images`, uint8, N × 3 × H × W, RGB (normalisation is inside the file).
Output: `labels`, uint8, N × H × W, and `logits`. Batch and size are free where the model allows it; the class names
are in the file's metadata. The file is compared with the model on images and is not written if they differ.

Examples:
  tiss export third --data shots
  tiss export third --format torch --out third.pt2
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiss.config import REQUIRED, setting


@dataclass(frozen=True)
class Options:
    model: str = setting(REQUIRED, "model folder, run folder or hub name", positional=True)
    format: Literal["onnx", "torch"] = setting(
        "onnx", "onnx: for onnxruntime and others; torch: torch.export"
    )
    out: str | None = setting(None, "file to write (None: the model's name with .onnx or .pt2)")
    data: str | None = setting(None, "images to check on: a file, folder or pattern (None: drawn ones)")
    size: int | None = setting(None, "shorter side of those images (None: the model's own)")


def run(options: Options) -> int:
    from tiss.user.export import SUFFIX, export_model, import_onnx
    from tiss.user.model_source import check_out, find_source, open_predictor

    if options.format == "onnx":
        import_onnx()
    source = find_source(options.model)
    path = check_out(options.out or Path(source.folder).resolve().name + SUFFIX[options.format])
    predictor = open_predictor(source, options.size, False, "cpu")
    data = [options.data] if options.data else []
    done = export_model(predictor.model, path, options.format, predictor.size, data)
    print(
        f"{done.path}: free in {done.dynamic}; on {done.images} images {100 * done.equal:.2f} % of the pixels as "
        f"the model, logits within {done.difference:.1e}"
    )
    return 0
