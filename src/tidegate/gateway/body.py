"""Read a request body within its bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidegate.classify import Refused
from tidegate.core import Reason

Receive = Callable[[], Awaitable[Mapping[str, Any]]]


def too_long(headers: Mapping[bytes, bytes], most: int) -> Refused | None:
    """Refuse a body that says beforehand that it is longer than ``most`` bytes."""
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > most):
        return _too_large(most)
    return None


def must_end(headers: Mapping[bytes, bytes], most: int) -> bool:
    """Tell whether the connection must end with an answer given before the body was read.

    A body of moderate length is read on and thrown away, and the connection kept. A client that waits for leave to
    send its body may send it or not, so its connection cannot be used again.
    """
    announced = headers.get(b"content-length", b"")
    moderate = announced.isdigit() and len(announced) <= 18 and int(announced) <= 4 * most
    return b"expect" in headers or b"transfer-encoding" in headers or (bool(announced) and not moderate)


async def read_body(receive: Receive, most: int) -> bytes | Refused | None:
    """Return the body; a refusal as soon as it is longer than ``most`` bytes; ``None`` when the client left."""
    message = await receive()
    if message["type"] != "http.request":
        return None
    body: bytes = message["body"]
    if not message["more_body"]:
        return body if len(body) <= most else _too_large(most)
    pieces, size = [body], len(body)
    while message["more_body"]:
        if size > most:
            return _too_large(most)
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message["body"])
        size += len(message["body"])
    return b"".join(pieces) if size <= most else _too_large(most)


def _too_large(most: int) -> Refused:
    return Refused(Reason.TOO_LARGE, f"expected a body of at most {most} bytes (gateway.max_body), got a longer one")
