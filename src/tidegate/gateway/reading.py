"""Understand as much of a request's body as is needed to place it."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from tidegate.classify import (
    Headers,
    ParsedBody,
    Place,
    Refused,
    Route,
    check_json,
    is_form,
    model_of_form,
    parse_body,
)
from tidegate.gateway.body import too_long


class Read(msgspec.Struct, gc=False):
    """A body as it came, and what was read of it; see ``Asked``."""

    raw: bytes
    body: ParsedBody
    form: bool = False
    model_at: Place | None = None


def unfit(route: Route, headers: Headers, most: int) -> Refused | None:
    """Refuse a body that cannot be taken, before it is read: its kind, or its length."""
    return check_json(headers, forms=route is Route.OTHER) or too_long(headers, most)


def understood(route: Route, headers: Headers, raw: bytes) -> Read | Refused:
    """Read a body."""
    if route is Route.OTHER and is_form(headers):
        found = model_of_form(raw, headers[b"content-type"])
        name, place = (UNSET, None) if found is None else found
        return Read(raw, ParsedBody(name), form=True, model_at=place)
    body = parse_body(raw, route)
    return body if isinstance(body, Refused) else Read(raw, body)
