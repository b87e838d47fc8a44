"""The beginning of an upstream's answer: what it is, before the client has been sent a byte.

A stream's head is held back until its first content, because engines refuse and fail inside streams that began with
200, and as long as the client has nothing the request can go elsewhere. Content itself never waits. What is held is
bounded in bytes, and in time wherever the engine sends signs of life (comments) instead of content.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from tidegate.backends import Broken, Response
from tidegate.classify import Route
from tidegate.core.compiling import mypyc_attr
from tidegate.gateway.relay import MOST_WHOLE, is_plain, is_stream
from tidegate.gateway.watch import BytesWatch, StreamWatch, watch_for
from tidegate.runtime import Clock

MOST_HELD: Final = 64 * 1024
HOLD_S: Final = 10.0
"""A stream that sends something but no content for so long is passed on: its client should see that it lives."""

_TOO_MANY: Final = re.compile(rb'"code"\s*:\s*"?(?:429|rate_limit_exceeded)\b')
# Out of money, or asking for more than the quota ever allows: waiting does not help.
_HOPELESS: Final = re.compile(rb'"(?:code|type)"\s*:\s*"(?:insufficient_quota|billing_[a-z_]*)"')


class Verdict(Enum):
    """What the beginning of an answer says."""

    GOOD = auto()  # an answer, or an error that is the client's own
    FAILED = auto()  # an error of the backend's, which another one would meet too, or would not: it is passed on
    ELSEWHERE = auto()  # an error that another backend may not have
    PAUSE = auto()  # too many requests: later


_GOOD: Final = Verdict.GOOD
_OTHER: Final = Route.OTHER


@mypyc_attr(acyclic=True)
class Beginning:
    """What is there of an answer.

    Attributes:
        response: open when it is a stream.
        start: what has been read: of a stream up to its first content, of anything else all.
        watch: has seen the start of a stream; ``None`` for anything else.
    """

    __slots__ = ("response", "start", "watch")

    def __init__(self, response: Response, start: bytes, watch: StreamWatch | None = None) -> None:
        self.response = response
        self.start = start
        self.watch = watch

    @property
    def verdict(self) -> Verdict:
        """Say what to do with it."""
        watch = self.watch
        if watch is not None:
            if not watch.failed or watch.content:
                return _GOOD
            if _HOPELESS.search(self.start):
                return Verdict.FAILED
            return Verdict.PAUSE if _TOO_MANY.search(self.start) else Verdict.ELSEWHERE
        status = self.response.status
        if status < 429:
            return _GOOD
        if status == 429:
            stay = self.response.header(b"x-should-retry") == b"false" or _HOPELESS.search(self.start)
            return Verdict.GOOD if stay else Verdict.PAUSE
        if status == 502 or status == 503:
            return Verdict.ELSEWHERE
        return Verdict.FAILED if status >= 500 else Verdict.GOOD

    @property
    def why(self) -> str:
        """What it says, in short, for the log."""
        if self.watch is not None:
            return f"an error in a stream: {self.start[:200].decode(errors='replace').strip()}"
        return f"status {self.response.status}"


def at_hand(response: Response, route: Route) -> Beginning | None:
    """Give the beginning of an answer that is no stream and has come as a whole with its head; ``None``: read it."""
    if not response.over or is_stream(response) or (route is _OTHER and not is_plain(response)):
        return None
    content = response.whole(MOST_WHOLE)
    return None if content is None else Beginning(response, content)


async def read_beginning(response: Response, clock: Clock, route: Route = Route.CHAT) -> Beginning:
    """Read an answer as far as it takes to know what it is.

    Args:
        response: has its head.
        clock: for the time that a stream without content is held.
        route: what was asked, which says how its streams look.

    Raises:
        BackendError: it broke, or a stream ended, before that.
    """
    if not is_stream(response):
        return await _read_other(response, route)
    watch = watch_for(route)
    held: list[bytes] = []
    size, began = 0, 0.0
    while data := await response.read():
        watch.piece(data)
        held.append(data)
        size += len(data)
        if watch.content or watch.failed or size > MOST_HELD or response.at_end:
            break
        if not began:
            began = clock.now()
        elif clock.now() - began > HOLD_S:
            break
    if response.at_end and not (watch.content or watch.complete):
        raise Broken("the stream ended before its first content")
    return Beginning(response, b"".join(held), watch)


async def _read_other(response: Response, route: Route) -> Beginning:
    """Read all of an answer, but of one that is neither JSON nor events only the first piece: it may be long."""
    if route is not Route.OTHER or is_plain(response):
        return Beginning(response, await response.read_all(MOST_WHOLE))
    first = await response.read()
    if response.at_end:
        return Beginning(response, first)
    watch = BytesWatch()
    watch.piece(first)
    return Beginning(response, first, watch)
