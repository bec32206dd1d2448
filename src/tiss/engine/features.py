"""Features of a frozen encoder: computed once for each image, and kept on disk while a command runs."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tiss.files import make_folder
from tiss.models import Need, SegmentationModel
from tiss.models.model import Body

if TYPE_CHECKING:
    from tiss.engine.device import World

Compute = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
RECENT = 8  # windows of images kept in memory
LIMIT = 12 << 30  # bytes on disk, and never more than half of what is free there
LARGEST = 6e4  # beyond this a feature does not fit into 16 bits


class FeatureCache:
    """What bodies that are not trained give for images, by the images' pixels, in files in a folder.

    Without a folder the last few are kept in memory, for models that are compared. An image is computed alone, so its
    features depend neither on its batch nor on whether they were kept: what is learned is the same with any limit. They
    are rounded to 16 bits. Only on a CPU: a GPU computes features about as fast as a disk reads them.
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT, bf16: bool = False) -> None:
        """`bf16`: compute in this precision (see `computes_bf16`)."""
        self.folder, self.recent, self.bf16 = folder, dict[str, Tensor](), bf16
        self.room = limit  # bytes that may still be written

    @classmethod
    @contextlib.contextmanager
    def kept_in(cls, folder: Path, bf16: bool, world: World | None = None) -> Iterator[FeatureCache]:
        """A cache in a folder of its own, which all processes share and the first one clears and, at the end, removes.

        What an earlier process left there may have been spoilt by a power cut.
        """
        is_main, processes = (world.is_main, world.size) if world else (True, 1)
        make_folder(folder.parent)
        if is_main:
            shutil.rmtree(folder, ignore_errors=True)
        if world:
            world.wait()
        room = min(LIMIT, shutil.disk_usage(folder.parent).free // 2)
        try:
            yield cls(folder, room // processes, bf16)
        finally:
            if is_main:
                shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def of(self, *models: SegmentationModel | None) -> Iterator[None]:
        """Meanwhile the bodies of `models` look their features up. They must not be trained."""
        bodies = [model.body for model in models if model is not None]
        on_cpu = all(body.mean.device.type == "cpu" for body in bodies)
        bodies = [body for body in bodies if on_cpu and "forward" not in vars(body)]  # not looked up already
        try:
            for body in bodies:
                compute = in_bf16(body) if self.bf16 else body.forward
                body.forward = partial(self.forward, body, compute, digest(body))  # type: ignore[method-assign]
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
        """`Body.forward`, looked up where only the decoder's map is asked for."""
        if set(needs) - {"decoder"} or images.dtype != torch.uint8:
            return type(body).forward(body, images, needs)
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
                self.recent[name + key] = rounded(compute(image)[0])
            return self.recent[name + key].float()
        path = self.folder / name / f"{key}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):
            return torch.from_numpy(np.load(path)).float()
        found = rounded(compute(image)[0])
        if found.nbytes <= self.room:
            self.room -= found.nbytes
            self.keep(path, found.numpy())
        return found.float()

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


def rounded(features: Tensor) -> Tensor:
    """Features in 16 bits, where they fit."""
    return features.half() if features.abs().max() < LARGEST else features.float()


def in_bf16(body: Body) -> Compute:
    """The forward pass of `body` in bf16, with weights converted once: autocast alone converts them for every image."""
    fast = copy.deepcopy(body).requires_grad_(False).eval()  # `body` itself may be put into this mode later
    for module in fast.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.to(torch.bfloat16)

    def compute(*given: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        with torch.autocast("cpu", torch.bfloat16):
            return fast(*given)

    return compute


def digest(body: Body) -> str:
    """A name for the weights and for what computes with them."""
    found = hashlib.blake2b(digest_size=8)
    found.update(f"{body.encoder.name} {body.encoder.stride} {type(body.decoder).__qualname__}".encode())
    for name, tensor in body.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()
