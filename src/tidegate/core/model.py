"""The nouns of the scheduler: outcome, reason, ticket, work estimate, lease.

Invariants: a ticket ends in exactly one ``Outcome``; a lease is released exactly once. Times are seconds as
``float`` from one monotonic source, called ``now``. The core sees tickets, never prompts.

What is made for every request has its ``__init__`` written out: compiled, one made by ``dataclass`` takes ten times as
long. None of it is changed once it is made; frozen, it would take five times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.core.compiling import mypyc_attr


class Outcome(StrEnum):
    """How a ticket ended. Every ticket ends in exactly one."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    EVICTED = "evicted"
    CANCELLED = "cancelled"


class Reason(StrEnum):
    """Why a ticket did not complete: metric label, log field and ``error.code`` source (SPEC §6)."""

    QUEUE_FULL = "queue_full"
    DISPLACED = "displaced"
    EXPIRED = "expired"
    SHED = "shed"
    TENANT_LIMIT = "tenant_limit"
    PREEMPTED = "preempted"
    UPSTREAM_BUSY = "upstream_busy"
    NO_BACKEND = "no_backend"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    DRAINING = "draining"
    CANCELLED = "cancelled"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN_BAND = "forbidden_band"
    UNKNOWN_MODEL = "unknown_model"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    DEPENDENCY_FAILED = "dependency_failed"
    DEPENDENCY_CYCLE = "dependency_cycle"


class Stoppable(StrEnum):
    """When a running ticket may be stopped for a higher band (SPEC §7)."""

    NEVER = ""
    UNSTARTED = "unstarted"  # before its first token, since its answer could not go on
    ALWAYS = "always"  # its answer goes on where it was


class Turn(StrEnum):
    """The three kinds of dispatch (SPEC §4.1)."""

    TURN = "turn"
    FLOOR = "floor"
    OVERTAKE = "overtake"


@mypyc_attr(acyclic=True, free_list_len=1)
@dataclass(slots=True, init=False)
class WorkEstimate:
    """Predicted work of one request, in tokens. Estimates order and budget; they change no answer."""

    input_tokens: int
    output_tokens: int

    def __init__(self, input_tokens: int = 0, output_tokens: int = 0) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens

    @property
    def tokens(self) -> int:
        """Input plus output tokens: the unit of fairness and of the weighted discipline."""
        return self.input_tokens + self.output_tokens


NO_WORK: Final = WorkEstimate()
_COMPLETED: Final = Outcome.COMPLETED
_NEVER: Final = Stoppable.NEVER


@mypyc_attr(acyclic=True, free_list_len=1)
@dataclass(slots=True, eq=False, init=False)
class Ticket:
    """The scheduler's view of one request. Set once by the caller, never changed afterwards.

    Attributes:
        id: unique for the life of the scheduler.
        pool: name of the pool (one ``models`` entry).
        band: index of the band, 0 is the highest.
        tenant: who pays; limits count on it.
        flow: fairness id, the sub-queue inside the band; empty means the tenant.
        work: predicted tokens.
        ttl_s: longest wait that the client allows; only ever shortens the band's TTL. ``None``: the band's.
        deadline: the client's own deadline as a ``now`` value, ``None`` without one.
        arrived: first arrival to keep (a displaced request that came back, SPEC §15.8); ``None``: now.
        affinity: hash of what it shares with others (its first kilobytes), 0 for nothing; such go to one backend.
        patient: work of a job: it waits where other work would be shed, also while a mode closes its band.
        size_bytes: bytes of the body held in memory while it waits.
        name: request name inside the tenant (``x-request-id``), target of dependencies; empty: unnamed.
        depends_on: full names (``tenant/name``) or bare names of this tenant that must be done first.
        stoppable: when it may be stopped while it runs, should its band be ``preemptible``.
    """

    id: str
    pool: str
    band: int
    tenant: str
    work: WorkEstimate
    flow: str
    ttl_s: float | None
    deadline: float | None
    arrived: float | None
    size_bytes: int
    name: str
    depends_on: tuple[str, ...]
    affinity: int
    patient: bool
    stoppable: Stoppable

    def __init__(
        self,
        id: str,  # noqa: A002
        pool: str,
        band: int,
        tenant: str,
        work: WorkEstimate = NO_WORK,
        flow: str = "",
        ttl_s: float | None = None,
        deadline: float | None = None,
        arrived: float | None = None,
        size_bytes: int = 0,
        name: str = "",
        depends_on: tuple[str, ...] = (),
        affinity: int = 0,
        patient: bool = False,  # noqa: FBT001, FBT002
        stoppable: Stoppable = _NEVER,
    ) -> None:
        self.id = id
        self.pool = pool
        self.band = band
        self.tenant = tenant
        self.work = work
        self.flow = flow
        self.ttl_s = ttl_s
        self.deadline = deadline
        self.arrived = arrived
        self.size_bytes = size_bytes
        self.name = name
        self.depends_on = depends_on
        self.affinity = affinity
        self.patient = patient
        self.stoppable = stoppable


@mypyc_attr(acyclic=True, free_list_len=1)
@dataclass(slots=True, eq=False, init=False)
class Lease:
    """The right to hold one seat of ``backend`` until it is released.

    Attributes:
        id: number, unique for the life of the scheduler.
        ticket: the ticket that holds it.
        backend: name of the backend.
        kind: turn, floor or overtake.
        band: effective band that the dispatch was made for (differs from the ticket's when lent).
        waited_s: queue wait, seconds.
        started: ``now`` of the dispatch.
    """

    id: int
    ticket: Ticket
    backend: str
    kind: Turn
    band: int
    waited_s: float
    started: float

    def __init__(
        self,
        id: int,  # noqa: A002
        ticket: Ticket,
        backend: str,
        kind: Turn,
        band: int,
        waited_s: float,
        started: float,
    ) -> None:
        self.id = id
        self.ticket = ticket
        self.backend = backend
        self.kind = kind
        self.band = band
        self.waited_s = waited_s
        self.started = started


@mypyc_attr(acyclic=True, free_list_len=1)
@dataclass(slots=True, init=False)
class Release:
    """What became of a lease: its outcome and, when the engine told, the tokens really used.

    Attributes:
        outcome: how the request ended.
        input_tokens: of the prompt.
        output_tokens: of the answer.
        ttft_s: dispatch to first token.
        tpot_s: mean time per output token after the first.
    """

    outcome: Outcome
    input_tokens: int | None
    output_tokens: int | None
    ttft_s: float | None
    tpot_s: float | None

    def __init__(
        self,
        outcome: Outcome = _COMPLETED,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
    ) -> None:
        self.outcome = outcome
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.ttft_s = ttft_s
        self.tpot_s = tpot_s


@dataclass(slots=True, frozen=True)
class Requeue:
    """A lease came to nothing, or ended before its answer did: its ticket goes back to its old place.

    It waits there outside of capacity and TTL, with its arrival; only its client's deadline still holds. Given to
    ``release`` in place of a ``Release``. The tokens charged to quotas are given back, the request stays counted.
    The end of a lease that was to be stopped (``Preempt``) is told in this way too.

    Attributes:
        avoid: the failure was the backend's own, and it must not have this ticket again. When no backend is left that
            has not failed it, the ticket ends with ``reason``. False after a 429, which is observed as ``Paused``.
        reason: what the ticket ends with then.
        begun: a part of its answer is there. From then on it counts as running work where a mode closes its band, and
            no newcomer displaces it. So it does after a stop that was asked for.
    """

    avoid: bool = False
    reason: Reason = Reason.UPSTREAM_ERROR
    begun: bool = False
