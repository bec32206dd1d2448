"""Every architecture passes the shared tester, compiles in one graph, and grows exactly."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from tests.models.tester import check_architecture, make_model, pictures
from tiss.config import ModelConfig
from tiss.errors import TissError
from tiss.models import HEADS, SegmentationModel, choose_labels, outline, resolve
from tiss.models.timm_encoder import knows

DECODERS = {
    "vit_micro_patch8": ("linear", "mask", "levels"),
    "resnet_micro": ("deeplabv3", "deeplabv3plus", "linear", "mlp"),
    "mit_micro": ("mlp", "linear"),
    "swin_micro": ("mlp", "linear"),
}
PAIRS = [(encoder, decoder) for encoder, decoders in DECODERS.items() for decoder in decoders]


def skip_without_timm(encoder: str) -> None:
    if encoder.startswith("swin") and not knows("resnet18"):
        pytest.skip("timm is not installed")


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_architecture(encoder: str, decoder: str, tmp_path: Path) -> None:
    skip_without_timm(encoder)
    check_architecture(encoder, decoder, tmp_path)


@pytest.mark.parametrize("size", [(32, 48), (40, 28)])
def test_levels_are_two_blocks_and_the_image_at_half_its_size(size: tuple[int, int]) -> None:
    body = make_model("vit_micro_patch8", decoder="levels", crop=32).body.eval()
    encoder, images = body.encoder, torch.rand(2, 3, *size) * 255
    decoded, (early, last) = body(images, (max(1, encoder.depth * 3 // 4) - 1, -1))
    for part, expected in zip(decoded.chunk(3, dim=1), (early, last), strict=False):
        torch.testing.assert_close(part, F.layer_norm(expected.movedim(1, -1), (16,)).movedim(-1, 1))
    normal = (images / 255 - body.mean) / body.std
    padded = F.pad(normal, (0, -size[1] % 16, 0, -size[0] % 16))
    half = F.layer_norm(encoder(F.avg_pool2d(padded, 2))[0][-1].movedim(1, -1), (16,)).movedim(-1, 1)
    height, width = last.shape[-2:]
    torch.testing.assert_close(
        decoded.chunk(3, dim=1)[2],
        F.interpolate(half, scale_factor=2.0, mode="bilinear")[..., :height, :width],
    )


@pytest.mark.parametrize(
    ("encoder", "millions"),
    [
        *(("vit_tiny_patch16_384", 5.6), ("vit_small_patch16_384", 21.8), ("vit_base_patch16_384", 86.1)),
        ("vit_large_patch16_384", 303.7),  # the paper has 307, as its authors round it
        *(("mit_b0", 3.3), ("mit_b2", 24.2), ("mit_b5", 81.4)),
    ],
)
def test_parameter_count(encoder: str, millions: float) -> None:
    assert sum(one.numel() for one in outline(encoder).parameters()) / 1e6 == pytest.approx(
        millions, abs=0.06
    )


@pytest.mark.parametrize(("decoder", "millions"), [("deeplabv3", 58), ("deeplabv3plus", 59)])
def test_parameter_count_with_a_decoder(decoder: str, millions: int) -> None:
    with torch.device("meta"):
        architecture = resolve(ModelConfig(encoder="resnet101", decoder=decoder))
        model = SegmentationModel(architecture, ["background", *map(str, range(20))])
    assert round(sum(one.numel() for one in model.parameters()) / 1e6) == millions


def test_growth_does_not_compile_the_body_again() -> None:
    torch._dynamo.reset()
    model = make_model("vit_micro_patch8", crop=32).eval()
    counter = CompileCounter()
    model.body.compile(backend=counter, fullgraph=True)
    model(pictures(2, 32, 32), (0, -1))
    assert counter.frame_count == 1
    assert not any(name.count("_orig_mod") for name in model.state_dict())
    model.grow(["horse", "cow"], "background")
    assert model(pictures(2, 32, 32), (0, -1)).logits.shape[1] == 5
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_compiles_whole_with_gradients(encoder: str, decoder: str) -> None:
    skip_without_timm(encoder)
    torch._dynamo.reset()
    model = make_model(encoder, decoder)
    images = pictures(2, 64, 64)
    needs = (0, -1, "decoder")
    plain = model(images, needs)
    plain.logits.square().mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    output = compiled(images, needs)
    output.logits.square().mean().backward()
    torch.testing.assert_close(output.logits, plain.logits, atol=1e-5, rtol=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", ["linear", "cosine", "mask"])
@pytest.mark.parametrize("new", [(1,), (5,), (3, 1)])
def test_growth_keeps_probabilities(kind: str, new: tuple[int, ...]) -> None:
    """Both invariants, in float64: p({b} ∪ new) = p_before(b); every old class keeps its probability."""
    torch.manual_seed(0)
    head = HEADS.get(kind)(16, (4,)).double()
    for parameter in head.parameters():  # as after training: nothing is at its start any more
        torch.nn.init.normal_(parameter, std=0.5)
    features = torch.randn(2, 16, 4, 5, dtype=torch.float64)
    before = head(features).softmax(1)
    for count in new:
        head.grow(count, "background", torch.Generator())
    after = head(features).softmax(1)
    torch.testing.assert_close(after[:, 0] + after[:, 4:].sum(1), before[:, 0], atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(after[:, 1:4], before[:, 1:], atol=1e-12, rtol=1e-10)


def test_random_growth_leaves_old_logits_and_follows_the_seed() -> None:
    models = [make_model("vit_micro_patch8") for _ in range(3)]
    images = pictures(1, 32, 32)
    before = models[0](images).logits
    for model, seed in zip(models, (1, 1, 2), strict=True):
        torch.manual_seed(seed + 100)  # the global state plays no part
        model.grow(["horse"], "random", seed=seed)
    torch.testing.assert_close(models[0](images).logits[:, :3], before)
    assert torch.equal(models[0].head.rows[1], models[1].head.rows[1])
    assert not torch.equal(models[0].head.rows[1], models[2].head.rows[1])


def test_a_class_cannot_come_twice() -> None:
    model = make_model("vit_micro_patch8")
    with pytest.raises(TissError, match="class 'dog' is named twice"):
        model.grow(["dog"], "background")
    with pytest.raises(TissError, match="at least one class"):
        model.grow([], "background")
    assert model.classes == ["background", "cat", "dog"]


def test_labels_by_sigmoid() -> None:
    """The largest foreground sigmoid if over .5, else the background, whatever channel 0 says."""
    pixels = torch.tensor([[9.0, -1.0, -2.0], [9.0, 0.5, 0.1], [-9.0, -0.1, 0.2]]).T.reshape(1, 3, 1, 3)
    assert choose_labels(pixels, "sigmoid").tolist() == [[[0, 1, 2]]]
    assert choose_labels(pixels, "softmax").tolist() == [[[0, 0, 2]]]


def test_what_the_mask_transformer_compares_can_be_asked_for() -> None:
    """In any order among other features; the logits are the cosine of the two."""
    model = make_model("vit_micro_patch8", "mask").eval()
    needs = ("class_embeddings", 0, "patch_embeddings", "decoder")
    output = model(pictures(2, 32, 40), needs)
    classes, block, patches, decoded = output.features
    assert [tuple(one.shape[1:]) for one in (classes, block, patches, decoded)] == [
        (16, 3, 1), (16, 4, 5), (16, 4, 5), (16, 4, 5)
    ]  # fmt: skip
    cosine = torch.cosine_similarity(patches[:, None], classes.transpose(1, 2)[..., None], dim=2)
    _, biases = model.head.joined()
    torch.testing.assert_close(model.head.scale * cosine + biases[:, None, None], output.logits)
    assert torch.equal(block, model(pictures(2, 32, 40), (0,)).features[0])
    with pytest.raises(TissError, match="no feature 'patch_embeddings'"):
        make_model("vit_micro_patch8")(pictures(1, 32, 32), ("patch_embeddings",))


def test_low_precision() -> None:
    model = make_model("vit_micro_patch8", "mask").eval()
    images = pictures(1, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(images).logits
    torch.testing.assert_close(low.float(), model(images).logits, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        ("resnet_micro", "mask", "plain vision transformer"),
        ("swin_micro", "levels", "any input size, not swin_micro: use linear"),
        ("vit_micro_patch8", "deeplabv3plus", "deeplabv3plus needs a finer map"),
    ],
)
def test_a_decoder_that_does_not_fit_is_refused(encoder: str, decoder: str, message: str) -> None:
    skip_without_timm(encoder)
    with pytest.raises(TissError, match=message):
        make_model(encoder, decoder)
