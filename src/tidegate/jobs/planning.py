"""Which batches may put how many rows into the scheduler now. Pure.

The scheduler shares seats; the pump only sees to it that it always has something of everybody to choose from, and
never much. A *lane* is what a tenant has for one pool. Each lane may have a small window of waiting rows, and its
batches fill it in order of their deadlines, so that a later batch gets what an earlier one leaves. Lanes do not touch
each other: a pool that is down, or a tenant at its limit, holds up nobody else.

Room is counted in *places*: a row takes one for each 64 KiB of its body, so that large rows do not fill the memory.
A batch that somebody waits for gets its rows first, even where others have filled the window: what does not wait for
a seat cannot be lifted.

A lane whose rows were refused rests, and comes back with a window of few rows that doubles with each row that is
seated, so that a limit is felt out with a handful of refusals and not with a flood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from tidegate.stores import BatchWork

WINDOW: Final = 128
SMALL: Final = 4
PROBE: Final = 16
"""Rows of a batch whose pool is not known yet; they tell it."""
MOST: Final = 2048
"""Most places that the waiting rows of all lanes take together, 128 MiB."""
PLACE_BYTES: Final = 64 * 1024
GROUP: Final = 64
"""Most rows asked for at once: a message of moderate size, a moderate commit."""

Lane = tuple[str, str]
"""Tenant and pool; before a batch's first row its pool is unknown, and the batch's id stands for it."""


@dataclass(slots=True)
class Window:
    """What a lane may have waiting, and until when it rests (a ``now`` value)."""

    size: int = WINDOW
    rests_until: float = 0.0

    def refused(self, now: float, wait_s: float) -> None:
        """A row was refused: rest, and come back small."""
        self.size = SMALL
        self.rests_until = max(self.rests_until, now + wait_s)

    def seated(self) -> None:
        """A row got its seat."""
        self.size = min(2 * self.size, WINDOW)


def places_of(size: int) -> int:
    """Return how many places a row takes whose body has ``size`` bytes."""
    return max(1, -(-size // PLACE_BYTES))


def plan(
    work: Sequence[BatchWork],
    *,
    lanes: Mapping[str, Lane],
    waiting: Mapping[Lane, int],
    windows: Mapping[Lane, Window],
    left: Mapping[str, int],
    weights: Mapping[str, float],
    awaited: Mapping[str, int],
    now: float,
) -> list[tuple[str, int]]:
    """Say how many rows of which batch to ask for.

    Args:
        work: batches in order of their deadlines.
        lanes: the lane of each batch.
        waiting: places of the rows that wait or were asked for, by lane.
        windows: by lane; a lane that is missing has a whole window.
        left: rows that a batch can still give, as far as is known.
        weights: places that a row of a batch takes in the mean; 1 where nothing is known.
        awaited: rows that somebody waits for and that do not wait for a seat yet, by batch.
        now: present time.
    """
    room = MOST - sum(waiting.values())
    taken = dict(waiting)
    wanted: dict[str, int] = {}

    def ask(batch_id: str, count: int) -> float:
        places = count * weights.get(batch_id, 1.0)
        wanted[batch_id] = wanted.get(batch_id, 0) + count
        taken[lanes[batch_id]] = taken.get(lanes[batch_id], 0) + ceil(places)
        return places

    for batch in work:
        weight = weights.get(batch.batch_id, 1.0)
        most = min(awaited.get(batch.batch_id, 0), max(1, int(WINDOW / weight)), left.get(batch.batch_id, 0), GROUP)
        if most > 0 and windows.get(lanes[batch.batch_id], _WHOLE).rests_until <= now:
            room -= ceil(ask(batch.batch_id, most))
    for batch in _fair(work, lanes, waiting):
        lane = lanes[batch.batch_id]
        window = windows.get(lane, _WHOLE)
        if window.rests_until > now:
            continue
        size = window.size if lane[1] != batch.batch_id else min(window.size, PROBE)
        free = min(size - taken.get(lane, 0), room)
        more = min(left.get(batch.batch_id, 0), GROUP) - wanted.get(batch.batch_id, 0)
        count = min(int(free / weights.get(batch.batch_id, 1.0)), more)
        if count == 0 and more > 0 and free > 0 and not taken.get(lane):
            count = 1  # a row that is larger than the window
        # Few at a time would cost a commit for every few rows: wait until a good part of the window is free.
        if count > 0 and (free >= size // 4 or count == more):
            room -= ceil(ask(batch.batch_id, count))
    return list(wanted.items())


_WHOLE = Window()


def _fair(work: Iterable[BatchWork], lanes: Mapping[str, Lane], waiting: Mapping[Lane, int]) -> list[BatchWork]:
    """Order: lanes that have least waiting first; within a lane as given."""
    return sorted(work, key=lambda batch: waiting.get(lanes[batch.batch_id], 0))
