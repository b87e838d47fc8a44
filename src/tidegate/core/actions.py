"""What the scheduler asks its shell to do. Plain values; the shell carries them out in order."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.compiling import mypyc_attr
from tidegate.core.model import Lease, Reason, Ticket


@mypyc_attr(acyclic=True, free_list_len=1)
@dataclass(slots=True, init=False)
class Dispatch:
    """Send the ticket upstream now; it holds ``lease`` until ``release``.

    Attributes:
        barred: the bands that waited and of which nothing could take this seat: a gate stopped them, or limits of
            their tenants. The dispatch is none that they were promised a part of.
    """

    ticket: Ticket
    lease: Lease
    barred: tuple[int, ...]

    def __init__(self, ticket: Ticket, lease: Lease, barred: tuple[int, ...] = ()) -> None:
        self.ticket = ticket
        self.lease = lease
        self.barred = barred


@mypyc_attr(acyclic=True)
@dataclass(slots=True, init=False)
class _Refusing:
    """Refuse a ticket.

    Attributes:
        reason: the row of the refusal table.
        retry_after_s: work ahead over the measured drain rate, without jitter; ``None`` when unknown.
        detail: what to tell the client beyond the table's sentence (which limit, which dependency).
    """

    ticket: Ticket
    reason: Reason
    retry_after_s: float | None
    detail: str

    def __init__(self, ticket: Ticket, reason: Reason, retry_after_s: float | None = None, detail: str = "") -> None:
        self.ticket = ticket
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.detail = detail


@mypyc_attr(acyclic=True)
@dataclass(slots=True, init=False)
class Reject(_Refusing):
    """Refuse a ticket that was never queued."""


@mypyc_attr(acyclic=True)
@dataclass(slots=True, init=False)
class Evict(_Refusing):
    """Refuse a ticket that was waiting."""


@mypyc_attr(acyclic=True)
@dataclass(slots=True, init=False)
class Promote:
    """Note that a waiting ticket began to claim with another band's weights.

    ``why`` is ``"age"`` (SPEC §4.1 promotion) or ``"lent"`` (inheritance, §4.6).
    """

    ticket: Ticket
    band: int
    why: str

    def __init__(self, ticket: Ticket, band: int, why: str) -> None:
        self.ticket = ticket
        self.band = band
        self.why = why


@mypyc_attr(acyclic=True)
@dataclass(slots=True, init=False)
class Preempt:
    """Stop a running ticket for a higher band. Its seat counts as taken until its lease is released.

    The shell releases the lease with ``Requeue`` once the engine let go, or says that it cannot stop it (``Declined``).
    Should the ticket end by itself meanwhile, its ``Release`` is as good.

    Attributes:
        by: the band that it is stopped for.
    """

    ticket: Ticket
    lease: Lease
    by: int
    reason: Reason

    def __init__(self, ticket: Ticket, lease: Lease, by: int, reason: Reason = Reason.PREEMPTED) -> None:
        self.ticket = ticket
        self.lease = lease
        self.by = by
        self.reason = reason


Action = Dispatch | Reject | Evict | Preempt | Promote
