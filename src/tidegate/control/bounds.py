"""The starvation bounds of ``tidegate check`` for the gateway as it runs: with the seats that it has now."""

from __future__ import annotations

from tidegate.config import Settings
from tidegate.core.bounds import longest_waits


def longest_waits_of(settings: Settings, seats: dict[str, int], service_s: float) -> dict[str, float | None]:
    """Return for each band its longest wait for its next dispatch, seconds, in the pool where that is longest.

    Args:
        settings: whose policy is judged.
        seats: of each pool.
        service_s: longest time that a request holds a seat.

    Returns:
        By the band's name; ``None``: it may wait for ever.
    """
    policy = settings.core_policy()
    found: dict[str, float | None] = dict.fromkeys(settings.band_names, 0.0)
    for count in dict.fromkeys(seats.values()):
        for wait in longest_waits(policy, seats=count, service_s=service_s):
            longest = found[wait.band]
            found[wait.band] = None if longest is None or wait.next_s is None else max(longest, wait.next_s)
    return found
