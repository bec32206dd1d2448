import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiss.files import lock
from tiss.errors import TissError
from tiss.files.lock import Lease

HOLD = """
import sys, time
from tiss.files.lock import Lease
lease = Lease(sys.argv[1])
print(lease.try_acquire(), flush=True)
time.sleep(float(sys.argv[2]))
"""


def hold(path: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def forge(path: Path, **changes: object) -> None:
    """A lease as another process would have left it."""
    lease = Lease(path)
    lease.acquire()
    value = json.loads(path.read_text()) | changes | {"token": "other"}
    path.write_text(json.dumps(value))
    lease.release()
    assert path.exists(), "a lease in other hands must not be removed"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_second_taker_is_refused_with_the_holders_name(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    with Lease(path):
        message = rf"{re.escape(str(tmp_path))} is in use by process {os.getpid()} on \S+ .*; wait for it or"
        with pytest.raises(TissError, match=message):
            Lease(path).acquire()
        assert not Lease(path).try_acquire()
        assert names(tmp_path) == ["lease.json"]
    assert names(tmp_path) == []
    with Lease(path):
        pass


def test_holder_in_another_process_and_its_death(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    process = hold(path, 60)
    assert not Lease(path).try_acquire()
    process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not (taken := Lease(path).try_acquire()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.wait()
    assert taken, "a killed holder, even one not yet waited for, must not keep the lease"
    assert names(tmp_path) == ["lease.json"]


def test_reused_process_number_is_not_the_holder(tmp_path: Path) -> None:
    forge(tmp_path / "lease.json", started="1")
    assert Lease(tmp_path / "lease.json").try_acquire()


@pytest.mark.parametrize(("age", "taken"), [(0, False), (55, False), (65, True)])
def test_other_host_is_judged_by_its_heartbeat(tmp_path: Path, age: float, taken: bool) -> None:
    path = tmp_path / "lease.json"
    forge(path, host="elsewhere", machine="other", pid=1)
    os.utime(path, (time.time() - age, time.time() - age))
    lease = Lease(path)
    assert lease.try_acquire() == taken
    assert ("elsewhere" in lease.holder()) != taken
    lease.release()
    assert path.exists() != taken


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"host": 1}',
        json.dumps({"host": "a\nb", "machine": "", "pid": 1, "started": "", "token": ""}),
    ],
)
def test_unreadable_lease_counts_until_it_is_old(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lease.json"
    path.write_text(text)
    assert not Lease(path).try_acquire()
    with pytest.raises(TissError, match="in use by a process that has just come or gone"):
        Lease(path).acquire()
    os.utime(path, (0, 0))
    assert Lease(path).try_acquire()


def test_heartbeat_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    with Lease(path, beat_every=0.02):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0


def test_a_lost_lease_is_noticed_and_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    lease = Lease(path, beat_every=0.02)
    lease.acquire()
    lease.check()
    path.write_text(path.read_text().replace(json.loads(path.read_text())["token"], "thief"))
    deadline = time.monotonic() + 10
    while not lease.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(TissError, match="lost its lease"):
        lease.check()
    lease.release()
    assert path.exists()


def test_forked_child_neither_holds_nor_releases(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    with Lease(path) as lease:
        child = os.fork()
        if child == 0:
            lease.release()
            os._exit(0 if not Lease(path).try_acquire() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert path.exists()
        lease.check()
    assert not path.exists()


def test_works_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "lease.json"
    with Lease(path):
        assert not Lease(path).try_acquire()
    assert names(tmp_path) == []


def test_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="cannot write"):
        Lease(tmp_path / "no" / "lease.json").acquire()


RACE = """
import sys, time
from pathlib import Path
from tiss.files.lock import Lease
folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
(folder / f"ready-{sys.argv[3]}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
for number in range(rounds):
    lease = Lease(folder / f"lease-{number}.json")
    if lease.try_acquire():
        print(number, flush=True)
(folder / f"done-{sys.argv[3]}").touch()
while not (folder / "end").exists():
    time.sleep(0.005)
"""


@pytest.mark.parametrize("stale", [False, True])
def test_racers_for_one_lease_have_one_winner(tmp_path: Path, stale: bool) -> None:
    racers, rounds = 4, 100
    if stale:
        forge(tmp_path / "lease-0.json", started="1")
        for number in range(1, rounds):
            (tmp_path / f"lease-{number}.json").write_text((tmp_path / "lease-0.json").read_text())
    command = [sys.executable, "-c", RACE, str(tmp_path), str(rounds)]
    processes = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(racers)
    ]
    wait_for(tmp_path, "ready-*", racers)
    (tmp_path / "go").touch()
    wait_for(tmp_path, "done-*", racers)  # all of them alive until the last has tried
    (tmp_path / "end").touch()
    wins = [int(line) for process in processes for line in process.communicate(timeout=30)[0].split()]
    assert sorted(wins) == list(range(rounds))
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def wait_for(folder: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"{pattern} never came"
        time.sleep(0.01)


def test_guard_survives_its_file_being_removed(tmp_path: Path) -> None:
    with lock._guard(tmp_path / "lease.json"):
        assert names(tmp_path) == [".lease.json.guard.tiss-tmp"]
    assert names(tmp_path) == []
