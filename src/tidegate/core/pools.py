"""One pool: its band queues, seats and accounts, and the decision who runs next (SPEC §4).

A decision is: what each band bids (``claims``), what is held (``gates``), which band (``between``), which ticket
(``queues``). Another pool's queues, accounts and seats never enter into it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tidegate.core.actions import Action, Promote
from tidegate.core.between import QuickBetween
from tidegate.core.claims import Bids
from tidegate.core.forecast import Drain
from tidegate.core.gates import KV, NEVER, GateKind, crowds, holds, look, paused_until
from tidegate.core.guard import EVERY_S, Guard
from tidegate.core.model import Reason, Turn
from tidegate.core.ordering import Entry, first_begun
from tidegate.core.policy import AUTO, Discipline, Policy, PoolSpec, Unit
from tidegate.core.preemption import Press
from tidegate.core.queues import BandQueue
from tidegate.core.room import Room, has_room
from tidegate.core.routing import Backend, Seating
from tidegate.core.shares import Shares

TURN: Final = Turn.TURN


class Pool:
    """The queues and accounts of one ``models`` entry.

    Attributes:
        known: the policy still has it.
        guards: the automatic reserves, by band.
        retries: tickets that failed on a backend and wait for a seat on another, with the reason they end with when
            there is none. They have had their turn.
        press: whom its high bands may have stopped.
        room: the bands whose next ticket waits for room in a cache.
        barred: the bands that waited at the latest decision and of which nothing might run.
        would: what would have been done to how many while the policy only observes, by reason.
    """

    __slots__ = (
        "_bids", "_by_tokens", "_free", "_instead", "_look_at", "_rows", "_shares", "barred",
        "between", "drain", "guards", "known", "name", "press", "queues", "retries", "room", "seating", "would",
    )  # fmt: skip

    def __init__(self, name: str, spec: PoolSpec, policy: Policy) -> None:
        self.name = name
        self.queues = [BandQueue(name, band, policy) for band in range(len(policy.bands))]
        self.seating = Seating([queue.begun for queue in self.queues])
        self.drain = Drain()
        self.between = _between(policy)
        self._free: list[str | None] = [None] * len(policy.bands)
        self.room = Room(len(policy.bands))
        self._instead: list[Entry | None] = [None] * len(policy.bands)
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
        if not (seating.gating or self._occupied()):
            if now >= self._look_at:
                self._guard(now)
            return None
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
        instead = self._instead[band] if seating.gating else None
        if instead is None:
            entry = self.queues[band].take(kind, now)
            self.room.served(band)
        else:
            entry = self.queues[band].take_before(instead, kind)
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

    def turn_alone(self, queue: BandQueue, now: float) -> Turn | None:
        """Decide as ``next_turn`` does of a newcomer where nothing waits; ``None``: ask that, nothing has changed.

        A seat must be free.
        """
        seating, band = self.seating, queue.band
        if seating.gating or seating.observing or self._shares or now >= self._look_at or self.press.at < NEVER:
            return None
        if seating.limited and (seating.free <= seating.least_free[band] or seating.taken > seating.most_taken[band]):
            return None  # held: a floor may let it pass
        self.barred = ()
        return self.between.alone(band)

    def rests(self, now: float) -> bool:
        """Say whether there is nothing to do as long as nothing waits anywhere."""
        return not (self.seating.gating or now >= self._look_at or self.press.at < NEVER)

    def is_empty(self) -> bool:
        """Say whether nothing waits here, neither for its turn nor for another backend."""
        return not (self.retries or self._occupied())

    def _shut(self, claim: list[float | None], now: float) -> list[int]:
        """Strike out the claims of gated bands; return those that had one."""
        look(self.seating, now)
        gated = []
        for band, stop in enumerate(self.seating.stopped):
            self._instead[band] = None
            if stop is None and self.seating.shuts(band):
                self._go_on(band, claim, now)
            elif claim[band] is not None and (stop is not None or self._crowds(band, claim, now)):
                claim[band] = None
                gated.append(band)
        return gated

    def _go_on(self, band: int, claim: list[float | None], now: float) -> None:
        """Let nothing of a band run but what has begun: that needs no more room, it has had its turn."""
        self._instead[band] = entry = first_begun(self.queues[band].begun)
        claim[band] = None if entry is None else self._bids.claim(entry, now)

    def _crowds(self, band: int, claim: list[float | None], now: float) -> bool:
        """Say whether a band is to wait for more room. Who goes before one that has none claims by its own age."""
        waits, entry = self.room.judge(self.seating, self.queues[band], now)
        if entry is not None:
            self._instead[band] = entry
            claim[band] = self._bids.claim(entry, now)
        return waits

    def take_granted(self, band: int, kind: Turn, backend: Backend, now: float) -> Entry | None:
        """Remove the ticket that a seat is for which was granted; ``None`` when none has room there.

        The band must have one that may run.
        """
        queue, seating = self.queues[band], self.seating
        if not seating.gating:
            return queue.take(kind, now)
        begun = first_begun(queue.begun) if seating.shuts(band) else None
        if begun is not None:
            return queue.take_before(begun, kind)
        waits, entry = self.room.judge(seating, queue, now)
        up = queue.next_up(now)
        impatient = entry is None and crowds(seating, band, up.cost, now)
        if waits or not (impatient or has_room(seating, band, (entry or up).cost, backend, now)):
            return None
        if entry is not None:
            return queue.take_before(entry, kind)
        self.room.served(band)
        return queue.take(kind, now)

    def _occupied(self) -> bool:
        """Whether any band has work: after most calls of a calm pool none has, and there is nothing to decide."""
        for queue in self.queues:  # noqa: SIM110 - a generator would cost more than all the rest
            if queue.count:
                return True
        return False

    def _barred(self, claim: list[float | None]) -> tuple[int, ...]:
        return tuple([band for band, bid in enumerate(claim) if bid is None and self.queues[band].count])

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
        short = tuple(band for band, guard in self.guards.items() if guard.short)
        if reserves != seating.reserves or short != seating.short:
            seating.reserve(reserves, short)

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
