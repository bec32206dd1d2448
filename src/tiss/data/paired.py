"""What the data sets of image and mask files share: listing, reading, checking, the class index."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tiss.data.base import SPLITS, Dataset, Entry, Sample, stop_at
from tiss.data.images import load_mask, read_image
from tiss.data.index import Pair, cache_file, check_same_size, make_index, scan_pair
from tiss.errors import TissError
from tiss.files import read_text


@dataclass
class Listing:
    """The samples of a split, and all that is wrong with folders and lists (not with files' contents)."""

    pairs: dict[str, Pair]
    problems: list[str] = field(default_factory=list)


class PairedDataset(Dataset):
    """A data set of one image file and one mask file per sample.

    A subclass defines `name`, `classes`, `find_pairs`, `find_root` where the user may name another folder than
    the one with the files, and `read_label` and `label_kind` where masks are special.
    """

    def __init__(self, root: str | None) -> None:
        if not root:
            raise TissError(f"{self.name} needs the folder that holds it", setting="data.root")
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise TissError(f"{folder} is not a folder", setting="data.root")
        self._root = self.find_root(folder)
        self.left_out = {}
        self._listings: dict[str, Listing] = {}
        self._entries: dict[str, dict[str, Entry]] = {}

    @classmethod
    def for_checking(cls, root: str) -> tuple[PairedDataset, list[str]]:
        """The data set and what is wrong with its description; reading files must work all the same."""
        return cls(root), []

    # What a subclass says

    def find_root(self, folder: Path) -> Path:
        """The folder that the layout starts in, given what the user named."""
        return folder

    def find_pairs(self, split: str) -> Listing:
        """The files of `split` ("train" or "test")."""
        raise NotImplementedError

    def read_label(self, path: str) -> np.ndarray:
        """Label numbers of one mask file, uint8 H × W."""
        return load_mask(path)

    def label_kind(self) -> str:
        """Names the way in which `read_label` reads; a class index made in another way is not reused."""
        return "indices"

    # What the package asks

    def root_path(self) -> Path:
        """Where the files are."""
        return self._root

    def listing(self, split: str) -> Listing:
        """The samples of `split`, in order of id, with the faults of the lists; val means test."""
        split = {"val": "test", "validation": "test"}.get(split, split)
        if split not in SPLITS:
            raise TissError(f"{self.name} has no split {split!r}: use train or test")
        if split not in self._listings:
            found = self.find_pairs(split)
            self._listings[split] = Listing(dict(sorted(found.pairs.items())), found.problems)
        return self._listings[split]

    def pairs(self, split: str) -> dict[str, Pair]:
        """Files by id, in order of id; a fault of the lists raises."""
        found = self.listing(split)
        self._judge(split, found.problems, skip=self.skips_broken and bool(found.pairs))
        return found.pairs

    def ids(self, split: str) -> list[str]:
        return list(self.pairs(split))

    def read(self, split: str, id: str) -> Sample:
        pair = self.pairs(split).get(id)
        if pair is None:
            raise TissError(f"{self.name}: no id {id!r} in its {split} split")
        image = read_image(pair.image)
        label = self.read_label(pair.mask)
        check_same_size(pair.mask, label, (image.shape[2], image.shape[1]))
        return Sample(image, torch.from_numpy(label), id)

    def entries(self, split: str) -> dict[str, Entry]:
        """The class index of `split`, faulty pairs included."""
        if split not in self._entries:
            scan = partial(scan_pair, read_label=self.read_label, classes=len(self.classes), whole=True)
            file = cache_file(f"{self.name}-{split}", str(self._root.resolve()))
            kind = f"{self.label_kind()} {len(self.classes)}"
            self._entries[split] = make_index(file, kind, self.pairs(split), scan)
        return self._entries[split]

    def classes_present(self, split: str) -> dict[str, frozenset[int]]:
        """For each id, the label values in its mask, 0 and 255 left out; a faulty pair raises or is left out."""
        entries = self.entries(split)
        problems = [entry.problem for entry in entries.values() if entry.problem is not None]
        self._judge(split, problems, skip=self.skips_broken)
        return {id: entry.present() for id, entry in entries.items() if entry.problem is None}

    def _judge(self, split: str, problems: list[str], skip: bool) -> None:
        """Notes the problems where faulty samples are left out, else raises the first."""
        if skip:
            known = self.left_out.setdefault(split, [])
            known += [problem for problem in problems if problem not in known]
        else:
            stop_at(problems, f"; `tiss data verify {self.name} --root {self._root}` lists every fault")


def read_list(path: Path) -> list[str]:
    """Ids from a split list, one per line: bare, or as a path to the image, whose stem it then is."""
    words = [line.split(maxsplit=1)[0] for line in read_text(path).splitlines() if line.strip()]
    return [Path(word).stem if "/" in word or "." in word else word for word in words]
