"""The starvation bounds that the policy in force promises, beside which the dashboard shows the longest waits.

They cost a few hundred microseconds, so they are worked out anew only when the policy or seats change, or the longest
time that a request held a seat does by more than its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

from tidegate.core import Policy
from tidegate.core.bounds import longest_waits

ASSUMED_SERVICE_S = 10.0
"""Longest time that a request holds a seat while none has ended: that of ``tidegate check``."""


@dataclass(slots=True, frozen=True)
class Bound:
    """What a band is promised, seconds, in the pool where that is worst; ``None``: no bound.

    Attributes:
        next_s: until its next dispatch, while it waits.
        oldest_s: longest wait of a ticket: through a full band, or the time to live, which ends it.
        ttl_s: that time to live.
    """

    next_s: float | None
    oldest_s: float
    ttl_s: float


class Bounds:
    """Remembers the last answer."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._key: tuple[tuple[int, ...], float] | None = None
        self._found: tuple[Bound, ...] = ()
        self.service_s = ASSUMED_SERVICE_S

    def of(self, policy: Policy, seats: tuple[int, ...], held_s: float) -> tuple[Bound, ...]:
        """Return the bounds, highest band first.

        Args:
            policy: in force; the same object as long as it is.
            seats: of each pool.
            held_s: longest time that a request held its seat of late; 0: none has ended.
        """
        self.service_s = rounded_up(held_s) if held_s > 0 else ASSUMED_SERVICE_S
        key = (tuple(sorted(set(seats))), self.service_s)
        if policy is not self._policy or key != self._key:
            self._found = _bounds(policy, *key)
            self._policy, self._key = policy, key
        return self._found


def rounded_up(value: float) -> float:
    """Return the least number of two digits that is not below ``value``, which must be above 0."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return float(f"{ceil(round(value / unit, 9)) * unit:.6g}")


def _bounds(policy: Policy, seats: tuple[int, ...], service_s: float) -> tuple[Bound, ...]:
    pools = [longest_waits(policy, seats=count, service_s=service_s) for count in seats if count > 0]
    found = []
    for index, band in enumerate(policy.bands):
        waits = [pool[index] for pool in pools]
        nexts = [wait.next_s for wait in waits]
        fulls = [wait.full_s for wait in waits if wait.full_s is not None]
        bounded = fulls if len(fulls) == len(waits) else []
        found.append(
            Bound(
                next_s=max((each for each in nexts if each is not None), default=None) if None not in nexts else None,
                oldest_s=min([band.ttl_s, *([max(bounded)] if bounded else [])]),
                ttl_s=band.ttl_s,
            )
        )
    return tuple(found)
