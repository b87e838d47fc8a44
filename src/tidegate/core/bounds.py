"""Judge a policy without running it: how long each band may wait at most, and what looks wrong (SPEC §4.1, §13).

The bound holds whatever waits elsewhere, for work that may run, while every upstream works and no request holds a seat
longer than ``service_s``. ``promises`` says in how many dispatches of the pool a waiting band gets its own. While the
band waits, ``used`` seats are busy: all but what a reserve above it or its ceiling keeps from it, because it would take
any other itself. Those busy at one moment are all given back within ``service_s``, and again as many are busy: so each
such time has at least ``used`` dispatches, and ``n`` of them take at most ``ceil(n / used)`` times ``service_s``.
A time to live ends every wait earlier: the bound is what a ticket would wait if it could.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil

from tidegate.core.policy import Band, Discipline, Policy
from tidegate.core.promises import Promise, fair_dispatch, nth_dispatch, part, reserve_of


@dataclass(slots=True, frozen=True)
class LongestWait:
    """The longest wait of one band under the policy, seconds; ``None``: it may wait for ever.

    Attributes:
        band: its name.
        next_s: until the band's next dispatch.
        fair_s: of a newcomer's first ticket, when ``tenants`` of equal weight, it included, have work in the band and
            requests are alike.
        full_s: until the band has had as many dispatches as it holds tickets: of the last ticket of a full band, where
            nothing that comes later goes before it.
        lines: the derivation, one sentence each.
    """

    band: str
    next_s: float | None
    fair_s: float | None
    full_s: float | None
    lines: tuple[str, ...]


class FindingKind(StrEnum):
    """What kind of warning a ``Finding`` is."""

    STARVES = "starves"
    CAP_SPENT = "cap_spent"
    IDLE_SEATS = "idle_seats"
    TTL_SHORT = "ttl_short"
    MANY_BANDS = "many_bands"


@dataclass(slots=True, frozen=True)
class Finding:
    """Something in a policy that works but may not be meant. ``field`` is the dotted path of the setting."""

    kind: FindingKind
    field: str
    message: str


def longest_waits(policy: Policy, *, seats: int, service_s: float, tenants: int = 1) -> tuple[LongestWait, ...]:
    """Bound the wait of each band.

    Args:
        policy: the policy to judge.
        seats: seats of the pool.
        service_s: longest time that a request holds a seat.
        tenants: how many tenants of equal weight have work in the band at a time.
    """
    return tuple(
        _longest_wait(policy, index, seats=seats, service_s=service_s, tenants=tenants)
        for index in range(len(policy.bands))
    )


def _longest_wait(policy: Policy, index: int, *, seats: int, service_s: float, tenants: int) -> LongestWait:
    band = policy.bands[index]
    promise = nth_dispatch(policy, index, 1, seats=seats)
    lines = [promise.reason]
    used = _busy_seats(policy, index, seats)
    if promise.count is None or used < 1:
        lines.append("it may wait for ever" if promise.count is None else "no seat is sure to be used while it waits")
        return LongestWait(band.name, None, None, None, (*lines, _ttl_line(band)))
    if used < seats:
        lines.append(f"a reserve or a ceiling may keep {seats - used} of {seats} seats idle while it waits")

    def time(promised: Promise, what: str) -> float | None:
        if promised.count is None:
            return None
        rounds = ceil(Fraction(promised.count, used))
        spent_s = rounds * service_s
        count = f"{promised.count:,} dispatch{'es' * (promised.count > 1)}"
        lines.append(f"{what}: {count} of the pool, {rounds:,} × {service_s:g} s on {used} seats = {spent_s:g} s")
        return spent_s

    next_s = time(promise, "the band's next dispatch")
    fair_s = next_s
    if tenants > 1:
        fair = fair_dispatch(policy, index, tenants, seats=seats)
        fair_s = time(fair, f"a newcomer's first ticket among {tenants} tenants")
    full_s = time(
        nth_dispatch(policy, index, band.capacity, seats=seats), "as many dispatches as the band holds tickets"
    )
    return LongestWait(band.name, next_s, fair_s, full_s, (*lines, _ttl_line(band)))


def _busy_seats(policy: Policy, index: int, seats: int) -> int:
    """Return how many seats are surely busy while a band waits: below that it would take one itself."""
    band = policy.bands[index]
    kept = max((reserve_of(higher, seats) for higher in policy.bands[:index]), default=0)
    return min(seats - kept, int(band.ceiling * seats) + 1, seats)


def _ttl_line(band: Band) -> str:
    return f"the time to live ends every wait after {band.ttl_s:g} s"


def findings(policy: Policy, *, seats: int, service_s: float, tenants: int = 1) -> tuple[Finding, ...]:
    """Return what a person should look at before using the policy. Arguments as in ``longest_waits``."""
    waits = longest_waits(policy, seats=seats, service_s=service_s, tenants=tenants)
    found = [
        Finding(
            FindingKind.STARVES, f"policy.bands.{wait.band}.floor", f"{wait.band} may wait for ever: {wait.lines[0]}"
        )
        for wait in waits
        if wait.next_s is None
    ]
    for band, wait in zip(policy.bands, waits, strict=True):
        if wait.fair_s is not None and band.ttl_s < wait.fair_s:
            message = f"{band.name} expires after {band.ttl_s:g} s, but may have to wait {wait.fair_s:g} s for its turn"
            found.append(Finding(FindingKind.TTL_SHORT, f"policy.bands.{band.name}.ttl", message))
    return (*found, *_cap_spent(policy), *_idle_seats(policy, seats), *_many_bands(policy))


def _cap_spent(policy: Policy) -> list[Finding]:
    floors = sum((band.floor for band in policy.bands), Fraction(0))
    by_age = policy.discipline is Discipline.AGING or any(band.promote_after_s for band in policy.bands[1:])
    if not by_age or len(policy.bands) == 1 or floors < policy.overtake_cap:
        return []
    message = f"the floors spend the whole cap of {part(policy.overtake_cap)}: nothing is left to pass by age"
    return [Finding(FindingKind.CAP_SPENT, "policy.overtake_cap", message)]


def _idle_seats(policy: Policy, seats: int) -> list[Finding]:
    found = []
    highest = max(band.ceiling for band in policy.bands)
    used = min(seats, int(highest * seats) + 1)
    if highest < 1 and used < seats:
        message = f"no band starts work above {part(highest)}: {seats - used} of {seats} seats stay idle but for floors"
        found.append(Finding(FindingKind.IDLE_SEATS, "policy.bands", message))
    for band in policy.bands[:-1]:
        if isinstance(band.reserve, int) and band.reserve >= seats > 0:
            message = f"a reserve of {band.reserve} with {seats} seats: lower bands start by floor or overtake only"
            found.append(Finding(FindingKind.IDLE_SEATS, f"policy.bands.{band.name}.reserve", message))
    return found


def _many_bands(policy: Policy) -> list[Finding]:
    count = len(policy.bands)
    if count <= 3:
        return []
    message = f"{count} bands: more than three are hard to reason about, and rarely all have work"
    return [Finding(FindingKind.MANY_BANDS, "policy.bands", message)]
