import pickle
from typing import Any

import pytest
import torch

from tests.data.fake import FakeData, random_data
from tiss.data import index
from tiss.data.augment import AugmentSettings
from tiss.data.base import Sample, read_checked
from tiss.data.loader import TestLoader, TrainLoader
from tiss.data.store import FileSource, MemoryStore, limit, open_store
from tiss.errors import TissError
from tiss.scenarios import load_scenario


@pytest.fixture(params=["here", "processes"])
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "processes":
        monkeypatch.setattr(index, "_FEW", 1)
        monkeypatch.setattr(index, "_CHUNK", 3)
        monkeypatch.setattr("tiss.data.store.cores", lambda: 2)


@pytest.mark.usefixtures("_where")
@pytest.mark.parametrize("shorter", [None, 24])
def test_every_sample_is_where_the_store_says_with_the_pixels_of_its_file(shorter: int | None) -> None:
    files = FileSource(random_data(0), "train", shorter)
    store, ids = MemoryStore(files.sizes()), files.dataset.ids("train")
    for part in (ids[:3], ids[2:9], ids):
        store.load(files, part)
    buffer, places = store.collect(ids[::-1])
    for id, (offset, (height, width)) in zip(ids[::-1], places, strict=True):
        pixels, size = files.find(id)
        assert size == (height, width)
        assert torch.equal(buffer[offset : offset + height * width], pixels)
    assert store.used == sum(height * width for _, (height, width) in places)


@pytest.mark.usefixtures("_where")
def test_a_broken_file_and_one_that_changed_since_it_was_indexed_are_named() -> None:
    files = FileSource(random_data(0, broken=("train004",)), "train")
    store = MemoryStore(files.sizes() | {"train003": (2, 2)})
    with pytest.raises(TissError, match=r"train003: changed while it was read.* \(and 1 more\)"):
        store.load(files, ["train004", *store.sizes][::-1])
    with pytest.raises(TissError, match="truncated"):
        store.load(files, ["train001", "train004"])


def test_loaders_of_one_data_set_share_a_store_and_two_data_sets_do_not() -> None:
    data, cpu = random_data(0), torch.device("cpu")
    files = FileSource(data, "train")
    first = open_store(files, ["train000"], "memory", cpu, frozenset(data.ids("train")))
    assert open_store(FileSource(data, "train"), ["train001"], "memory", cpu) is first
    assert first is not None and set(first.places) == {"train000", "train001"}
    assert open_store(FileSource(data, "train", 24), ["train000"], "memory", cpu) is not first
    assert open_store(FileSource(random_data(0), "train"), ["train000"], "memory", cpu) is not first


def test_a_store_has_room_for_what_the_lists_name_and_is_made_anew_for_more() -> None:
    data, cpu = random_data(0), torch.device("cpu")
    files, ids, sizes = FileSource(data, "train"), data.ids("train"), data.sizes("train")

    def pixels(*ids: str) -> int:
        return sum(sizes[id][0] * sizes[id][1] for id in ids)

    few = open_store(files, ids[:1], "memory", cpu, frozenset(ids[:2]))
    assert few is not None and len(few.buffer) == pixels(*ids[:2])
    assert open_store(files, ids[1:2], "memory", cpu) is few
    more = open_store(files, ids[2:3], "memory", cpu)
    assert more is not None and len(more.buffer) == pixels(*ids[:3])
    assert open_store(files, ids[:1], "memory", cpu) is more, "what an earlier loader asked for has room too"


def test_what_is_asked_for_must_fit_and_the_message_says_need_and_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, cpu = random_data(0, side=(100, 101)), torch.device("cpu")
    files, ids = FileSource(data, "train"), data.ids("train")
    monkeypatch.setattr("tiss.data.store.free_memory", lambda: 150_000.0)
    assert open_store(files, ids, "auto", cpu) is None
    with pytest.raises(TissError, match=r"needs 0\.0 GiB") as caught:
        open_store(files, ids, "memory", cpu)
    assert caught.value.setting == "train.loader"
    assert open_store(files, ids[:1], "auto", cpu) is not None, "only what is asked for counts"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert open_store(files, ids[1:2], "auto", cpu) is None, "every process holds its own"


def test_large_images_are_shrunk_without_aliasing_and_labels_by_nearest() -> None:
    stripes = (torch.arange(640) % 2 * 255).to(torch.uint8).expand(3, 320, 640).contiguous()
    label = torch.zeros(320, 640, dtype=torch.uint8)
    label[:, 320:] = 200
    small = limit(Sample(stripes, label, "s"), 64)
    assert small.image.shape == (3, 64, 128)
    assert small.image.dtype == torch.uint8
    assert (small.image.int() - 128).abs().max() <= 20  # a plain gather would give stripes of 0 and 255
    assert small.label.unique().tolist() == [0, 200]
    assert (small.label[:, 64:] == 200).all()
    sample = Sample(torch.zeros(3, 9, 20, dtype=torch.uint8), torch.zeros(9, 20, dtype=torch.uint8), "s")
    assert limit(sample, 9) is sample is limit(sample, None)


def test_a_source_can_be_sent_to_a_spawned_process() -> None:
    files = FileSource(random_data(0), "train", 16)
    there = pickle.loads(pickle.dumps(files))
    assert torch.equal(files.find("train000")[0], there.find("train000")[0])


@pytest.mark.parametrize("classes", [1, 20, 253])
def test_legal_labels_are_zero_to_the_classes_and_255(classes: int) -> None:
    class One(FakeData):
        def read(self, split: str, id: str) -> Sample:
            label = torch.tensor([[0, int(id)], [255, 1]], dtype=torch.uint8)
            return Sample(torch.zeros(3, 2, 2, dtype=torch.uint8), label, id)

    data = One({}, classes)
    for value in range(256):
        if value <= classes or value == 255:
            read_checked(data, "train", str(value))
        else:
            with pytest.raises(TissError, match=f"label {value} "):
                read_checked(data, "train", str(value))


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "share"), [("memory", 0.6), ("memory", 0.0), ("workers", 0.0)])
def test_the_gpu_gets_the_cpu_s_batches(kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiss.data.store.GPU_SHARE", share)
    step = load_scenario(random_data(0), task="2-1")[0]

    def loaders(device: str, kind: str) -> tuple[TrainLoader, TestLoader]:
        options: Any = {"batch": 4, "kind": kind, "device": device}
        train = TrainLoader(step.train, AugmentSettings(24, photometric=True), seed=0, step=0, **options)
        return train, TestLoader(step.test, 16, **options)

    (train, test), (train_gpu, test_gpu) = loaders("cpu", "memory"), loaders("cuda", kind)
    torch.cuda.set_sync_debug_mode("error" if share else "default")  # a store on the GPU waits for nothing
    try:
        made = [*train_gpu.epoch(0), *test_gpu]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for expected, batch in zip([*train.epoch(0), *test], made, strict=True):
        assert batch.image.device.type == "cuda"
        assert torch.equal(expected.label, batch.label.cpu())
        assert (expected.image.int() - batch.image.cpu().int()).abs().max() <= bool(share)
