"""`export`: a model as one file that other programs run, checked against the model itself."""

import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from tiss import __version__
from tiss.data.images import read_image
from tiss.data.shapes import Shapes
from tiss.engine.predictor import resize
from tiss.errors import TissError
from tiss.files import write_bytes, write_json
from tiss.models import SegmentationModel, choose_labels
from tiss.models.vit import VisionTransformer
from tiss.palette import class_colours
from tiss.user.items import find_images

Format = Literal["onnx", "torch"]
Runner = Callable[[Tensor], tuple[Tensor, Tensor]]
SUFFIX = {"onnx": ".onnx", "torch": ".pt2", "source": "-source"}
OUTPUTS = ["labels", "logits"]
CHECKED = 4  # images on which the export is checked
# largest difference of a logit, in units of the largest logit (or of 1, if that is more), and the least share of pixels
# whose class must be the same: in single and in half precision
LIMITS = {False: (1e-3, 0.999), True: (2e-2, 0.99)}


class Exportable(nn.Module):
    """uint8 RGB N × 3 × H × W → labels uint8 N × H × W, and logits N × C × h × w; normalisation is inside."""

    def __init__(self, model: SegmentationModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(images)
        return choose_labels(output.pixels(), self.model.rule).to(torch.uint8), output.logits


@dataclass(frozen=True)
class Exported:
    """What was written, and how close it is to the model."""

    dynamic: str  # which sides of the input are free
    difference: float  # largest, of logits
    equal: float  # share of pixels with the same class
    images: int


def export_model(
    model: SegmentationModel,
    path: Path,
    form: Format,
    size: int,
    data: Sequence[str] = (),
    half: bool = False,
) -> Exported:
    """Writes `model` to `path`, and NAME.labels.json beside it; a file whose results differ is not written.

    With `half`, weights and arithmetic are in half precision.
    """
    images = check_images(data, size)
    module = Exportable(model.cpu().eval())
    program, dynamic = trace(Exportable(copy.deepcopy(model).half()) if half else module, size)
    kind = "float16" if half else "float32"
    metadata = {
        "classes": json.dumps(model.classes, ensure_ascii=False),
        "size": str(size),
        "encoder": model.architecture.encoder,
        "input": "images: uint8, N x 3 x H x W, RGB, 0 to 255; best with the shorter side resized to `size`",
        "output": f"labels: uint8, N x H x W, index into `classes`; logits: {kind}, N x C x h x w",
        "tiss": __version__,
    }
    content, runner = (to_onnx if form == "onnx" else to_torch)(program, metadata)
    if dynamic == "batch":
        images = [F.interpolate(one.float(), (size, size), mode="bilinear").round().byte() for one in images]
    done = Exported(dynamic, *compare(module, runner, images, *LIMITS[half]), len(images))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    colours = class_colours(len(model.classes))
    write_json(labels_path(path), {**metadata, "classes": model.classes, "size": size, "colours": colours})
    return done


def labels_path(path: Path) -> Path:
    """The file of class names and colours beside an exported model."""
    return path.with_suffix(".labels.json")


def check_images(data: Sequence[str], size: int) -> list[Tensor]:
    """Some of the user's images at the model's size; without any, drawn ones in two shapes."""
    if data:
        items = find_images(data)
        chosen = items[:: max(1, len(items) // CHECKED)][:CHECKED]
        return [resize(read_image(item.path)[None], size) for item in chosen]
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
        except Exception as error:  # models fail in different ways; the next attempt asks for less
            problem = _first_line(error)
    raise TissError(f"{module.model.architecture.encoder} cannot be exported: {problem}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def to_onnx(program: Any, metadata: dict[str, str]) -> tuple[bytes, Runner]:
    """The file, and how onnxruntime runs it."""
    runtime = import_onnx()
    try:
        with _quiet():
            names = {"input_names": ["images"], "output_names": OUTPUTS}
            made: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
    except Exception as error:
        reason = f"this model cannot be exported as ONNX ({_first_line(error)})"
        raise TissError(f"onnx: {reason}: use torch", setting="format") from error
    made.model.metadata_props.update(metadata)
    content = bytes(made.model_proto.SerializeToString())
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[Tensor, Tensor]:
        labels, logits = session.run(OUTPUTS, {"images": images.numpy()})
        return torch.from_numpy(labels), torch.from_numpy(logits)

    return content, run


def to_torch(program: Any, metadata: dict[str, str]) -> tuple[bytes, Runner]:
    """The file, and the program that torch reads from it."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={f"{name}.txt": text for name, text in metadata.items()})
    return buffer.getvalue(), torch.export.load(io.BytesIO(buffer.getvalue())).module()


def compare(
    module: Exportable, runner: Runner, checked: Sequence[Tensor], tolerance: float, least: float
) -> tuple[float, float]:
    """The largest difference of a logit and the share of equal labels, if close enough."""
    difference, largest, same, total = 0.0, 1.0, 0, 0
    for images in checked:
        with torch.inference_mode():
            labels, logits = module(images)
            other_labels, other_logits = runner(images)
        difference = max(difference, float((logits - other_logits.float()).abs().max()))
        largest = max(largest, float(logits.abs().max()))
        same += int((labels == other_labels).sum())
        total += labels.numel()
    if not difference <= tolerance * largest or same < least * total:
        raise TissError(
            f"the exported file differs from the model (logits by {difference:.2g}, classes in "
            f"{100 * (1 - same / total):.2f} % of the pixels): nothing was written"
        )
    return difference, same / total


def import_onnx() -> Any:
    """onnxruntime, if all that the exporter needs is installed."""
    try:
        return [import_module(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError as error:
        raise TissError(f"onnx: pip install 'tiss[onnx]' ({error})", setting="format") from error


@contextmanager
def _any_size(model: SegmentationModel) -> Iterator[None]:
    """A ViT does not resize its position embedding at its own size, and a program traced with that shortcut would fail
    at other sizes. Here the embedding is always resized, which changes nothing at its own size."""
    encoder = model.encoder
    if not isinstance(encoder, VisionTransformer):
        yield
        return
    # a list is never equal to a tuple: the shortcut is not taken, and no size is compared
    grid = encoder.grid
    encoder.grid = list(grid)  # type: ignore[assignment]
    try:
        yield
    finally:
        encoder.grid = grid


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the exporter's progress and its warnings about itself."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), open(os.devnull, "w") as sink, redirect_stdout(sink):
            yield
    finally:
        logging.disable(level)
