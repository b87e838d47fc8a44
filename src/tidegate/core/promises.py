"""In how many dispatches of its pool a waiting band surely gets ``n`` of its own (SPEC §4.1).

Count the dispatches of one pool from any moment on, while the band always has a ticket that may run (no gate, no
tenant limit). Retries on another backend are not counted: they have had their turn. ``k`` bands have a floor, band
``j``'s period is ``T_j``, ``x`` is the cap less all floors. Proofs, by the rule in ``between`` and ``shares``:

**A floor.** Order the floored bands that can run by slack ``T - 1 - gap``; at each decision the slack at place ``i``
(from 0) is at least ``i``. True at first: a gap starts at 0, or at most at ``join``, so slack is at least ``k`` (since
``T > k``). If some slack equals its place, the floor serves place 0, the others move one place and one slack down; if
none does, all slacks are above their place and lose one. Served bands restart with ``T - 1 >= k``. So no slack passes
below 0: the band gets at least one of every ``T``, and its n-th comes by ``n T``.

**Floors of others.** Only the smallest slack is served, and only while some slack is at most its place, which is at
most ``k - 1``. So a floor needs a gap of at least ``T_j - k``: it may come that early. Two dispatches of which the
later is a floor of ``j`` are ``T_j - k + 1`` apart, so among N there are at most ``1 + (N-1) // (T_j - k + 1)`` floors
of ``j``; one less when another dispatch of ``j`` comes before them.

**Overtakes.** Credit is at most one, banked before we count; an overtake leaves none, and each dispatch earns ``x``.
So of N dispatches in which one band is overtaken at most ``1 + floor((N-1) x)`` are overtakes (none when ``x`` is 0).
The overtaken band is the highest that may take a turn, and that is ours or one above it: with ``t`` such bands at
most ``t + floor((N-1) x)``. The highest band itself: ``t = 1``.

**The highest band** under ``aging`` and ``strict``, never held: every dispatch is its own, a floor of another, or an
overtake. So its n-th comes by the least ``N`` with ``N - floors(N) - overtakes(N) >= n``.

**A share.** A turn goes to the band that is due first, at virtual time P, the present; its next is ``s_j = 1 /
share_j`` later (requests alike). Ours is due at most ``s_b`` after P0, the present at the start, and by induction its
n-th dispatch comes while the present is at most ``P0 + n s_b``. Turns of band ``j`` in between are at least ``s_j``
apart and not before P0: at most ``n share_j // share_b + 1`` when ``j`` is higher (it wins ties), and
``ceil(n share_j / share_b)`` when it is lower. A floor or overtake that is the first dispatch of ``j`` puts its next
turn to ``P0 + s_j``: it takes the place of that turn. Else a turn comes first, which leaves one floor less. So turns
and floors of ``j`` are at most their sum less one where both are possible.
With ``unit: tokens`` that holds for requests alike. Where a request of the band is ``r`` times as large as those of
the others, count ``r`` of theirs for each one counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from tidegate.core.policy import AUTO, Band, Discipline, Policy, Unit

MOST = 10**9  # dispatches; a bound beyond says nothing


@dataclass(slots=True, frozen=True)
class Promise:
    """A bound and why it holds. ``count`` is in dispatches of the pool, ``None`` when there is no bound."""

    count: int | None
    reason: str


def may_overtake(policy: Policy, index: int) -> bool:
    """Say whether a band may pass a higher one by age."""
    by_age = policy.discipline is Discipline.AGING or policy.bands[index].promote_after_s is not None
    return by_age and index > 0 and spare(policy) > 0


def spare(policy: Policy) -> Fraction:
    """Return what the cap leaves for overtakes: the cap less the floors."""
    return Fraction(policy.overtake_cap) - sum((band.floor for band in policy.bands), Fraction(0))


def period(band: Band) -> int:
    """Return in how many dispatches a floored band gets one."""
    return int(1 / band.floor)


def reserve_of(band: Band, seats: int) -> int:
    """Return the most seats that a band's reserve may take: an automatic one at most a quarter, none below eight."""
    if band.reserve == AUTO:
        return seats // 4 if seats >= 8 else 0
    return band.reserve


def nth_dispatch(policy: Policy, index: int, n: int, *, seats: int) -> Promise:
    """Bound the dispatches until a waiting band has had ``n`` of its own; the best of the promises made to it."""
    band = policy.bands[index]
    promises = []
    if band.floor:
        each = period(band)
        promises.append(Promise(n * each, f"the floor of {part(band.floor)} promises 1 of every {each} dispatches"))
    if policy.discipline is Discipline.WEIGHTED:
        if _takes_turns(policy, index, seats):
            promises.append(_by_share(policy, index, n))
    elif index == 0 and band.ceiling == 1:
        promises.append(_highest(policy, n))
    bounded = [promise for promise in promises if promise.count is not None]
    if bounded:
        return min(bounded, key=lambda promise: promise.count or 0)
    return promises[0] if promises else Promise(None, "no floor: whatever waits above may go first for ever")


def _takes_turns(policy: Policy, index: int, seats: int) -> bool:
    """Say whether nothing but seats can keep a band from its turns: a turn passes neither ceiling nor reserve."""
    higher = policy.bands[:index]
    return policy.bands[index].ceiling == 1 and not any(reserve_of(band, seats) for band in higher)


def _highest(policy: Policy, n: int) -> Promise:
    count = _least(
        lambda size: n + sum(_floors(policy, index, size) for index in _below(policy)) + _age(policy, 0, size)
    )
    floored = sum(policy.bands[index].floor > 0 for index in _below(policy))
    if count is None:
        return Promise(None, "floors and overtakes may take every dispatch")
    passing = f"{count - n} that pass: floors of {floored} bands, early or together, and overtakes, one saved up"
    return Promise(count, passing if count > n else "nothing passes it")


def _by_share(policy: Policy, index: int, n: int) -> Promise:
    own = policy.bands[index].share
    total = sum(band.share for band in policy.bands)

    def others(size: int) -> int:
        count = n + _age(policy, index, size)
        for each, band in enumerate(policy.bands):
            if each != index:
                turns = n * band.share // own + 1 if each < index else ceil(Fraction(n * band.share, own))
                floors = _floors(policy, each, size)
                count += turns + floors - (floors > 0)
        return count

    unit = "dispatches" if policy.unit is Unit.REQUESTS else "tokens (requests alike)"
    count = _least(others)
    line = f"its share is {own} of {total} of the {unit}"
    if count is None:
        return Promise(None, line + ", but floors and overtakes may take every dispatch")
    return Promise(count, f"{line}, evenly spread, less floors and overtakes that may gather")


def _below(policy: Policy) -> range:
    return range(1, len(policy.bands))


def _floors(policy: Policy, index: int, size: int) -> int:
    """Return the most floor dispatches of a band among ``size`` in a row."""
    band = policy.bands[index]
    if not band.floor:
        return 0
    floored = sum(each.floor > 0 for each in policy.bands)
    return 1 + (size - 1) // (period(band) - floored + 1)


def _age(policy: Policy, index: int, size: int) -> int:
    """Return the most overtakes by other bands among ``size`` dispatches, while band ``index`` could take turns."""
    if not any(may_overtake(policy, other) for other in range(len(policy.bands)) if other != index):
        return 0
    return index + 1 + floor((size - 1) * spare(policy))


def _least(needed: Callable[[int], int]) -> int | None:
    """Return the least size with ``size >= needed(size)``, where ``needed`` only grows; ``None`` beyond ``MOST``."""
    if needed(MOST) > MOST:
        return None
    size = 0
    while (more := needed(size + 1)) > size + 1:
        size = more - 1
    return size + 1


def fair_dispatch(policy: Policy, index: int, place: int, *, seats: int) -> Promise:
    """Bound the dispatches until the ``place``-th turn or floor of a band: an overtake follows age, not fair shares.

    Between two of them the band may only overtake. With a period ``T`` overtakes in a row are at most ``T - 1`` apart
    (after ``T`` the floor comes first), and they are bounded as above, so it comes by ``place T + overtakes (T - 1)``.
    When credit for one takes at least ``T`` dispatches and only one band is above, no two stand in a row:
    ``place (2 T - 1)``. And an overtake serves a ticket older than ours, of which the band holds at most its capacity.
    """
    if not may_overtake(policy, index):
        return nth_dispatch(policy, index, place, seats=seats)
    band, extra = policy.bands[index], spare(policy)
    by_age = nth_dispatch(policy, index, place + band.capacity - 1, seats=seats)
    counts = [by_age.count]
    if band.floor:
        each = period(band)
        counts.append(
            _least(lambda size: place * each + (index + floor((size - 1) * extra)) * (each - 1)) if extra < 1 else None
        )
        if index == 1 and ceil(1 / extra) >= each:
            counts.append(place * (2 * each - 1))
    known = [count for count in counts if count is not None]
    return Promise(min(known), "overtakes may come before its turn") if known else by_age


def part(value: Fraction) -> str:
    """Write a part as a short decimal."""
    return f"{float(value):.3g}"
