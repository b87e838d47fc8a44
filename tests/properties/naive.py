"""A slow, obvious scheduler: lists that are walked, the rule of SPEC §4.1 as it is printed there.

It knows one pool of one backend, one tenant, first come first served inside a band, fixed reserves, displacement,
expiry and the disciplines aging and strict. The fast scheduler must make the very same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from tidegate.core import Band, Discipline, Full, Policy, Reason, Turn


def fixed(number: int | str) -> int:
    """Return a setting that these tests never leave to ``auto``."""
    assert isinstance(number, int)
    return number


@dataclass(slots=True)
class Waiting:
    """One waiting ticket of the model."""

    id: str
    band: int
    arrived: float
    expires: float


@dataclass(slots=True)
class Decision:
    """One thing that the model did: dispatch, reject or evict."""

    what: str
    id: str
    why: str


@dataclass(slots=True)
class Account:
    """Floors and overtake credit, as printed in SPEC §4.1 with the credit of this dispatch counted."""

    floors: list[Fraction]
    cap: Fraction
    gap: list[int] = field(init=False)
    credit: list[Fraction] = field(init=False)

    def __post_init__(self) -> None:
        self.gap = [0] * len(self.floors)
        self.credit = [Fraction(0)] * len(self.floors)

    @property
    def period(self) -> list[int]:
        return [int(1 / f) if f else 0 for f in self.floors]

    @property
    def extra(self) -> Fraction:
        return self.cap - sum(self.floors, Fraction(0))

    def choose(self, claim: list[float | None], held: list[bool]) -> tuple[int, Turn] | None:
        live = [b for b, c in enumerate(claim) if c is not None]
        due = sorted((self.period[b] - 1 - self.gap[b], b) for b in live if self.period[b])
        if any(slack <= i for i, (slack, _) in enumerate(due)):
            return due[0][1], Turn.FLOOR
        free = [b for b in live if not held[b]]
        if not free:
            return None
        top = free[0]
        may = [b for b in live if not held[b] or b > top]
        best = max(may, key=lambda b: (claim[b], -b))
        if best != top and self.credit[top] + self.extra >= 1:
            return best, Turn.OVERTAKE
        return top, Turn.TURN

    def commit(self, band: int, kind: Turn, claim: list[float | None], held: list[bool]) -> None:
        joins = [max(0, t - 1 - sum(f > 0 for f in self.floors)) for t in self.period]
        live = [b for b, c in enumerate(claim) if c is not None]
        for b in range(len(claim)):
            if b == band or b not in live:
                self.gap[b] = 0
            else:
                self.gap[b] += 1
        del joins  # nothing is gated in this model
        top = next((b for b in live if not held[b]), None)
        if top is not None and any(b > top for b in live):
            self.credit[top] = min(Fraction(1), self.credit[top] + self.extra)
            if kind is Turn.OVERTAKE:
                self.credit[top] -= 1


class NaiveScheduler:
    """The model: every method returns what it decided, in order."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.bands: tuple[Band, ...] = policy.bands
        self.seats = fixed(policy.pools[0].backends[0].seats)
        self.waiting: list[Waiting] = []
        self.running: set[str] = set()
        self.account = Account([b.floor for b in policy.bands], policy.overtake_cap)

    def submit(self, now: float, id_: str, band: int) -> list[Decision]:
        out = self.expire(now)
        newcomer = Waiting(id_, band, now, now + self.bands[band].ttl_s)
        self.waiting.append(newcomer)
        started = self._dispatch(now)
        if newcomer not in self.waiting:
            return out + started
        same = [w for w in self.waiting if w.band == band]
        rule = self.bands[band]
        if len(same) > rule.capacity:
            if rule.full is Full.REJECT_NEWEST:
                self.waiting.remove(newcomer)
                return [*out, *started, Decision("reject", id_, Reason.QUEUE_FULL)]
            self.waiting.remove(same[0])
            return [*out, *started, Decision("evict", same[0].id, Reason.DISPLACED)]
        if len(self.waiting) > self.policy.queue_capacity:
            lowest = max(w.band for w in self.waiting)
            if lowest <= band:
                self.waiting.remove(newcomer)
                return [*out, *started, Decision("reject", id_, Reason.QUEUE_FULL)]
            victim = [w for w in self.waiting if w.band == lowest][-1]
            self.waiting.remove(victim)
            return [*out, *started, Decision("evict", victim.id, Reason.DISPLACED)]
        return out + started

    def release(self, now: float, id_: str) -> list[Decision]:
        self.running.remove(id_)
        return self.expire(now) + self._dispatch(now)

    def cancel(self, now: float, id_: str) -> list[Decision]:
        out = self.expire(now)
        self.waiting = [w for w in self.waiting if w.id != id_]
        return out + self._dispatch(now)

    def expire(self, now: float) -> list[Decision]:
        gone = [w for w in self.waiting if w.expires <= now]
        self.waiting = [w for w in self.waiting if w.expires > now]
        return [Decision("evict", w.id, Reason.EXPIRED) for w in sorted(gone, key=lambda w: w.expires)]

    def _claims(self, now: float) -> list[float | None]:
        oldest: list[Waiting | None] = [
            next((w for w in self.waiting if w.band == b), None) for b in range(len(self.bands))
        ]
        if self.policy.discipline is Discipline.STRICT:
            return [None if w is None else float(-b) for b, w in enumerate(oldest)]
        return [
            None if w is None else band.weight + band.aging_per_ms * (now - w.arrived) * 1000
            for w, band in zip(oldest, self.bands, strict=True)
        ]

    def _held(self) -> list[bool]:
        free = self.seats - len(self.running)
        kept = 0
        held = []
        for band in self.bands:
            held.append(free <= kept)
            kept = max(kept, fixed(band.reserve))
        return held

    def _dispatch(self, now: float) -> list[Decision]:
        out = []
        while len(self.running) < self.seats:
            claim, held = self._claims(now), self._held()
            choice = self.account.choose(claim, held)
            if choice is None:
                break
            band, kind = choice
            self.account.commit(band, kind, claim, held)
            ticket = next(w for w in self.waiting if w.band == band)
            self.waiting.remove(ticket)
            self.running.add(ticket.id)
            out.append(Decision("dispatch", ticket.id, kind))
        return out
