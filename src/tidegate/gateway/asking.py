"""Ask a backend: send a request, or that of its next leg, and wait for the head of its answer."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from tidegate.backends import Response
from tidegate.core import Lease
from tidegate.gateway.asked import Asked
from tidegate.gateway.exchange import Exchange
from tidegate.gateway.outgoing import body_of, headers_of, target_of
from tidegate.gateway.pools import Backend
from tidegate.gateway.tries import Tries

_METHOD: Final = b"POST"


def ask(asked: Asked, backend: Backend, lease: Lease, exchange: Exchange, tries: Tries) -> Response | None:
    """Send it on a connection that is kept; ``None``: there is none, so ``head_of`` has to send it."""
    exchange.asked()
    upstream = backend.upstream
    if not upstream.idle:
        return None
    content = body_of(asked, backend, lease, None if tries.resuming is None else tries.resuming.splice)
    headers = headers_of(asked, backend, lease, exchange.trace)
    response = upstream.send(_METHOD, target_of(asked), headers, content)
    if response is not None:
        exchange.sent(response)
    return response


def head_of(
    response: Response | None, asked: Asked, backend: Backend, lease: Lease, exchange: Exchange, tries: Tries
) -> Coroutine[Any, Any, Response]:
    """Wait for the head of what ``ask`` gave, which is sent now, or once more, where it must be (``Upstream.head``)."""
    content = body_of(asked, backend, lease, None if tries.resuming is None else tries.resuming.splice)
    headers = headers_of(asked, backend, lease, exchange.trace)
    return backend.upstream.head(response, _METHOD, target_of(asked), headers, content, sent=exchange.sent)
