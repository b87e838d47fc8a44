"""How commands ask a port of a running gateway: no proxy, no redirect, and what its errors say."""

from __future__ import annotations

import json
import urllib.error
import urllib.request


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A gateway sends nobody elsewhere, and a key or token goes nowhere else."""

    def redirect_request(self, *_: object) -> None:
        return None


def opener(*handlers: type[urllib.request.BaseHandler]) -> urllib.request.OpenerDirector:
    """Return what opens requests, with ``handlers`` in place of the standard ones."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect, *handlers)


def error_message(error: urllib.error.HTTPError) -> str:
    """Return what a gateway says of an error, or what can be said of one that is not a gateway's."""
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code}"


def why(error: Exception) -> object:
    """Return the cause of a connection's failure."""
    return getattr(error, "reason", None) or error
