"""Features of a frozen encoder: computed once for each image, and kept on disk while a command runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiss.files import make_folder
from tiss.models import Need, SegmentationModel
from tiss.models.model import Body

Compute = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
RECENT = 8  # windows of images kept in memory
LIMIT = 4 << 30  # bytes on disk, and never more than half of what is free there


class FeatureCache:
    """What bodies that are not trained give for images, by the images' pixels, in files in a folder.

    Without a folder the last few are kept in memory, for models that are compared. An image is computed alone, so its
    features depend neither on its batch nor on whether they were kept: what is learned is the same with any limit. Only
    on a CPU: a GPU computes features about as fast as a disk reads them.
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT) -> None:
        self.folder, self.recent = folder, dict[str, Tensor]()
        self.room = limit  # bytes that may still be written

    def clear(self) -> None:
        """Removes what an earlier process left: a power cut may have spoilt it."""
        assert self.folder is not None
        shutil.rmtree(self.folder, ignore_errors=True)
        make_folder(self.folder.parent)
        self.room = min(self.room, shutil.disk_usage(self.folder.parent).free // 2)

    @contextlib.contextmanager
    def of(self, *models: SegmentationModel | None) -> Iterator[None]:
        """Meanwhile the bodies of `models` look their features up. They must not be trained."""
        bodies = [model.body for model in models if model is not None]
        on_cpu = all(body.mean.device.type == "cpu" for body in bodies)
        bodies = [body for body in bodies if on_cpu and "forward" not in vars(body)]  # not looked up already
        try:
            for body in bodies:
                body.forward = partial(self.forward, body, body.forward, digest(body))  # type: ignore[method-assign]
            yield
        finally:
            for body in bodies:
                del body.forward

    def forward(
        self,
        body: Body,
        compute: Compute,
        name: str,
        images: Tensor,
        needs: tuple[Need, ...] = (),
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`Body.forward`, looked up where only the decoder's map is asked for, in full precision."""
        if set(needs) - {"decoder"} or images.dtype != torch.uint8 or torch.is_autocast_enabled("cpu"):
            return compute(images, needs)
        with torch.no_grad():
            found = torch.cat([self.one(compute, name, image) for image in images.split(1)])
        return found, (found,) * len(needs)

    def one(self, compute: Compute, name: str, image: Tensor) -> Tensor:
        pixels = image.contiguous().numpy()
        key = hashlib.blake2b(pixels.tobytes(), digest_size=16, key=str(pixels.shape).encode()).hexdigest()
        if self.folder is None:
            if name + key not in self.recent:
                for old in list(self.recent)[: len(self.recent) + 1 - RECENT]:
                    del self.recent[old]
                self.recent[name + key] = compute(image)[0]
            return self.recent[name + key]
        path = self.folder / name / f"{key}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):
            return torch.from_numpy(np.load(path))
        found = compute(image)[0]
        if found.nbytes <= self.room:
            self.room -= found.nbytes
            self.keep(path, found.numpy())
        return found

    def keep(self, path: Path, features: np.ndarray) -> None:
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                np.save(file, features)
            os.replace(temporary, path)
        except OSError:  # a full disk: they are computed again
            self.room = 0
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def digest(body: Body) -> str:
    """A name for the weights."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in body.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()
