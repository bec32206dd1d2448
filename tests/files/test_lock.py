import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiss.errors import TissError
from tiss.files import Lock

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
    with Lock(path):
        message = rf"{re.escape(str(tmp_path))} is in use by process {os.getpid()} on \S+; wait for it or"
        for _ in range(2):
            with pytest.raises(TissError, match=message):
                Lock(path).__enter__()
        assert not Lock(path).try_acquire()
    assert path.read_text() == ""
    with Lock(path):
        pass


def test_what_an_older_version_left_in_the_file_does_not_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"host": "elsewhere", "pid": 1}')
    with Lock(tmp_path / "lock"):
        assert not Lock(tmp_path / "lock").try_acquire()


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_holder_frees_the_lock(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    with pytest.raises(TissError, match=f"process {process.pid} on"):
        Lock(tmp_path / "lock").__enter__()
    process.kill()  # a worker process that was forked from it may live on for a moment
    process.wait()
    assert Lock(tmp_path / "lock").try_acquire()
    if how == "fork":
        os.killpg(process.pid, signal.SIGKILL)


def test_forked_child_neither_holds_nor_releases(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lock(path) as lock:
        child = os.fork()
        if child == 0:
            lock.release()
            os._exit(0 if not Lock(path).try_acquire() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not Lock(path).try_acquire()
    assert Lock(path).try_acquire()


RACE = """
import sys, time
from pathlib import Path
from tiss.files import Lock
folder = Path(sys.argv[1])
(folder / f"ready-{sys.argv[2]}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
kept = [(number, lock) for number in range(100) if (lock := Lock(folder / f"{number}.lock")).try_acquire()]
print(*[number for number, _ in kept], flush=True)
while not (folder / "end").exists():
    time.sleep(0.005)
"""


def test_racers_for_one_lock_have_one_winner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    racers = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(3)]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("ready-*"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "go").touch()
    lines = [
        racer.stdout.readline() for racer in racers if racer.stdout
    ]  # all alive until the last has tried
    (tmp_path / "end").touch()
    assert sorted(int(word) for line in lines for word in line.split()) == list(range(100))
    assert all(racer.wait(30) == 0 for racer in racers)
