"""What every report, goal and baseline reads: one record per request, written once, when the request has ended.

Invariants: a run hands each request to its sink exactly once; those still open when the run is cut come last, in order
of arrival, with no outcome. Times are seconds of one clock (virtual, or that of a live client) that starts at 0 with
the run; ``None`` stands for what did not happen. Tokens are true lengths, never estimates.

A sink folds and forgets: nothing in a run keeps records, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.core import Outcome, Reason, Turn
from tidegate.splice import PREEMPTED, Waste

if TYPE_CHECKING:
    from tidegate.simulation.log import Entry
    from tidegate.simulation.sequences import Work


@dataclass(slots=True, eq=False)
class Record:
    """One request and what became of it.

    Attributes:
        id: number in order of arrival, from 0.
        tenant: who pays.
        band: index of the band that it ran or waited in, 0 is the highest.
        pool: name of the pool.
        arrival_s: when it came; for a live client, when it was due to be sent.
        prompt_tokens: length of the prompt.
        output_tokens: length of the whole answer, generated or not.
        cached_tokens: of the prompt, those that the engine's prefix cache saved.
        dispatched_s: when it was sent upstream.
        first_token_s: when its first token came.
        finished_s: when it ended, whatever the outcome.
        outcome: how it ended; ``None`` when the run was cut before.
        reason: why it was refused, or failed.
        backend: where it ran; empty when it never did.
        kind: turn, floor or overtake; ``None`` when it was never dispatched, or nobody told.
        turn: place in the order of dispatches of the run, from 0; ``None`` likewise.
        preempted: how often it was stopped while running.
        computed_tokens: prompt and answer tokens that the engine computed for it, recomputed ones included.
        wasted_tokens: of those, what came to nothing: recomputed after a preemption, or of an answer nobody got.
        source: part of the scenario that it belongs to.
    """

    id: int
    tenant: str
    band: int
    pool: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    dispatched_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    outcome: Outcome | None = None
    reason: Reason | str | None = None
    backend: str = ""
    kind: Turn | None = None
    turn: int | None = None
    preempted: int = 0
    computed_tokens: int = 0
    wasted_tokens: int = 0
    source: str = ""

    @property
    def wait_s(self) -> float | None:
        """Queue wait of a dispatched request."""
        return None if self.dispatched_s is None else self.dispatched_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first, of a completed answer of two tokens or more."""
        if self.outcome is not Outcome.COMPLETED or self.first_token_s is None or self.output_tokens < 2:
            return None
        assert self.finished_s is not None
        return (self.finished_s - self.first_token_s) / (self.output_tokens - 1)


Sink = Callable[[Record], None]
"""Takes each record once."""


def record_of(number: int, entry: Entry, work: Work | None) -> Record:
    """Return the record of an entry; ``work`` is what the engine did for it, ``None`` when it does not tell."""
    request = entry.request
    record = Record(
        number,
        request.tenant,
        request.band,
        request.pool,
        request.at,
        request.prompt_tokens,
        request.output_tokens,
        dispatched_s=entry.dispatched,
        first_token_s=entry.first_token,
        finished_s=entry.finished,
        outcome=entry.outcome,
        reason=entry.reason,
        backend=entry.backend,
        kind=entry.kind,
        turn=entry.turn,
        source=request.source,
    )
    if work is not None:
        record.cached_tokens, record.preempted = work.cached, work.preempted
        waste = Waste()
        waste.again(PREEMPTED, work.recomputed)
        if entry.outcome is not None:
            waste.ended(entry.outcome, work.computed - work.recomputed)
        record.computed_tokens, record.wasted_tokens = work.computed, waste.total
    return record
