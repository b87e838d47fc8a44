"""What each band bids for the next seat: the score of its oldest ticket that may run (SPEC §4.1).

``aging``: weight plus ageing times wait in milliseconds. ``strict`` and ``weighted`` bid by rank; there only a
promoted ticket outbids the band above. Promotion changes a claim, not a place: a ticket older than its band's
``promote_after`` claims with the weights of the next higher band, one step, once. Scores change with time, so they
are computed for the band heads at each decision and never kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.core.policy import Discipline, Policy

if TYPE_CHECKING:
    from tidegate.core.ordering import Entry
    from tidegate.core.queues import BandQueue


@dataclass(slots=True, frozen=True)
class Claim:
    """The band whose weights a waiting ticket claims with.

    Attributes:
        band: effective band.
        since: ``now`` of the arrival it counts from.
        why: ``"own"``, ``"age"`` (promoted) or ``"lent"`` (inherited).
    """

    band: int
    since: float
    why: str


def claim_of(entry: Entry, now: float) -> Claim:
    """Return the claim of one waiting ticket."""
    queue = entry.queue
    after = queue.spec.promote_after_s
    if queue.band and after is not None and now - entry.arrived > after:
        return Claim(queue.band - 1, entry.arrived, "age")
    return Claim(queue.band, entry.arrived, "own" if queue.band == entry.ticket.band else "lent")


class Bids:
    """Computes the bids of one pool's bands.

    Attributes:
        promoting: the bands whose tickets may be promoted, and after when.
        rows: queue, weight and ageing per second of each band.
    """

    __slots__ = ("_rank", "_rates", "_weights", "promoting", "rows")

    def __init__(self, policy: Policy, queues: list[BandQueue]) -> None:
        bands = policy.bands
        self._rank = policy.discipline is not Discipline.AGING
        weights = [band.weight for band in bands]
        rates = [band.aging_per_ms * 1000.0 for band in bands]
        if policy.discipline is Discipline.STRICT:
            weights = [float(len(bands) - band) for band in range(len(bands))]
        if policy.discipline is Discipline.WEIGHTED:
            weights = [0.0] * len(bands)
        self._weights = weights
        self._rates = [0.0] * len(bands) if self._rank else rates
        self.rows = list(zip(queues, self._weights, self._rates, strict=True))
        self.promoting = [
            (band.promote_after_s, queue)
            for band, queue in zip(bands, queues, strict=True)
            if band.promote_after_s is not None and queue.band
        ]

    def claims(self, now: float) -> list[float | None]:
        """Return each band's bid, without promotion."""
        return [
            None
            if (head := queue.head() if queue.stale else queue.oldest) is None
            else weight + rate * (now - head.arrived)
            for queue, weight, rate in self.rows
        ]

    def claim(self, entry: Entry, now: float) -> float:
        """Return the bid of one ticket, without promotion."""
        band = entry.queue.band
        return self._weights[band] + self._rates[band] * (now - entry.arrived)

    def promote(self, now: float, claims: list[float | None]) -> list[Entry]:
        """Raise the bids of bands whose oldest ticket is promoted; return those that began to claim so just now."""
        fresh = []
        for after_s, queue in self.promoting:
            head = queue.oldest
            if head is not None and now - head.arrived > after_s:
                claims[queue.band] = self._promoted(queue.band, now - head.arrived)
                if not head.promoted:
                    head.promoted = True
                    queue.promotions += 1
                    fresh.append(head)
        return fresh

    def _promoted(self, band: int, wait: float) -> float:
        if self._rank:  # above every claim that is not promoted; between promoted ones the higher band
            return float(2 * len(self._weights) - band)
        own = self._weights[band] + self._rates[band] * wait
        return max(own, self._weights[band - 1] + self._rates[band - 1] * wait)
