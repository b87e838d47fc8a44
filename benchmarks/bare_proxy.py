"""The least that a gateway on this stack can do: check the key, parse the JSON, forward, pass the answer on.

``python -m benchmarks.bare_proxy PORT BACKEND`` serves until it is killed. What the real gateway costs above this is
the price of scheduling.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import uvicorn

from benchmarks.load import KEY
from tidegate.backends import HOP_BY_HOP, Upstream

TENANTS = {b"Bearer " + KEY.encode(): "bench"}
FORWARDED = frozenset({b"content-type", b"accept", b"user-agent"})


class Asked(msgspec.Struct):
    """The fields that such a proxy looks at; the messages stay bytes."""

    model: str
    messages: msgspec.Raw
    stream: bool = False


DECODER = msgspec.json.Decoder(Asked)


class BareProxy:
    """A plain ASGI callable."""

    def __init__(self, backend: str) -> None:
        self.upstream = Upstream(backend)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = scope["headers"]
        if dict(headers).get(b"authorization") not in TENANTS:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            return
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        assert DECODER.decode(body).model == "bench"
        forwarded = [header for header in headers if header[0] in FORWARDED]
        response = await self.upstream.request(b"POST", scope["raw_path"], forwarded, body)
        kept = [header for header in response.headers if header[0] not in HOP_BY_HOP]
        try:
            await send({"type": "http.response.start", "status": response.status, "headers": kept})
            while not response.at_end:
                data = await response.read()
                await send({"type": "http.response.body", "body": data, "more_body": not response.at_end})
        finally:
            response.abort()


def main(port: str, backend: str) -> None:
    """Serve for ever."""
    uvicorn.run(
        BareProxy(backend),
        host="127.0.0.1",
        port=int(port),
        lifespan="off",
        ws="none",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        backlog=1024,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
