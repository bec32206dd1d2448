"""Models of other libraries: the same logits here, a new class, and back into the library's own format."""

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import tiss
from tests.docs.pages import ROOT, blocks_of
from tests.user.hub import serve
from tests.user.story import QUICK, Refused, write_folder
from tests.user.story import tiss as run
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.evaluation.evaluate import slide_logits
from tiss.methods.base import batch_norms
from tiss.models import SegmentationModel
from tiss.models.libraries import find_torchvision
from tiss.models.timm_encoder import declare_torchvision_operators
from tiss.user.export import export_model
from tiss.user.foreign import from_foreign
from tiss.user.model_source import line_of
from tiss.user.options import ExtendOptions

NAMES = ["road", "Background", "car"]
IMAGES = [
    torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
    for i in range(3)
]
STAGES = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "depths": [1, 1, 1, 1]}
VIT = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
VIT |= {"image_size": 64, "patch_size": 16}
COLOURS = {"image_mean": [0.4, 0.4, 0.4], "image_std": [0.2, 0.3, 0.2]}


def options(out: str = "unused", **settings: Any) -> ExtendOptions:
    return ExtendOptions(model="unused", data="unused", out=out, device="cpu", **settings)


def import_transformers() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("transformers")


def normalise(images: Tensor, mean: list[float], std: list[float]) -> Tensor:
    return (images / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def draw_weights(network: nn.Module, spread: float = 0.3) -> None:
    torch.manual_seed(0)
    for name, parameter in network.named_parameters():
        nn.init.normal_(parameter, std=spread if "classifier" in name else 0.3)


# ------------------------------------------------------------------------------------------------ transformers

KINDS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "segformer": lambda library, more: library.SegformerConfig(
        hidden_sizes=[4, 4, 8, 8],
        depths=[1, 1, 1, 2],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=8,
        **more,
    ),
    "upernet": lambda library, more: library.UperNetConfig(
        backbone_config=library.ConvNextConfig(hidden_sizes=[4, 8, 8, 8], **STAGES), hidden_size=8, **more
    ),
    "dpt": lambda library, more: library.DPTConfig(
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[4, 4, 8, 8],
        fusion_hidden_size=8,
        is_hybrid=False,
        **VIT,
        **more,
    ),
    "beit": lambda library, more: library.BeitConfig(out_indices=[1, 2, 3, 4], **VIT, **more),
    "mobilenet_v2": lambda library, more: library.MobileNetV2Config(depth_multiplier=0.1, **more),
}


def make(folder: Path, names: list[str], kind: str = "segformer", spread: float = 1.0) -> Any:
    """A tiny random model saved by transformers."""
    library = import_transformers()
    config = KINDS[kind](library, {"id2label": dict(enumerate(names))})
    model = library.AutoModelForSemanticSegmentation.from_config(config).eval()
    draw_weights(model, spread)
    model.save_pretrained(folder)
    table = {"size": {"height": 64, "width": 64}} | COLOURS
    (folder / "preprocessor_config.json").write_text(json.dumps(table))
    return model


def theirs(model: Any, images: Tensor, size: tuple[int, int]) -> Tensor:
    """Logits as transformers' postprocessing brings them to pixels."""
    with torch.inference_mode():
        logits = model(normalise(images, *COLOURS.values())).logits
    return nn.functional.interpolate(logits, size, mode="bilinear", align_corners=False)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_there_and_back(kind: str, tmp_path: Path):
    reference = make(tmp_path / "source", NAMES, kind)
    model = from_foreign("transformers", tmp_path / "source", IMAGES, options())
    images = torch.stack(IMAGES)[..., :64]  # DPT takes squares
    assert model.classes == ["background", "road", "car"]
    assert model(images).logits.shape[-1] == 64 // model.decoder.stride
    with torch.inference_mode():
        expected = theirs(reference, images, (64, 64))[:, [1, 0, 2]]
        torch.testing.assert_close(model(images).pixels(), expected, atol=1e-4, rtol=1e-4)

    model.grow(["star"], "background")
    with torch.no_grad():
        model.head.rows[-1].normal_()
    model.save_pretrained(tmp_path / "ours")
    model = SegmentationModel.from_pretrained(tmp_path / "ours")
    assert tiss.save_source(model, tmp_path / "back") == [*NAMES, "star"]
    library = import_transformers()
    back = library.AutoModelForSemanticSegmentation.from_pretrained(tmp_path / "back").eval()
    assert back.config.id2label == dict(enumerate([*NAMES, "star"]))
    with torch.inference_mode():
        labels = model.predict_labels(model(images))
    table = torch.tensor([1, 0, 2, 3])  # their number → our channel
    assert torch.equal(table[theirs(back, images, (64, 64)).argmax(1)], labels)
    saved = json.loads((tmp_path / "back" / "preprocessor_config.json").read_text())
    assert saved["image_mean"] == COLOURS["image_mean"]


def test_added_background_has_the_median_probability_and_changes_nothing_else(tmp_path: Path):
    reference = make(tmp_path, ["road", "car", "sky"], spread=3.0)
    model = from_foreign("transformers", tmp_path, IMAGES, options())
    assert model.classes == ["background", "road", "car", "sky"]
    with torch.inference_mode():
        pixels = torch.cat([slide_logits(model, image[None], 64)[0].flatten(1) for image in IMAGES], 1)
    probability = pixels.softmax(dim=0)[0].median()
    assert math.isclose(float(probability), 0.01, rel_tol=1e-3)
    rows = reference.decode_head.classifier.weight[:, :, 0, 0]
    torch.testing.assert_close(model.head.rows[0][0], rows.mean(dim=0))
    assert (pixels.argmax(dim=0) > 0).float().mean() >= 0.99
    old = theirs(reference, IMAGES[0][None], (64, 96))
    torch.testing.assert_close(model(IMAGES[0][None]).pixels()[:, 1:], old, atol=1e-4, rtol=1e-4)
    assert tiss.save_source(model, tmp_path / "back") == ["road", "car", "sky", "background"]


def test_a_model_that_got_a_background_on_another_device_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another type of numbers stands for another device: both give a parameter new memory."""

    def to(model: SegmentationModel, device: str) -> SegmentationModel:
        for kind in (torch.float64, torch.float32):
            torch.nn.Module.to(model, kind)
        return model

    make(tmp_path, ["road", "car", "sky"], spread=3.0)
    monkeypatch.setattr(SegmentationModel, "to", to)
    model = from_foreign("transformers", tmp_path, IMAGES, options())
    model.train()(IMAGES[0][None]).pixels().sum().backward()


def test_refused_where_a_background_would_change_predictions(tmp_path: Path):
    """Rows that cancel: their mean is flat, while the classes' own logits swing from pixel to pixel."""
    model = make(tmp_path, ["road", "car"], spread=1000.0)
    with torch.no_grad():
        model.decode_head.classifier.weight[1] = -model.decode_head.classifier.weight[0]
        model.decode_head.classifier.bias.zero_()
    model.save_pretrained(tmp_path)
    with pytest.raises(TissError, match="no background class"):
        from_foreign("transformers", tmp_path, IMAGES, options())


def test_extend(story: Path, tmp_path: Path):
    make(tmp_path / "segformer", ["road", "car", "sky"], spread=3.0)
    command = ["extend", tmp_path / "segformer", "--data", story / "tonight", "--classes", "star"]
    run(*command, "--out", tmp_path / "out", *QUICK[2:], "--epochs", 1)
    model = SegmentationModel.from_pretrained(tmp_path / "out")
    assert model.classes == ["background", "road", "car", "sky", "star"]
    assert model.record["history"][0]["method"] == "mib"
    assert model.record["parent"]["path"] == "../segformer"
    assert line_of(tmp_path / "out") == [tmp_path / "out"]  # what the web page goes through: models of tiss
    run("predict", tmp_path / "out", story / "tonight" / "images", "--out", tmp_path / "predicted")
    run("export", tmp_path / "out", "--format", "source", "--out", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["id2label"]["4"] == "star"


def test_a_name_on_the_hub(story: Path, tmp_path: Path):
    make(tmp_path / "source", NAMES)
    words = ["extend", "team/streets", "--data", story / "tonight", "--classes", "star", "--out", "out"]
    with serve() as server:
        server.files["team/streets"] = {one.name: one.read_bytes() for one in (tmp_path / "source").iterdir()}
        hub = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "tiss", *map(str, words), *QUICK[2:], "--epochs", "1"]
        done = subprocess.run(command, env=os.environ | hub, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert tiss.from_pretrained(tmp_path / "out").record["parent"]["name"] == "team/streets"


def test_what_cannot_be_extended_is_one_line(story: Path, tmp_path: Path, refused: Refused):
    make(tmp_path / "s", ["road", "car"])
    path = tmp_path / "s" / "config.json"
    config = json.loads(path.read_text())
    command = ["extend", tmp_path / "s", "--data", story / "tonight", "--classes", "star"]
    for change, expected in (
        ({"model_type": "mask2former"}, "head of a mask2former: extend a segformer, "),
        ({"depths": [3, 1, 1, 1]}, "is missing"),
        ({"id2label": {"0": "road", "5": "car"}}, "id2label"),
        ({"id2label": {"0": "road", "1": "road"}}, "'road' twice"),
        ({"id2label": {"0": "road", "1": "car", "2": "sky"}}, "cannot load it"),
    ):
        path.write_text(json.dumps(config | change))
        assert expected in refused(*command, "--out", tmp_path / "o")
    path.write_text(json.dumps(config))
    weights = tmp_path / "s" / "model.safetensors"
    tensors = load_file(weights)
    for name in ("decode_head.linear_fuse.weight", "decode_head.classifier.bias"):
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, weights)
        assert f"{name} is missing" in refused(*command, "--out", tmp_path / "o")
    assert "a model of transformers" in refused("predict", tmp_path / "s", story / "tonight" / "images")
    ours = ["extend", story / "first", *command[2:], "--out", tmp_path / "o"]
    assert "leave it out" in refused(*ours, "--names", "disc,square")
    assert "made by tiss" in refused("export", story / "first", "--format", "source", "--out", tmp_path / "o")


@pytest.mark.parametrize(
    "network",
    [
        {"library": "os"},
        {"library": ["smp"]},
        {"library": "transformers"},
        {"library": "transformers", "config": {"model_type": "evil"}},
        {"library": "smp", "config": {"_model_class": "from_pretrained"}},
        {"library": "torchvision", "config": {"name": 5}},
    ],
)
def test_a_damaged_description_is_one_line(network: dict[str, Any], story: Path, tmp_path: Path):
    for library in ("transformers", "segmentation_models_pytorch"):
        pytest.importorskip(library)
    shutil.copytree(story / "first", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["architecture"]["network"] = network
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(TissError):
        tiss.from_pretrained(tmp_path / "m")


# ------------------------------------------------------------------------------------------ the other libraries


def import_smp() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("segmentation_models_pytorch")


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALF = [0.5] * 3, [0.5] * 3  # of timm's tiny test networks


def same_there(
    network: Any, model: SegmentationModel, order: list[int], colours: tuple = IMAGENET, times: int = 1
) -> None:
    """Logits of pixels, on images repeated `times` to both sides."""
    images = torch.stack(IMAGES).repeat(1, 1, times, times)
    with torch.inference_mode():
        expected = network(normalise(images, *colours))
        expected = expected["out"] if isinstance(expected, dict) else expected
        torch.testing.assert_close(model(images).pixels(), expected[:, order], atol=1e-4, rtol=1e-4)


CHANNELS = {"decoder_channels": (8,) * 5}
SMP: dict[str, dict[str, Any]] = {
    "Unet": CHANNELS,
    "UnetPlusPlus": CHANNELS,
    "MAnet": CHANNELS,
    "Linknet": {},
    "FPN": {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32},
    "PSPNet": {"psp_out_channels": 8},
    "DeepLabV3": {"decoder_channels": 8},
    "DeepLabV3Plus": {"decoder_channels": 8},
    "PAN": {"decoder_channels": 8},
    "UPerNet": {"decoder_channels": 8},
    "Segformer": {"decoder_segmentation_channels": 8},
    "DPT": {
        "decoder_intermediate_channels": (8,) * 4,
        "decoder_fusion_channels": 8,
        "dynamic_img_size": True,
    },
}


def test_every_architecture_of_smp_is_tested():
    known = import_smp().MODEL_ARCHITECTURES_MAPPING.values()
    assert {one.__name__ for one in known} == set(SMP)


SMALLEST = {kind: "tu-test_vit" if kind == "DPT" else "tu-test_resnet" for kind in SMP}


@pytest.mark.parametrize(("kind", "encoder"), [*SMALLEST.items(), ("Segformer", "mit_b0")])
def test_smp_there_and_back(kind: str, encoder: str, tmp_path: Path):
    library = import_smp()
    torch.manual_seed(0)
    network = library.create_model(kind, encoder, None, classes=3, **SMP[kind]).eval()
    network.save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "classes.txt").write_text("\n".join(NAMES))
    model = from_foreign("smp", tmp_path / "source", (), options(size=128))
    colours = IMAGENET if encoder == "mit_b0" else HALF
    same_there(network, model, [1, 0, 2], colours, 2)
    model.grow(["star"], "background")
    model.save_pretrained(tmp_path / "ours")
    model = SegmentationModel.from_pretrained(tmp_path / "ours")
    tiss.save_source(model, tmp_path / "back")
    assert (tmp_path / "back" / "classes.txt").read_text().split() == [*NAMES, "star"]
    same_there(library.from_pretrained(tmp_path / "back").eval(), model, [1, 0, 2, 3], colours, 2)


def test_one_output_is_a_sigmoid_against_the_background(tmp_path: Path):
    library = import_smp()
    network = library.FPN(
        "tu-mobilenetv3_small_050", encoder_weights=None, classes=1, activation="sigmoid"
    ).eval()
    network.save_pretrained(tmp_path)
    model = from_foreign("smp", tmp_path, (), options(names="forklift"))
    assert model.classes == ["background", "forklift"]
    images = torch.stack(IMAGES)
    with torch.inference_mode():
        positive = network(normalise(images, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))[:, 0]
        probability = model(images).pixels().softmax(1)[:, 1]
    torch.testing.assert_close(probability, positive, atol=1e-4, rtol=1e-4)


BARE = {"weights": None, "weights_backbone": None}


def make_torchvision(kind: str, path: Path) -> Any:
    """A random network whose weights are in `path`, with those of the classifier that only training uses."""
    declare_torchvision_operators()
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    network = models.get_model(kind, num_classes=3, aux_loss=True, **BARE).eval()
    torch.save(network.state_dict(), path)
    return network


def same_back(kind: str, path: Path, model: SegmentationModel) -> None:
    models = importlib.import_module("torchvision.models")
    assert tiss.save_source(model, path) == ["road", "background", "car", "star"]
    back = models.get_model(kind, num_classes=4, aux_loss=False, **BARE).eval()
    back.load_state_dict(torch.load(path))
    same_there(back, model, [1, 0, 2, 3])


@pytest.mark.parametrize("kind", ["fcn_resnet50", "deeplabv3_resnet50"])
def test_torchvision_there_and_back(kind: str, tmp_path: Path):
    network = make_torchvision(kind, tmp_path / "old.pth")
    named = options(names="road, background, car", allow_pickle=True, size=64)
    model = from_foreign("torchvision", tmp_path / "old.pth", (), named)
    same_there(network, model, [1, 0, 2])
    model.grow(["star"], "background")
    same_back(kind, tmp_path / "new.pth", model)


def test_torchvision_extended(story: Path, tmp_path: Path):
    make_torchvision(kind := "deeplabv3_mobilenet_v3_large", tmp_path / "old.pth")
    command = ["extend", tmp_path / "old.pth", "--names", "road,background,car", "--allow_pickle"]
    command += ["--data", story / "tonight", "--classes", "star", "--out", tmp_path / "new", "--size", 32]
    run(*command, *QUICK[2:], "--epochs", 1)
    model = SegmentationModel.from_pretrained(tmp_path / "new")
    same_back(kind, tmp_path / "new.pth", model)
    assert model.record["parent"]["path"] == "../old.pth"


@pytest.mark.parametrize(
    "kind", ["fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101"]
)
def test_torchvision_is_known_by_its_weights(kind: str):
    declare_torchvision_operators()
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        state = models.get_model(kind, weights=None, weights_backbone=None).state_dict()
    assert find_torchvision(state) == kind


def test_files_that_do_not_fit(story: Path, tmp_path: Path, refused: Refused):
    library = import_smp()
    folder, weights = tmp_path / "unet", tmp_path / "x.safetensors"
    library.Unet(
        "tu-mobilenetv3_small_050", encoder_weights=None, classes=2, decoder_channels=(8,) * 5
    ).save_pretrained(folder)
    save_file({"classifier.1.weight": torch.zeros(1)}, weights)
    more = ["--data", story / "tonight", "--classes", "star", "--out", tmp_path / "o"]
    assert "--names" in refused("extend", folder, *more)
    assert "3 class names for 2 outputs" in refused("extend", folder, *more, "--names", "a,b,c")
    assert "DeepLabV3 or FCN" in refused("extend", weights, *more)
    config = json.loads((folder / "config.json").read_text())
    for change, expected in (
        ({"_model_class": "system"}, "none of its architectures"),
        ({"in_channels": 4}, "4 channels"),
        ({"activation": "sigmoid"}, "may overlap"),
        ({"decoder_channels": [8, 8, 8, 8, 4]}, "does not fit"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        assert expected in refused("extend", folder, *more, "--names", "a,b")


# ------------------------------------------------------------------------------------------------- any module


class Network(nn.Module):
    """Somebody's network, with a batch norm and a layer after its classifier."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.ModuleDict({"classify": nn.Conv2d(8, classes, 1, bias=False)})

    def encode(self, images: Tensor) -> Tensor:
        return self.norm(self.stem(images)).relu()

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.interpolate(self.last["classify"](self.encode(images)), scale_factor=2)


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    network = Network()
    for _ in range(3):
        network(torch.randn(4, 3, 16, 16))
    return network.eval()


def wrap(network: Network, **more: Any) -> SegmentationModel:
    how = {"classifier": "last.classify", "classes": NAMES, "stride": 2, "size": 32, "device": "cpu"}
    return tiss.wrap(network, **(how | more))


def test_wrap_extend_and_back_in_python(network: Network, story: Path, tmp_path: Path):
    model = wrap(network, features=Network.encode)
    images = torch.stack(IMAGES)
    pixels = normalise(images, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.inference_mode():
        old = network.last["classify"](network.encode(pixels))
        torch.testing.assert_close(model(images).logits, old[:, [1, 0, 2]])
    model.save_pretrained(tmp_path / "wrapped")
    how = {"classes": "star", "epochs": 1, "batch": 4, "device": "cpu"}
    for name in ("new", "again"):
        folders = {
            "model": str(tmp_path / "wrapped"),
            "data": str(story / "tonight"),
            "out": str(tmp_path / name),
        }
        assert "trained star" in tiss.extend(ExtendOptions(**folders, **how), Reporter())  # type: ignore[arg-type]
    extended = tiss.from_pretrained(tmp_path / "new")
    assert load_file(tmp_path / "new" / "model.safetensors").keys() == extended.state_dict().keys()
    assert tiss.save_source(extended, tmp_path / "new.pth") == [*NAMES, "star"]
    bigger = Network(4).eval()
    bigger.last["classify"] = nn.Conv2d(8, 4, 1)
    bigger.load_state_dict(torch.load(tmp_path / "new.pth"))
    with torch.inference_mode():
        new = bigger.last["classify"](bigger.encode(pixels))
        torch.testing.assert_close(extended(images).logits, new[:, [1, 0, 2, 3]])
    assert next(network.parameters()).data_ptr() != next(extended.parameters()).data_ptr()


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_folder(tmp_path / "tonight", ["star"], 8, listed=[])
    monkeypatch.chdir(tmp_path)
    (example,) = [one.text for one in blocks_of(ROOT / "docs" / "models.md") if one.kind == "python"]
    exec(example, {})
    assert len(torch.load("network.pth")["2.bias"]) == 4


def test_batch_norms_keep_their_statistics_and_the_rest_is_trained(
    network: Network, story: Path, tmp_path: Path
):
    model = wrap(network)
    model.save_pretrained(tmp_path / "old")
    run(
        "extend",
        tmp_path / "old",
        "--data",
        story / "tonight",
        "--classes",
        "star",
        "--out",
        tmp_path / "new",
        *QUICK,
    )
    extended = tiss.from_pretrained(tmp_path / "new")
    for old, new in zip(batch_norms(model), batch_norms(extended), strict=True):
        assert torch.equal(old.running_mean, new.running_mean)
        assert torch.equal(old.running_var, new.running_var)
        assert not torch.equal(old.weight, new.weight)


def test_onnx(network: Network, tmp_path: Path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    done = export_model(wrap(network), tmp_path / "x.onnx", "onnx", 32)
    assert (done.dynamic, done.equal) == ("batch and size", 1)


def test_a_wrapped_module_is_needed_to_open_its_folder(
    network: Network, story: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
):
    wrap(network).save_pretrained(tmp_path / "m")
    monkeypatch.setattr("tiss.models.wrapped.KNOWN", {})  # as in a new process
    assert "call tiss.wrap" in refused("predict", tmp_path / "m", story / "tonight" / "images")


def test_what_cannot_be_wrapped(network: Network):
    for more, expected in (
        ({"classifier": "head"}, "no layer 'head'"),
        ({"classifier": "norm"}, "BatchNorm2d"),
        ({"features": lambda net, images: net.stem(images)[:, :2]}, "N × 8 × h × w"),
        ({"classes": ["road", "car", "sky"]}, "no class is called background"),
        ({"classes": ["background", "road"]}, "2 class names for 3"),
    ):
        with pytest.raises(TissError, match=expected):
            wrap(network, **more)
