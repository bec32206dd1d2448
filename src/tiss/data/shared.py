"""One copy of the decoded training set for all processes of a machine.

Every process needs any sample sooner or later: the order of an epoch is one for all of them, so that the number of
processes does not change what is learnt. So the samples are not dealt out; the pixels lie in shared memory once,
decoded by one process of the machine, and the others map the same pages.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tiss.data.memory import MemoryStore, Progress
from tiss.data.source import FileSource
from tiss.data.threads import cores
from tiss.errors import TissError

T = TypeVar("T")
PATIENCE = timedelta(hours=6)  # while one decodes, the others wait; a leader that dies is found otherwise
SHARED_MEMORY = Path("/dev/shm")  # where Linux keeps files that exist in memory only


@dataclass(frozen=True)
class Team:
    """The processes of this machine."""

    group: Any
    leader: int  # rank of the one that decodes
    size: int

    @classmethod
    def here(cls) -> Team | None:
        """The team of this process, or None where there is nobody to share with; asked by all processes at once."""
        size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if size == 1 or not dist.is_initialized() or not SHARED_MEMORY.is_dir():
            return None
        if dist.get_world_size() % size:
            return None
        group, _ = dist.new_subgroups(size, backend="gloo", timeout=PATIENCE)
        return cls(group, dist.get_rank() // size * size, size)

    @property
    def is_leader(self) -> bool:
        return dist.get_rank() == self.leader

    def share(self, value: T) -> T:
        """The leader's value, in all of them."""
        box = [value]
        dist.broadcast_object_list(box, src=self.leader, group=self.group)
        return box[0]

    def all_say(self, answer: bool) -> bool:
        """Whether all of them say yes."""
        votes = torch.tensor([int(answer)])
        dist.all_reduce(votes, dist.ReduceOp.MIN, group=self.group)
        return bool(votes.item())


class SharedStore(MemoryStore):
    """A store that the leader fills and its team reads; loading is done by all of them together."""

    def __init__(self, files: FileSource, team: Team, pixels: int) -> None:
        """`pixels` bounds the address space; memory is taken as samples come."""
        super().__init__(files)
        self.team = team
        self.threads = cores() * team.size  # the others wait meanwhile
        path = SHARED_MEMORY / team.share(f"tiss-{os.getpid()}-{secrets.token_hex(8)}")
        self.descriptor = -1
        if team.is_leader:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(self.descriptor, 4 * pixels)
        team.all_say(True)
        try:
            self.buffer = torch.from_file(str(path), shared=True, size=pixels, dtype=torch.int32)
            team.all_say(True)
        finally:
            if team.is_leader:
                path.unlink()  # the pages live as long as a process maps them, and not a moment longer

    def load(self, ids: Sequence[str], progress: Progress | None = None, capacity: int = 0) -> None:
        known = self.places.keys() | self.broken.keys()
        if all(id in known for id in ids):
            return
        if self.team.is_leader:
            super().load(ids, progress)
        places = {id: place for id, place in self.places.items() if id not in known}
        broken = {id: problem for id, problem in self.broken.items() if id not in known}
        places, broken, self.used = self.team.share((places, broken, self.used))
        self.places.update(places)
        self.broken.update(broken)

    def _add(self, id: str, pixels: Tensor, size: tuple[int, int]) -> None:
        try:  # asked for before it is written: a write to pages that are not there would end the process
            os.posix_fallocate(self.descriptor, 4 * self.used, 4 * len(pixels))
        except OSError as error:
            raise TissError(f"{SHARED_MEMORY}: {error.strerror}; use --train.loader workers") from error
        super()._add(id, pixels, size)

    def _reserve(self, pixels: int) -> None:
        if pixels > len(self.buffer):
            name = f"{self.files.dataset.name} {self.files.split}"
            raise TissError(f"{name}: its pictures differ too much in size; use --train.loader workers")

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            os.close(self.descriptor)


def free_shared_memory() -> float:
    """Bytes that files in shared memory may still take."""
    status = os.statvfs(SHARED_MEMORY)
    return float(status.f_bavail) * status.f_frsize
