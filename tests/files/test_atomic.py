import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiss import files
from tiss.errors import SpaceError, TissError


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_json_keeps_order_and_every_digit(tmp_path: Path) -> None:
    value = {"b": 0.1 + 0.2, "a": [1e-300, "é"]}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value
    assert list(files.read_json(tmp_path / "a.json")) == ["b", "a"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "\ud800"])
def test_json_refuses_what_it_cannot_hold(tmp_path: Path, bad: object) -> None:
    files.write_json(tmp_path / "a.json", 1)
    with pytest.raises(TissError, match=r"a\.json: not written"):
        files.write_json(tmp_path / "a.json", {"x": bad})
    assert files.read_json(tmp_path / "a.json") == 1
    assert listing(tmp_path) == ["a.json"]


def test_append_and_truncate(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    files.append_line(log, "one")
    files.append_line(log, "two\n")
    assert log.read_text() == "one\ntwo\n"
    files.truncate_to(log, 4)
    assert log.read_text() == "one\n"
    files.truncate_to(log, 100)
    assert log.read_text() == "one\n"
    files.truncate_to(tmp_path / "missing", 0)


def test_full_disk_is_one_line_and_keeps_the_old_file(tmp_path: Path, small_files: None) -> None:
    path = tmp_path / "model.bin"
    files.write_bytes(path, b"old")
    with pytest.raises(TissError, match=r"model\.bin: .*free some space"):
        files.write_bytes(path, bytes(5000))
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["model.bin"]


def test_full_disk_adds_no_half_line(tmp_path: Path, small_files: None) -> None:
    log = tmp_path / "metrics.jsonl"
    files.append_line(log, "x" * 4000)
    with pytest.raises(TissError, match="free some space"):
        files.append_line(log, "y" * 200)
    assert log.read_bytes() == b"x" * 4000 + b"\n"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_forbidden_write_names_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(TissError, match=r"a\.txt: .*choose another"):
        files.write_text(tmp_path / "a.txt", "x")
    assert listing(tmp_path) == []


def test_write_into_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="no such"):
        files.write_text(tmp_path / "no" / "a.txt", "x")
    with pytest.raises(TissError, match="no such"), files.atomic_folder(tmp_path / "no" / "folder"):
        pass


def test_folder_is_replaced_or_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "step-0"
    with files.atomic_folder(place) as folder:
        (folder / "a").write_text("1")
        assert not place.exists()
    with files.atomic_folder(place) as folder:
        (folder / "b").write_text("2")
    assert listing(tmp_path) == ["step-0", "step-0/b"]

    def interrupted() -> None:
        with files.atomic_folder(place) as folder:
            (folder / "c").write_text("3")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert listing(tmp_path) == ["step-0", "step-0/b"]


# What a crash can leave: entries → what `recover` makes of them. n: new contents, o: old contents.
CRASHES = [
    ({".place.1a.tiss-tmp": "n", "place": "o"}, "o"),
    ({".place.1a.tiss-tmp": "n"}, None),
    ({".place.1a.tiss-tmp": "n", ".place.tiss-old": "o"}, "o"),
    ({"place": "n", ".place.tiss-old": "o"}, "n"),
]


@pytest.mark.parametrize(("left", "wanted"), CRASHES)
def test_recover_settles_every_state(tmp_path: Path, left: dict[str, str], wanted: str | None) -> None:
    for name, text in left.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(text)
    files.recover(tmp_path)
    assert listing(tmp_path) == ([] if wanted is None else ["place", "place/a"])
    assert wanted is None or (tmp_path / "place/a").read_text() == wanted


CRASH_SCRIPT = """
import os, shutil, sys
from pathlib import Path
from tiss import files
place, moment = Path(sys.argv[1]), int(sys.argv[2])
count = 0
def counted(function):
    def call(*arguments, **options):
        global count
        count += 1
        if count == moment:
            os._exit(9)
        return function(*arguments, **options)
    return call
for module, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (shutil, "rmtree")):
    setattr(module, name, counted(getattr(module, name)))
with files.atomic_folder(place) as folder:
    files.write_text(folder / "a", "new")
    files.write_text(folder / "b", "new")
"""


def test_crash_before_every_system_call_loses_nothing(tmp_path: Path) -> None:
    outcomes = []
    for moment in range(1, 40):
        folder = tmp_path / str(moment)
        folder.mkdir()
        with files.atomic_folder(folder / "place") as inner:
            files.write_text(inner / "a", "old")
        done = subprocess.run(
            [sys.executable, "-c", CRASH_SCRIPT, str(folder / "place"), str(moment)], check=False
        )
        files.recover(folder)
        if (folder / "place/b").exists():
            assert listing(folder) == ["place", "place/a", "place/b"]
            assert (folder / "place/a").read_text() == (folder / "place/b").read_text() == "new"
        else:
            assert listing(folder) == ["place", "place/a"]
            assert (folder / "place/a").read_text() == "old"
        outcomes.append((folder / "place/b").exists())
        if done.returncode == 0:
            break
    assert done.returncode == 0, "the block never ran to its end: raise the range"
    assert len(outcomes) > 8
    assert not outcomes[0]
    assert outcomes[-2], "a crash after the renames must keep the new folder"


def test_strays_go_and_everything_else_stays_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_text("x")
    run = tmp_path / "run"
    (run / "step-0").mkdir(parents=True)
    (run / "step-0" / ".config.json.ab12.tiss-tmp").write_text("x")
    (run / ".hidden").write_text("mine")
    (run / "notes.tiss-tmp").write_text("mine too")
    (run / ".x.tiss-tmp").symlink_to(tmp_path / "outside")
    files.recover(run)
    assert listing(run) == [".hidden", "notes.tiss-tmp", "step-0"]
    assert listing(tmp_path / "outside") == ["a"]


def test_reserved_room_has_no_name(tmp_path: Path) -> None:
    with files.reserve(tmp_path, 100_000) as held:
        assert os.fstat(held.fileno()).st_blocks * 512 >= 100_000
        assert list(tmp_path.iterdir()) == []
    assert held.closed


def test_too_little_room_is_refused_at_once(tmp_path: Path, small_files: None) -> None:
    with pytest.raises(SpaceError, match=r"5\.0 MB.*free some space"):
        files.reserve(tmp_path, 5_000_000)
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_cannot_reserve_room_reserves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    files.reserve(tmp_path, 100).close()


HOLD = """
import os, sys, time
from tiss.files import Lock
lock = Lock(sys.argv[1])
got = lock.try_acquire()
if sys.argv[2] == "alone" or os.fork():
    print(got, flush=True)
time.sleep(60)
"""


def test_second_taker_is_refused_with_the_holders_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with files.Lock(path):
        message = rf"{re.escape(str(tmp_path))} is in use by process {os.getpid()} on \S+; wait for it or"
        for _ in range(2):
            with pytest.raises(TissError, match=message):
                files.Lock(path).__enter__()
        assert not files.Lock(path).try_acquire()
    assert path.read_text() == ""
    with files.Lock(path):
        pass


def test_what_an_older_version_left_in_the_file_does_not_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"host": "elsewhere", "pid": 1}')
    with files.Lock(tmp_path / "lock"):
        assert not files.Lock(tmp_path / "lock").try_acquire()


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_holder_frees_the_lock(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    with pytest.raises(TissError, match=f"process {process.pid} on"):
        files.Lock(tmp_path / "lock").__enter__()
    process.kill()  # a worker process that was forked from it may live on
    process.wait()
    end = time.monotonic() + 20
    while not files.Lock(tmp_path / "lock").try_acquire():
        assert time.monotonic() < end
    if how == "fork":
        os.killpg(process.pid, signal.SIGKILL)


def test_forked_child_neither_holds_nor_releases(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with files.Lock(path) as lock:
        child = os.fork()
        if child == 0:
            lock.release()
            os._exit(0 if not files.Lock(path).try_acquire() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not files.Lock(path).try_acquire()
    assert files.Lock(path).try_acquire()
