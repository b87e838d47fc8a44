"""What can go wrong with an upstream. Third-party and socket errors are translated here and leak no further.

``sent`` answers the one question that a retry has to ask: may the engine have seen this request?
"""

# ruff: noqa: N818 - the names are those of the style page: what happened, not that it is an error

from __future__ import annotations

from tidegate.core.errors import TidegateError


class BackendError(TidegateError):
    """A request to an upstream did not end well. ``sent``: at least one byte of it may have reached the engine."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Overloaded(BackendError):
    """Nothing was sent because this side has no room: the connection limit or the machine's sockets are used up."""


class Unavailable(BackendError):
    """No connection, or the connection ended before the first byte of the response."""


class TimedOut(BackendError):
    """Connecting, waiting for the response head, or silence within the body passed its limit."""


class Broken(BackendError):
    """The response had begun and did not reach its end."""


class ProtocolError(BackendError):
    """What came is not an HTTP/1.1 response that we accept."""
