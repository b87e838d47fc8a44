"""One replica's side of a ledger: when to ask, what to say, and what to do with the answer. No I/O, no clock.

Facts go in with ``now`` (seconds of one monotonic source), signals for the scheduler come out; whoever carries the
messages (``runtime.replica`` over a network, the simulation over virtual time) asks ``due`` and ``wakes_at`` what next.
Each rule cost a failure while it was missing:

* One call is in flight; what happens meanwhile is joined into the next. Reports are absolute.
* A push must have the next number, else the ledger is asked. Replies list all that is unconfirmed, holes allowed.
* A grant older than ``FENCE_S`` by the ledger's clock is confirmed, never used: whoever slept does not start what the
  ledger takes back after twice that time. The ledger's clock is learned from when calls were *sent*, so it is never
  judged too slow.
* No answer for ``SILENT_S``, or a closed pool: the scheduler goes on alone, with the share that was last dealt while
  the pool was open. One dealt while it was closed would be the whole pool to whoever comes first.
* In the last ``QUIET_S`` before a pool opens nothing starts, and one more report tells what did.
* In another epoch numbers begin anew, and what was pushed in the old one is void.
* After a sleep of the whole process the silence is counted from the waking on: the ledger may well be there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from tidegate.core import Bid as CoreBid
from tidegate.core import Capacity, Counters, Granted, PoolBids, Seats, Signal
from tidegate.core import Head as CoreHead
from tidegate.core.guard import guard_seats
from tidegate.stores.ledger_protocol import Bid, Charge, Grant, Head, Pushed, Reply, Report

FENCE_S = 0.25
SILENT_S = 0.25
QUIET_S = 0.25
HEARTBEAT_S = 0.45
"""Within the half second that replicas promise."""
POLL_S = 0.1
"""Time without a call after which waiting work asks again: pushes may be lost."""
LOOK_S = 0.2
"""Longest time between two looks; twice that without one, and the process has slept."""
RETRY_S = 0.05
MOST_CHARGES = 256
"""Charges told in one report; more wait for the next."""
_KEPT_CHARGES = 4096
_MOST_DRIFT_MS = 1.0  # by which the ledger's clock may seem slower from one reply to the next


class StoreLoss(StrEnum):
    """What becomes of the solo share when the ledger stays away for longer than ``lease_ttl``."""

    KEEP = "keep"
    SHRINK = "shrink"


class Standing(StrEnum):
    """How a replica stands with its pool."""

    SHARED = "shared"  # every seat takes a grant
    SOLO = "solo"  # alone, within its share
    QUIET = "quiet"  # the pool is about to open


@dataclass(slots=True, frozen=True)
class Terms:
    """What is configured for a replica in a pool.

    Attributes:
        on_store_loss: see ``StoreLoss``.
        ttl_s: after so long without an answer the ledger has given this replica's seats to others.
        first_share: seats it may use alone before it was ever dealt a share.
        auto: the backends whose seats are found by the seat controller.
        reserves: seats that each band wants lower ones to leave free; ``None``: as many as it takes.
    """

    first_share: int
    on_store_loss: StoreLoss = StoreLoss.KEEP
    ttl_s: float = 5.0
    auto: frozenset[str] = frozenset()
    reserves: tuple[int | None, ...] = ()


@dataclass(slots=True)
class Counts:
    """What happened since the start.

    Attributes:
        calls: answered by the ledger; ``failures`` were not.
        call_s: time that the answered ones took, all together.
        grants: used to start work; ``late`` ones came too late, ``wasted`` ones found nothing to start.
        solo_s: time alone, up to the last look.
    """

    calls: int = 0
    failures: int = 0
    call_s: float = 0.0
    grants: int = 0
    late: int = 0
    wasted: int = 0
    solo_s: float = 0.0


class Client:
    """The state of one replica in one pool."""

    def __init__(self, pool: str, terms: Terms) -> None:
        self.pool = pool
        self.terms = terms
        self.counts = Counts()
        self.standing = Standing.QUIET
        self.reply: Reply | None = None
        self.observing = False
        self._share = terms.first_share
        self._epoch = self._sequence = self._ack = 0
        self._dirty = True
        self._busy = False
        self._waits = False
        self._sent_at = self._seen_at = self._asked_at = self._answered_at = float("-inf")
        self._unanswered: float | None = None  # when the first call of those without an answer was made
        self._retry_at = float("-inf")
        self._opens_at = float("-inf")
        self._quiet_told = False
        self._offset_ms: float | None = None  # the ledger's clock less ours
        self._charges: deque[Charge] = deque()
        self._charge = 0
        self._told: Capacity | None = None
        self._seats: dict[str, int] = {}

    # What happens here.

    def changed(self) -> None:
        """A seat came back, a grant was taken, or a band has a new head or one of few tickets more."""
        self._dirty = True

    def charged(self, band: int, payer: str, tokens: int, backend: str) -> None:
        """The estimate of finished work was wrong by so many tokens."""
        self._charge += 1
        self._charges.append(Charge(self._charge, band, payer, tokens, backend))
        if len(self._charges) > _KEPT_CHARGES:
            self._charges.popleft()

    def look(self, now: float) -> list[Signal]:
        """Let time pass: go alone, fall quiet; call it at ``wakes_at`` and before anything else is told."""
        if self._seen_at + 2 * LOOK_S < now:
            self._unanswered = now if self._busy else None
        if self.standing is Standing.SOLO:
            self.counts.solo_s += max(0.0, now - self._seen_at)
        self._seen_at = max(self._seen_at, now)
        if self._opens_at - QUIET_S <= now and not self._quiet_told:
            self._quiet_told = self._dirty = True
        return self._settle(now)

    # What to send.

    def due(self, now: float) -> bool:
        """Say whether to make a call now: get a ``report`` for it."""
        return not self._busy and now >= self._next_call()

    def wakes_at(self) -> float:
        """Return when to look again."""
        at = self._seen_at + LOOK_S
        if self._unanswered is not None:
            at = min(at, max(self._unanswered + SILENT_S, self._seen_at + 0.001))
        if not self._quiet_told:
            at = min(at, self._opens_at - QUIET_S)
        return at if self._busy else min(at, self._next_call())

    def report(self, now: float, bids: PoolBids) -> Report:
        """Say everything, for a call that is made now."""
        self._busy, self._dirty = True, False
        self._sent_at = now
        if self._unanswered is None:
            self._unanswered = now
        self._waits = any(bids.waiting)
        self._sequence += 1
        moved: tuple[tuple[str, int], ...] = ()
        reserve: tuple[int, ...] = ()
        if self.reply is not None and self.reply.controller:
            moved = tuple((name, seats) for name, seats in bids.seats if name in self.terms.auto)
            reserve = self._reserve(self.reply, bids.held_s)
        everywhere = tuple(name for name, _ in bids.seats)
        return Report(
            epoch=self._epoch,
            sequence=self._sequence,
            ack=self._ack,
            used=bids.used,
            bids=tuple(_bid(bid, now, everywhere) for bid in bids.bids if not self.observing),
            charges=tuple(self._charges)[:MOST_CHARGES],
            waiting=bids.waiting,
            rates_ppm=tuple(round(rate * 1_000_000) for rate in bids.rates),
            seats=moved,
            reserve=reserve,
        )

    # What comes back.

    def answered(self, now: float, reply: Reply) -> list[Signal]:
        """Take a reply to the call in flight."""
        signals = self.look(now)
        self._busy = False
        self._unanswered = None
        self._answered_at = now
        self.counts.calls += 1
        self.counts.call_s += now - self._sent_at
        self._learn_clock(reply)
        if reply.epoch != self._epoch:
            self._epoch, self._sequence, self._ack = reply.epoch, 1, 0
            self._charges = deque(
                Charge(number, each.band, each.tenant, each.tokens, each.backend)
                for number, each in enumerate(self._charges, start=1)
            )
            self._charge = len(self._charges)
        while self._charges and self._charges[0].number <= reply.charged:
            self._charges.popleft()
        if reply.open_in_ms > 0:
            self._opens_at = self._sent_at + reply.open_in_ms / 1000.0
            self._quiet_told = now >= self._opens_at - QUIET_S
        else:
            self._opens_at = float("-inf")
            self._share = reply.solo_share
        self.reply = reply
        signals += self._settle(now)
        signals += self._moved(reply)
        signals += self._leads(reply)
        for grant in reply.grants:
            if grant.number > self._ack:
                signals += self._take(now, grant)
        return signals

    def pushed(self, now: float, news: Pushed) -> list[Signal]:
        """Take a grant that came unasked."""
        signals = self.look(now)
        if news.epoch == self._epoch:
            if news.grant.number == self._ack + 1:
                signals += self._take(now, news.grant)
            elif news.grant.number > self._ack:
                self._dirty = True  # one is missing: ask
        return signals

    def failed(self, now: float) -> list[Signal]:
        """The call in flight came to nothing."""
        self._busy, self._dirty = False, True
        self._retry_at = now + RETRY_S
        self.counts.failures += 1
        return self.look(now)

    def subscribed(self, now: float) -> list[Signal]:
        """Pushes arrive from now on; what came before has to be asked for."""
        self._dirty = True
        return self.look(now)

    def used_up(self, *, started: bool) -> None:
        """A grant was passed on: work started on it, or there was none."""
        if started:
            self.counts.grants += 1
        else:
            self.counts.wasted += 1
        self._dirty = True

    @property
    def degraded(self) -> bool:
        """Whether the ledger does not answer."""
        return self._unanswered is not None and self._seen_at >= self._unanswered + SILENT_S

    # Inside.

    def _next_call(self) -> float:
        if self._unanswered is not None:  # the last call failed
            return self._retry_at
        if self._dirty:
            return max(self._retry_at, self._sent_at)
        return self._sent_at + (POLL_S if self._waits else HEARTBEAT_S)

    def _settle(self, now: float) -> list[Signal]:
        """Stand as the ledger's last word, or its silence, wants; return what is new of it."""
        if self.degraded or (self._opens_at > now and now < self._opens_at - QUIET_S) or self.observing:
            self.standing = Standing.SOLO
        elif self._opens_at > float("-inf") or self.reply is None:
            self.standing = Standing.QUIET
        else:
            self.standing = Standing.SHARED
        share = self._share
        if self.standing is Standing.SOLO:
            long = self.degraded and now >= self._answered_at + self.terms.ttl_s
            if long and self.terms.on_store_loss is StoreLoss.SHRINK:
                share = 1
            told = Capacity(self.pool, share, share, wary=True)
        else:
            told = Capacity(self.pool, 0, share)
        if told == self._told:
            return []
        self._told = told
        return [told]

    def _learn_clock(self, reply: Reply) -> None:
        offset = reply.now_ms - self._sent_at * 1000.0
        if self._offset_ms is None or reply.epoch != self._epoch or offset < self._offset_ms:
            self._offset_ms = offset
        else:
            self._offset_ms = min(offset, self._offset_ms + _MOST_DRIFT_MS)

    def _take(self, now: float, grant: Grant) -> list[Signal]:
        self._ack = grant.number
        self._dirty = True
        age_s = FENCE_S + 1 if self._offset_ms is None else now + (self._offset_ms - grant.at_ms) / 1000.0
        if age_s > FENCE_S:
            self.counts.late += 1
            return []
        return [Granted(self.pool, grant.band, grant.backend, grant.kind)]

    def _reserve(self, reply: Reply, held_s: float) -> tuple[int, ...]:
        """Return the reserve of each band by what all replicas have arriving; empty: as configured."""
        if None not in self.terms.reserves or not held_s:
            return ()
        seats = sum(each[1] for each in reply.seats)
        return tuple(
            guard_seats(seats, _upper(rate / 1_000_000), 1.0 / held_s)[0] if fixed is None else fixed
            for fixed, rate in zip(self.terms.reserves, reply.rates_ppm, strict=True)
        )

    def _moved(self, reply: Reply) -> list[Signal]:
        """Tell of seats that another replica's controller has found."""
        found: list[Signal] = []
        for name, seats, _, _ in reply.seats:
            if name in self.terms.auto and not reply.controller and self._seats.get(name) != seats:
                found.append(Seats(name, seats))
            self._seats[name] = seats
        return found

    def _leads(self, reply: Reply) -> list[Signal]:
        """Tell of accounts where more than one bid in a band."""
        found: list[Signal] = []
        for band, clock in enumerate(reply.clocks):
            leads = {payer: max(0, counter - clock) / 1000.0 for at, payer, counter in reply.counters if at == band}
            if len(leads) > 1:
                found.append(Counters(self.pool, band, tuple(leads.items())))
        return found


def _upper(rate: float) -> float:
    """Return the rate that chance does not make a measured one of ten seconds exceed (two standard deviations)."""
    return rate + 2.0 * sqrt(rate * 10.0) / 10.0


def _bid(bid: CoreBid, now: float, everywhere: tuple[str, ...]) -> Bid:
    backends = () if bid.backends == everywhere else bid.backends
    return Bid(bid.band, bid.count, _head(bid.oldest, now), tuple(_head(each, now) for each in bid.heads), backends)


def _head(head: CoreHead, now: float) -> Head:
    return Head(max(0, round((now - head.arrived) * 1000.0)), head.payer, head.cost, head.prefer or "")
