"""What is sent upstream for a request: path, headers and body, with nothing changed but what must be."""

from __future__ import annotations

from typing import Final

from tidegate.backends import HeaderLines, Lines
from tidegate.classify import (
    CAP_FIELD,
    ClientPriority,
    Route,
    upstream_body,
    upstream_headers,
    upstream_lines,
    with_model,
)
from tidegate.core import Lease, Turn
from tidegate.gateway.asked import Asked
from tidegate.gateway.pools import Backend
from tidegate.splice import Splice
from tidegate.telemetry.traces import Trace

_OTHER: Final = Route.OTHER
_TURN: Final = Turn.TURN
_DROP: Final = ClientPriority.DROP
_KEEP: Final = ClientPriority.KEEP
_TARGETS: Final = {route: route.encode() for route in Route}


def target_of(asked: Asked) -> bytes:
    """Give the path; a client's query is not passed on."""
    return asked.target or _TARGETS[asked.route]


def headers_of(asked: Asked, backend: Backend, lease: Lease, trace: Trace | None) -> HeaderLines:
    """Give the headers, with the context of a traced request."""
    request_id, credential = lease.ticket.id, backend.credential
    if trace is not None:
        return trace.carried(upstream_headers(asked.headers, request_id=request_id, credential=credential))
    names, values = upstream_lines(asked.headers, asked.names, request_id=request_id, credential=credential)
    return Lines(names, values)


def body_of(asked: Asked, backend: Backend, lease: Lease, splice: Splice | None = None) -> bytes:
    """Give the body, with ``splice`` that of its present leg.

    The priority is told where the engine is known to read it; a trusted tenant's own word stays.
    """
    classified = asked.classified
    if asked.form:
        model, place = classified.upstream_model, asked.model_at
        return asked.raw if model is None or place is None else with_model(asked.raw, place, model)
    body = upstream_body(
        asked.raw,
        asked.body,
        model=classified.upstream_model,
        priority=_priority(asked, backend, lease),
        max_output_tokens=classified.max_output_tokens,
        cap_field=CAP_FIELD.get(asked.route),
    )
    return body if splice is None else splice.body(body)


def rank_of(lease: Lease) -> int:
    """Give the band that the engine is told, 0 is the best: the effective one, which may be lent.

    Work whose turn came by a floor or by its age is told as of the next higher band, though never of the highest. So
    the engine does not stop it for the next higher work at once, which would take back what its wait has earned.
    """
    earned = lease.kind is not _TURN and lease.band > 1
    return lease.band - 1 if earned else lease.band


def _priority(asked: Asked, backend: Backend, lease: Lease) -> int | ClientPriority:
    trusted = asked.classified.tenant.trusted
    if trusted and bytes(asked.body.priority) not in (b"", b"null"):
        return _KEEP
    if asked.route is not _OTHER:
        told = backend.priority_of(rank_of(lease))
        if told is not None:
            return told
    return _KEEP if trusted else _DROP
