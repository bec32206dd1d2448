"""`suggest`: which images to label next. Those that the model is unsure of, unlike one another and what is labelled.

Each image has an uncertainty (1 − the margin between its two likeliest classes, mean over all places) and a point in
feature space (the decoder's map, its mean over all places and its mean weighted by uncertainty). Images are chosen one
by one: the next has the largest product of uncertainty and distance to the nearest point that is chosen or labelled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tiss.data.images import read_image
from tiss.engine.predictor import Predictor, resize
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.files import write_bytes, write_text
from tiss.models import comparable
from tiss.user.items import find_images
from tiss.user.model_source import find_source, open_predictor
from tiss.user.predict import arrange, to_png

# Of the median distance to the mean point: nearer images show the same. With DINOv2 on CamVid, a photo and its JPEG
# copy are 0.12 to 0.24 apart, neighbouring frames at one per second 0.7 and more.
DUPLICATE = 0.35
WIDTH, COLUMNS = 200, 5  # pixels and images of a row of the contact sheet


@dataclass(frozen=True)
class Suggestion:
    """An image to label."""

    path: Path
    uncertainty: float  # 0: the model is sure everywhere, 1: two classes are as likely everywhere
    novelty: float  # distance to the nearest image that is labelled or before it in the list (see `choose`)


def suggest(
    model: str | Path,
    images: Sequence[str] | str,
    count: int = 50,
    *,
    labelled: Sequence[str] | str = (),
    size: int | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
) -> list[Suggestion]:
    """The images to label next, the most useful first; near-duplicates are left out, so there may be fewer.

    Args:
        model: a model folder, a run folder or a hub name.
        images: files, folders or patterns; `labelled` those that have labels already.
        size: the shorter side at which the model sees them (None: the model's own).
    """
    if count < 1:
        raise TissError(f"{count}: must be 1 or more", setting="count")
    predictor = open_predictor(find_source(str(model)), size, False, device)
    items, known = (
        find_images([one] if isinstance(one, str) else one) if one else [] for one in (images, labelled)
    )
    with (reporter or Reporter()).bar("suggest", len(items) + len(known)) as bar:
        seen = []
        for item in (*items, *known):
            seen.append(look(predictor, read_image(item.path)))
            bar.advance()
    points = np.stack([point for _, point in seen])
    uncertainty = np.array([value for value, _ in seen[: len(items)]])
    chosen = choose(uncertainty, points[: len(items)], points[len(items) :], count)
    return [Suggestion(items[at].path, float(uncertainty[at]), novelty) for at, novelty in chosen]


@torch.inference_mode()
def look(predictor: Predictor, image: Tensor) -> tuple[float, np.ndarray]:
    """How unsure the model is of an image uint8 3 × H × W, and the image's point in feature space."""
    model = predictor.model
    output = model(resize(image[None].to(predictor.device), predictor.size), ("decoder",))
    scores = comparable(output.logits.float(), model.rule)
    scores = scores.sigmoid() if model.rule == "sigmoid" else scores.softmax(dim=1)
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    unsure = (1 - (first - second)).flatten()  # h·w
    features = output.features[0][0].float().flatten(1)  # D × h·w
    means = features.mean(1), features @ unsure / unsure.sum().clamp(min=1e-9)
    point = torch.cat([torch.nn.functional.normalize(one, dim=0) for one in means])
    return float(unsure.mean()), point.double().cpu().numpy()


def choose(
    uncertainty: np.ndarray, points: np.ndarray, known: np.ndarray, count: int
) -> Iterator[tuple[int, float]]:
    """Places of the chosen images, each with its novelty, by uncertainty and distance to the nearest before it.

    Distances are in units of the median distance to the mean point. Of the first image, where nothing is labelled,
    it is the distance to the mean point.
    """
    every = np.concatenate([points, known])
    typical = float(np.median(np.linalg.norm(every - every.mean(0), axis=1))) or 1.0

    def distance(one: np.ndarray) -> np.ndarray:
        return np.linalg.norm(points - one, axis=1) / typical

    nearest = np.min([distance(one) for one in known], axis=0) if len(known) else np.full(len(points), np.inf)
    for _ in range(min(count, len(points))):
        novelty = distance(every.mean(0)) if np.isinf(nearest).all() else nearest
        worth = np.where(nearest < DUPLICATE, -1, uncertainty * novelty)
        best = int(worth.argmax())
        if worth[best] < 0:
            return
        yield best, float(novelty[best])
        nearest = np.minimum(nearest, distance(points[best]))


def write_suggestions(out: Path, found: Sequence[Suggestion]) -> None:
    """list.txt, one path per line, and sheet.png, the images with their numbers in the list."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "list.txt", "".join(f"{one.path}\n" for one in found))
    images = (Image.fromarray(read_image(one.path).permute(1, 2, 0).numpy()) for one in found)
    small = [ImageOps.contain(image, (WIDTH, WIDTH)) for image in images]
    captions = [f"{number}  {one.path.name}" for number, one in enumerate(found, 1)]
    write_bytes(out / "sheet.png", to_png(arrange(small, captions, COLUMNS)))
