"""Features are computed once for each image and each encoder, and are the same whether they were kept or not."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tiss.config import ModelConfig
from tiss.engine.features import FeatureCache
from tiss.models import SegmentationModel, build_model

IMAGES = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make_model(seed: int = 0) -> SegmentationModel:
    return build_model(ModelConfig(encoder="vit_micro_patch8"), ["background", "disc"], 32, seed=seed).eval()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of an encoder got."""
    found: list[int] = []
    model = make_model()
    plain = type(model.encoder).forward

    def forward(self: object, images: Tensor, *rest: object) -> object:
        found.append(len(images))
        return plain(self, images, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(type(model.encoder), "forward", forward)
    return found


def test_features_are_computed_once_for_each_image_and_encoder(tmp_path: Path, computed: list[int]):
    one, two, three = make_model(), make_model(), make_model(seed=1)
    two.grow(["star"], "random")
    expected = [model(IMAGES).logits for model in (one, two, three)]
    computed.clear()
    with FeatureCache(tmp_path / "features").of(one, two, three):
        found = [model(IMAGES).logits for model in (one, two, three)]
        assert computed == [1] * 8  # two models have the same encoder
        one(IMAGES[2:])
        two(IMAGES[:3])
        assert len(computed) == 8
        one(IMAGES, needs=(0,))  # tokens of a block are not kept
        assert computed[8:] == [4]
    one(IMAGES[:3])
    assert computed[9:] == [3]  # nothing is looked up any more
    for logits, same in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, same, rtol=1e-3, atol=1e-3)


def test_bf16_changes_little_and_no_weight(tmp_path: Path):
    model = make_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exact = model.body(IMAGES)[0]
    with FeatureCache(tmp_path, bf16=True).of(model):
        found = model.body(IMAGES)[0]
        assert torch.equal(model.body(IMAGES.flip(0))[0], found.flip(0))
    assert 0 < (found - exact).norm() / exact.norm() < 0.02
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_bf16_is_that_of_a_test_even_where_the_model_was_just_trained():
    model = build_model(ModelConfig("resnet_micro", decoder="deeplabv3"), ["background", "disc"], 32)
    exact = model.eval().body(IMAGES)[0]
    model.train()
    with FeatureCache(bf16=True).of(model):
        found = model.eval().body(IMAGES)[0]
    assert (found - exact).norm() / exact.norm() < 0.03


def test_decoders_without_weights_are_told_apart(tmp_path: Path):
    one, two = (
        build_model(ModelConfig("vit_micro_patch8", decoder=decoder), ["background", "disc"], 32).eval()
        for decoder in ("linear", "levels")
    )
    with FeatureCache(tmp_path).of(one, two):
        assert one.body(IMAGES)[0].shape[1] * 3 == two.body(IMAGES)[0].shape[1]


def test_its_own_folder_is_emptied_first_and_removed_at_the_end(tmp_path: Path):
    model, folder = make_model(), tmp_path / "features"
    folder.mkdir()
    (folder / "left").write_text("")
    with FeatureCache.kept_in(folder, bf16=False) as cache, cache.of(model):
        model(IMAGES)
        assert not (folder / "left").exists()
        assert [path.suffix for path in folder.rglob("*.*")] == [".npy"] * len(IMAGES)
    assert not folder.exists()


def test_large_features_are_not_rounded():
    model = make_model()
    with torch.no_grad():
        model.encoder.norm.weight.mul_(1e6)
    exact = model.body(IMAGES)[0]
    with FeatureCache().of(model):
        torch.testing.assert_close(model.body(IMAGES)[0], exact)


@pytest.mark.parametrize("spoil", ["no room", "broken", "full"])
def test_what_cannot_be_kept_is_computed_again(spoil: str, tmp_path: Path, computed: list[int]):
    model, folder = make_model(), tmp_path / "features"
    with FeatureCache(folder).of(model):
        expected = model(IMAGES).logits
    if spoil == "broken":
        for path in folder.rglob("*.npy"):
            path.write_bytes(path.read_bytes()[:-8])
    else:
        shutil.rmtree(folder)
        folder.write_text("")  # nothing can be written below a file
    computed.clear()
    cache = FeatureCache(folder, limit=100 if spoil == "no room" else 1 << 20)
    with cache.of(model):
        assert torch.equal(model(IMAGES).logits, expected)
        assert len(computed) == 4
        assert torch.equal(model(IMAGES).logits, expected)
        assert len(computed) == (4 if spoil == "broken" else 8)


def test_the_limit_holds(tmp_path: Path):
    model = make_model()
    with FeatureCache(tmp_path, limit=5000).of(model):
        size = model.body(IMAGES[:1])[0].nbytes
        model(IMAGES)
    kept = [path.stat().st_size for path in tmp_path.rglob("*.npy")]
    assert 1 <= len(kept) == 5000 // size
