"""What each tenant used since somebody last took it: the recorder adds, the control room takes it and stores it.

Bounded: beyond ``MOST_TENANTS`` names between two takings the rest counts together as ``OTHERS``. Only names of
configured tenants come in, so that this takes a very long list of them.
"""

from __future__ import annotations

from typing import Final

from tidegate.core import Outcome, Reason
from tidegate.stores import Usage

MOST_TENANTS: Final = 50_000
_COMPLETED: Final = Outcome.COMPLETED
OTHERS: Final = "(others)"  # no tenant can have this name


class Used:
    """What one tenant used: the counts of ``Usage``, in a form that is quick to count in."""

    __slots__ = (
        "cancelled", "completed", "dispatched", "evicted", "failed", "input_tokens", "longest_wait_s", "output_tokens",
        "refusals", "rejected", "wait_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.completed = self.failed = self.rejected = self.evicted = self.cancelled = 0
        self.input_tokens = self.output_tokens = self.dispatched = 0
        self.wait_s = self.longest_wait_s = 0.0
        self.refusals: dict[str, int] = {}

    def add(self, other: Used) -> None:
        """Count what was used in another stretch of time besides."""
        self.completed += other.completed
        self.failed += other.failed
        self.rejected += other.rejected
        self.evicted += other.evicted
        self.cancelled += other.cancelled
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.dispatched += other.dispatched
        self.wait_s += other.wait_s
        self.longest_wait_s = max(self.longest_wait_s, other.longest_wait_s)
        for reason, count in other.refusals.items():
            self.refusals[reason] = self.refusals.get(reason, 0) + count

    def usage(self) -> Usage:
        """Give it as it is stored."""
        return Usage(
            completed=self.completed,
            failed=self.failed,
            rejected=self.rejected,
            evicted=self.evicted,
            cancelled=self.cancelled,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            dispatched=self.dispatched,
            wait_s=self.wait_s,
            longest_wait_s=self.longest_wait_s,
            refusals=self.refusals,
        )


class UsageBook:
    """Counts by tenant."""

    __slots__ = ("_most", "_used")

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most = most
        self._used: dict[str, Used] = {}

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
        if outcome is _COMPLETED:
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

    def take(self) -> dict[str, Used]:
        """Return what was counted, and begin anew."""
        taken, self._used = self._used, {}
        return taken

    def _new(self, tenant: str) -> Used:
        """Give the row of a tenant that has none."""
        if len(self._used) >= self._most:
            tenant = OTHERS
        return self._used.setdefault(tenant, Used())
