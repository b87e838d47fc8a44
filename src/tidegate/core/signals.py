"""Facts from outside that the scheduler is told with ``observe(now, signal)``."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.model import Outcome, Turn


@dataclass(slots=True, frozen=True)
class Health:
    """A backend came up or went down. Down backends get no dispatch; their leases stay."""

    backend: str
    up: bool


@dataclass(slots=True, frozen=True)
class Seats:
    """A backend's seats changed. Fewer seats never stop running work."""

    backend: str
    seats: int


@dataclass(slots=True, frozen=True)
class Drain:
    """Shut down: waiting tickets and newcomers are answered with ``draining``; running work goes on."""


@dataclass(slots=True, frozen=True)
class Waiter:
    """A caller of ``band`` waits (``waiting=True``) or stopped waiting for the request called ``name``.

    It lends its band to that work while it waits (SPEC §4.6).

    Attributes:
        waiter: id of this wait, unique; the same id ends it.
        tenant: tenant of the waiting caller.
        band: band of the waiting caller.
        name: full name ``tenant/name`` of the work waited for.
    """

    waiter: str
    tenant: str
    band: int
    name: str
    waiting: bool


@dataclass(slots=True, frozen=True)
class Elsewhere:
    """Work of a full name goes on outside this scheduler, as a batch does, so that requests may depend on it.

    Whoever says that it goes on says how it ended, too; only its own work is lent to, and not from here.

    Attributes:
        name: full name ``tenant/name``.
        going: it goes on; ``False``: it has ended, or there is no such work (any more).
        outcome: how it ended; ``None`` while it goes on and where there is no such work.
    """

    name: str
    going: bool
    outcome: Outcome | None = None


@dataclass(slots=True, frozen=True)
class Reading:
    """What an engine showed of itself on its metrics page; ``None`` for what it does not show.

    Attributes:
        backend: its name.
        at: ``now`` of the moment it was read.
        kv_free: free part of its KV cache, 0 to 1.
        running: requests in its batch.
        waiting: requests in its own queue.
        preemptions: of its running requests, since its start.
        kv_tokens: size of its KV cache in tokens.
        generated: tokens written since its start; shows that the page moves.
    """

    backend: str
    at: float
    kv_free: float | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    kv_tokens: int | None = None
    generated: int | None = None


@dataclass(slots=True, frozen=True)
class RateLimit:
    """What an upstream said of its quota (``x-ratelimit-*``); ``None`` for what it did not say.

    Attributes:
        backend: its name.
        remaining_requests: requests left in its window.
        remaining_tokens: tokens left in its window.
        reset_s: seconds until its window is whole again.
    """

    backend: str
    remaining_requests: int | None = None
    remaining_tokens: int | None = None
    reset_s: float = 60.0


@dataclass(slots=True, frozen=True)
class Paused:
    """An upstream answered 429: it takes no work of any band before ``until`` (a ``now`` value)."""

    backend: str
    until: float


@dataclass(slots=True, frozen=True)
class Began:
    """A lease has had its first token. Told of ``stoppable`` tickets; who has not begun is stopped first."""

    lease: int


@dataclass(slots=True, frozen=True)
class Declined:
    """A lease that was to be stopped cannot be, and will not be asked again."""

    lease: int


@dataclass(slots=True, frozen=True)
class Granted:
    """One seat of a backend was given to a band of this scheduler by whoever deals the pool's seats.

    Whatever ticket is best when it comes takes it. For a band without work that may run it means nothing.

    Attributes:
        pool: whose.
        band: index of the band.
        backend: its name.
        kind: why; an overtake is for the oldest ticket, whose age made the claim.
    """

    pool: str
    band: int
    backend: str
    kind: Turn = Turn.TURN


@dataclass(slots=True, frozen=True)
class Capacity:
    """How much of a pool that others use too is for this scheduler.

    Attributes:
        pool: whose.
        seats: it may have so many running by its own rule; 0: each seat takes a ``Granted``; ``None``: all are its own.
        share: seats that its work can count on, for what it tells of waits; ``None``: all.
        wary: bands below the highest start only on backends whose last reading shows room, where there is one.
    """

    pool: str
    seats: int | None
    share: int | None = None
    wary: bool = False


@dataclass(slots=True, frozen=True)
class Counters:
    """How far flows of a band are ahead of the others in tokens served over weight, over all who share the pool.

    Attributes:
        pool: whose.
        band: index of the band.
        leads: payer (as in ``Head``) and its lead over the band's virtual time, 0 or more.
    """

    pool: str
    band: int
    leads: tuple[tuple[str, float], ...]


Signal = (
    Health
    | Seats
    | Drain
    | Waiter
    | Elsewhere
    | Reading
    | RateLimit
    | Paused
    | Began
    | Declined
    | Granted
    | Capacity
    | Counters
)
