"""`forget` and `merge`: what sums make possible without any image. Classes are removed, two models become one."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from tiss import __version__
from tiss.engine.run_folder import StepFolder
from tiss.errors import TissError, suggest
from tiss.methods.analytic import Analytic
from tiss.methods.base import METHODS, build_method
from tiss.methods.discriminant import Sums
from tiss.models import SegmentationModel
from tiss.user.folder_step import split_names
from tiss.user.model_source import Source, check_out, describe_parent, find_source, line_of, write_card


def forget(model: str, classes: str, out: str) -> str:
    """Writes the model without some of its classes; returns what came of it, for a terminal."""
    place, source = check_out(out), find_source(model)
    old, method, sums = open_solved(source)
    names = split_names(classes)
    for name in names:
        if name not in old.classes:
            raise TissError(suggest(name, old.classes[1:], "class"), setting="classes")
    if len(names) == len(old.classes) - 1:
        raise TissError(f"these are all classes of {source.name}: leave one", setting="classes")
    for name in sorted(names, key=old.classes.index, reverse=True):
        sums = sums.without(old.classes.index(name))
    groups = [[old.classes[channel] for channel in group] for group in old.groups]
    kept = [[name for name in group if name not in names] for group in groups]
    made = resolve(old, [group for group in kept if group], method, sums)
    save(place, made, method, {"forgot": names, "parent": describe_parent(source, place)})
    return f"forgot {', '.join(names)}; {describe(made)}"


def merge(one: str, two: str, out: str, base: str | None = None) -> str:
    """Writes a model that knows the classes of two, which were taught different ones from the same base model."""
    place, sources = check_out(out), [find_source(name) for name in (one, two)]
    root = find_source(base) if base else common_base(*sources)
    models, methods, sums = zip(*(open_solved(source) for source in (*sources, root)), strict=True)
    first, second, start = models
    for source, model in zip(sources, models, strict=False):
        if model.classes[: len(start.classes)] != start.classes or len(model.groups) < len(start.groups):
            raise TissError(f"{source.name}: was not made from {root.name}", setting="base")
    new = second.classes[len(start.classes) :]
    for name in new:
        if name in first.classes:
            raise TissError(f"{one} and {two} both have a class {name!r}: forget it in one of them first")
    if not all(sum_.encoder.allclose(sums[2].encoder, rtol=1e-6) for sum_ in sums):
        raise TissError(
            f"{one} and {two} do not have the encoder of {root.name}: their bases differ", setting="base"
        )
    method: Analytic = methods[0]
    joined = sums[0].added(sums[1].since(sums[2], sums[0].classes)).thinned(method.settings.patches)
    groups = [[first.classes[channel] for channel in group] for group in first.groups]
    groups += [[second.classes[channel] for channel in group] for group in second.groups[len(start.groups) :]]
    made = resolve(first, groups, method, joined)
    parents = [describe_parent(source, place) for source in sources]
    save(place, made, method, {"merged": parents, "parent": parents[0]})
    return f"merged on the base {root.name}; {describe(made)}"


def open_solved(source: Source) -> tuple[SegmentationModel, Analytic, Sums]:
    """A model whose head was solved, its method and its sums."""
    model, state = source.load(), StepFolder(source.folder).method_state()
    name = str(model.record.get("method"))
    kind = METHODS.get(name) if name in METHODS else None
    if kind is None or not issubclass(kind, Analytic) or not state:
        raise TissError(
            f"{source.name}: has no sums (its method is {name}): models made by tiss train --method analytic have"
        )
    method = build_method(name, len(model.groups))
    assert isinstance(method, Analytic)
    method.load_state(state)
    return model, method, method.known(model)


def common_base(one: Source, two: Source) -> Source:
    """The last model that both were made from, by what their folders record."""
    lines = [[folder.resolve() for folder in line_of(source.folder)] for source in (one, two)]
    common = [a for a, b in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*lines, strict=False))]
    if not common:
        raise TissError(
            f"{one.name} and {two.name}: no common base found beside them: name it with base", setting="base"
        )
    return Source(common[-1], str(common[-1]))


def resolve(
    old: SegmentationModel, groups: Sequence[Sequence[str]], method: Analytic, sums: Sums
) -> SegmentationModel:
    """A model with the body of `old` and a head solved for other classes, group by group."""
    names = ["background", *itertools.chain(*groups)]
    channels = iter(range(1, len(names)))
    numbers = [[next(channels) for _ in group] for group in groups]
    model = SegmentationModel(old.architecture, names, numbers, old.rule)
    model.body.load_state_dict(old.body.state_dict())
    kept: dict[str, Tensor] = dict(old.head.state_dict())
    fixed = {name: tensor for name, tensor in kept.items() if name in ("shift", "scale")}
    model.head.load_state_dict(fixed, strict=False)
    model.record = {
        key: old.record[key] for key in ("eval_size", "recipe", "method", "seed") if key in old.record
    }
    method.load_state(sums.tensors())
    method.solve(model)
    return model.eval()


def save(place: Path, model: SegmentationModel, method: Analytic, record: dict[str, object]) -> None:
    record = {**model.record, **record, "step": len(model.groups) - 1, "tiss": __version__}
    model.record = {}
    place.parent.mkdir(parents=True, exist_ok=True)
    with StepFolder(place).writing(model, method.state(), None, record) as folder:
        write_card(folder, model, record)


def describe(model: SegmentationModel) -> str:
    return f"{len(model.classes) - 1} classes: {', '.join(model.classes[1:])}"
