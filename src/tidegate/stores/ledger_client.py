"""One replica's side of a ledger: when to ask, what to say, and what to do with the answer. No I/O, no clock.

Facts go in with ``now`` (seconds of one monotonic source), signals for the scheduler come out; whoever carries the
messages (``runtime.replica`` over a network, the simulation over virtual time) asks ``due`` and ``wakes_at`` what next.
Each rule cost a failure while it was missing:

* One call is in flight; what happens meanwhile is joined into the next. Reports are absolute.
* A push must have the next number, else the ledger is asked. Replies list all that is unconfirmed, holes allowed.
* A grant older than ``FENCE_S`` by the ledger's clock is confirmed, never used: whoever slept does not start what the
  ledger takes back after twice that time. The ledger's clock is learned from when calls were *sent*, so it is never
  judged too slow.
* No answer for longer than answers take (``Patience``), or a closed pool: the scheduler goes on alone, with the share
  that was last dealt while the pool was open. One dealt while it was closed would be the whole pool to whoever comes
  first. While the answer is only late, it takes what the ledger counts for it, what was free, and one seat more at
  once and after every ``LIFT_S``, while those above their shares start nothing: nobody first in line waits a tenth of a
  second for a ledger that is dead, and beside one that only stumbled a few run above the seats.
* While the highest band waits and the share has room, the ledger is asked more often, to know sooner that it is dead.
* Just before a pool opens, as long as an answer may take, nothing starts, and one more report tells what did.
* A grant that was used is told with the next report there is, or in ``ACK_S``: until then the ledger holds its seat.
* Where the ledger goes by another number of bands, while gateways get another file, its grants mean nothing here:
  the scheduler goes on alone, within its share, and reports what it uses.
* In another epoch numbers begin anew, and what was pushed in the old one is void.
* After a sleep of the whole process the silence is counted from the waking on: the ledger may well be there.
"""

from __future__ import annotations

from collections import deque
from math import sqrt

from tidegate.core import Capacity, Counters, Granted, PoolBids, Seats, Signal
from tidegate.core.guard import guard_seats
from tidegate.stores.ledger_bids import said
from tidegate.stores.ledger_patience import LIFT_S, SILENT_S, Patience
from tidegate.stores.ledger_protocol import HEADS_MAX, Charge, Grant, Pushed, Reply, Report
from tidegate.stores.ledger_terms import Counts, Standing, StoreLoss, Terms

__all__ = ["Client", "Counts", "Standing", "StoreLoss", "Terms"]

FENCE_S = 0.25
STALL_S = 0.02
"""A look so late means that this process was busy, and that the answer may lie there unread: it gets so long again."""
ACK_S = 0.025
HEARTBEAT_S = 0.45
"""Within the half second that replicas promise."""
POLL_S = 0.1
"""Time without a call after which waiting work asks again: pushes may be lost."""
TOP_POLL_S = 0.04
"""The same while work of the highest band waits and the share has room for it."""
LOOK_S = 0.2
"""Longest time between two looks; twice that without one, and the process has slept."""
RETRY_S = 0.05
MOST_CHARGES = 256
"""Charges told in one report; more wait for the next."""
_KEPT_CHARGES = 4096
_MOST_DRIFT_MS = 1.0  # by which the ledger's clock may seem slower from one reply to the next


class Client:
    """The state of one replica in one pool.

    Attributes:
        share: seats that it may use alone, as dealt when the pool was open last.
    """

    def __init__(self, pool: str, terms: Terms) -> None:
        self.pool = pool
        self.terms = terms
        self.counts = Counts()
        self.standing = Standing.QUIET
        self.reply: Reply | None = None
        self.observing = False
        self.patience = Patience()
        self.share = terms.first_share
        self._epoch = self._sequence = self._ack = 0
        self._dirty = True
        self._busy = False
        self._poll_s = HEARTBEAT_S
        self._sent_at = self._seen_at = self._asked_at = self._answered_at = float("-inf")
        self._unanswered: float | None = None  # when the first call of those without an answer was made
        self._retry_at = float("-inf")
        self._opens_at = self._quiet_at = float("-inf")
        self._quiet_told = self._open_told = False
        self._read_until = float("-inf")  # unread answers get so long
        self._told_ack = self._told_used = self._taken = 0
        self._ack_at = float("inf")
        self._offset_ms: float | None = None  # the ledger's clock less ours
        self._charges: deque[Charge] = deque()
        self._charge = 0
        self._other_bands = False  # the ledger's number of bands is not ours
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
        elif self._busy and self._unanswered is not None and self._read_until < self._sent_at:
            alone_at = self._unanswered + self.patience.limit_s
            if self._seen_at < alone_at and now > alone_at + STALL_S:
                self._read_until = now + STALL_S
        if self.standing is Standing.SOLO:
            self.counts.solo_s += max(0.0, now - self._seen_at)
        self._seen_at = max(self._seen_at, now)
        if self._quiet_at <= now and not self._quiet_told:
            self._quiet_told = self._dirty = True
        if self._opens_at <= now and not self._open_told:
            self._open_told = self._dirty = True
        return self._settle(now)

    # What to send.

    def due(self, now: float) -> bool:
        """Say whether to make a call now: get a ``report`` for it."""
        return not self._busy and now >= self._next_call()

    def wakes_at(self) -> float:
        """Return when to look again."""
        at = self._seen_at + LOOK_S
        if self._unanswered is not None:
            alone_at = max(self._unanswered + self.patience.limit_s, self._read_until)
            away_at = self._unanswered + SILENT_S
            if self._seen_at < alone_at:
                at = min(at, max(alone_at, self._seen_at + 0.001))
            elif self._seen_at < away_at:
                at = min(at, max(min(away_at, alone_at + LIFT_S * self._lifts()), self._seen_at + 0.001))
        if not self._quiet_told:
            at = min(at, self._quiet_at)
        elif not self._open_told:
            at = min(at, self._opens_at)
        return at if self._busy else min(at, self._next_call())

    def report(self, now: float, bids: PoolBids) -> Report:
        """Say everything, for a call that is made now."""
        self._busy, self._dirty = True, False
        self._told_ack, self._ack_at = self._ack, float("inf")
        self._sent_at = now
        if self._unanswered is None:
            self._unanswered = now
        self._told_used, self._taken = sum(used for _, used in bids.used), 0
        self._poll_s = POLL_S if any(bids.waiting) else HEARTBEAT_S
        if bids.bids and bids.bids[0].band == 0 and self._told_used < self.share:
            self._poll_s = TOP_POLL_S
        self._sequence += 1
        moved: tuple[tuple[str, int], ...] = ()
        reserve: tuple[tuple[int, bool], ...] = ()
        if self.reply is not None and self.reply.controller:
            moved = tuple((name, seats) for name, seats in bids.seats if name in self.terms.auto)
            reserve = self._reserve(self.reply, bids.held_s)
        return Report(
            epoch=self._epoch,
            sequence=self._sequence,
            ack=self._ack,
            used=bids.used,
            bids=() if self.observing or self._other_bands else said(bids, now, self._dealt(bids)),
            charges=tuple(self._charges)[:MOST_CHARGES],
            waiting=bids.waiting,
            rates_ppm=tuple(round(rate * 1_000_000) for rate in bids.rates),
            seats=moved,
            reserve=tuple(seats for seats, _ in reserve),
            short=tuple(short for _, short in reserve),
            top=bids.top,
            file=self.terms.file,
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
        self.patience.learn(now - self._sent_at)
        self._learn_clock(reply)
        if reply.epoch != self._epoch:
            self._epoch, self._sequence, self._ack, self._told_ack = reply.epoch, 1, 0, 0
            self._charges = deque(
                Charge(number, each.band, each.tenant, each.tokens, each.backend)
                for number, each in enumerate(self._charges, start=1)
            )
            self._charge = len(self._charges)
        while self._charges and self._charges[0].number <= reply.charged:
            self._charges.popleft()
        if reply.open_in_ms > 0:
            quiet = self._quiet_told and not self._open_told  # and stays so: what is learnt of calls is no way back
            self._opens_at = self._sent_at + reply.open_in_ms / 1000.0
            self._quiet_at = self._opens_at - (SILENT_S if quiet else self.patience.limit_s)
            self._quiet_told = now >= self._quiet_at
            self._open_told = False
        else:
            self._opens_at = self._quiet_at = float("-inf")
            self._open_told = True
            self.share = reply.solo_share
        self.reply = reply
        self._other_bands = len(reply.clocks) != len(self.terms.reserves) > 0
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
        """The call in flight came to nothing, or could not be made."""
        self._busy, self._dirty = False, True
        if self._unanswered is None:
            self._unanswered = now
        self._retry_at = now + RETRY_S
        self.counts.failures += 1
        return self.look(now)

    def subscribed(self, now: float) -> list[Signal]:
        """Pushes arrive from now on; what came before has to be asked for."""
        self._dirty = True
        return self.look(now)

    def used_up(self, *, started: bool) -> None:
        """A grant was passed on: work started on it, or there was none, and somebody else may have the seat."""
        if started:
            self.counts.grants += 1
        else:
            self._taken -= 1
            self.counts.wasted += 1
            self._dirty = True

    @property
    def degraded(self) -> bool:
        """Whether the ledger is away: it has not answered for ``SILENT_S``."""
        return self._missing and self._seen_at >= (self._unanswered or 0.0) + SILENT_S

    @property
    def answer_late(self) -> bool:
        """Whether it is alone only because an answer is late, which may pass."""
        return self._missing and not self.degraded

    # Inside.

    def _dealt(self, bids: PoolBids) -> set[str]:
        """Return the backends that the ledger may deal seats of: ours, and those that it told of."""
        told = set() if self.reply is None else {name for name, *_ in self.reply.seats}
        return told | {name for name, _ in bids.seats}

    @property
    def _missing(self) -> bool:
        """Whether an answer takes longer than anybody waits for it."""
        since = self._unanswered
        return since is not None and self._seen_at >= max(since + self.patience.limit_s, self._read_until)

    def _next_call(self) -> float:
        if self._unanswered is not None:  # the last call failed
            return self._retry_at
        if self._dirty:
            return max(self._retry_at, self._sent_at)
        return min(self._ack_at, self._sent_at + self._poll_s)

    def _settle(self, now: float) -> list[Signal]:
        """Stand as the ledger's last word, or its silence, wants; return what is new of it."""
        if self._missing or now < self._quiet_at or self.observing or self._other_bands:
            self.standing = Standing.SOLO
        elif self._opens_at > float("-inf") or self.reply is None:
            self.standing = Standing.QUIET
        else:
            self.standing = Standing.SHARED
        share = self.share
        if self.standing is Standing.SOLO:
            long = self.degraded and now >= self._answered_at + self.terms.ttl_s
            if long and self.terms.on_store_loss is StoreLoss.SHRINK:
                share = 1
            told = Capacity(self.pool, min(share, self._unclaimed()), share, wary=True)
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
        self._ack_at = min(self._ack_at, now + ACK_S)
        if self._ack - self._told_ack >= self._most_untold():
            self._dirty = True  # before the ledger has nothing left of what was bid, or grants no more
        age_s = FENCE_S + 1 if self._offset_ms is None else now + (self._offset_ms - grant.at_ms) / 1000.0
        if age_s > FENCE_S:
            self.counts.late += 1
            self._dirty = True
            return []
        self._taken += 1
        return [Granted(self.pool, grant.band, grant.backend, grant.kind)]

    def _unclaimed(self) -> int:
        """How many seats are its own while an answer is only late: those used or granted, free ones, and some more."""
        if self.reply is None or not self.answer_late:
            return self.share
        free = sum(max(0, seats - held) for _, seats, held, _ in self.reply.seats)
        return self._told_used + self._taken + free + self._lifts()

    def _lifts(self) -> int:
        """How many seats it takes beyond what the ledger counts for it, as long as the answer has been late by now."""
        alone_at = max((self._unanswered or 0.0) + self.patience.limit_s, self._read_until)
        return 1 + int((self._seen_at - alone_at + 0.001) / LIFT_S)

    def _most_untold(self) -> int:
        """How many grants may be told later: half of those that may be unconfirmed, or of the tickets bid."""
        seats = 0 if self.reply is None else sum(each[1] for each in self.reply.seats)
        return min(max(2, seats // 8), HEADS_MAX) // 2

    def _reserve(self, reply: Reply, held_s: float) -> tuple[tuple[int, bool], ...]:
        """Return each band's reserve by the arrivals at all replicas, and whether it is short; empty: as configured."""
        if None not in self.terms.reserves or not held_s or self._other_bands:
            return ()
        seats = sum(each[1] for each in reply.seats)
        return tuple(
            guard_seats(seats, _upper(rate / 1_000_000), 1.0 / held_s) if fixed is None else (fixed, False)
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
