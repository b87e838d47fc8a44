"""What the tests of capacity share: a small policy, tickets, and readable views of actions."""

from __future__ import annotations

import dataclasses

from tidegate.core import (
    Action,
    BackendSpec,
    Band,
    Dispatch,
    Evict,
    Policy,
    PoolSpec,
    Reason,
    Reject,
    Ticket,
    WorkEstimate,
)

BANDS = (Band("p0", 100, 0.05), Band("p1", 20, 0.02), Band("p2", 1, 0.005))
WATERMARKS = (*BANDS[:2], dataclasses.replace(BANDS[2], kv_watermark=0.15, kv_resume=0.2))


def policy(*backends: BackendSpec, bands: tuple[Band, ...] = BANDS, **changes: object) -> Policy:
    plain = Policy(bands=bands, pools=(PoolSpec("m", backends or (BackendSpec("b", 4),)),))
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def changed(band: int, **changes: object) -> tuple[Band, ...]:
    """The bands with one of them changed."""
    return tuple(
        dataclasses.replace(each, **changes) if index == band else each  # type: ignore[arg-type]
        for index, each in enumerate(BANDS)
    )


def ticket(ident: str, band: int = 1, tokens: int = 100, /, **more: object) -> Ticket:
    return Ticket(ident, "m", band, "a", WorkEstimate(tokens), **more)  # type: ignore[arg-type]


def leases(actions: list[Action]) -> dict[str, int]:
    return {each.ticket.id: each.lease.id for each in actions if isinstance(each, Dispatch)}


def homes(actions: list[Action]) -> dict[str, str]:
    return {each.ticket.id: each.lease.backend for each in actions if isinstance(each, Dispatch)}


def refusals(actions: list[Action]) -> dict[str, Reason]:
    return {each.ticket.id: each.reason for each in actions if isinstance(each, Reject | Evict)}


def closed(*bands: int) -> tuple[Band, ...]:
    return tuple(dataclasses.replace(each, admit=index not in bands) for index, each in enumerate(BANDS))
