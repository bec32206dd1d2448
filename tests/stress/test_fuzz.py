"""Damaged files: each reader ends in a result or in a one-line TissError, within little time and memory.

The archives in tests/fixtures/corpus hold damaged files that once ended somewhere new, one archive for each reader.
TISS_STRESS=100 looks for more, a hundred times as long; TISS_KEEP=1 adds what it finds to the archives.
"""

import hashlib
import os
import random
import time
import traceback
import zipfile
from pathlib import Path

import pytest

from tests.stress.damage import damage
from tests.stress.limits import limited
from tests.stress.readers import FIXTURES, READERS, Reader, kept
from tests.stress.runs import STRESS
from tiss.errors import TissError


def corpus(name: str) -> list[bytes]:
    reader = READERS[name]
    return [reader.others[reader.file], *kept(name)] if reader.file in reader.others else kept(name)


def keep(name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(hashlib.sha256(data).hexdigest()[:12])
    with zipfile.ZipFile(FIXTURES / "corpus" / f"{name}.zip", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data, zipfile.ZIP_DEFLATED)


def attempt(reader: Reader, data: bytes, folder: Path) -> str:
    """Reads `data`: "read", or the lines where it was refused. Anything else is raised."""
    try:
        reader(data, folder)
    except TissError as error:
        if "\n" in str(error) or not 0 < len(str(error)) < 2000:
            raise AssertionError(f"not one line: {str(error)[:300]!r}") from error
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        return " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return "read"


@pytest.mark.parametrize("name", READERS)
def test_corpus(name: str, tmp_path: Path) -> None:
    ends = [attempt(READERS[name], data, tmp_path) for data in corpus(name)]
    assert "read" in ends, "not even a valid file is read"


def fuzz(name: str, folder: Path, seconds: float) -> int:
    """Damages and reads until the time is over, starting with what is known; returns how many files it tried."""
    reader, pool, chance = READERS[name], corpus(name), random.Random(f"{name} {STRESS}")
    seen = {attempt(reader, data, folder) for data in pool}
    tried, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        data = damage(chance.choice(pool), reader.kind, chance)
        (folder.parent / "current").write_bytes(data)  # what to look at if the process dies
        start = time.monotonic()
        where = attempt(reader, data, folder)
        assert time.monotonic() - start < 10
        tried += 1
        if where not in seen:
            seen.add(where)
            pool.append(data)
            if os.environ.get("TISS_KEEP") and len(data) <= 2048:
                keep(name, data)
    return tried


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * STRESS)
@pytest.mark.parametrize("name", READERS)
def test_a_few_seconds_of_fuzzing(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    kind, value = limited(lambda: fuzz(name, folder, 2 * STRESS), 20 + 3 * STRESS, 2 << 30)
    last = (tmp_path / "current").read_bytes().hex()
    assert kind == "returned", f"{kind}: {value}; the last file was {last[:10_000]}"
    assert value > 20
