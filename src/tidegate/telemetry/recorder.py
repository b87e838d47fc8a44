"""Count what happened: a fold over the scheduler's actions and the ends of leases.

Invariant: every ticket is counted exactly once in ``tidegate_requests_total``. A ``Reject`` or ``Evict`` counts
when the scheduler says it, a ticket that leaves the queue when it is cancelled there, every other one when its
lease ends. All of these are told by the driver; a caller outside only adds what the scheduler never sees:
refusals before a ticket existed, the time of the first byte, clamps.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.core import (
    Action,
    Dispatch,
    Evict,
    Lease,
    Outcome,
    Policy,
    Preempt,
    Promote,
    Reason,
    Reject,
    Release,
    Ticket,
    Turn,
)
from tidegate.splice import Waste
from tidegate.telemetry.accounts import WAIT_BOUNDS_S, BandAccount, Histogram, WindowMax
from tidegate.telemetry.arrivals import RecentArrivals
from tidegate.telemetry.collector import Collector
from tidegate.telemetry.exposition import page
from tidegate.telemetry.heavy import RecentHeavy
from tidegate.telemetry.recent import RecentRefusals
from tidegate.telemetry.usage import UsageBook

if TYPE_CHECKING:
    from tidegate.core import Snapshot
    from tidegate.stores.ledger_client import Counts

OVERTAKE: Final = Turn.OVERTAKE
_COMPLETED: Final = Outcome.COMPLETED
_FAILED: Final = Outcome.FAILED
OTHER: Final = "other"
NONE: Final = "none"
_FAILURES: Final = frozenset({Reason.UPSTREAM_ERROR, Reason.UPSTREAM_TIMEOUT})


def refusal_outcome(action: Reject | Evict) -> Outcome:
    """Return how a refused ticket ended: one whose every backend failed has failed (SPEC §15.9)."""
    if action.reason in _FAILURES:
        return Outcome.FAILED
    return Outcome.REJECTED if isinstance(action, Reject) else Outcome.EVICTED


class Source(Protocol):
    """Where the gauges come from at a scrape: the driver."""

    def now(self) -> float: ...
    def snapshot(self) -> Snapshot: ...


class ReplicaSource(Protocol):
    """Where the figures of a gateway that shares its pools come from."""

    @property
    def degraded(self) -> bool: ...

    @property
    def namesakes(self) -> int: ...

    @property
    def differing(self) -> int: ...

    def counts(self) -> Counts: ...


class Recorder:
    """Metrics of one gateway, and what the dashboard shows of the last minutes.

    Args:
        policy: gives the band, model and backend names; labels take no other values.
        mode: name of the mode in force.

    Attributes:
        held: the longest that a finished request held its seat in the last five minutes, seconds.
        tenant_tokens, tenant_refusals: the tenants that used and were refused most in the last minute.
        recent: the last refusals that clients were told.
        usage: what each tenant used since the control room last took it.
        arrivals: the requests that came last.
    """

    def __init__(self, policy: Policy, *, mode: str = "normal") -> None:
        self.mode = mode
        self.inheritances = 0
        self.waste = Waste()
        self.preemptions: defaultdict[tuple[int, int], int] = defaultdict(int)  # by band of the victim, and for whom
        self.resumes: defaultdict[tuple[str, str], int] = defaultdict(int)  # by cause and outcome
        self.seams: dict[str, Histogram] = {}
        self._again: set[str] = set()  # tickets that wait for another time: their wait has been counted
        self.loop_stall = WindowMax(slot_s=1.0, slots=10)
        self.held = WindowMax(slot_s=30.0, slots=10)
        self.tenant_tokens = RecentHeavy()
        self.tenant_refusals = RecentHeavy()
        self.recent = RecentRefusals()
        self.usage = UsageBook()
        self.arrivals = RecentArrivals()
        self.accounts: dict[str, BandAccount] = {}
        self.source: Source | None = None
        self.replica: ReplicaSource | None = None
        self._bands: list[BandAccount] = []
        self._models: dict[str, str] = {}  # names of pools as labels take them
        self.set_policy(policy)
        self._collector = Collector(self)

    def set_policy(self, policy: Policy) -> None:
        """Follow a change of the models' names. The bands stay what they are as long as the scheduler runs."""
        for band in policy.bands:
            self.accounts.setdefault(band.name, BandAccount(band.name))
        self._bands = [self.accounts[band.name] for band in policy.bands]
        self._models = {pool.name: pool.name for pool in policy.pools}

    @property
    def bands(self) -> list[str]:
        """Names of the bands, highest first."""
        return [account.name for account in self._bands]

    # Told by the driver.

    def submitted(self, now: float, ticket: Ticket, actions: list[Action]) -> None:
        """Fold what the scheduler answered to ``ticket``."""
        account = self._bands[ticket.band]
        account.depth += 1
        self.arrivals.note(now, ticket)
        if actions:
            self.actions(now, actions)
        if account.depth > 0:
            account.depth_max.note(now, account.depth)

    def actions(self, now: float, actions: list[Action]) -> None:
        """Fold the actions of one call."""
        if len(actions) == 1 and isinstance(only := actions[0], Dispatch):  # the most common by far
            self._dispatched(only.lease)
            return
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatched(action.lease)
            elif isinstance(action, Promote):
                self._promoted(action)
            elif not isinstance(action, Preempt):  # counted when it has really been stopped
                self._refused(now, action)

    def cancelled(self, now: float, ticket: Ticket) -> None:  # noqa: ARG002
        """Count a ticket whose client left while it waited."""
        account = self._bands[ticket.band]
        self._again.discard(ticket.id)
        account.depth -= 1
        account.ends[self._models.get(ticket.pool, OTHER)].add(Outcome.CANCELLED)
        self.usage.ended(ticket.tenant, Outcome.CANCELLED)

    def finished(self, now: float, lease: Lease, release: Release, *, reason: Reason | None = None) -> None:
        """Count the end of a lease.

        Args:
            now: time of the end.
            lease: the lease that ended.
            release: outcome, and the tokens used as far as they are known.
            reason: row of the refusal table when the request failed after its dispatch.
        """
        ticket, outcome, held_s = lease.ticket, release.outcome, now - lease.started
        account = self._bands[ticket.band]
        account.running[lease.backend].value -= 1
        ends = account.ends[self._models.get(ticket.pool, OTHER)]
        if outcome is _COMPLETED:
            ends.completed += 1
        else:
            ends.add(outcome)
        account.request.observe(held_s + lease.waited_s)
        if reason is not None:
            if outcome is _FAILED:
                account.refusals[reason] += 1
            else:
                reason = None
        read, written = release.input_tokens, release.output_tokens
        self.usage.ended(ticket.tenant, outcome, reason, input_tokens=read or 0, output_tokens=written or 0)
        work, used = ticket.work, 0
        if read is not None:
            used = read
            account.input_tokens += read
            if work.input_tokens:
                account.input_ratio.observe(read / work.input_tokens)
        if written is not None:
            used += written
            account.output_tokens += written
            if work.output_tokens and outcome is _COMPLETED:
                account.output_ratio.observe(written / work.output_tokens)
        if used:
            self.waste.ended(outcome, used)
            self.tenant_tokens.add(now, ticket.tenant, used)
        self.held.note(now, held_s)

    def requeued(self, now: float, lease: Lease) -> None:
        """Count a lease that came to nothing: its ticket waits again, so it has not ended."""
        account = self._bands[lease.ticket.band]
        account.running[lease.backend].value -= 1
        account.depth += 1
        account.depth_max.note(now, account.depth)

    def preempted(self, lease: Lease, by: int) -> None:
        """Count a lease that was stopped for band ``by``; it is told as ``requeued`` besides."""
        self.preemptions[lease.ticket.band, by] += 1
        self._again.add(lease.ticket.id)

    # Told by the byte path.

    def resumed(self, cause: str, seam_s: float) -> None:
        """Count an answer that goes on after a seam; ``seam_s`` is the pause in it, seconds."""
        self.resumes[cause, Outcome.COMPLETED] += 1
        self.seams.setdefault(cause, Histogram(WAIT_BOUNDS_S)).observe(seam_s)

    def not_resumed(self, cause: str) -> None:
        """Count an answer that had begun, was stopped or broken, and cannot go on."""
        self.resumes[cause, Outcome.FAILED] += 1

    def recomputed(self, cause: str, tokens: int) -> None:
        """Count tokens that had to be computed again to go on with an answer."""
        self.waste.again(cause, tokens)

    def first_byte(self, lease: Lease, ttft_s: float) -> None:
        """Count the time from the arrival of a request to the first byte of its answer, seconds."""
        self._bands[lease.ticket.band].ttft.observe(ttft_s)

    def refused(self, reason: Reason, *, band: int | None = None, model: str = NONE, tenant: str = "") -> None:
        """Count a request that was refused before it became a ticket (no key, bad body, unknown model, ...).

        ``tenant`` is empty as long as it is not known whose it is.
        """
        account = self._bands[band] if band is not None else self.accounts.setdefault(NONE, BandAccount(NONE))
        account.ends[model if model == NONE else self._models.get(model, OTHER)].add(Outcome.REJECTED)
        account.refusals[reason] += 1
        if tenant:
            self.usage.ended(tenant, Outcome.REJECTED, reason)

    def clamped(self, band: int) -> None:
        """Count a request that asked for a higher band than its tenant may use; ``band`` is what it got."""
        self._bands[band].clamped += 1

    def demoted(self, band: int) -> None:
        """Count a request whose prompt is too long for its band; ``band`` is the lower one that it got."""
        self._bands[band].demoted += 1

    def exposition(self) -> bytes:
        """Everything in the Prometheus text format, version 0.0.4."""
        return page(self._collector.collect())

    # The fold.

    def _dispatched(self, lease: Lease) -> None:
        ticket = lease.ticket
        band = ticket.band
        account = self._bands[band]
        account.depth -= 1
        if self._again and ticket.id in self._again:
            self._again.discard(ticket.id)
        else:
            account.queue_wait.observe(lease.waited_s)
            self.usage.dispatched(ticket.tenant, lease.waited_s)
        account.running[lease.backend].value += 1
        work = ticket.work
        turn = account if lease.band == band else self._bands[lease.band]
        turn.dispatched += 1
        turn.dispatched_tokens += work.input_tokens + work.output_tokens
        if lease.kind is OVERTAKE:
            turn.overtakes += 1

    def _promoted(self, action: Promote) -> None:
        if action.why == "lent":
            self.inheritances += 1
        else:
            self._bands[action.ticket.band].promotions += 1

    def _refused(self, now: float, action: Reject | Evict) -> None:
        ticket = action.ticket
        account = self._bands[ticket.band]
        self._again.discard(ticket.id)
        account.depth -= 1
        outcome = refusal_outcome(action)
        account.ends[self._models.get(ticket.pool, OTHER)].add(outcome)
        self.usage.ended(ticket.tenant, outcome, action.reason)
        account.refusals[action.reason] += 1
        self.tenant_refusals.add(now, ticket.tenant, 1)
