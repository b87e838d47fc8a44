"""What each tenant used since somebody last took it: the recorder adds, the control room takes it and stores it.

Bounded: beyond ``MOST_TENANTS`` names between two takings the rest counts together as ``OTHERS``. Only names of
configured tenants come in, so that this takes a very long list of them.
"""

from __future__ import annotations

from tidegate.core import Outcome, Reason
from tidegate.stores import Usage

MOST_TENANTS = 50_000
OTHERS = "(others)"  # no tenant can have this name


class UsageBook:
    """Counts by tenant."""

    __slots__ = ("_most", "_used")

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most = most
        self._used: dict[str, Usage] = {}

    def dispatched(self, tenant: str, waited_s: float) -> None:
        """Count a seat that a request got after a wait."""
        usage = self._used.get(tenant) or self._new(tenant)
        usage.dispatched += 1
        usage.wait_s += waited_s
        if waited_s > usage.longest_wait_s:
            usage.longest_wait_s = waited_s

    def ended(
        self,
        tenant: str,
        outcome: Outcome,
        reason: Reason | None = None,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """Count a request that ended in any way; ``reason`` where it is a refusal."""
        usage = self._used.get(tenant) or self._new(tenant)
        if outcome is Outcome.COMPLETED:
            usage.completed += 1
        elif outcome is Outcome.FAILED:
            usage.failed += 1
        elif outcome is Outcome.REJECTED:
            usage.rejected += 1
        elif outcome is Outcome.EVICTED:
            usage.evicted += 1
        else:
            usage.cancelled += 1
        if input_tokens or output_tokens:
            usage.input_tokens += input_tokens
            usage.output_tokens += output_tokens
        if reason is not None:
            usage.refusals[reason] = usage.refusals.get(reason, 0) + 1

    def take(self) -> dict[str, Usage]:
        """Return what was counted, and begin anew."""
        taken, self._used = self._used, {}
        return taken

    def _new(self, tenant: str) -> Usage:
        """Give the row of a tenant that has none."""
        if len(self._used) >= self._most:
            tenant = OTHERS
        return self._used.setdefault(tenant, Usage(refusals={}))


def added(one: Usage, other: Usage) -> Usage:
    """Return the sum of what was used in two stretches of time."""
    refusals = {**one.refusals}
    for reason, count in other.refusals.items():
        refusals[reason] = refusals.get(reason, 0) + count
    return Usage(
        completed=one.completed + other.completed,
        failed=one.failed + other.failed,
        rejected=one.rejected + other.rejected,
        evicted=one.evicted + other.evicted,
        cancelled=one.cancelled + other.cancelled,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        dispatched=one.dispatched + other.dispatched,
        wait_s=one.wait_s + other.wait_s,
        longest_wait_s=max(one.longest_wait_s, other.longest_wait_s),
        refusals=refusals,
    )
