"""One pool: its band queues, seats and accounts, and the decision who runs next (SPEC §4).

A decision is: what each band bids (``claims``), what is held (``gates``), which band (``between``), which ticket
(``queues``). Another pool's queues, accounts and seats never enter into it.
"""

from __future__ import annotations

from tidegate.core.actions import Action, Promote
from tidegate.core.between import QuickBetween
from tidegate.core.claims import Bids
from tidegate.core.forecast import Drain
from tidegate.core.gates import hold
from tidegate.core.model import Turn
from tidegate.core.ordering import Entry
from tidegate.core.policy import Discipline, Policy, PoolSpec, Unit
from tidegate.core.queues import BandQueue
from tidegate.core.routing import Seating
from tidegate.core.shares import Shares

TURN = Turn.TURN


class Pool:
    """The queues and accounts of one ``models`` entry. ``known``: the policy still has it."""

    __slots__ = (
        "_bids",
        "_by_tokens",
        "_claim",
        "_free",
        "_gated",
        "_shares",
        "between",
        "drain",
        "known",
        "name",
        "queues",
        "seating",
    )  # fmt: skip

    def __init__(self, name: str, spec: PoolSpec, policy: Policy) -> None:
        self.name = name
        self.seating = Seating()
        self.drain = Drain()
        self.queues = [BandQueue(name, band, policy) for band in range(len(policy.bands))]
        self.between = _between(policy)
        self._free: list[str | None] = [None] * len(policy.bands)
        self._shares: Shares | None = None
        self.obey(spec, policy)

    def obey(self, spec: PoolSpec | None, policy: Policy) -> None:
        """Take a new policy; ``spec`` is ``None`` when the pool is no longer in it."""
        self.known = spec is not None
        self.seating.obey(spec, policy.bands)
        self._bids = Bids(policy, self.queues)
        self._by_tokens = policy.unit is Unit.TOKENS
        self._share(policy)
        for queue in self.queues:
            queue.obey(policy)
        renewed = _between(policy)
        if (renewed.floors, renewed.cap) != (self.between.floors, self.between.cap):
            renewed.adopt(self.between.gap)
            self.between = renewed

    def _share(self, policy: Policy) -> None:
        shares = tuple(band.share for band in policy.bands)
        if policy.discipline is not Discipline.WEIGHTED:
            self._shares = None
        elif self._shares is None or self._shares.shares != shares:
            self._shares = Shares(shares)

    def next_turn(self, now: float, actions: list[Action]) -> tuple[Entry, Turn, int] | None:
        """Decide who gets a free seat; ``None`` when nobody may. Promotions seen are noted in ``actions``."""
        seating, shares = self.seating, self._shares
        fresh: list[Entry] = []
        claim = self._bids.claims(now, fresh)
        if fresh:
            actions.extend(Promote(entry.ticket, entry.queue.band - 1, "age") for entry in fresh)
        held = self._holds() if seating.limited else self._free
        wanted = shares.wanted(claim, held) if shares else None
        chosen = self.between.decide(claim, held, wanted)
        if chosen is None:
            return None
        band, kind = chosen
        queue = self.queues[band]
        queue.dispatches += 1
        if kind is not TURN:
            self._count(queue, kind)
        entry = queue.take(kind, now)
        if shares:
            shares.charge(band, entry.cost if self._by_tokens else 1)
        return entry, kind, band

    def _holds(self) -> list[str | None]:
        gates = [hold(self.seating, band) for band in range(len(self.queues))]
        return [gate.kind if gate else None for gate in gates]

    def _count(self, queue: BandQueue, kind: Turn) -> None:
        if kind is Turn.OVERTAKE:
            queue.overtakes += 1
        else:
            queue.floors += 1

    def retry_after(self, band: int) -> float | None:
        """Return seconds until work that waits before ``band``'s newcomers is drained; ``None`` when unknown."""
        rate = self.drain.rate(self.seating.seats)
        if rate is None:
            return None
        return (1 + sum(queue.count for queue in self.queues[: band + 1])) / rate


def _between(policy: Policy) -> QuickBetween:
    return QuickBetween([band.floor for band in policy.bands], policy.overtake_cap)
