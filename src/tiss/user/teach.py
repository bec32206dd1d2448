"""`Teaching`: a class painted on a few images is learned within seconds and seen on all of them.

Features are computed once per image, in the background. To teach is to add the sums of the painted images to those that
the model keeps, and to solve the head (see `methods/analytic.py`). `tiss app --teach` is the page for it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tiss import __version__
from tiss.data.classes import MOST_CLASSES
from tiss.data.convert.writing import save_mask
from tiss.data.images import image_size, read_image
from tiss.engine.device import choose_device
from tiss.engine.predictor import Prediction, resize, seen_size, upsample_labels
from tiss.engine.progress import duration
from tiss.engine.run_folder import StepFolder
from tiss.engine.session import freeze_copy
from tiss.errors import TissError, suggest
from tiss.evaluation.evaluate import slide_logits, window_slices
from tiss.files import atomic_folder, inside, make_folder, write_text
from tiss.methods.analytic import ENOUGH, MOST, Tally, patch_shares
from tiss.models import Output, SegmentationModel, tokens
from tiss.palette import class_colours
from tiss.user.changes import Comparison
from tiss.user.compare import LEAST, WORST, Counter, Drawn, ImageSet, write_report
from tiss.user.edit import open_solved
from tiss.user.folder_step import split_names
from tiss.user.items import find_images
from tiss.user.model_source import check_out, describe_parent, find_source, write_card
from tiss.user.predict import side_by_side

LONGEST = 1024  # longest side at which images are painted and shown
UNDO = 20  # changes of a label that can be taken back
Mask = np.ndarray  # bool, H × W


@dataclass(frozen=True)
class Seen:
    """What the old model sees in an image."""

    size: tuple[int, int]  # at which it sees the image: height and width
    maps: Sequence[Tensor]  # its features in each window, 1 × D × h × w
    labels: np.ndarray  # what it says: channels, uint8, at the size of the painting


@dataclass(eq=False)
class Opened:
    """An image, what is painted on it, and what the models say of it."""

    name: str
    path: Path
    image: np.ndarray  # uint8 H × W × 3, at most LONGEST high and wide
    future: Future[Seen]
    label: Mask | None = None  # where the class is; None says nothing of the image
    history: list[Mask | None] = field(default_factory=list)
    now: np.ndarray | None = None  # what the model says that was taught last

    @property
    def seen(self) -> Seen:
        return self.future.result()

    @property
    def changed(self) -> np.ndarray:
        """Where the model that was taught last says something else."""
        return np.zeros(self.image.shape[:2], bool) if self.now is None else self.now != self.seen.labels


class Teaching:
    """Teaches one class to a model that keeps sums (made by `analytic` or `lda`): open, paint, teach, correct, save.

    Args:
        model: a model folder, a run folder or a hub name; it stays as it is.
        images: files, folders or patterns to open.
    """

    def __init__(
        self, model: str | Path, images: Sequence[str] | str = (), device: str = "auto", seed: int = 0
    ) -> None:
        self.source = find_source(str(model))
        self.model, self._method, self._sums = open_solved(self.source)
        self._method.seed = seed
        self.model = freeze_copy(self.model).to(choose_device(device))
        self.size = seen_size(self.model)
        self.images: dict[str, Opened] = {}
        self.taught: SegmentationModel | None = None
        self.result: Comparison | None = None  # of what is painted now
        self.class_name, self._seconds = "", 0.0
        self._pool = ThreadPoolExecutor(1, "features")
        if images:
            self.open(*([images] if isinstance(images, str) else images))

    # ------------------------------------------------------------------------------------------------ images

    def open(self, *paths: str | Path) -> list[str]:
        """Opens images, by files, folders or patterns; returns the names that they are called by from then on."""
        opened = []
        for item in find_images([str(path) for path in paths]):
            names = (item.name if number == 1 else f"{item.name}-{number}" for number in count(1))
            name = next(name for name in names if name not in self.images)
            pixels = read_image(item.path)
            shorter, longer = sorted(pixels.shape[1:])
            small = resize(pixels[None], max(1, round(shorter * min(1, LONGEST / longer))))[0]
            shown = small.permute(1, 2, 0).contiguous().numpy()
            future = self._pool.submit(self._look, item.path, shown.shape[:2])
            self.images[name] = Opened(name, item.path, shown, future)
            opened.append(name)
        return opened

    def close(self, *names: str) -> None:
        """Removes images with what is painted on them; without names all, and the computation of features ends."""
        for name in names or list(self.images):
            self._image(name).future.cancel()
            del self.images[name]
            self.result = None
        if not names:
            self._pool.shutdown(cancel_futures=True)

    def _image(self, name: str) -> Opened:
        if name not in self.images:
            raise TissError(suggest(name, list(self.images), "image"))
        return self.images[name]

    @torch.inference_mode()
    def _look(self, path: Path, shape: tuple[int, int]) -> Seen:
        pixels = read_image(path)[None].to(self.model.body.mean.device)
        pixels = resize(pixels, self.size)
        size = (pixels.shape[2], pixels.shape[3])
        parts = torch.cat([pixels[..., rows, columns] for rows, columns in self._windows(size)])
        maps = self.model.body(parts)[0].split(1)
        return Seen(size, maps, self._labels(self.model, size, maps, shape))

    def _windows(self, size: tuple[int, int]) -> list[tuple[slice, slice]]:
        return list(product(window_slices(size[0], self.size), window_slices(size[1], self.size)))

    def _slide(
        self, size: tuple[int, int], maps: Sequence[Tensor], score: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """What `score` makes of each window's features, joined as in every prediction: 1 × C × H × W of `size`."""
        windows = iter(maps)

        def read(images: Tensor) -> Output:
            return Output(score(next(windows)), (), self.model.resolution(images))

        return slide_logits(read, torch.empty(1, 1, *size, device=maps[0].device), self.size)

    def _labels(
        self, model: SegmentationModel, size: tuple[int, int], maps: Sequence[Tensor], shape: tuple[int, int]
    ) -> np.ndarray:
        logits = self._slide(size, maps, lambda found: model.head.read(found)[0])
        return upsample_labels(logits, shape, model.rule)[0].to("cpu", torch.uint8).numpy()

    # ---------------------------------------------------------------------------------------------- painting

    def paint(self, name: str, mask: Mask | None) -> None:
        """Says where the class is in an image: all of it, since unpainted pixels count as something else.

        Args:
            mask: H × W, at the size of `images[name].image` or of the file; all False: the class is not in the image;
                None: the image says nothing.
        """
        one = self._image(name)
        if mask is not None:
            mask = np.asarray(mask, bool)
            height, width = one.image.shape[:2]
            own = image_size(one.path)[::-1]
            if mask.shape not in ((height, width), own):
                shapes = f"the mask is {mask.shape}, the image {own}"
                raise TissError(f"{name}: {shapes}: give one boolean for each pixel, H × W")
            mask = np.array(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))
        one.history = [*one.history[-UNDO + 1 :], one.label]
        one.label, self.result = mask, None

    def undo(self, name: str) -> None:
        """Takes the last change of an image's label back."""
        one = self._image(name)
        if one.history:
            one.label, self.result = one.history.pop(), None

    @torch.inference_mode()
    def propose(self, name: str, x: int, y: int, size: float = 0.5) -> Mask:
        """The region around a pixel whose features resemble the pixel's; `size` from 0 to 1 makes it larger."""
        one = self._image(name)
        (height, width), seen = one.image.shape[:2], one.seen
        if not (0 <= x < width and 0 <= y < height):
            raise TissError(f"{name}: the pixel {x}, {y} is outside of its {width} × {height}")
        row, column = y * seen.size[0] // height, x * seen.size[1] // width
        mean = torch.cat([found.flatten(2) for found in seen.maps], 2).mean(2)[:, :, None, None]
        (rows, columns), found = next(
            (window, found)
            for window, found in zip(self._windows(seen.size), seen.maps, strict=True)
            if window[0].start <= row < window[0].stop and window[1].start <= column < window[1].stop
        )
        stride = self.model.decoder.stride  # of the map; the encoder may pad to a multiple of more
        place = (row - rows.start) // stride, (column - columns.start) // stride
        clicked = found[:, :, place[0], place[1], None, None] - mean

        def likeness(found: Tensor) -> Tensor:
            return F.cosine_similarity(found - mean, clicked, dim=1)[:, None]

        scores = self._slide(seen.size, seen.maps, likeness)
        alike = scores > (1 - size) * scores[0, 0, row, column].clamp(min=0)
        grid = (-(-seen.size[0] // stride), -(-seen.size[1] // stride))
        # of what lies apart, only the clicked part
        coarse = F.adaptive_max_pool2d(alike.float(), grid)
        part = torch.zeros_like(coarse)
        part[..., min(row // stride, grid[0] - 1), min(column // stride, grid[1] - 1)] = 1
        while (grown := F.max_pool2d(part, 3, 1, 1) * coarse).sum() > part.sum():
            part = grown
        kept = alike & (F.interpolate(part, seen.size, mode="nearest-exact") > 0)
        return F.interpolate(kept.float(), (height, width), mode="bilinear")[0, 0].cpu().numpy() > 0.5

    # ---------------------------------------------------------------------------------------------- teaching

    @torch.no_grad()
    def teach(self, class_name: str) -> Comparison:
        """Makes a new model of the old one and all that is painted; returns what it changes on the opened images.

        Painted images join the sums as those of `tiss extend` do, each as the model sees it in a prediction.
        """
        start = time.monotonic()
        name = self._check_class(class_name)
        used = [one for one in self.images.values() if one.label is not None]
        if not any(one.label.any() for one in used if one.label is not None):
            raise TissError(f"paint {name} on at least one image first")
        model = freeze_copy(self.model)
        if name not in model.classes:
            model.grow([name], "random")
        channel, method = model.classes.index(name), self._method
        tally = Tally(model, len(model.classes), method.settings.patches, max(MOST, ENOUGH // len(used)))
        for one in used:
            tally.add(*self._patches(one, channel, len(model.classes)))
        method.load_state(self._sums.tensors())
        method.add(tally.sums([channel]), model)
        self.taught, self.class_name, self._seconds = model, name, time.monotonic() - start
        empty = ImageSet((), lambda _: (torch.empty(0), None), tuple(model.classes))
        counter, shares = Counter(empty, self.model.classes, model.classes), []
        for one in self.images.values():
            one.now = self._labels(model, one.seen.size, one.seen.maps, one.image.shape[:2])
            before = one.seen.labels
            if one.label is not None:  # what the user says is the class is no loss of another
                before = np.where(one.label & (one.now == channel), 0, before)
            counter.add(before, one.now, None)
            shares.append((100 * float(one.changed.mean()), one.name))
        rows, same = counter.finish()
        worst = [(name, share) for share, name in sorted(shares, reverse=True)[:WORST] if share >= LEAST]
        self.result = Comparison(rows, len(shares), same, worst, judged=False)
        return self.result

    def _check_class(self, text: str) -> str:
        names = split_names(text) if text.strip() else []
        for wrong, fault in (
            (not names, "name the class first"),
            (len(names) > 1, f"{text}: one class at a time: teach the other to the saved model"),
            ("/" in text or text.startswith("#"), f"{text}: a class name holds no slash and no leading #"),
            (
                len(self.model.classes) > MOST_CLASSES,
                f"the model has {MOST_CLASSES} classes: masks hold no more",
            ),
        ):
            if wrong:
                raise TissError(fault)
        return names[0]

    def _patches(self, one: Opened, channel: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Features, shares and random numbers of an image's patches, as `Tally.add` takes them."""
        seen, device = one.seen, self.model.body.mean.device
        label = torch.from_numpy(np.asarray(one.label, np.float32)).to(device)[None, None]
        label = F.interpolate(label, seen.size, mode="nearest-exact")[0].long() * channel
        shares = []
        for (rows, columns), found in zip(self._windows(seen.size), seen.maps, strict=True):
            part = label[:, rows, columns]
            grid = (found.shape[2], found.shape[3])
            shares.append(patch_shares(part, grid, self.model.resolution(part).padded, classes)[0])
        features = torch.cat([tokens(found)[0] for found in seen.maps])
        keys = self._method.keys([one.name], len(features), features.device)
        return features[None], torch.cat(shares)[None], keys

    def predict(self, name: str, before: bool = False) -> Prediction:
        """What the model that was taught last says of an image; `before`: what the old one says."""
        one, model = self._image(name), self.model if before else self.taught or self.model
        mask = one.seen.labels
        if model is not self.model:
            if one.now is None:  # opened after the class was taught
                one.now = self._labels(model, one.seen.size, one.seen.maps, one.image.shape[:2])
            mask = one.now
        return Prediction(mask, one.image, tuple(model.classes), tuple(class_colours(len(model.classes))))

    # ------------------------------------------------------------------------------------------------ saving

    def save(self, out: str | Path, labels: str | Path | None = None) -> str:
        """Writes the model that was taught last and, in the folder `labels`, what was painted; whole or not at all.

        `tiss extend MODEL --data LABELS` makes nearly the same model: it sees the images with augmentation, and keeps
        some of them for its test.
        """
        if self.taught is None or self.result is None:
            raise TissError("teach first: nothing was taught since the last change of what is painted")
        place = check_out(str(out))
        place.parent.mkdir(parents=True, exist_ok=True)
        used = [one for one in self.images.values() if one.label is not None]
        fact = f"taught {self.class_name} on {len(used)} painted images in {duration(self._seconds)}"
        record = self._record(len(used), self.result) | {"parent": describe_parent(self.source, place)}
        model = freeze_copy(self.taught).to("cpu")
        model.record = {}
        with ExitStack() as stack:
            if labels:
                self._write_labels(stack.enter_context(atomic_folder(check_out(str(labels)))), used)
            folder = stack.enter_context(StepFolder(place).writing(model, self._method.state(), None, record))
            drawn = self._draw(self.result, model.classes)
            write_report(folder, f"{place.name}: what was taught", fact, self.result, drawn)
            write_card(folder, model, record)
        return fact

    def _record(self, images: int, result: Comparison) -> dict[str, object]:
        old, step, name = self.model.record, len(self.model.groups), self._method.name
        entry = {"step": step, "classes": [self.class_name], "method": name, "train_images": images}
        entry |= {"held_out_images": 0, "epochs": 0, "seconds": round(self._seconds, 1)}
        entry |= {"new_iou": None, "old_change": None, "pixels_as_before": result.same}
        kept = {
            "eval_size": self.size,
            "recipe": old.get("recipe"),
            "method": name,
            "seed": self._method.seed,
        }
        return {"step": step, "tiss": __version__, **kept, "history": [*(old.get("history") or []), entry]}

    def _write_labels(self, folder: Path, used: Sequence[Opened]) -> None:
        for one in used:
            image = inside(folder, f"images/{one.name}{one.path.suffix.lower()}")
            make_folder(image.parent)
            shutil.copyfile(one.path, image)
            mask = Image.fromarray(np.asarray(one.label, np.uint8))
            mask = mask.resize(image_size(one.path), Image.Resampling.NEAREST)
            save_mask(np.asarray(mask), inside(folder, f"masks/{one.name}.png"))
        write_text(folder / "classes.txt", f"background\n{self.class_name}\n")

    def _draw(self, result: Comparison, classes: Sequence[str]) -> Drawn:
        """The images that changed most: what is painted, before, now."""
        drawn = []
        for name, caption in result.captions().items():
            one = self.images[name]
            painted = np.zeros_like(one.seen.labels) if one.label is None else one.label.astype(np.uint8)
            masks = {"painted": painted * classes.index(self.class_name)}
            masks |= {"before": one.seen.labels, "now": self.predict(name).mask}
            drawn.append((caption, side_by_side(one.image, masks, tuple(classes))))
        return drawn
