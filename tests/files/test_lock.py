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
    process.kill()  # a worker process that was forked from it may live on
    process.wait()
    end = time.monotonic() + 20
    while not Lock(tmp_path / "lock").try_acquire():
        assert time.monotonic() < end
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
