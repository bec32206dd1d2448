"""What the readers of picture and mask files share: listing, reading, checking, the class index."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tiss.data.base import BACKGROUND, IGNORE, Sample
from tiss.data.images import Colour, load_mask, read_image
from tiss.data.index import Entry, Pair, cache_file, make_index, scan_pair
from tiss.errors import TissError
from tiss.files import read_text

SPLITS = ("train", "test")


@dataclass
class Listing:
    """The samples of a split, and all that is wrong with folders and lists (not with files' contents)."""

    pairs: dict[str, Pair]
    problems: list[str] = field(default_factory=list)


class PairedDataset:
    """A data set of one picture file and one mask file a sample. Subclasses say where the files are.

    A subclass defines `name`, `classes`, `find_root`, `find_pairs`, and `read_label` where masks are special.
    """

    name: str = ""
    classes: tuple[str, ...] = ()
    has_background: bool = True
    background_in_test: int = BACKGROUND
    default_task: str = ""
    default_crop: int = 512

    def __init__(self, root: str | None) -> None:
        if not root:
            raise TissError(f"--data.root: {self.name} needs the folder that holds it")
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise TissError(f"--data.root: {folder} is not a folder")
        self._root = self.find_root(folder)
        self.skips_broken = False  # leave faulty pairs out of the lists instead of stopping at the first
        self.left_out: dict[str, list[str]] = {}  # by split: what was wrong with them
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

    def colours(self) -> list[Colour] | None:
        """Customary colours of label values 0..K, or None for the package's own palette."""
        return None

    # What the package asks

    def root_path(self) -> Path:
        """Where the files lie."""
        return self._root

    def listing(self, split: str) -> Listing:
        """The samples of `split` with the faults of the lists; `split` is train or test (val means test)."""
        split = {"val": "test", "validation": "test"}.get(split, split)
        if split not in SPLITS:
            raise TissError(f"{self.name} has no split {split!r}: use train or test")
        if split not in self._listings:
            found = self.find_pairs(split)
            found.pairs = dict(sorted(found.pairs.items()))
            self._listings[split] = found
        return self._listings[split]

    def pairs(self, split: str) -> dict[str, Pair]:
        """Files by id, in order of id; a fault of the lists raises."""
        found = self.listing(split)
        if found.pairs and self.skips_broken:
            self._leave_out(split, found.problems)
        else:
            self._stop_at(found.problems)
        return found.pairs

    def ids(self, split: str) -> list[str]:
        """Sorted ids of `split`."""
        return list(self.pairs(split))

    def read(self, split: str, id: str) -> Sample:
        """One sample: image uint8 3 × H × W, label uint8 H × W; a broken or unfitting file is named."""
        pair = self.pairs(split).get(id)
        if pair is None:
            raise TissError(f"{self.name}: no id {id!r} in its {split} split")
        image = read_image(pair.image)
        label = self.read_label(pair.mask)
        if label.shape != image.shape[1:]:
            height, width = label.shape
            raise TissError(
                f"{pair.mask}: {width} × {height}, but its picture is {image.shape[2]} × {image.shape[1]}"
            )
        return Sample(image, torch.from_numpy(label), id)

    def entries(self, split: str) -> dict[str, Entry]:
        """The class index of `split`, faulty pairs included."""
        if split not in self._entries:
            scan = partial(scan_pair, read_label=self.read_label, classes=len(self.classes), whole=True)
            file = cache_file(self.name, split, self._root)
            kind = f"{self.label_kind()} {len(self.classes)}"
            self._entries[split] = make_index(file, kind, self.pairs(split), scan)
        return self._entries[split]

    def classes_present(self, split: str) -> dict[str, frozenset[int]]:
        """For each id, the label values in its mask, 0 and 255 left out; a faulty pair raises or is left out."""
        entries = self.entries(split)
        problems = [entry.problem for entry in entries.values() if entry.problem is not None]
        if self.skips_broken:
            self._leave_out(split, problems)
        else:
            self._stop_at(problems)
        sound = {id: entry for id, entry in entries.items() if entry.problem is None}
        return {id: frozenset(entry.pixels) - {BACKGROUND, IGNORE} for id, entry in sound.items()}

    def _leave_out(self, split: str, problems: list[str]) -> None:
        known = self.left_out.setdefault(split, [])
        known += [problem for problem in problems if problem not in known]

    def _stop_at(self, problems: list[str]) -> None:
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            command = f"tiss data verify {self.name} --root {self._root}"
            raise TissError(f"{problems[0]}{more}; `{command}` lists every fault")


def read_list(path: Path) -> list[str]:
    """Ids from a split list, one a line: bare, or as a path to the picture, whose stem it then is."""
    words = [line.split(maxsplit=1)[0] for line in read_text(path).splitlines() if line.strip()]
    return [Path(word).stem if "/" in word or "." in word else word for word in words]
