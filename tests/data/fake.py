"""A small data set in memory, for tests of scenarios and loaders."""

import numpy as np
import torch

from tiss.data.base import Dataset, Sample
from tiss.errors import TissError
from tiss.randomness import stream


class FakeData(Dataset):
    """Noise images of ragged sizes whose masks hold the label values that the test asks for.

    `present` maps each split's ids to the label values in their masks; `broken` ids cannot be read.
    """

    def __init__(
        self,
        present: dict[str, dict[str, set[int]]],
        classes: int = 4,
        name: str = "fake",
        background_in_test: int = 0,
        broken: tuple[str, ...] = (),
        side: tuple[int, int] = (20, 40),
    ) -> None:
        self.name = name
        self.classes = tuple(f"class{value}" for value in range(1, classes + 1))
        self.background_in_test = background_in_test
        self.broken = broken
        self.reads: list[str] = []
        self._present = present
        self._side = side

    def ids(self, split: str) -> list[str]:
        return sorted(self._present[split])

    def read(self, split: str, id: str) -> Sample:
        self.reads.append(id)
        if id in self.broken:
            raise TissError(f"{id}.jpg: the file is truncated")
        (height, width), rng = self._size(split, id)
        image = rng.integers(0, 256, (3, height, width), np.uint8)
        label = np.zeros((height, width), np.uint8)
        for row, value in enumerate([*sorted(self._present[split][id]), 255]):
            label[row * 2 : row * 2 + 2] = value
        return Sample(torch.from_numpy(image), torch.from_numpy(label), id)

    def classes_present(self, split: str) -> dict[str, frozenset[int]]:
        return {id: frozenset(values) for id, values in self._present[split].items()}

    def sizes(self, split: str) -> dict[str, tuple[int, int]]:
        return {id: self._size(split, id)[0] for id in self.ids(split) if id not in self.broken}

    def _size(self, split: str, id: str) -> tuple[tuple[int, int], np.random.Generator]:
        rng = stream(0, "fake", split, id)
        height, width = (int(side) for side in rng.integers(*self._side, 2))
        return (height, width), rng


def random_data(seed: int, classes: int = 4, train: int = 20, test: int = 8, **options: object) -> FakeData:
    """A FakeData whose images hold one to three classes at random; every class is somewhere."""
    rng = stream(seed, "random data")

    def draw(split: str, count: int) -> dict[str, set[int]]:
        sets = [set(map(int, rng.integers(1, classes + 1, rng.integers(1, 4)))) for _ in range(count)]
        for value in range(1, classes + 1):
            sets[value % count].add(value)
        return {f"{split}{index:03d}": values for index, values in enumerate(sets)}

    return FakeData({"train": draw("train", train), "test": draw("test", test)}, classes, **options)  # type: ignore[arg-type]
