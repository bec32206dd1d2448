"""A finished run as one small file: scores, settings, machine, times, and the command that repeats it.

A record is a results.json with more in it, so everything that reads run folders reads records as well.
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from tiss.config import RunConfig, from_mapping, to_mapping
from tiss.data.base import DATASETS
from tiss.engine.grid import command_of
from tiss.engine.recipes import resolve
from tiss.engine.results import read_results
from tiss.engine.run_folder import all_settings, flatten, identity, last_name, read_config, what_was_done
from tiss.errors import TissError
from tiss.files import make_folder, read_json, read_text, write_text
from tiss.methods.base import settings_from

DIGITS = 4  # of scores in percent: far below what a change of the seed does
HARDWARE = ("tiss", "commit", "python", "packages", "platform", "device", "processes", "threads", "precision")


def collect(runs: Iterable[Path], out: Path) -> tuple[list[Path], list[str]]:
    """Writes the record of every finished run into `out`; returns the files, and what was left out and why."""
    written, left_out = [], []
    for run in runs:
        try:
            record = record_of(run)
        except TissError as error:
            left_out.append(str(error))
            continue
        make_folder(out)
        path = _free_path(out, record)
        write_text(path, _to_text({**record, "name": path.stem}))
        written.append(path)
    return written, left_out


def record_of(run: Path) -> dict[str, Any]:
    """All that is needed to understand and repeat a finished run; models and data are not read."""
    if not run.is_dir():
        raise TissError(f"{run} is no run folder: only run folders can be collected")
    results = read_results(run / "results.json")
    if not results["finished"]:
        raise TissError(f"{run} is not finished: continue with tiss run --resume")
    config = read_config(run)
    base = None if config.base is None else PurePath(config.base)
    if shared := bool(base and config.out and base.parent == PurePath(config.out).parent / "bases"):
        config = replace(config, base=None)  # a grid's first step: the same as the run's own
    config = portable(config)
    return {
        **{key: value for key, value in results.items() if key not in ("steps", "average")},
        "name": run.name,
        "command": command_of(_without_answers(config)),
        "config": to_mapping(config),
        "shared_base": base.name if base and shared else None,
        "environment": _environment_of(run),
        **_times_of(run, base),
        "average": _rounded(results["average"]),
        "steps": _rounded(results["steps"]),
    }


def recorded(folder: Path) -> set[str]:
    """What the records in a folder are of, as `identity` writes it."""
    if not folder.is_dir():
        raise TissError(f"{folder} is no folder of records: tiss report RUNS --collect {folder} makes one")
    records = [read_json(path) for path in sorted(folder.glob("*.json")) if is_record(path)]
    return {identity(record["config"]) for record in records if record.get("config")}


def is_record(path: Path) -> bool:
    """Whether a JSON file is a run's record or results, and not something else that lies beside them."""
    try:
        values = read_json(path)
    except TissError:
        return False
    return isinstance(values, dict) and {"format", "method", "steps", "groups"} <= set(values)


def portable(config: RunConfig) -> RunConfig:
    """`config` without the folders of one machine: of such a path only the last name stays."""
    return replace(
        config,
        data=replace(config.data, root=last_name(config.data.root)),
        model=replace(config.model, pretrained=last_name(config.model.pretrained)),
        base=last_name(config.base),
        lists=last_name(config.lists),
        out=None,
    )


def command_of_record(record: Mapping[str, Any]) -> str | None:
    """The command by today's recipes; None for results that were kept without their settings."""
    if not record.get("config"):
        return None
    config = from_mapping(RunConfig, record["config"])
    return command_of(_without_answers(replace(config, method=settings_from(config.method))))


def _without_answers(config: RunConfig) -> RunConfig:
    """`config` with None again wherever the recipe, the data set or the encoder answers the same."""
    known: Any = DATASETS.get(config.data.name)  # its class knows the usual crop and task, and needs no files
    full = resolve(config, known)
    optional = [name for name, value in flatten(to_mapping(RunConfig())).items() if value is None]
    for name in optional:
        section, _, key = name.rpartition(".")
        part = replace(getattr(config, section), **{key: None}) if section else None
        shorter = replace(config, **({section: part} if section else {key: None}))
        config = shorter if resolve(shorter, known) == full else config
    return config


def _environment_of(run: Path) -> dict[str, Any]:
    """Versions and hardware; counts of images that were left out, not their paths."""
    values = _json(run / "environment.json")
    known = {key: values[key] for key in HARDWARE if key in values}
    left_out = {split: len(ids) for split, ids in (values.get("data_left_out") or {}).items() if ids}
    return known | ({"data_left_out": left_out} if left_out else {})


def _times_of(run: Path, base: PurePath | None) -> dict[str, Any]:
    """By step: seconds of training, and the median of images per second from end to end.

    A first step that was taken over has its times in the folder it came from, if that is still there.
    """
    timing, speeds = _json(run / "timing.json"), _speeds(run)
    for place in [] if base is None else [Path(base), run.parent / "bases" / base.name]:
        earlier = _json(place / "timing.json")
        if timing.get("step-0", {}).get("train_seconds") is None and "step-0" in earlier:
            timing |= {"step-0": earlier["step-0"]}
            speeds = {0: _speeds(place).get(0), **speeds}
    steps = [timing[name] for name in sorted(timing, key=lambda name: int(name.removeprefix("step-")))]
    skipped: dict[str, int] = {}
    for step in steps:
        for split, ids in (step.get("skipped") or {}).items():
            skipped[split] = skipped.get(split, 0) + len(ids)
    found: dict[str, Any] = {
        "train_seconds": [step.get("train_seconds") for step in steps],
        "images_per_second": [speeds.get(index) for index in range(len(steps))],
    }
    return found | ({"skipped": skipped} if skipped else {})


def _json(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}


def _speeds(run: Path) -> dict[int, float | None]:
    path = run / "metrics.jsonl"
    by_step: dict[int, list[float]] = {}
    for text in read_text(path).splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            by_step.setdefault(int(line["step"]), []).append(float(line["images_per_second"]))
        except (ValueError, KeyError, TypeError):  # a line that was cut off
            continue
    return {step: round(statistics.median(values), 1) for step, values in by_step.items()}


def _rounded(value: Any) -> Any:
    """Nested lists and dictionaries with rounded numbers."""
    return json.loads(json.dumps(value), parse_float=lambda digits: round(float(digits), DIGITS))


def _free_path(out: Path, record: Mapping[str, Any]) -> Path:
    """The run's name, with a number where another run has that name.

    The same run on another machine, or a second time, replaces the first: it must not count as a seed.
    """
    names = (record["name"] + (f"-{number}" if number > 1 else "") for number in itertools.count(1))
    paths = (out / f"{name}.json" for name in names)
    return next(path for path in paths if not path.exists() or _same_run(read_json(path), record))


def _same_run(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one.get("seed") != other["seed"] or not one.get("config"):
        return one.get("seed") == other["seed"] and one.get("method") == other["method"]
    first, second = (what_was_done(all_settings(record["config"])) for record in (one, other))
    return first == second


def _to_text(record: Mapping[str, Any]) -> str:
    """JSON with one line per key and per step: small, with readable diffs."""
    lines = [f"{_line(key)}: {_line(value)}" for key, value in record.items() if key != "steps"]
    lines.append('"steps": [\n  {}\n ]'.format(",\n  ".join(map(_line, record["steps"]))))  # the last key
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
