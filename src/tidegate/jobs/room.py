"""What waits in each lane, how large it is, and when lanes rest: what ``planning.plan`` looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.jobs.held import Held
from tidegate.jobs.planning import Lane, Window, plan
from tidegate.stores import BatchWork


class Room:
    """The places of waiting rows by lane, and the windows of lanes that were refused.

    Attributes:
        lanes: the lane of each batch.
    """

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self._waiting: Counter[Lane] = Counter()
        self._windows: dict[Lane, Window] = {}
        self._weights: dict[str, float] = {}

    @property
    def places(self) -> int:
        """Places of all waiting rows."""
        return sum(self._waiting.values())

    def know(self, batch: BatchWork) -> None:
        """A batch has rows; until one of them has shown its pool, it has a lane of its own."""
        self.lanes.setdefault(batch.batch_id, (batch.tenant, batch.batch_id))

    def forget(self, batch_id: str) -> None:
        """A batch has no rows any more, here or in the store."""
        self.lanes.pop(batch_id, None)
        self._weights.pop(batch_id, None)

    def weigh(self, batch_id: str, rows: Sequence[Held]) -> None:
        """Learn from rows how many places one of this batch takes."""
        if rows:
            mean = sum(held.places for held in rows) / len(rows)
            self._weights[batch_id] = (self._weights.get(batch_id, mean) + mean) / 2

    def enter(self, held: Held) -> None:
        """A row waits."""
        self._waiting[held.lane] += held.places

    def leave(self, held: Held) -> None:
        """A row waits no more."""
        self._waiting[held.lane] -= held.places
        if self._waiting[held.lane] <= 0:
            del self._waiting[held.lane]

    def move(self, held: Held, lane: Lane) -> None:
        """A row that waits has shown its pool."""
        self.lanes[held.out.row.batch_id] = lane
        if held.lane != lane:
            self.leave(held)
            held.lane = lane
            self.enter(held)

    def refused(self, lane: Lane, now: float, wait_s: float) -> None:
        """The scheduler refused a row of a lane: let it rest."""
        self._windows.setdefault(lane, Window()).refused(now, wait_s)

    def seated(self, lane: Lane) -> None:
        """A row of a lane got its seat."""
        window = self._windows.get(lane)
        if window is not None:
            window.seated()
            if window == Window(rests_until=window.rests_until):
                del self._windows[lane]

    def rests_until(self, now: float) -> float | None:
        """Return when the first lane that rests may go on, ``None`` when none rests."""
        return min((each.rests_until for each in self._windows.values() if each.rests_until > now), default=None)

    def plan(
        self,
        work: Sequence[BatchWork],
        *,
        asked: Mapping[str, int],
        left: Mapping[str, int],
        awaited: Mapping[str, int],
        now: float,
    ) -> list[tuple[str, int]]:
        """Say how many rows of which batch to ask for; see ``planning.plan``.

        Args:
            work: batches in order of their deadlines.
            asked: rows that are on their way. One question for each batch at a time, so that an answer always finds
                its question.
            left: rows that a batch can still give.
            awaited: rows that somebody waits for and that do not wait for a seat yet, by batch.
            now: present time.
        """
        waiting = self._waiting.copy()
        for batch_id, count in asked.items():
            if batch_id in self.lanes:
                waiting[self.lanes[batch_id]] += int(count * self._weights.get(batch_id, 1.0))
        return plan(
            work,
            lanes=self.lanes,
            waiting=waiting,
            windows=self._windows,
            left={key: 0 if key in asked else value for key, value in left.items()},
            weights=self._weights,
            awaited=awaited,
            now=now,
        )
