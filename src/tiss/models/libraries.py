"""What other libraries' models are: how each is rebuilt, read from its files and written to them."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tiss.data.classes import CLASS_FILES
from tiss.errors import TissError
from tiss.files import read_json, write_json, write_text
from tiss.models.encoder import IMAGENET_MEAN, IMAGENET_STD, Colours, MissingPackageError
from tiss.models.pretrained import choose_file, find_colours, first_line, read_weights
from tiss.models.timm_encoder import declare_torchvision_operators

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
DEFAULT_SIZE = 512

Features = Callable[
    [nn.Module, Tensor], Tensor
]  # a network without its classifier, normalised images → a map


@dataclass(frozen=True)
class Checkpoint:
    """A model as its library's files have it."""

    description: dict[str, Any]  # rebuilds the network; JSON
    state: dict[str, Tensor]  # of the whole network, its classifier included
    names: list[str] | None  # of the classes, where the files say so
    size: int = DEFAULT_SIZE
    mean: Colours = IMAGENET_MEAN
    std: Colours = IMAGENET_STD


class LinspaceOnCpu(TorchFunctionMode):
    """smp's MiT reads its drop rates from such a tensor while it is built; on "meta" there is nothing to read."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on_cpu = {"device": "cpu"} if func is torch.linspace else {}
        return func(*args, **{**(kwargs or {}), **on_cpu})


class Library:
    package: str
    extra: str  # of tiss, that installs it
    one_file = False  # a model is a file of weights, not a folder

    def load(self) -> Any:
        """The package, imported."""
        declare_torchvision_operators()
        try:
            return importlib.import_module(self.package)
        except ImportError as error:
            raise MissingPackageError(
                f"this model needs {self.package}: pip install 'tiss[{self.extra}]' ({error})"
            ) from error

    def read(self, path: Path, allow_pickle: bool) -> Checkpoint:
        """The model at `path`: a folder, or a file of weights."""
        raise NotImplementedError

    def build(self, config: dict[str, Any], classes: int) -> nn.Module:
        """The whole network with fresh weights."""
        raise NotImplementedError

    def check(self, config: dict[str, Any], classes: int, state: dict[str, Tensor], path: Path) -> Any:
        """An outline of the network, whose tensors `state` must have."""
        try:
            with torch.device("meta"):  # costs no memory, whatever the files claim
                network = self.build(config, classes)
        except Exception as error:  # whatever the library raises
            raise TissError(f"{path}: {self.package} cannot build it: {first_line(error)}") from error
        wanted = network.state_dict()
        wrong = sorted(
            name
            for name in wanted.keys() | state.keys()
            if name not in wanted or name not in state or wanted[name].shape != state[name].shape
        )
        if wrong:
            raise TissError(
                f"{path}: does not fit its configuration: {len(wrong)} tensors differ, such as {wrong[0]}"
            )
        return network

    def remove_head(self, network: Any) -> None:
        """Removes what follows the classifier."""

    @staticmethod
    def features(network: Any, images: Tensor) -> Tensor:
        """The map that the classifier reads, of a network without it."""
        return network(images)

    def save(self, network: Any, out: Path, names: Sequence[str], description: dict[str, Any]) -> None:
        """Writes the whole network into the folder `out` as the library does."""
        raise NotImplementedError


class Transformers(Library):
    package = extra = "transformers"
    classifiers: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("segformer", "upernet", "beit", "data2vec-vision"), "decode_head.classifier"),
        **dict.fromkeys(
            ("mobilevit", "mobilevitv2", "mobilenet_v2"), "segmentation_head.classifier.convolution"
        ),
        "dpt": "head.head.4",
    }

    def read(self, path: Path, allow_pickle: bool) -> Checkpoint:
        config, kind = read_json(path / CONFIG), None
        if isinstance(config, dict):
            kind = config.get("model_type")
        if kind not in self.classifiers:
            raise TissError(
                f"{path}: no class can be added to the head of a {kind}: extend a {', '.join(self.classifiers)} "
                "instead, or a PyTorch module that ends in a classifier of pixels, with tiss.wrap"
            )
        choose_file(path, allow_pickle)
        names = read_names(config, path / CONFIG)
        library = self.load()
        how: dict[str, Any] = {"local_files_only": True, "output_loading_info": True, "dtype": torch.float32}
        how["use_safetensors"] = None if allow_pickle else True
        try:
            with self.quiet():
                table = self.config_of(config)
                build = library.AutoModelForSemanticSegmentation.from_pretrained
                network, found = build(path, config=table, **how)
        except Exception as error:  # whatever transformers raises at files that do not fit
            raise TissError(f"{path}: transformers cannot load it: {first_line(error)}") from error
        if found["missing_keys"]:
            raise TissError(f"{path}: incomplete: {sorted(found['missing_keys'])[0]} is missing")
        state = network.state_dict()
        if len(state[f"{self.classifiers[kind]}.weight"]) != len(names):
            raise TissError(
                f"{path}: its classifier needs one row for each of the {len(names)} names in id2label"
            )
        parts = getattr(table, "backbone_config", None) or table
        patch = getattr(parts, "patch_size", 1)
        side = max(patch) if isinstance(patch, list | tuple) else patch
        about = read_preprocessor(path)
        description = {
            "library": "transformers",
            "kind": kind,
            "config": clean(network.config.to_dict()),
            "classifier": self.classifiers[kind],
            "stride": side if side > 8 else 32,  # windows of less are padded by the network itself
            "aligned": kind == "dpt",
            "bgr": bool(about.get("do_flip_channel_order")),
            "preprocessor": about,
        }
        colours = find_colours(path) or ((IMAGENET_MEAN, IMAGENET_STD) if not about else None)
        if colours is None or about.get("do_normalize") is False:
            colours = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        return Checkpoint(description, state, names, read_size(path), *colours)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Without its progress bars and reports."""
        logger = self.load().utils.logging
        level = logger.get_verbosity()
        logger.set_verbosity_error()
        logger.disable_progress_bar()
        try:
            yield
        finally:
            logger.set_verbosity(level)
            logger.enable_progress_bar()

    def build(self, config: dict[str, Any], classes: int) -> nn.Module:
        table = self.config_of(config)
        table.num_labels = classes
        return self.load().AutoModelForSemanticSegmentation.from_config(table)

    def config_of(self, config: dict[str, Any]) -> Any:
        kept = clean(config) | {key: config[key] for key in ("id2label",) if key in config}
        table = type(self.load().AutoConfig.for_model(config["model_type"])).from_dict(kept)
        table.use_auxiliary_head = False
        return table

    def remove_head(self, network: Any) -> None:
        if network.config.model_type == "dpt":
            network.head.head[5] = nn.Identity()  # upsampling, which `Resolution` does

    @staticmethod
    def features(network: Any, images: Tensor) -> Tensor:
        kind = network.config.model_type
        if kind == "upernet":  # whose forward pass would upsample what its head gives
            return network.decode_head(network.backbone(images).feature_maps)
        if kind in ("beit", "data2vec-vision"):
            return network(images, interpolate_pos_encoding=True).logits
        return network(images).logits

    def save(self, network: Any, out: Path, names: Sequence[str], description: dict[str, Any]) -> None:
        network.config.id2label = dict(enumerate(names))
        network.config.label2id = {name: index for index, name in enumerate(names)}
        with self.quiet():
            network.save_pretrained(out)
        if description["preprocessor"]:
            write_json(out / PREPROCESSOR, description["preprocessor"])


# names, which change; and what could make transformers fetch weights or code
UNKEPT = ("id2label", "label2id", "num_labels", "transformers_version", "auto_map", "use_pretrained_backbone")


def clean(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that says nothing but the network's shape."""
    return {
        key: clean(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in UNKEPT and not key.startswith(("_", "attn_", "experts_"))
    }


class SegmentationModelsPytorch(Library):
    package, extra = "segmentation_models_pytorch", "smp"

    def read(self, path: Path, allow_pickle: bool) -> Checkpoint:
        config = read_json(path / CONFIG)
        kind = config["_model_class"]
        if config.get("in_channels", 3) != 3:
            raise TissError(f"{path}: reads {config['in_channels']} channels: only RGB can be extended")
        if config.get("activation") == "sigmoid" and config.get("classes", 1) > 1:
            raise TissError(f"{path}: its masks may overlap (sigmoid): one class per pixel can be extended")
        kept = {**config, "encoder_weights": None, "aux_params": None, "activation": None}
        state = read_weights(choose_file(path, allow_pickle), allow_pickle)
        state = {name: one for name, one in state.items() if not name.startswith("classification_head.")}
        network = self.check(kept, config.get("classes", 1), state, path)
        divisible = getattr(network, "requires_divisible_input_shape", True)
        description = {
            "library": "smp",
            "kind": kind,
            "config": kept,
            "classifier": "segmentation_head.head.4" if kind == "DPT" else "segmentation_head.0",
            "stride": network.encoder.output_stride if divisible else 1,
            "aligned": True,
        }
        listed = path / CLASS_FILES[0]
        names = read_lines(listed) if listed.is_file() else None
        colours = (
            find_colours(path)
            or timm_colours(str(config.get("encoder_name")))
            or (IMAGENET_MEAN, IMAGENET_STD)
        )
        return Checkpoint(description, state, names, read_size(path), *colours)

    def build(self, config: dict[str, Any], classes: int) -> nn.Module:
        known = {one.__name__: one for one in self.load().MODEL_ARCHITECTURES_MAPPING.values()}
        if config["_model_class"] not in known:
            raise TissError(f"{config['_model_class']!r} is none of its architectures")
        with LinspaceOnCpu():
            return known[config["_model_class"]](**{**config, "classes": classes})

    def remove_head(self, network: Any) -> None:
        head = network.segmentation_head
        if hasattr(head, "upsampling_factor"):
            head.upsampling_factor = 1
        else:
            head[1] = nn.Identity()

    def save(self, network: Any, out: Path, names: Sequence[str], description: dict[str, Any]) -> None:
        network.save_pretrained(out)
        write_text(out / CLASS_FILES[0], "\n".join(names) + "\n")


class Torchvision(Library):
    package, extra = "torchvision", "timm"
    one_file = True

    def read(self, path: Path, allow_pickle: bool) -> Checkpoint:
        self.load()
        state = read_weights(path, allow_pickle)
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
        state = {name: tensor for name, tensor in state.items() if not name.startswith("aux_classifier.")}
        kind, last = find_torchvision(state), state.get("classifier.4.weight")
        if kind is None or last is None:
            raise TissError(
                f"{path}: not the weights of torchvision's DeepLabV3 or FCN, which can be extended; other networks: "
                "tiss.wrap in Python"
            )
        self.check({"name": kind}, len(last), state, path)
        description = {
            "library": "torchvision",
            "kind": kind,
            "config": {"name": kind},
            "classifier": "classifier.4",
            "stride": 1,
            "aligned": False,
        }
        names = None
        if len(last) == 21:
            models = importlib.import_module("torchvision.models")
            names = models.get_model_weights(kind).DEFAULT.meta["categories"]
        return Checkpoint(description, state, names, 520)

    def build(self, config: dict[str, Any], classes: int) -> nn.Module:
        self.load()
        models = importlib.import_module("torchvision.models")
        fresh = {"weights": None, "weights_backbone": None, "aux_loss": False}
        return models.get_model(config["name"], num_classes=classes, **fresh)

    @staticmethod
    def features(network: Any, images: Tensor) -> Tensor:
        return network.classifier(network.backbone(images)["out"])


def timm_colours(encoder: str) -> tuple[Colours, Colours] | None:
    """Mean and deviation of one of timm's networks as smp names them."""
    import timm

    found = timm.get_pretrained_cfg(encoder.removeprefix("tu-")) if encoder.startswith("tu-") else None
    return (found.mean, found.std) if found is not None else None  # type: ignore[return-value]


def find_torchvision(state: dict[str, Tensor]) -> str | None:
    """The name of torchvision's model that has such weights."""
    head = "deeplabv3" if "classifier.0.convs.0.0.weight" in state else "fcn"
    if "backbone.0.0.weight" in state and head == "deeplabv3":
        return "deeplabv3_mobilenet_v3_large"
    blocks = {name.split(".")[2] for name in state if name.startswith("backbone.layer3.")}
    depth = {6: 50, 23: 101}.get(len(blocks))
    return f"{head}_resnet{depth}" if depth else None


LIBRARIES: dict[str, Library] = {
    "transformers": Transformers(),
    "smp": SegmentationModelsPytorch(),
    "torchvision": Torchvision(),
}


def read_names(config: Any, path: Path) -> list[str]:
    """The class names of `id2label`, by number."""
    table = config.get("id2label") if isinstance(config, dict) else None
    if not isinstance(table, dict) or sorted(table) != sorted(str(index) for index in range(len(table))):
        raise TissError(f"{path}: 'id2label' must name the classes 0, 1, 2, …")
    return [str(table[str(index)]).strip() for index in range(len(table))]


def read_lines(path: Path) -> list[str]:
    """Names, one per line."""
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_preprocessor(folder: Path) -> dict[str, Any]:
    """What a folder in transformers' format says of its images; empty where it says nothing."""
    path = folder / PREPROCESSOR
    table = read_json(path) if path.is_file() else None
    return table if isinstance(table, dict) else {}


def read_size(folder: Path) -> int:
    """The shorter side for which the model was trained, from its preprocessor's file."""
    size = read_preprocessor(folder).get("size")
    if isinstance(size, dict):
        size = min((value for value in size.values() if isinstance(value, int)), default=None)
    return size if isinstance(size, int) and 32 <= size <= 2048 else DEFAULT_SIZE
