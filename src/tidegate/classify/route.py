"""The endpoints that have a body to classify."""

from __future__ import annotations

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

_ROUTES = {route.value: route for route in Route if route is not Route.OTHER}


def route_of(path: str) -> Route:
    """Return the route of a request path (without its query)."""
    return _ROUTES.get(path, Route.OTHER)
