"""A SegFormer in transformers' format as a model of tiss: encoder, decoder, class names.

A model without a background channel gets one: its row is the mean of the classes' rows, and its bias makes its median
probability over the given images 0.01. The model is refused if this changes more than 1 % of its predictions.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiss.config import ModelConfig
from tiss.data.classes import BACKGROUND_NAMES
from tiss.engine.device import choose_device
from tiss.engine.predictor import resize
from tiss.errors import TissError
from tiss.evaluation.evaluate import slide_logits
from tiss.files import read_json
from tiss.models import ENCODERS, SegmentationModel, build_model, outline
from tiss.models.mit import MixTransformer
from tiss.models.pretrained import choose_file, find_colours, fit_names, read_weights

PROBABILITY = 0.01  # of the added background, in the median
MUST_STAY = 0.99  # share of pixels whose class the added background must not change
MOST_CLASSES = 253
DEFAULT_SIZE = 512


def from_segformer(
    folder: Path, images: Sequence[Tensor], *, allow_pickle: bool = False, device: str = "auto"
) -> SegmentationModel:
    """The model in `folder`, channel 0 the background; `images` (uint8 3 × H × W) set its bias."""
    path = folder / "config.json"
    config = read_json(path)
    names = read_names(config, path)
    encoder, size = find_encoder(config, path), read_size(folder)
    tensors = read_weights(choose_file(folder, allow_pickle), allow_pickle)
    background = next((index for index, name in enumerate(names) if name.lower() in BACKGROUND_NAMES), None)
    order = sorted(range(len(names)), key=lambda index: index != background)  # the background first
    classes = ["background", *(names[index] for index in order if index != background)]
    model = build_model(ModelConfig(encoder=encoder, decoder="mlp", image_size=size), classes)
    body = {name: tensor for name, tensor in tensors.items() if name.startswith("segformer.")}
    model.encoder.load_state_dict(fit_names(model.encoder, body, folder / "model.safetensors"))
    model.encoder.mean, model.encoder.std = find_colours(folder) or (model.encoder.mean, model.encoder.std)
    model.body.take_colours()
    head = {name.removeprefix("decode_head."): tensor for name, tensor in tensors.items()}
    try:
        model.decoder.load_state_dict(decoder_state(head, model.decoder.channels))
        rows, biases = head["classifier.weight"].flatten(1), head["classifier.bias"]
    except KeyError as error:
        raise TissError(f"{folder}: incomplete SegFormer: decode_head.{error.args[0]} is missing") from None
    except (RuntimeError, IndexError) as error:
        raise TissError(f"{folder}: its decoder has other shapes than its configuration: {error}") from None
    if rows.shape != (len(names), model.decoder.channels) or biases.shape != (len(names),):
        raise TissError(
            f"{folder}: its classifier needs one row for each of the {len(names)} names in id2label"
        )
    rows, biases = rows[order], biases[order]
    if background is None:  # its row is the mean of the others, with a bias to be set
        rows = torch.cat([rows.mean(dim=0, keepdim=True), rows])
        biases = torch.cat([biases.new_zeros(1), biases])
    with torch.no_grad():
        model.head.rows[0].copy_(rows)
        model.head.biases[0].copy_(biases)
    model.record = {"eval_size": size, "source": "segformer"}
    model.eval()
    if background is None:
        add_background(model, images, size, choose_device(device), str(folder))
    return model


def read_names(config: Any, path: Path) -> list[str]:
    """The class names of `id2label`, by number."""
    table = config.get("id2label") if isinstance(config, dict) else None
    if not isinstance(table, dict) or sorted(table) != sorted(str(index) for index in range(len(table))):
        raise TissError(f"{path}: 'id2label' must name the classes 0, 1, 2, …")
    names = [str(table[str(index)]).strip() for index in range(len(table))]
    if not 1 <= len(names) <= MOST_CLASSES:
        raise TissError(f"{path}: {len(names)} classes: between 1 and {MOST_CLASSES} can be extended")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TissError(f"{path}: 'id2label' has {twice!r} twice: class names must be unique")
    return names


def find_encoder(config: Any, path: Path) -> str:
    """The name of the encoder that has the configuration's shapes."""
    for name in ENCODERS:
        encoder = outline(name) if name.startswith("mit_") else None
        if isinstance(encoder, MixTransformer) and shape_of(encoder).items() <= config.items():
            return name
    raise TissError(f"{path}: only the SegFormers b0 to b5 can be extended; this one has another shape")


def shape_of(encoder: MixTransformer) -> dict[str, Any]:
    blocks: list[Any] = [list(stage.blocks) for stage in encoder.stages]
    reductions = [stage[0].attention.sequence_reduction for stage in blocks]
    return {
        "hidden_sizes": [level.channels for level in encoder.pyramid],
        "depths": [len(stage) for stage in blocks],
        "num_attention_heads": [stage[0].attention.heads for stage in blocks],
        "sr_ratios": [1 if one is None else one.sequence_reduction.stride[0] for one in reductions],
        "decoder_hidden_size": encoder.decoder_channels,
    }


def read_size(folder: Path) -> int:
    """The shorter side for which the model was trained, from its preprocessor's file."""
    path = folder / "preprocessor_config.json"
    table = read_json(path) if path.is_file() else None
    size = table.get("size") if isinstance(table, dict) else None
    if isinstance(size, dict):
        size = min((value for value in size.values() if isinstance(value, int)), default=None)
    return size if isinstance(size, int) and 32 <= size <= 2048 else DEFAULT_SIZE


def decoder_state(head: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """The decoder's weights; transformers concatenates its levels coarsest first, tiss finest first."""
    kind = "linear_projections" if "linear_projections.0.proj.weight" in head else "linear_c"
    state: dict[str, Tensor] = {}
    for level in range(4):
        state[f"projections.{level}.weight"] = head[f"{kind}.{level}.proj.weight"][:, :, None, None]
        state[f"projections.{level}.bias"] = head[f"{kind}.{level}.proj.bias"]
    state["fuse.0.weight"] = torch.cat(head["linear_fuse.weight"].split(width, dim=1)[::-1], dim=1)
    for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        state[f"fuse.1.{part}"] = head[f"batch_norm.{part}"]
    return state


@torch.inference_mode()
def add_background(
    model: SegmentationModel, images: Sequence[Tensor], size: int, device: str, name: str
) -> None:
    """Sets the bias of channel 0 so that the median of p_0 over all pixels is 0.01:
    β_0 = log(0.01 / 0.99) − median(z_0 − logsumexp(z_1, …)), since the logistic function is monotonic."""
    model.to(device)
    margins, best = [], []
    for image in images:
        logits = slide_logits(model, resize(image[None].to(device), size), window=size)[0]
        rest = logits[1:]
        margins.append((logits[0] - rest.logsumexp(dim=0)).flatten().cpu())
        best.append((logits[0] - rest.amax(dim=0)).flatten().cpu())
    bias = math.log(PROBABILITY / (1 - PROBABILITY)) - float(torch.cat(margins).median())
    stay = float((torch.cat(best) + bias <= 0).float().mean())
    if stay < MUST_STAY:
        raise TissError(
            f"{name}: has no background class, and one would change {100 * (1 - stay):.1f} % of its "
            "predictions on these images (more than 1 %): it cannot be extended"
        )
    model.head.biases[0][0] = bias
    model.to("cpu")
