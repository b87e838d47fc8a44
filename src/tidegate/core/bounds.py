"""Judge a policy without running it: how long each band may wait at most, and what looks wrong (SPEC §4.1, §13).

The bound speaks of a pool that is never short of work: whatever waits elsewhere, a band gets a certain part of the
dispatches, and with every seat held at most ``service_s`` there are at least ``seats`` dispatches in each such time.
So ``n`` dispatches take at most ``ceil(n / seats)`` service times. How many dispatches a band waits for its own comes
from the floor (one in every period), the share (``weighted``), or, for the highest band, from the overtake cap.
A time to live ends every wait earlier: the bound is what a ticket would wait if it could.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil

from tidegate.core.policy import Band, Discipline, Policy, Unit


@dataclass(slots=True, frozen=True)
class LongestWait:
    """The longest wait of one band under the policy, seconds; ``None``: it may wait for ever.

    Attributes:
        band: its name.
        next_s: until the band's next dispatch.
        fair_s: of a tenant's first ticket, when ``tenants`` of equal weight have work in the band.
        full_s: of the last ticket of a full band.
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


def dispatches_per_turn(policy: Policy, index: int) -> tuple[Fraction | None, str]:
    """Return in how many dispatches of its pool a waiting band gets one, ``None`` for no promise; and why."""
    band = policy.bands[index]
    promises: list[tuple[Fraction, str]] = []
    if band.floor:
        period = int(1 / band.floor)
        promises.append((Fraction(period), f"the floor of {_part(band.floor)} promises 1 of every {period} dispatches"))
    if policy.discipline is Discipline.WEIGHTED:
        promises.extend(_share_promise(policy, index))
    elif index == 0 and band.ceiling == 1:
        part = 1 - _most_overtakes(policy)
        if part:
            promises.append((1 / part, f"others may pass it in at most {_part(1 - part)} of the dispatches"))
    if not promises:
        return None, "no floor: whatever waits above may go first for ever"
    return min(promises)


def _share_promise(policy: Policy, index: int) -> list[tuple[Fraction, str]]:
    band = policy.bands[index]
    if band.ceiling < 1 or any(higher.reserve for higher in policy.bands[:index]):
        return []  # a turn passes neither a ceiling nor a reserve
    total = sum(each.share for each in policy.bands)
    passing = _most_overtakes(policy)
    part = Fraction(band.share, total) * (1 - passing)
    unit = "dispatches" if policy.unit is Unit.REQUESTS else "tokens (dispatches, where requests are alike)"
    line = f"its share is {band.share} of {total} of the {unit}"
    return [
        (1 / part, line + (f", less at most {_part(passing)} that passes by floors and promotion" if passing else ""))
    ]


def _most_overtakes(policy: Policy) -> Fraction:
    """Return the most part of the dispatches in which a lower band passes: the floors, and the cap where age may."""
    by_age = policy.discipline is Discipline.AGING or any(band.promote_after_s for band in policy.bands[1:])
    floors = sum((Fraction(1, int(1 / band.floor)) for band in policy.bands[1:] if band.floor), Fraction(0))
    return max(floors, Fraction(policy.overtake_cap)) if by_age and len(policy.bands) > 1 else floors


def _longest_wait(policy: Policy, index: int, *, seats: int, service_s: float, tenants: int) -> LongestWait:
    band = policy.bands[index]
    per_turn, reason = dispatches_per_turn(policy, index)
    lines = [reason]
    if per_turn is None or seats < 1:
        lines.append("it may wait for ever" if per_turn is None else "the pool has no seats")
        return LongestWait(band.name, None, None, None, (*lines, _ttl_line(band)))

    def time(turns: int, what: str) -> float:
        dispatches = ceil(turns * per_turn)
        rounds = ceil(Fraction(dispatches, seats))
        lines.append(
            f"{what}: {turns} × {_number(per_turn)} = {dispatches} dispatches, "
            f"{rounds} × {service_s:g} s on {seats} seats = {rounds * service_s:g} s"
        )
        return rounds * service_s

    next_s = time(1, "the band's next dispatch")
    fair_s = time(tenants, f"a tenant's first ticket among {tenants} tenants") if tenants > 1 else next_s
    full_s = time(band.capacity, "the last ticket of a full band")
    return LongestWait(band.name, next_s, fair_s, full_s, (*lines, _ttl_line(band)))


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
    message = f"the floors spend the whole cap of {_part(policy.overtake_cap)}: nothing is left to pass by age"
    return [Finding(FindingKind.CAP_SPENT, "policy.overtake_cap", message)]


def _idle_seats(policy: Policy, seats: int) -> list[Finding]:
    found = []
    highest = max(band.ceiling for band in policy.bands)
    used = min(seats, int(highest * seats) + 1)
    if highest < 1 and used < seats:
        message = (
            f"no band starts work above {_part(highest)}: {seats - used} of {seats} seats stay idle but for floors"
        )
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


def _part(part: Fraction) -> str:
    return f"{float(part):.3g}"


def _number(value: Fraction) -> str:
    return f"{float(value):.4g}"
