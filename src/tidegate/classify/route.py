"""The endpoints that have a body to classify, and which others pass through."""

from __future__ import annotations

import re
from enum import StrEnum


class Route(StrEnum):
    """An endpoint; the value is its path. ``OTHER`` is any other path of the engine."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    OTHER = "*"


CAP_FIELD = {
    Route.CHAT: "max_tokens",
    Route.COMPLETIONS: "max_tokens",
    Route.RESPONSES: "max_output_tokens",
}
"""Where a route's output cap is written when the request names none; other routes have no such field."""

CLOSED = frozenset(
    {b"load_lora_adapter", b"unload_lora_adapter"}  # they change the engine, for everybody
    | {b"files", b"uploads", b"batches", b"fine_tuning", b"vector_stores", b"containers", b"evals", b"videos"}
    | {b"assistants", b"threads", b"conversations", b"organization", b"organizations", b"projects"}
    | {b"realtime", b"requests", b"models"}
)
"""First words of paths that are never passed on: what they make belongs to the account behind the backend's key, which
all tenants share, or they are answered by the gateway itself."""

_PLAIN = re.compile(rb"/v1(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
_ROUTES = {route.value: route for route in Route if route is not Route.OTHER}


def route_of(path: str) -> Route:
    """Return the route of a request path (without its query)."""
    return _ROUTES.get(path, Route.OTHER)


def may_pass(raw_path: bytes) -> bool:
    """Whether a path that no route knows may be asked of an engine. ``raw_path`` is as it came, without the query.

    Only plain paths: what is escaped, doubled or points upwards may be another path to the engine than it is to us.
    ``/v1/responses/…`` and the like is closed too, because a stored answer may be another tenant's. Upper and lower
    case are one here: there are upstreams to which they are.
    """
    if not _PLAIN.fullmatch(raw_path):
        return False
    raw_path = raw_path.lower()
    first = raw_path.split(b"/")[2]
    below = raw_path.startswith((b"/v1/responses/", b"/v1/chat/completions/", b"/v1/messages/batches"))
    return first not in CLOSED and not below
