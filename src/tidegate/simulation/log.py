"""What happened to the requests of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.core import Outcome, Reason, Ticket, Turn
from tidegate.simulation.arrivals import Request


@dataclass(slots=True, eq=False)
class Entry:
    """What happened to one request. Times are seconds of the virtual clock, ``None`` for what did not happen.

    Attributes:
        request: what was offered.
        ticket: what the scheduler was given.
        dispatched: when it was sent upstream.
        first_token: when its first token came.
        finished: when its answer was complete.
        outcome: how it ended; ``None`` when the run was cut before.
        reason: why it was refused.
        kind: turn, floor or overtake.
        backend: where it ran.
        contended: when it was dispatched, another band waited too.
        passed: when it was dispatched, a higher band waited.
        turn: place in the order of dispatches, from 0.
        place: of its latest dispatch, among those of its band.
        began: that one had its first token.
    """

    request: Request
    ticket: Ticket
    dispatched: float | None = None
    first_token: float | None = None
    finished: float | None = None
    outcome: Outcome | None = None
    reason: Reason | None = None
    kind: Turn | None = None
    backend: str = ""
    contended: bool = False
    passed: bool = False
    turn: int | None = None
    place: int = 0
    began: bool = False

    @property
    def wait_s(self) -> float:
        """Queue wait of a dispatched request."""
        assert self.dispatched is not None
        return self.dispatched - self.request.at

    @property
    def total_s(self) -> float:
        """Arrival to the end of the answer of a completed request."""
        assert self.finished is not None
        return self.finished - self.request.at


@dataclass(slots=True)
class Log:
    """Everything that happened: entries in order of arrival, and those dispatched in order of dispatch."""

    entries: list[Entry] = field(default_factory=list)
    dispatched: list[Entry] = field(default_factory=list)
    ended_at: float = 0.0

    def of_band(self, band: int) -> list[Entry]:
        """Entries of one band, in order of arrival."""
        return [entry for entry in self.entries if entry.request.band == band]

    def arrived(self, entry: Entry) -> None:
        """Note an arrival."""
        self.entries.append(entry)

    def went(self, entry: Entry) -> None:
        """Note a dispatch."""
        self.dispatched.append(entry)


class Fleeting(Log):
    """Keeps nothing but the time: for long runs of which only the sink is read."""

    def arrived(self, entry: Entry) -> None:
        """See ``Log``."""

    def went(self, entry: Entry) -> None:
        """See ``Log``."""
