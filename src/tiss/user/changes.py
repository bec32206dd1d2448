"""What changed from one model to the next, class by class: figures, warnings, limits, and how they read."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tiss.engine.progress import duration
from tiss.errors import TissError, suggest
from tiss.evaluation.scores import BACKGROUND_FALL, mean, percent
from tiss.report.render import format_table, signed

SHRINKS = 0.95  # an old class that covers less than this share of its area before is lost in part
LOST = 3.0  # points of IoU
LIMITS = {
    "old": "mean change of the old classes' IoU in points",
    "new": "mean IoU of the new classes in %",
    "area": "largest loss of an old class's area in %",
}
METHOD_HEADS = ("method", "new IoU", "old classes", "change", "score", "time")
WEAK = 5.0  # IoU in % below which a class is called hardly segmented


@dataclass(frozen=True)
class ClassChange:
    """What happened to one class, in percent: IoU against labels, agreement with the old model, area predicted."""

    name: str
    kind: str = "old"  # or "new" (only the new model has it) or "gone" (only the old one)
    before: float | None = None
    after: float | None = None
    agreement: float | None = None
    # of all pixels, labelled or not; of the background before, only what is not a new class now
    area_before: float | None = None
    area_after: float | None = None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def area_change(self) -> float | None:
        """In percent of the area before."""
        if not self.area_before or self.area_after is None:
            return None
        return 100 * (self.area_after / self.area_before - 1)

    @property
    def shrinks(self) -> bool:
        seen = percent(self.area_before) != percent(self.area_after)  # a report shows no difference else
        return self.area_change is not None and self.area_change < 100 * (SHRINKS - 1) and seen

    def loss(self, background: bool = False) -> str:
        """What is lost that is worth a warning, in words; empty where nothing is."""
        found, most = [], BACKGROUND_FALL if background else LOST
        if self.shrinks:
            found.append(f"{percent(self.area_before)} → {percent(self.area_after)} % of the pixels")
        if self.change is not None and self.change < -most:
            found.append(f"IoU {percent(self.before)} → {percent(self.after)}")
        if background and self.change is None and self.agreement is not None and self.agreement < 100 - most:
            found.append(f"{percent(self.agreement)} % as before")
        return ", ".join(found)


@dataclass(frozen=True)
class Trial:
    """A method that `extend` tried on the held-out images, in percent; `note` says why one was not tried."""

    method: str
    new: float | None = None  # mean IoU of the new classes
    old: float | None = None  # mean over the old classes: IoU, without labels agreement with the old model
    change: float | None = None  # of the old classes' IoU, where they have labels
    score: float | None = None
    seconds: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        figures = (
            f"new classes {percent(self.new)}, old ones {percent(self.old)}, together {percent(self.score)}"
        )
        return f"{self.method}: {self.note or f'{figures}, {duration(self.seconds)}'}"


@dataclass
class Comparison:
    """The result over all images."""

    classes: list[ClassChange]
    images: int
    same: float | None  # percent of pixels (those of new classes left out) where both models agree
    worst: list[tuple[str, float]]  # the images that changed most: name, percent of pixels lost or changed
    judged: bool  # whether `worst` counts pixels that were right before and are wrong now
    broken: list[str] = field(default_factory=list)
    area_images: int = 0  # images on which areas were compared
    tried: list[Trial] = field(
        default_factory=list
    )  # where more than one method could be taken; the first was

    @property
    def new_classes(self) -> list[ClassChange]:
        return [one for one in self.classes if one.kind == "new"]

    @property
    def old_classes(self) -> list[ClassChange]:
        return [one for one in self.classes if one.kind != "new"]

    @property
    def new_iou(self) -> float | None:
        # of a first model the background is new too; later steps do not have it among theirs
        return mean(one.after for one in self.new_classes if one is not self.classes[0])

    @property
    def old_change(self) -> float | None:
        return mean(one.change for one in self.old_classes)

    @property
    def losses(self) -> dict[str, str]:
        """What old classes lost, by name, where that is worth a warning."""
        found = {one.name: one.loss(one is self.classes[0]) for one in self.old_classes}
        return {name: text for name, text in found.items() if text}

    @property
    def warning(self) -> str:
        """One line; empty where no old class lost much."""
        lost = "; ".join(f"{name} ({text})" for name, text in self.losses.items())
        return f"warning: the new model has lost part of {lost}" if lost else ""

    @property
    def scope(self) -> str:
        """The images that were used, and how much stayed the same."""
        more = f"; areas on {self.area_images}" if self.area_images > self.images else ""
        same = "" if self.same is None else f"; {percent(self.same)} % of the pixels as before"
        return f"on {self.images} images{more}{same}"

    def captions(self) -> dict[str, str]:
        """What to say of each of the worst images."""
        verb = "lost" if self.judged else "changed"
        return {name: f"{name}: {value:.1f} % of its pixels {verb}" for name, value in self.worst}

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(one) | {"change": one.change, "area_change": one.area_change} for one in self.classes]
        return {
            "images": self.images,
            "pixels_as_before": self.same,
            "warnings": [f"{name}: {text}" for name, text in self.losses.items()],
            "new_iou": self.new_iou,
            "old_change": self.old_change,
            "classes": rows,
            "worst": [{"image": name, "percent": value} for name, value in self.worst],
            "broken": self.broken,
        }


Table = tuple[str, Sequence[str], Sequence[tuple[str, ...]], dict[tuple[int, int], str]]


def tables(result: Comparison) -> list[Table]:
    """Title, headings, rows, and the mark of a cell by its row and column, for the text and for the page."""
    old, new = result.old_classes, result.new_classes
    scored = [one for one in old if one.before is not None or one.after is not None]
    scores = [(_titled(one), percent(one.before), percent(one.after), signed(one.change)) for one in scored]
    changes = {row: one.change for row, one in enumerate(scored) if one.change is not None}
    areas = []
    for one in old:
        figures = percent(one.area_before), percent(one.area_after), signed(one.area_change)
        areas.append((_titled(one), *figures, percent(one.agreement), "shrinks" if one.shrinks else ""))
    red = {(row, column): "worse" for row, one in enumerate(old) if one.shrinks for column in (2, 3)}
    marks = {(row, 3): "better" for row, change in changes.items() if change >= 0}
    marks |= {(row, 3): "worse" for row, change in changes.items() if change < -LOST}
    added = [(one.name, percent(one.after), _remark(one)) for one in new]
    heads = ("class", "% of pixels before", "now", "change in %", "agreement in %", "")
    found: list[Table] = [
        ("New classes" if old else "Classes", ("class", "IoU", ""), added, {}),
        ("Old classes by labels", ("class", "IoU before", "IoU now", "change"), scores, marks),
        ("Area of the old classes", heads, areas, red),
        ("Methods", METHOD_HEADS, [_tried(trial, result.tried[0]) for trial in result.tried], {}),
    ]
    return [table for table in found if table[2]]


def _titled(one: ClassChange) -> str:
    return f"{one.name} (gone)" if one.kind == "gone" else one.name


def _tried(trial: Trial, taken: Trial) -> tuple[str, ...]:
    figures = percent(trial.new), percent(trial.old), signed(trial.change), percent(trial.score)
    note = trial.note or duration(trial.seconds)
    return trial.method, *figures, f"{note}, taken" if trial is taken else note


def describe(result: Comparison) -> list[str]:
    """The comparison as lines for a terminal."""
    lines = []
    for title, heads, rows, _ in tables(result):
        lines += [*format_table((title, *heads[1:]), rows).splitlines(), ""]
    lines.append(result.scope)
    if result.broken:
        lines.append(f"left out, {len(result.broken)}: {result.broken[0]}")
    return [*lines, result.warning] if result.warning else lines


def read_limits(text: str) -> dict[str, float]:
    """'old:-1.0,new:50' by name.

    >>> read_limits("old:-1.0,new:50")
    {'old': -1.0, 'new': 50.0}
    """
    found = {}
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        if name not in LIMITS:
            raise TissError(suggest(name, LIMITS, "limit"), setting="fail_below")
        try:
            found[name] = float(value)
        except ValueError:
            fault = f"{part}: give a number after the colon, as in old:-1.0,new:50"
            raise TissError(fault, setting="fail_below") from None
    return found


def check_limits(result: Comparison, limits: dict[str, float]) -> tuple[bool, str]:
    """Whether every figure reaches its limit, and a line that says so; what cannot be measured does not."""
    areas = [one.area_change for one in result.old_classes if one.area_change is not None]
    values = {"old": result.old_change, "new": result.new_iou, "area": min(areas, default=None)}
    short = {name for name, least in limits.items() if (value := values[name]) is None or value < least}
    told = []
    for name, least in limits.items():
        value = values[name]
        shown = "not measured on these images" if value is None else f"{value:.1f}"
        told.append(f"{name} ({LIMITS[name]}) {shown}" + (f", below {least:g}" if name in short else ""))
    return not short, f"{'failed' if short else 'passed'}: {'; '.join(told)}"


def _remark(one: ClassChange) -> str:
    """What an IoU means that needs a word."""
    if one.after is None:
        return "in none of these images"
    return "hardly segmented: more images of it" if one.after < WEAK else ""
