"""One pool: its band queues, seats and accounts, and the decision who runs next (SPEC §4).

A decision is: what each band bids (``claims``), what is held (``gates``), which band (``between``), which ticket
(``queues``). Another pool's queues, accounts and seats never enter into it.
"""

from __future__ import annotations

from collections import Counter

from tidegate.core.actions import Action, Promote
from tidegate.core.between import QuickBetween
from tidegate.core.claims import Bids
from tidegate.core.forecast import Drain
from tidegate.core.gates import KV, NEVER, GateKind, holds, look, paused_until
from tidegate.core.guard import EVERY_S, Guard
from tidegate.core.model import Reason, Turn
from tidegate.core.ordering import Entry
from tidegate.core.policy import AUTO, Discipline, Policy, PoolSpec, Unit
from tidegate.core.preemption import Press
from tidegate.core.queues import BandQueue
from tidegate.core.routing import Seating
from tidegate.core.shares import Shares

TURN = Turn.TURN


class Pool:
    """The queues and accounts of one ``models`` entry.

    Attributes:
        known: the policy still has it.
        guards: the automatic reserves, by band.
        retries: tickets that failed on a backend and wait for a seat on another, with the reason they end with when
            there is none. They have had their turn.
        press: whom its high bands may have stopped.
        barred: the bands that waited at the latest decision and of which nothing might run.
        would: what would have been done to how many while the policy only observes, by reason.
    """

    __slots__ = (
        "_bids", "_by_tokens", "_free", "_look_at", "_rows", "_shares", "barred", "between", "drain", "guards",
        "known", "name", "press", "queues", "retries", "seating", "would",
    )  # fmt: skip

    def __init__(self, name: str, spec: PoolSpec, policy: Policy) -> None:
        self.name = name
        self.seating = Seating()
        self.drain = Drain()
        self.queues = [BandQueue(name, band, policy) for band in range(len(policy.bands))]
        self.between = _between(policy)
        self._free: list[str | None] = [None] * len(policy.bands)
        self._shares: Shares | None = None
        self.guards: dict[int, Guard] = {}
        self._look_at = 0.0
        self.barred: tuple[int, ...] = ()
        self.press = Press()
        self.retries: dict[Entry, Reason] = {}
        self.would: Counter[str] = Counter()
        self.obey(spec, policy)

    def obey(self, spec: PoolSpec | None, policy: Policy) -> None:
        """Take a new policy; ``spec`` is ``None`` when the pool is no longer in it."""
        self.known = spec is not None
        ruled = policy.discipline is Discipline.WEIGHTED or any(
            band.reserve == AUTO or band.promote_after_s is not None for band in policy.bands
        )
        self.seating.obey(spec, policy.bands, observing=policy.observe_only, ruled=ruled)
        auto = [index for index, band in enumerate(policy.bands) if band.reserve == AUTO]
        self.guards = {index: self.guards.get(index) or Guard() for index in auto}
        self._look_at = 0.0 if auto else NEVER
        self._bids = Bids(policy, self.queues)
        self._by_tokens = policy.unit is Unit.TOKENS
        self._share(policy)
        for queue in self.queues:
            queue.obey(policy)
        self.press.obey(policy, self)
        renewed = _between(policy)
        if (renewed.floors, renewed.cap) != (self.between.floors, self.between.cap):
            renewed.adopt(self.between.gap)
            self.between = renewed
        self._rows = [
            (queue, bit, weight, rate)
            for bit, (queue, weight, rate) in zip(self.between.bits, self._bids.rows, strict=True)
        ]

    def _share(self, policy: Policy) -> None:
        shares = tuple(band.share for band in policy.bands)
        if policy.discipline is not Discipline.WEIGHTED:
            self._shares = None
        elif self._shares is None or self._shares.shares != shares:
            self._shares = Shares(shares)

    def next_turn(self, now: float, actions: list[Action]) -> tuple[Entry, Turn, int] | None:
        """Decide who gets a free seat; ``None`` when nobody may. Promotions seen are noted in ``actions``."""
        seating, shares = self.seating, self._shares
        claim = self._bids.claims(now)
        if self._bids.promoting:
            promoted = self._bids.promote(now, claim)
            actions.extend(Promote(entry.ticket, entry.queue.band - 1, "age") for entry in promoted)
        gated = self._shut(claim, now) if seating.gating else ()
        self.barred = self._barred(claim) if None in claim else ()
        if now >= self._look_at:
            self._guard(now)
        held = holds(seating) if seating.limited else self._free
        wanted = shares.wanted(claim, held) if shares else None
        chosen = self.between.decide(claim, held, wanted, gated)
        if seating.observing:
            return self._in_order(claim, chosen, now)
        if chosen is None:
            return None
        band, kind = chosen
        entry = self.queues[band].take(kind, now)
        if shares:
            shares.charge(band, entry.cost if self._by_tokens else 1)
        return entry, kind, band

    def quick_turn(self, now: float) -> tuple[Entry, Turn, int] | None:
        """Decide as ``next_turn`` does, where nothing but age and floors matters (``Seating.simple``)."""
        top = best = -1
        out, most, contended = 0, 0.0, False
        barred: tuple[int, ...] = ()
        for queue, bit, weight, rate in self._rows:
            head = queue.head() if queue.stale else queue.oldest
            if head is None:
                out |= bit
                if queue.count:
                    barred = (*barred, queue.band)
                continue
            bid = weight + rate * (now - head.arrived)
            if top < 0:
                top = best = queue.band
                most = bid
            else:
                contended = True
                if bid > most:
                    best, most = queue.band, bid
        chosen = self.between.settle(top, best if contended else -1, out)
        self.barred = barred
        if chosen is None:
            return None
        band, kind = chosen
        return self.queues[band].take(kind, now), kind, band

    def _shut(self, claim: list[float | None], now: float) -> list[int]:
        """Strike out the claims of gated bands; return those that had one."""
        look(self.seating, now)
        gated = []
        for band, stop in enumerate(self.seating.stopped):
            if stop is not None and claim[band] is not None:
                claim[band] = None
                gated.append(band)
        return gated

    def _barred(self, claim: list[float | None]) -> tuple[int, ...]:
        return tuple(band for band, bid in enumerate(claim) if bid is None and self.queues[band].count)

    def _guard(self, now: float) -> None:
        """Measure the automatic reserves anew."""
        self._look_at = now + EVERY_S
        seating, drain = self.seating, self.drain
        reserves = list(seating.reserves)
        arrivals = 0
        for band, queue in enumerate(self.queues):
            arrivals += queue.entered
            if band in self.guards:
                guard = self.guards[band]
                wanted = guard.note(
                    now, seats=seating.seats, arrivals=arrivals, released=drain.count, held_s=drain.total_s
                )
                reserves[band] = self.press.as_reserve(wanted, band, self)
        if reserves != seating.reserves:
            seating.reserve(reserves)

    def _in_order(
        self, claim: list[float | None], chosen: tuple[int, Turn] | None, now: float
    ) -> tuple[Entry, Turn, int] | None:
        """Serve the ticket that came first, and count when the rules would have served another band, or none.

        A band that a KV watermark stops has no claim, but runs.
        """
        let = [stop is KV for stop in self.seating.stopped] if self.seating.gating else self._free
        heads = [
            (head.arrived, head.seq, band)
            for band, bid in enumerate(claim)
            if (bid is not None or let[band]) and (head := self.queues[band].head()) is not None
        ]
        if not heads:
            return None
        band = min(heads)[2]
        if let[band]:
            self.would[GateKind.KV] += 1
        elif chosen is None:
            self.would["held"] += 1
        elif chosen[0] != band:
            self.would["reordered"] += 1
        queue = self.queues[band]
        entry = queue.take_oldest()
        if entry.expires <= now:
            self.would[Reason.EXPIRED] += 1
        return entry, TURN, band

    def undo(self, entry: Entry, *, latest: bool) -> None:
        """Forget the turn of a ticket that was stopped before its first token; ``latest``: its band's last one."""
        band = entry.queue.band
        if latest:
            self.between.undo(band)
        if self._shares:
            self._shares.give_back(band, entry.cost if self._by_tokens else 1)

    def retry_after(self, band: int, now: float) -> float | None:
        """Return seconds until work that waits before ``band``'s newcomers is drained; ``None`` when unknown.

        Not before the first backend's pause ends.
        """
        rate = self.drain.rate(self.seating.counted)
        wait_s = None if rate is None else (1 + sum(queue.count for queue in self.queues[: band + 1])) / rate
        until = paused_until(self.seating, now) if self.seating.gating else None
        return wait_s if until is None else max(wait_s or 0.0, until - now)


def _between(policy: Policy) -> QuickBetween:
    return QuickBetween([band.floor for band in policy.bands], policy.overtake_cap)
