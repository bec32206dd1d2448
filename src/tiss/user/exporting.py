"""`export`: a model as one file that other programs run, checked against the model itself."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim

from tiss import __version__
from tiss.data.shapes import Shapes
from tiss.errors import TissError
from tiss.files import write_bytes
from tiss.models.model import SegmentationModel, choose_labels
from tiss.models.vit import VisionTransformer, resize_positions
from tiss.user.inputs import find_items, read_item
from tiss.user.segment import resize

Format = Literal["onnx", "torch"]
Runner = Callable[[Tensor], tuple[Tensor, Tensor]]
SUFFIX = {"onnx": ".onnx", "torch": ".pt2"}
CHECKED = 4  # pictures that the export is checked on
TOLERANCE = 1e-3  # largest difference of a logit, in units of the largest logit (or of 1, if that is more)
EQUAL = 0.999  # share of pixels whose class must be the same


class Exportable(nn.Module):
    """uint8 RGB N × 3 × H × W → labels uint8 N × H × W, and logits N × C × h × w; colours are normalised inside."""

    def __init__(self, model: SegmentationModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(images)
        return choose_labels(output.pixels(), self.model.rule).to(torch.uint8), output.logits


@dataclass(frozen=True)
class Exported:
    """What was written and how well it fits."""

    path: Path
    dynamic: str  # which sides of the input are free
    difference: float  # largest, of logits
    equal: float  # share of pixels with the same class
    pictures: int


def export_model(
    model: SegmentationModel, path: Path, form: Format, size: int, data: Sequence[str] = ()
) -> Exported:
    """Writes `model` to `path`; a file that does not give the model's own results is not kept."""
    pictures = check_pictures(data, size)
    module = Exportable(model.cpu().eval())
    program, dynamic = trace(module, size)
    metadata = describe(model, size)
    content = to_onnx(program, metadata) if form == "onnx" else to_torch(program, metadata)
    runner = run_onnx(content) if form == "onnx" else run_torch(content)
    sides = [picture if dynamic != "batch" else _square(picture, size) for picture in pictures]
    difference, equal = compare(module, runner, sides)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return Exported(path, dynamic, difference, equal, len(sides))


def check_pictures(data: Sequence[str], size: int) -> list[Tensor]:
    """Some of the user's pictures brought to the model's size; without any, drawn ones in two shapes."""
    if data:
        items = [item for item in find_items(data) if not item.is_video]
        if not items:
            raise TissError(f"--data {', '.join(data)}: no pictures there")
        chosen = items[:: max(1, len(items) // CHECKED)][:CHECKED]
        return [resize(read_item(item)[None], size) for item in chosen]
    images = torch.from_numpy(Shapes(size=size, train=CHECKED, test=1).arrays("train")[0].copy())
    wide = torch.cat([images[1:2], images[2:3, :, :, : size // 2]], dim=3)
    return [images[:1], wide, images[2:4]]


def trace(module: Exportable, size: int) -> tuple[Any, str]:
    """The exported program, with as many free sides as the model allows: batch and size, or the batch alone."""
    example = torch.zeros(2, 3, size, size + 2 * module.model.encoder.stride, dtype=torch.uint8)
    batch, height, width = Dim("batch"), Dim("height"), Dim("width")
    free = ((0, batch), (2, height), (3, width))
    attempts = (
        ("batch and size", example, dict(free)),
        ("batch and size", example, {side: Dim.DYNAMIC for side, _ in free}),
        ("batch", example[..., :size], {0: batch}),
    )
    problem = ""
    for name, images, sides in attempts:
        try:
            with _quiet(), _any_size(module.model):
                return torch.export.export(module, (images,), dynamic_shapes={"images": sides}), name
        except Exception as error:  # each kind of model fails in its own way; the next attempt asks for less
            problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise TissError(f"{module.model.architecture.encoder} cannot be exported: {problem}")


def describe(model: SegmentationModel, size: int) -> dict[str, str]:
    """What the file says about itself."""
    return {
        "classes": json.dumps(model.classes, ensure_ascii=False),
        "size": str(size),
        "encoder": model.architecture.encoder,
        "input": "images: uint8, N x 3 x H x W, RGB, 0 to 255; shorter side best brought to `size`",
        "output": "labels: uint8, N x H x W, index into `classes`; logits: float32, N x C x h x w",
        "tiss": __version__,
    }


def to_onnx(program: Any, metadata: dict[str, str]) -> bytes:
    import_onnx()
    try:
        with _quiet():
            made = torch.onnx.export(
                program, dynamo=True, input_names=["images"], output_names=["labels", "logits"], verbose=False
            )
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TissError(
            f"--format onnx: this model has no ONNX form ({reason}); take --format torch"
        ) from error
    assert made is not None
    made.model.metadata_props.update(metadata)
    return bytes(made.model_proto.SerializeToString())


def to_torch(program: Any, metadata: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={f"{name}.txt": text for name, text in metadata.items()})
    return buffer.getvalue()


def run_onnx(content: bytes) -> Runner:
    """The file as onnxruntime runs it."""
    runtime = import_onnx()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[Tensor, Tensor]:
        labels, logits = session.run(["labels", "logits"], {"images": images.numpy()})
        return torch.from_numpy(labels), torch.from_numpy(logits)

    return run


def run_torch(content: bytes) -> Runner:
    """The file as torch reads it back."""
    module = torch.export.load(io.BytesIO(content)).module()

    def run(images: Tensor) -> tuple[Tensor, Tensor]:
        labels, logits = module(images)
        return labels, logits

    return run


def compare(module: Exportable, runner: Runner, pictures: Sequence[Tensor]) -> tuple[float, float]:
    """Largest difference of a logit and share of equal labels; too large or too small is an error."""
    difference, largest, same, total = 0.0, 1.0, 0, 0
    for images in pictures:
        with torch.inference_mode():
            labels, logits = module(images)
            other_labels, other_logits = runner(images)
        difference = max(difference, float((logits - other_logits).abs().max()))
        largest = max(largest, float(logits.abs().max()))
        same += int((labels == other_labels).sum())
        total += labels.numel()
    if not difference <= TOLERANCE * largest or same < EQUAL * total:
        raise TissError(
            f"the exported file differs from the model (logits by {difference:.2g}, classes in "
            f"{100 * (1 - same / total):.2f} % of the pixels): nothing was written"
        )
    return difference, same / total


def import_onnx() -> Any:
    """onnxruntime, with what the exporter needs beside it; or an error that says how to get them."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise TissError(f"--format onnx needs three packages: pip install 'tiss[onnx]' ({error})") from error
    return onnxruntime


def _square(images: Tensor, size: int) -> Tensor:
    return nn.functional.interpolate(images.float(), (size, size), mode="bilinear").round().to(torch.uint8)


@contextmanager
def _any_size(model: SegmentationModel) -> Iterator[None]:
    """A ViT passes its positions on as they are at the size they were laid out for; a program traced through that
    shortcut's condition would refuse this size. Here they are always resized, which changes nothing at that size."""
    encoder = model.encoder
    if not isinstance(encoder, VisionTransformer):
        yield
        return
    # a list is never equal to a tuple: the shortcut is not taken, and no size is compared
    laid_out: Any = list(encoder.grid)
    encoder.positions = lambda grid: resize_positions(encoder.pos_embed, laid_out, grid)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del encoder.positions


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints its progress and warns about itself; none of it helps the user."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
