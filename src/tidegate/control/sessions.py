"""Logins of browsers: a token is shown once, in a form, and a cookie stands for it from then on.

A cookie, and no token in the page's memory: a page opens its event stream without headers of its own, and a script that
gets into the page cannot read the cookie. The cookie is a random number; only its digest is kept, in memory, so
that a restart ends every login. It is of the port that gave it (by its name), cannot be read by scripts, and is not
sent by pages of other sites. A login ends after ``LASTS_S``, or when its operator or his token is changed.

A page of the same host on another port is of the same *site* for a browser: it may send the cookie along. So a request
with a cookie counts only when the browser says that it comes from this port's own pages; see ``comes_from_here``.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers

from tidegate.config import OperatorSettings

LASTS_S = 12 * 3600.0
"""A shift."""

MOST = 1000
"""Logins at a time; the oldest ends when there are more."""

MOST_COOKIES = 8192


@dataclass(slots=True, frozen=True)
class _Login:
    operator: OperatorSettings
    until: float


class Sessions:
    """Who is logged in. ``now`` gives seconds from a monotonic source."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logins: OrderedDict[bytes, _Login] = OrderedDict()

    def begin(self, operator: OperatorSettings) -> str:
        """Log an operator in; returns the secret for the cookie."""
        secret = secrets.token_urlsafe(32)
        self._logins[_digest(secret)] = _Login(operator, self._now() + LASTS_S)
        if len(self._logins) > MOST:
            self._logins.popitem(last=False)
        return secret

    def find(self, headers: Headers, operators: tuple[OperatorSettings, ...]) -> OperatorSettings | None:
        """Return whose cookie a request has; ``operators`` are those in force."""
        secret = cookie_of(headers)
        login = None if secret is None else self._logins.get(_digest(secret))
        if login is None or login.until <= self._now() or login.operator not in operators:
            return None
        return login.operator

    def end(self, headers: Headers) -> bool:
        """Log out whoever sends the cookie."""
        secret = cookie_of(headers)
        return secret is not None and self._logins.pop(_digest(secret), None) is not None


def cookie_name(headers: Headers) -> str:
    """Return the name of this port's cookie: browsers send cookies to every port of a host."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"tidegate-{port if port.isdecimal() else 'control'}"


def cookie_of(headers: Headers) -> str | None:
    """Return the secret that a request carries."""
    text = "; ".join(headers.getlist("cookie"))[:MOST_COOKIES]
    try:
        found = SimpleCookie(text).get(cookie_name(headers)) if text else None
    except CookieError:
        return None
    return None if found is None else found.value


def set_cookie(headers: Headers, secret: str, *, secure: bool) -> str:
    """Return the header that sets the cookie; an empty ``secret`` takes it away."""
    age = f"; Max-Age={round(LASTS_S) if secret else 0}"
    return f"{cookie_name(headers)}={secret}; Path=/; HttpOnly; SameSite=Strict{age}{'; Secure' if secure else ''}"


def comes_from_here(headers: Headers, *, changes: bool) -> bool:
    """Whether the browser says that a request comes from a page of this port; ``Origin`` has been looked at before.

    What ``changes`` something must say so; of what only looks, old browsers say nothing.
    """
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return False
    return not changes or site == "same-origin" or "origin" in headers


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
