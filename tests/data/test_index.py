import json
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.data.samples import make_folder, write_mask, write_noise, write_picture
from tiss.data import index
from tiss.data.base import Entry
from tiss.data.images import load_mask
from tiss.data.index import Pair, cache_file, cache_folder, make_index, parallel_map, scan_pair
from tiss.errors import TissError


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, Pair]:
    root = make_folder(tmp_path / "data")
    names = {id: (root / f"images/train/{id}.jpg", root / f"masks/train/{id}.png") for id in "abc"}
    return {id: Pair(str(image), str(mask)) for id, (image, mask) in names.items()}


class Counting:
    """Scans and counts how often, and what."""

    def __init__(self, classes: int = 2) -> None:
        self.seen: list[str] = []
        self.classes = classes

    def __call__(self, pair: Pair) -> Entry:
        self.seen.append(Path(pair.mask).stem)
        return scan_pair(pair, load_mask, self.classes)


def test_entries_hold_pixels_and_size(tmp_path: Path, pairs: dict[str, Pair]) -> None:
    entries = make_index(tmp_path / "x.json", "k", pairs, Counting())
    assert entries["a"] == Entry({0: 48, 1: 48}, 12, 8)
    assert entries["c"].pixels == {1: 32, 2: 32, 255: 32}


def test_changed_files_are_read_anew_and_no_others(tmp_path: Path, pairs: dict[str, Pair]) -> None:
    file = tmp_path / "x.json"
    make_index(file, "k", pairs, Counting())
    write_mask(Path(pairs["a"].mask), [2])
    status = os.stat(pairs["b"].image)
    os.utime(pairs["b"].image, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    again = Counting()
    entries = make_index(file, "k", pairs, again)
    assert again.seen == ["a", "b"]
    assert set(entries["a"].pixels) == {2}
    assert make_index(file, "k", pairs, Counting()) == entries


def test_another_kind_or_a_broken_cache_is_not_used(tmp_path: Path, pairs: dict[str, Pair]) -> None:
    file = tmp_path / "x.json"
    first = make_index(file, "k", pairs, Counting())
    again = Counting()
    make_index(file, "other", pairs, again)
    assert again.seen == ["a", "b", "c"]
    good = json.loads(file.read_text())
    changed = [json.dumps(good | change) for change in ({"format": 0}, {"entries": {"a": [1]}})]
    for text in ("", "[]", "{", '{"format": 1}', *changed):
        file.write_text(text)
        assert make_index(file, "k", pairs, Counting()) == first


def test_a_fault_is_told_each_time_until_it_is_mended(tmp_path: Path, pairs: dict[str, Pair]) -> None:
    file = tmp_path / "x.json"
    write_mask(Path(pairs["a"].mask), [0, 37])
    for _ in range(2):
        entries = make_index(file, "k", pairs, Counting())
        assert entries["a"].problem is not None
        assert "label 37 (48 pixels) is not one of 0 to 2 or 255" in entries["a"].problem
        assert entries["b"].problem is None
    write_mask(Path(pairs["a"].mask), [0, 1])
    assert make_index(file, "k", pairs, Counting())["a"].problem is None


def test_missing_files_and_cut_off_images(tmp_path: Path, pairs: dict[str, Pair]) -> None:
    os.unlink(pairs["a"].mask)
    os.unlink(pairs["b"].image)
    write_noise(Path(pairs["c"].image))
    write_mask(Path(pairs["c"].mask), [1], 64, 64)
    with open(pairs["c"].image, "rb+") as picture:
        picture.truncate(1500)
    entries = make_index(tmp_path / "x.json", "k", pairs, Counting())
    problems = [str(entry.problem) for entry in entries.values()]
    assert "a.jpg: its mask" in problems[0]
    assert "b.png: its image" in problems[1]
    assert "c.jpg: broken image" in problems[2]


def test_an_unwritable_cache_is_said_and_bearable(
    tmp_path: Path, pairs: dict[str, Pair], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    entries = make_index(tmp_path / "file" / "x.json", "k", pairs, Counting())
    assert len(entries) == 3
    assert "TISS_CACHE" in capsys.readouterr().err


def test_parallel_is_in_order_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_picture(tmp_path / "x.jpg")
    pairs = []
    for number in range(150):
        write_mask(tmp_path / f"{number}.png", [number % 3])
        pairs.append(Pair(str(tmp_path / "x.jpg"), str(tmp_path / f"{number}.png")))
    scan = partial(scan_pair, read_label=load_mask, classes=2)
    alone = list(parallel_map(scan, pairs, "x"))
    monkeypatch.setattr(index, "_FEW", 10)
    monkeypatch.setattr(index, "processors", lambda: 2)
    monkeypatch.setattr(index, "_SAID", 50)
    assert list(parallel_map(scan, pairs, "x")) == alone
    assert capsys.readouterr().err.splitlines() == [f"x: {done} of 150" for done in (0, 50, 100)]
    monkeypatch.setattr(index.sys, "platform", "elsewhere")
    assert list(parallel_map(scan, pairs, "x")) == alone
    assert [set(entry.pixels) for entry in alone[:4]] == [{0}, {1}, {2}, {0}]


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("TISS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tiss"
    assert cache_file("voc-train", "here") != cache_file("voc-train", "there")


def _slow_scan(pair: Pair, log: Path) -> Entry:
    time.sleep(0.05)
    with open(log, "a") as file:
        file.write(f"{pair.mask}\n")
    return scan_pair(pair, load_mask, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_of_many_processes_one_makes_the_index(tmp_path: Path, pairs: dict[str, Pair]) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path / "cache" / "x.json", "k", pairs, partial(_slow_scan, log=log))
    processes = [context.Process(target=make_index, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(log.read_text().splitlines()) == len(pairs)


def _die(item: int) -> int:
    os._exit(1)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_process_that_dies_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_FEW", 1)
    monkeypatch.setattr(index, "processors", lambda: 2)
    with pytest.raises(TissError, match="Reading masks: the system ended a process"):
        list(parallel_map(_die, list(range(200)), "Reading masks"))
