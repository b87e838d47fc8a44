"""Read a request's body within its bound, and understand as much of it as is needed to place it."""

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
from tidegate.gateway.body import Receive, read_body, too_long


class Read(msgspec.Struct, gc=False):
    """A body as it came, and what was read of it; see ``Asked``."""

    raw: bytes
    body: ParsedBody
    form: bool = False
    model_at: Place | None = None


async def read_request(route: Route, headers: Headers, receive: Receive, most: int) -> Read | Refused | None:
    """Return the body; a refusal of one that cannot be taken; ``None`` when the client left."""
    other = route is Route.OTHER
    if (bad := check_json(headers, forms=other) or too_long(headers, most)) is not None:
        return bad
    raw = await read_body(receive, most)
    if raw is None or isinstance(raw, Refused):
        return raw
    if other and is_form(headers):
        found = model_of_form(raw, headers[b"content-type"])
        name, place = (UNSET, None) if found is None else found
        return Read(raw, ParsedBody(name), form=True, model_at=place)
    body = parse_body(raw, route)
    return body if isinstance(body, Refused) else Read(raw, body)
