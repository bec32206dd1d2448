"""Exports: equal to the model at other sizes and batches, named classes inside, refused where they differ."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.docs.pages import ROOT
from tests.user.story import Patch, Refused, Said, tiss
from tiss.engine.predictor import Predictor
from tiss.models import SegmentationModel
from tiss.user import export

EXAMPLE = ROOT / "examples" / "run_onnx.py"


@pytest.fixture(scope="module")
def onnx_file(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("export") / "third.onnx"
    tiss("export", story / "third", "--out", path, "--data", story / "tomorrow" / "images")
    return path


def test_onnx_at_any_batch_and_size(story: Path, onnx_file: Path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    model = SegmentationModel.from_pretrained(story / "third")
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == model.classes
    generator = torch.Generator().manual_seed(0)
    for shape in ((1, 32, 32), (3, 32, 48), (2, 37, 51)):
        images = torch.randint(0, 256, (shape[0], 3, *shape[1:]), dtype=torch.uint8, generator=generator)
        labels, logits = session.run(["labels", "logits"], {"images": images.numpy()})
        with torch.inference_mode():
            output = model(images)
        np.testing.assert_allclose(logits, output.logits.numpy(), atol=1e-4)
        assert (labels == model.predict_labels(output).numpy()).mean() > 0.999


def test_the_example_runs_without_tiss_and_torch(story: Path, onnx_file: Path, tmp_path: Path):
    photo = sorted((story / "tomorrow" / "images").iterdir())[0]
    alone = "import runpy, sys; sys.modules['torch'] = sys.modules['tiss'] = None; sys.argv = sys.argv[1:]; "
    code = alone + "runpy.run_path(sys.argv[0], run_name='__main__')"
    words = [str(word) for word in (EXAMPLE, onnx_file, photo, tmp_path / "overlay.png")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = Predictor(SegmentationModel.from_pretrained(story / "third"), 32).predict(photo)
    shares = dict(line.split(": ") for line in done.stdout.splitlines())
    assert shares == {name: f"{found.shares().get(name, 0):.1%}" for name in found.classes}
    overlay = np.asarray(Image.open(tmp_path / "overlay.png")).astype(int)
    assert np.abs(overlay - np.asarray(found.overlay(0.5))).max() <= 2
    about = json.loads(onnx_file.with_suffix(".labels.json").read_text())
    assert (about["classes"], about["size"]) == ([*found.classes], 32)


def test_half_precision_is_half_the_size(story: Path, onnx_file: Path, tmp_path: Path):
    path = tmp_path / "half.onnx"
    tiss("export", story / "third", "--fp16", "--out", path, "--data", story / "tomorrow" / "images")
    onnx = pytest.importorskip("onnx")
    weights = [
        sum(len(one.raw_data) for one in onnx.load(file).graph.initializer) for file in (path, onnx_file)
    ]
    assert weights[0] < 0.55 * weights[1]
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    assert [one.type for one in session.get_outputs()] == ["tensor(uint8)", "tensor(float16)"]


def test_openvino_reads_the_file(story: Path, onnx_file: Path):
    """The recipe of docs/deploy.md."""
    openvino = pytest.importorskip("openvino")
    compiled = openvino.compile_model(str(onnx_file), "CPU")
    photo = sorted((story / "tomorrow" / "images").iterdir())[0]
    pixels = np.asarray(Image.open(photo)).transpose(2, 0, 1)[None]
    labels = compiled({"images": pixels})["labels"][0]
    found = Predictor(SegmentationModel.from_pretrained(story / "third"), 32).predict(photo)
    assert (labels == found.mask).mean() > 0.999


def test_torch_program(story: Path, tmp_path: Path, said: Said):
    path = tmp_path / "third.pt2"
    assert "free in batch and size" in said("export", story / "third", "--format", "torch", "--out", path)
    extra = {"classes.txt": ""}
    program = torch.export.load(path, extra_files=extra)
    images = torch.randint(0, 256, (1, 3, 40, 56), dtype=torch.uint8)
    labels, _ = program.module()(images)
    model = SegmentationModel.from_pretrained(story / "third")
    assert json.loads(extra["classes.txt"]) == model.classes
    assert torch.equal(labels.long(), model.predict_labels(model(images)))


def test_a_file_that_differs_is_not_written(
    story: Path, tmp_path: Path, monkeypatch: Patch, refused: Refused
):
    def wrong(*arguments: object) -> tuple[bytes, export.Runner]:
        content, right = original(*arguments)  # type: ignore[arg-type]
        return content, lambda images: (right(images)[0], right(images)[1] + 1)

    original = export.to_torch
    monkeypatch.setattr(export, "to_torch", wrong)
    path = tmp_path / "x.pt2"
    assert "differs from the model" in refused("export", story / "first", "--format", "torch", "--out", path)
    assert not path.exists()


def test_only_the_batch_is_free_where_the_size_is_not(monkeypatch: Patch, story: Path, tmp_path: Path):
    model = SegmentationModel.from_pretrained(story / "first")
    real = torch.export.export

    def stubborn(module: object, arguments: object, dynamic_shapes: dict[str, dict[int, object]]) -> object:
        if len(dynamic_shapes["images"]) > 1:
            raise RuntimeError("no other size, please")
        return real(module, arguments, dynamic_shapes=dynamic_shapes)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.export, "export", stubborn)
    done = export.export_model(model, tmp_path / "x.pt2", "torch", 32)
    assert done.dynamic == "batch"
    assert done.equal == 1
