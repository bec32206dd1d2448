"""Who is to blame when a run of several processes stands still, decided from the signs of all of them.

Work other than an update is judged by itself: it is overdue, and all others wait. Within an update one that computes
and one that waits for others look the same; so an update is overdue only when it is for all of them. The one that
hangs has then done fewer updates than the others (a GPU's work is queued, so that they run ahead), or it is at a place
in the code where nobody waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiss.engine.signs import DONE, Sign

QUIET = 10.0  # seconds for which all others must have waited before one that is overdue is named


@dataclass(frozen=True)
class Stall:
    """What to say about whom; no rank where it may be any of them."""

    rank: int | None
    what: str


def find_stall(signs: Mapping[int, Sign], now: float) -> Stall | None:
    """The process that all others wait for, if there is one."""
    return _late_work(signs, now) or _late_update(signs, now)


def _late_work(signs: Mapping[int, Sign], now: float) -> Stall | None:
    late = {rank: sign for rank, sign in signs.items() if sign.is_overdue(now)}
    others = [sign for rank, sign in signs.items() if rank not in late]
    if not late or not others:
        return None
    rank, sign = max(late.items(), key=lambda item: now - item[1].moved)
    quiet = min(QUIET, (sign.work.patience or 0) / 2)
    if not all(other.waits and (other.beat == DONE or now - other.moved > quiet) for other in others):
        return None
    if any(other.beat != DONE and other.work.turn < sign.work.turn for other in others):
        return _late_update({rank: sign for rank, sign in signs.items() if rank not in late}, now)
    return Stall(
        rank, f"has been at '{sign.work.name}' for {now - sign.moved:.0f} s while all others wait for it"
    )


def _late_update(signs: Mapping[int, Sign], now: float) -> Stall | None:
    updating = {rank: sign for rank, sign in signs.items() if sign.work.name == "train"}
    limits = [sign.work.together for sign in updating.values()]
    known = [limit for limit in limits if limit is not None]
    if not known or len(known) < len(limits) or not all(sign.waits for sign in signs.values()):
        return None
    still = now - max(sign.moved for sign in signs.values())
    if still <= max(known) or any(sign.place.compiles for sign in signs.values()):
        return None
    least = min(sign.work.turn for sign in updating.values())
    suspects = [rank for rank, sign in updating.items() if sign.work.turn == least]
    if len(suspects) > 1:
        suspects = [rank for rank in suspects if not signs[rank].place.may_wait]
    if len(suspects) == 1:
        (rank,) = suspects
        where = f"in {signs[rank].place.text}, while all others wait for it"
        return Stall(rank, f"has been at one update for {still:.0f} s, {where}")
    places = ", ".join(f"rank {rank} in {sign.place.text}" for rank, sign in sorted(signs.items()))
    return Stall(None, f"all processes have been at one update for {still:.0f} s: {places}")
