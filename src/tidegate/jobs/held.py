"""A row while it is in the gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tidegate.jobs.messages import Result, RowOut
from tidegate.jobs.planning import Lane, places_of
from tidegate.runtime.rows import PlacedRow, RowAnswer, RowBroken


@dataclass(slots=True, eq=False)
class Held:
    """A row that is here."""

    out: RowOut
    lane: Lane
    band: int = 0
    placed: PlacedRow | None = None
    task: asyncio.Task[None] | None = None
    waiting: bool = True
    lent_to: list[str] = field(default_factory=list)
    places: int = field(init=False)

    def __post_init__(self) -> None:
        self.places = places_of(len(self.out.body))

    @property
    def name(self) -> str:
        """What it is called within its tenant when somebody lends it a band."""
        return f"{self.out.row.batch_id}.{self.out.row.line}"


def result_of(held: Held, end: RowAnswer | RowBroken) -> Result:
    """Say how a row ended for good, or failed."""
    row = held.out.row
    if isinstance(end, RowAnswer):
        return Result(
            row=row,
            status=end.status,
            body=end.body,
            request_id=end.request_id,
            retry_after_s=end.retry_after_s,
        )
    return Result(row=row, broken=True, error=f"{end.reason}: {end.detail}"[:500])
