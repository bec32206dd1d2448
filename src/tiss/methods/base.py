"""What a method is: a few verbs around the loop over batches, and a frozen dataclass of settings.

The engine calls `begin` exactly once per step; when a run resumes, `load_state` follows it. Then come `prepare`, and
`targets` and `losses` for each batch, and `end`. `@register_method("name", "summary")` makes a method known, and an
entry point in the group `tiss.methods` one from outside the package.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tiss.config import ModelConfig, from_mapping
from tiss.data.base import Batch
from tiss.errors import TissError
from tiss.losses import cross_entropy
from tiss.models import Initialise, Need, Output, SegmentationModel, resolve
from tiss.registry import Registry
from tiss.scenarios import Step

Batches = Callable[[], Iterable[Batch]]
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Settings of a method that has none."""


class Method:
    """The verbs, with the defaults of plain fine-tuning: no teacher, random new channels."""

    name: ClassVar[str]
    summary: ClassVar[str]
    title: ClassVar[str]  # the display name in tables and figures
    Settings: ClassVar[type] = Settings
    joint: ClassVar[bool] = False  # train on all classes in one step
    initialise: ClassVar[Initialise] = "random"  # new channels; see Head.grow
    uses_teacher: ClassVar[bool] = False
    domains: ClassVar[bool] = False  # works where a step adds images of another origin, and no class
    solved: ClassVar[bool] = False  # later steps are not trained: `end` does all that is done
    capturable: ClassVar[bool] = True  # losses() and targets() never wait for a value: CUDA graphs work
    tuned: ClassVar[Mapping[str, Any]] = {}  # training settings it prefers under the recipe "tuned"
    # what `tiss tune` tries: ranges of `train.*` in multiples of the run's own value, of `method.*` in values
    knobs: ClassVar[dict[str, tuple[float, float]]] = {"train.step_lr": (0.1, 10.0)}
    families: ClassVar[tuple[str, ...]] = ("vit", "hierarchical", "cnn")  # encoders it works with
    refusal: ClassVar[str] = "does not work with this encoder"  # why other families are refused
    head: ClassVar[str | None] = None  # the kind of head it brings (None: the decoder's own)
    heads: ClassVar[tuple[str, ...]] = ()  # kinds of heads it works with (none: any)
    # what of it stays as step 0 left it: the batch norms' statistics, with their weights, or the whole network's modes
    frozen: ClassVar[Literal["nothing", "statistics", "norms", "everything"]] = "nothing"

    step: Step  # the current one, set by begin()
    model: SegmentationModel  # the one that is trained, set by begin()

    def __init__(self, settings: Any, steps: int) -> None:
        self.settings = settings
        self.steps = steps  # of the whole scenario: the paper's weights depend on it

    def check(self, model: SegmentationModel) -> None:
        """Raises a TissError if this method does not work with the model's architecture."""
        if model.encoder.family not in self.families:
            raise TissError(
                f"{self.name} {self.refusal}: {model.encoder.name} is a {model.encoder.family}",
                setting="method",
            )
        if self.heads and (head := model.architecture.head) not in self.heads:
            fault = f"{self.name} works with the head {' or '.join(self.heads)}, not {head}: take another model.decoder"
            raise TissError(fault, setting="method")

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        """The features that `losses` reads from the student and from the teacher."""
        return ()

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        """A step starts: the head grows by the step's classes. What is frozen here is so until the step ends."""
        self.step, self.model = step, model
        if step.index > 0 and step.new_classes:
            model.grow(step.new_classes, initialise=self.initialise, seed=seed)
        for norm in batch_norms(model) if step.index > 0 and self.frozen == "norms" else ():
            norm.requires_grad_(False)

    def prepare(self, model: SegmentationModel, teacher: SegmentationModel | None, batches: Batches) -> None:
        """One look at the step's images before training; `batches()` gives this process's share of them."""

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        """Labels N × H × W to train on."""
        return batch.label

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Weighted terms by name; their sum is minimised."""
        return {"cross_entropy": cross_entropy(output.logits, batch.label, to=output.resolution)}

    def train_mode(self, model: nn.Module) -> None:
        """Puts the model into training mode; what is frozen must stay in evaluation mode."""
        later = self.frozen != "nothing" and self.step.index > 0
        model.train(not (later and self.frozen == "everything"))
        for norm in batch_norms(model) if later else ():
            norm.eval()

    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        """A step is over; one more look at its images is possible here."""

    def published(self, given: T | None, by_data: Mapping[str, T]) -> T:
        """A setting that was not given: the published value for the step's data set (of any variant), else for VOC."""
        name = self.step.train.dataset.name.partition("-")[0]
        return by_data.get(name, by_data["voc"]) if given is None else given

    def state(self) -> dict[str, Tensor]:
        """Tensors to keep in checkpoints and in the step's folder."""
        return {}

    def state_bytes(self, model: SegmentationModel, classes: int) -> int:
        """About how many bytes `state` will have when the step has ended and the model has `classes`."""
        return sum(tensor.nbytes for tensor in self.state().values())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state` returned, in this step or at the end of the step before."""

    def base_settings(self) -> dict[str, Any]:
        """The settings that change step 0: runs that agree in them can share their first step."""
        return {}


METHODS: Registry[type[Method]] = Registry("method", "methods", ("tiss.methods.*",))


def register_method(
    name: str, summary: str, title: str | None = None
) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: the method's name, one line for `tiss methods`, its name in tables (None: `name`)."""

    def add(cls: type[Method]) -> type[Method]:
        cls.name, cls.summary, cls.title = name, summary, title or name
        cls.Settings = type(cls.Settings.__name__, (cls.Settings,), {"name": name, "__doc__": summary})
        return METHODS.register(name)(cls)

    return add


def settings_from(value: Any) -> Any:
    """Settings from a method's name, from `{name: …, field: …}`, or as they are."""
    if not isinstance(value, str | Mapping):
        return value
    given = {"name": value} if isinstance(value, str) else dict(value)
    if "name" not in given:
        raise TissError("needs a name beside its settings, for example tiss", setting="method")
    method = METHODS.get(str(given.pop("name")))
    return from_mapping(method.Settings, given, "method")


def build_method(settings: Any, steps: int) -> Method:
    """The method that `settings` (or a name) belong to, for a scenario with this many steps."""
    settings = settings_from(settings)
    return METHODS.get(settings.name)(settings, steps)


def check_pair(settings: Any, config: ModelConfig) -> None:
    """Refuses a method and an architecture that do not work together, before any weight or image is read."""
    method = build_method(settings, steps=1)
    architecture = resolve(config, head=method.head)
    with torch.device("meta"):  # shapes only
        method.check(SegmentationModel(architecture, ["background", "class"]))


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every batch norm in `model`, of any dimension, synchronised or not."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def all_rows(tensor: Tensor) -> Tensor:
    """The rows of all processes, one process after another; their numbers may differ."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return tensor
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    lengths = all_sum(
        torch.tensor([len(tensor) * (rank == other) for other in range(world)]).to(tensor.device)
    )
    padded = tensor.new_zeros(int(lengths.max()), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    found = [torch.empty_like(padded) for _ in range(world)]
    torch.distributed.all_gather(found, padded)
    return torch.cat([rows[:length] for rows, length in zip(found, lengths.tolist(), strict=True)])


def all_sum(tensor: Tensor) -> Tensor:
    """The sum over all processes, in place (the tensor itself where there is one process)."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor)
    return tensor
