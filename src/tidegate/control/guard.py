"""Who may speak to the control port at all: no web page of another origin, and on a loopback address no proxy.

A page in a browser on this machine can make it send requests to loopback addresses: across origins (then there is an
``Origin``), or under a name of its own that it lets point to 127.0.0.1 after loading, so-called DNS rebinding (then
the ``Host`` is not a loopback name). A proxy on this machine would let strangers in (then there is a ``Forwarded``
or ``X-Forwarded-For``). Elsewhere than on a loopback address operators have tokens, which a foreign page does not
know and a proxy passes on; there the ``Host`` may be any name.

A link on a foreign page may lead here (a chat that names the dashboard): such a request has no ``Origin``, but modern
browsers say in ``Sec-Fetch-Site`` where it comes from, and then only pages are opened, nothing below ``/admin``.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address without port, names this machine and nothing else."""
    name = host.removeprefix("[").removesuffix("]")
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def without_port(authority: str) -> str:
    """The host of a ``Host`` header: ``[::1]:8401`` and ``localhost:8401`` without their ports."""
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.partition(":")[0]


def objection(headers: Headers, *, local: bool = True, page: bool = False) -> str | None:
    """Say why a request is not let in, or ``None``.

    Args:
        headers: of the request.
        local: the port listens on a loopback address.
        page: it asks for what a link may lead to.
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1:
        return "expected one Host"
    if local and not is_loopback(without_port(hosts[0])):
        return "expected a loopback name in Host (localhost, 127.0.0.1 or [::1])"
    for origin in headers.getlist("origin"):
        if origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
            return "expected no Origin but this port's own: web pages may not use the control port"
    followed = page and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not followed:
        return "expected no request of another site's page: web pages may not use the control port"
    if local and ("forwarded" in headers or "x-forwarded-for" in headers):
        return (
            "expected a direct request, got one with Forwarded or X-Forwarded-For: proxies may not use the control port"
        )
    return None


class Guard:
    """ASGI middleware that answers 403 to whom ``objection`` names."""

    def __init__(self, app: ASGIApp, *, local: bool = True) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        page = scope["method"] in ("GET", "HEAD") and not scope["path"].startswith("/admin")
        message = objection(Headers(scope=scope), local=self._local, page=page)
        if message is not None:
            error = {"message": message, "type": "permission_error", "param": None, "code": "forbidden"}
            await JSONResponse({"error": error}, status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)
