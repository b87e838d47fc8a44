"""Stop running work of a low band so that a high one does not wait for a seat (SPEC §7).

A ticket of a band that may preempt presses once it has waited half of its ``target_wait``. Unless a seat comes free for
it by itself within the other half, nine times in ten, a victim is chosen and asked to stop (``Preempt``): each half is
missed by one in ten then, the whole by one in a hundred. The victim's seat counts as taken until its lease is released,
and so long no other is stopped for the same wait.

Invariants: preemptions are at most ``preempt_rate`` of the dispatches; a victim is of a preemptible band below the one
that presses, was dispatched by its own band's turn, has nobody that waits for it, and was stopped at most
``max_preemptions`` times; at most one stop is on its way for each ticket that presses.

Credit for stops is earned by dispatches and kept up to the number of seats, so that a burst may take them all; no
more can be saved up. A stop that came to nothing is refunded.

Running work that may be stopped stands in for a part of an automatic reserve, except where that is ``short``: arrivals
come in such bursts that a quarter of the seats is not enough. There the reserve takes the small ones, and the credit,
which they would use up, is kept for the large ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.core.actions import Action, Preempt
from tidegate.core.forecast import sure_s
from tidegate.core.gates import NEVER, NO_SEAT, hold, look
from tidegate.core.model import Release, Requeue, Stoppable, Turn
from tidegate.core.signals import Began, Declined
from tidegate.core.urgency import Urgency, Victim

if TYPE_CHECKING:
    from tidegate.core.ordering import Entry
    from tidegate.core.policy import Band, Policy
    from tidegate.core.pools import Pool
    from tidegate.core.state import State

AGAIN_S: Final = 0.01
"""Time between two looks for a victim when there was none, or no credit."""

KEPT_FREE: Final = 2
"""Seats of an automatic reserve that stay free although running work could be stopped (SPEC §5.5)."""

_PACE_S: Final = 0.03  # time per token before any is known
_MEMORY: Final = 0.1  # weight of the newest answer in the mean


class Press:
    """Preemption in one pool.

    Attributes:
        at: when to look next; infinity while nobody waits who may preempt.
        victims: leases that might be stopped, by id.
        stopping: of those asked to stop, the band that asked.
    """

    __slots__ = (
        "_bands", "_credit", "_earn", "_held", "_most_stops", "_pace_s", "_seen", "_unit", "at", "stopping", "urgent",
        "victims",
    )  # fmt: skip

    def __init__(self) -> None:
        self.at = NEVER
        self.urgent: list[Urgency] = []
        self.victims: dict[int, Victim] = {}
        self.stopping: dict[int, int] = {}
        self._credit = self._seen = 0
        self._held = False  # somebody presses whom more than the want of a seat keeps waiting
        self._earn, self._unit = 0, 1
        self._pace_s = _PACE_S
        self._bands: tuple[Band, ...] = ()
        self._most_stops = 0

    def obey(self, policy: Policy, pool: Pool) -> None:
        """Take a new policy; who presses goes on."""
        rate = policy.preempt_rate
        whole, self._earn, self._unit = self._credit // self._unit, rate.numerator, rate.denominator
        self._credit = whole * self._unit
        self._bands, self._most_stops = policy.bands, policy.max_preemptions
        on = rate > 0 and policy.max_preemptions > 0 and not policy.observe_only
        kept = {urgency.band: urgency for urgency in self.urgent}
        self.urgent = []
        for index, (band, queue) in enumerate(zip(policy.bands, pool.queues, strict=True)):
            below = any(lower.preemptible for lower in policy.bands[index + 1 :])
            queue.urgency = None
            if on and band.may_preempt and below:
                queue.urgency = kept.get(index) or Urgency(index)
                queue.urgency.target_s = band.target_wait_s
                self.urgent.append(queue.urgency)
        if not self.urgent:
            self.at = NEVER

    # What happens.

    def expect(self, state: State, entry: Entry, urgency: Urgency) -> None:
        """Note that a ticket of a band that may preempt begins to wait."""
        urgency.coming.append(entry)
        self.at = min(self.at, entry.submitted + urgency.target_s / 2)
        self.arm(state)

    def arm(self, state: State) -> None:
        """See to it that there is a look when it is due."""
        if self.at < state.waiting.alarm:
            state.waiting.set_alarm(self.at)

    def running(self, number: int, entry: Entry, kind: Turn, band: int) -> None:
        """Note a dispatch of a ticket that may be stopped: floors, overtakes and lent work are not."""
        if kind is Turn.TURN and band == entry.ticket.band:
            self.victims[number] = Victim(entry, entry.queue.dispatches)

    def ended(self, entry: Entry, end: Release | Requeue) -> tuple[Victim | None, bool]:
        """Note the end of a lease; return what was known of it, and whether it was stopped as it was asked to."""
        number = entry.lease.id
        victim = self.victims.pop(number, None)
        by = self.stopping.pop(number, None)
        if isinstance(end, Release) and end.tpot_s is not None:
            self._pace_s += _MEMORY * (end.tpot_s - self._pace_s)
        if by is None:
            return victim, False
        self.at = 0.0  # whoever pressed for it is served by this seat, or presses on
        if isinstance(end, Release) or end.avoid:
            self._credit += self._unit
            return victim, False
        return victim, True

    def told(self, fact: Began | Declined, now: float) -> None:
        """Take in what the shell says of a lease."""
        victim = self.victims.get(fact.lease)
        if victim is None:
            return
        if isinstance(fact, Began):
            victim.began = now if victim.began is None else victim.began
            return
        del self.victims[fact.lease]
        if self.stopping.pop(fact.lease, None) is not None:
            self._credit += self._unit
            self.at = 0.0

    # What follows.

    def allowed(self, pool: Pool) -> int:
        """Return how many stops the dispatches so far allow now."""
        dispatches = sum(queue.dispatches for queue in pool.queues)
        most = max(1, pool.seating.seats) * self._unit
        self._credit = min(most, self._credit + (dispatches - self._seen) * self._earn)
        self._seen = dispatches
        return self._credit // self._unit

    def as_reserve(self, reserve: int, band: int, pool: Pool) -> int:
        """Return the seats to keep free for a band when the running work that it may have stopped is reserve too."""
        if reserve <= KEPT_FREE or pool.queues[band].urgency is None or pool.guards[band].short:
            return reserve
        count = sum(self._is_below(victim, band) for victim in self.victims.values())
        return max(KEPT_FREE, reserve - min(count, self.allowed(pool)))

    def look(self, state: State, pool: Pool, actions: list[Action]) -> None:
        """Stop whom it takes, if it is time, and say when the next look is due."""
        now = state.now
        if now >= self.at or self._held:
            self.at = min((urgency.sort(now) for urgency in self.urgent), default=NEVER)
            if any(urgency.overdue for urgency in self.urgent) and self._stop(state, pool, actions):
                self.at = min(self.at, now + AGAIN_S)
        self.arm(state)

    def _stop(self, state: State, pool: Pool, actions: list[Action]) -> bool:
        """Ask as many to stop as are needed and may be; return whether to look again soon."""
        seating = pool.seating
        if seating.gating:
            look(seating, state.now)
        coming, allowed, seen = len(self.stopping), self.allowed(pool), 0
        rate = pool.drain.rate(seating.taken)
        pressed = self._held = False
        for urgency in self.urgent:
            if hold(seating, urgency.band) is not NO_SEAT:  # time changes nothing of that; what does leads to a look
                self._held = self._held or bool(urgency.overdue)
                continue
            for entry in urgency.pressing(coming + allowed + 1 - seen):
                seen += 1
                pressed = True
                if seen <= coming:
                    continue  # the seat that is on its way is for this one
                waits_s = state.now - entry.submitted + (NEVER if rate is None else sure_s(seen - coming, rate))
                if not allowed or waits_s <= urgency.target_s:
                    return True
                chosen = self._choose(state, urgency.band)
                if chosen is None:
                    break
                allowed -= 1
                coming += 1
                self._credit -= self._unit
                victim = self.victims[chosen].entry
                self.stopping[chosen] = urgency.band
                actions.append(Preempt(victim.ticket, victim.lease, urgency.band))
        return pressed

    def _choose(self, state: State, by: int) -> int | None:
        """Return the lease that costs least to stop for band ``by``; ``None``: there is none."""
        best: tuple[tuple[float, ...], int] | None = None
        for number, victim in self.victims.items():
            if number not in self.stopping and self._may_stop(state, victim, by):
                cost = (*self._cost(victim, state.now), -number)
                if best is None or cost < best[0]:
                    best = cost, number
        return None if best is None else best[1]

    def _is_below(self, victim: Victim, band: int) -> bool:
        """Say whether a victim is one for ``band``, as long as nobody waits for it and its seat would be free."""
        ticket = victim.entry.ticket
        if ticket.band <= band or not self._bands[ticket.band].preemptible:
            return False
        if victim.began is not None and ticket.stoppable is Stoppable.UNSTARTED:
            return False
        return victim.entry.stops < self._most_stops

    def _may_stop(self, state: State, victim: Victim, by: int) -> bool:
        entry = victim.entry
        ticket, backend = entry.ticket, entry.backend
        if not self._is_below(victim, by):
            return False
        if not backend.up or backend.running > backend.seats or backend.paused_until > state.now:
            return False  # its seat would be nobody's
        work = state.names.work_of(entry) if ticket.name else None
        return work is None or not work.waits

    def _cost(self, victim: Victim, now: float) -> tuple[float, float, float]:
        """Return what stopping costs: lowest band first, then least computed, then most left."""
        entry = victim.entry
        if victim.began is None:
            return -entry.ticket.band, -1.0, -entry.answer
        written = (now - victim.began) / self._pace_s
        return -entry.ticket.band, entry.ticket.work.input_tokens + written, written - entry.answer
