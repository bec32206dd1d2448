"""Kills a small run again and again, resumes it each time, and compares it with the run never killed.

    python -m tools.kill_test --kills 200 --each 20

A kill is a SIGKILL at a random moment after a mark of the phase that is due; it counts for the phase that the
process died in, by its last mark. Every resume uses another number of loader processes. A finished run must
have the same files as the run never killed: weights, results and scores bit for bit, the same lines of
metrics, nothing more and nothing less. The table goes to standard output; the exit code is 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import small_run

PHASES = {
    "data": "data loading",
    "train": "training",
    "evaluate": "evaluation",
    "checkpoint": "checkpoint writing",
    "between": "between steps",
}


@dataclass
class Tally:
    """What happened."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(["start", *PHASES], 0))
    runs: int = 0
    problems: list[str] = field(default_factory=list)

    def total(self) -> int:
        return sum(self.kills.values())

    def most_wanted(self, each: int, chance: random.Random) -> str:
        """A phase with too few kills, else any."""
        wanting = [phase for phase in PHASES if self.kills[phase] < each]
        return chance.choice(wanting or list(PHASES))


def kill_somewhere(
    child: small_run.Child, phase: str, chance: random.Random
) -> tuple[str | None, int | None]:
    """Waits for a mark of `phase` and kills the process a moment later.

    Returns the phase it died in, or (None, exit code) if it ended before.
    """
    often = phase in ("data", "train")
    wanted = chance.choice((1, 2, 3, 5, 8, 13) if often else (1, 1, 2))
    delay = chance.choice((0.0, chance.uniform(0, 0.002), chance.uniform(0, 0.01), chance.uniform(0, 0.1)))
    if phase == "data" and chance.random() < 0.1:
        wanted, delay = (
            0,
            chance.uniform(0, 0.3),
        )  # before anything is marked: opening the folder, reading lists
    while child.phases.read_text().split().count(phase) < wanted:
        code = child.finished()
        if code is not None:
            return None, code
        time.sleep(0.0005)
    time.sleep(delay)
    code = child.finished()
    if code is not None:
        return None, code
    child.kill()
    marks = child.phases.read_text().split()
    return (marks[-1] if marks else "start"), None


def kill_test(kills: int, each: int, seed: int, method: str, work: Path, tally: Tally) -> None:
    """Runs, kills, resumes and compares until there are enough kills of every kind."""
    chance = random.Random(seed)
    data = small_run.make_data(work / "data")
    small_run.load_modules()
    reference, out = work / "reference", work / "run"
    child = small_run.start(small_run.arguments(data, reference, method), work)
    if child.wait() != 0:
        tally.problems.append(f"the run itself fails: {child.output.read_text()[-500:]}")
        return
    wanted = small_run.contents(reference)
    while (
        tally.total() < kills or min(tally.kills[phase] for phase in PHASES) < each
    ) and not tally.problems:
        settings = {"train.workers": chance.choice((0, 0, 0, 1, 2))}
        words = [*small_run.arguments(data, out, method, **settings), "--resume"]
        child = small_run.start(words, work)
        phase, code = kill_somewhere(child, tally.most_wanted(each, chance), chance)
        left = small_run.wait_until_gone(child)
        if left:
            tally.problems.append(f"processes left behind: {left}")
        if phase is not None:
            tally.kills[phase] += 1
        elif code != 0:
            tally.problems.append(f"resume ended with {code}: {child.output.read_text()[-800:]}")
        else:
            compare(wanted, out, tally)
    if out.exists() and not tally.problems:  # the last one, killed and not yet finished
        child = small_run.start([*small_run.arguments(data, out, method), "--resume"], work)
        if child.wait() != 0:
            tally.problems.append(f"resume failed: {child.output.read_text()[-800:]}")
        else:
            compare(wanted, out, tally)


def compare(wanted: dict[str, Any], out: Path, tally: Tally) -> None:
    tally.runs += 1
    different = small_run.differences(wanted, small_run.contents(out))
    if different:
        tally.problems.append(f"run {tally.runs} differs in {', '.join(different)}; see {out}")
    else:
        shutil.rmtree(out)


def table(tally: Tally) -> str:
    lines = ["| killed in | times |", "|---|---|"]
    lines += [f"| {name} | {tally.kills[phase]} |" for phase, name in PHASES.items()]
    lines += [f"| start-up | {tally.kills['start']} |", f"| in all | {tally.total()} |"]
    lines += [
        "",
        f"{tally.runs} runs finished, {tally.runs - len(tally.problems)} equal to the run never killed.",
    ]
    return "\n".join([*lines, *tally.problems])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="at least so many in all")
    parser.add_argument("--each", type=int, default=20, help="at least so many in each phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="tiss")
    parser.add_argument("--work", type=Path, help="folder to work in (default: a temporary one)")
    options = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        work = options.work or Path(name)
        work.mkdir(parents=True, exist_ok=True)
        kill_test(options.kills, options.each, options.seed, options.method, work, tally)
    print(table(tally))
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
