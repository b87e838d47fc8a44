"""Facts from outside that the scheduler is told with ``observe(now, signal)``."""

from __future__ import annotations

from dataclasses import dataclass


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


Signal = Health | Seats | Drain | Waiter
