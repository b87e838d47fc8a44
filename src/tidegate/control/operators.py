"""Who may do what on the control port.

Without operators in the settings every program on this machine may do everything (``guard`` keeps web pages and proxies
out). With operators, changes need the token of an ``operator``; to look needs any token, but on a loopback address
programs on this machine may look without one.

A browser shows its token once, to ``login``, and a cookie from then on (``sessions``).

The token's digest is compared with every operator's, in constant time each and to the end of the list, so that the
time taken says nothing. An address from which ``MOST_FAILURES`` wrong tokens came in a minute is told to wait before
its next one is looked at.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.datastructures import Headers

from tidegate.config import OperatorSettings, Role, key_digest
from tidegate.control.sessions import Sessions, comes_from_here

MOST_FAILURES = 10
WINDOW_S = 60.0
MOST_ADDRESSES = 1000
MOST_TOKEN = 512

log = structlog.get_logger("tidegate.control")


@dataclass(slots=True, frozen=True)
class Operator:
    """Who asks."""

    name: str
    role: Role


@dataclass(slots=True, frozen=True)
class Denied:
    """Why somebody is not let in."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None


LOCAL = Operator("local", Role.OPERATOR)
LOOKER = Operator("local", Role.VIEWER)
_NO_TOKEN = Denied(401, "unauthorized", "expected an operator's token: Authorization: Bearer TOKEN")
_WRONG_TOKEN = Denied(401, "unauthorized", "expected the token of an operator; this one is nobody's")
_NO_OPERATORS = Denied(
    409, "no_operators", "expected no login: the settings have no operators, so nobody needs a token"
)
_VIEWER = Denied(403, "forbidden", "expected the token of an operator with the role operator, got a viewer's")


class Doorkeeper:
    """Tells operators by their tokens.

    Args:
        operators: gives those of the settings in force.
        now: seconds from a monotonic source.
        local: the port listens on a loopback address.
    """

    def __init__(
        self, operators: Callable[[], tuple[OperatorSettings, ...]], now: Callable[[], float], *, local: bool
    ) -> None:
        self._operators = operators
        self._now = now
        self._local = local
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()  # address to window's start and count
        self.sessions = Sessions(now)

    def admit(self, headers: Headers, address: str, role: Role) -> Operator | Denied:
        """Say who asks for something that needs ``role``, or why he may not have it."""
        operators = self._operators()
        if not operators:
            return LOCAL
        token = _token(headers)
        found = self._by_cookie(headers, role) if token is None else self._by_token(operators, token, address)
        if found is None:
            return LOOKER if self._local and role is Role.VIEWER else _NO_TOKEN
        if isinstance(found, Denied):
            return found
        who = Operator(found.name, found.role)
        return _VIEWER if role is Role.OPERATOR and who.role is Role.VIEWER else who

    def may_stay(self, headers: Headers, who: Operator) -> bool:
        """Say whether somebody who was let in to look may go on.

        Nobody guesses here: a token that is nobody's any more counts as no failure, and failures of others keep
        nobody out.
        """
        operators = self._operators()
        if not operators:
            return who == LOCAL
        token = _token(headers)
        found = self._by_cookie(headers, Role.VIEWER) if token is None else _find(operators, token)
        if found is None:
            return token is None and self._local and who == LOOKER
        return who == Operator(found.name, found.role)

    def login(self, token: str, address: str) -> tuple[Operator, str] | Denied:
        """Look at a token from a form; returns whose it is, and the secret for his cookie."""
        operators = self._operators()
        if not operators:
            return _NO_OPERATORS
        found = self._by_token(operators, token[:MOST_TOKEN], address)
        if isinstance(found, Denied):
            return found
        return Operator(found.name, found.role), self.sessions.begin(found)

    @property
    def operators(self) -> tuple[OperatorSettings, ...]:
        """Those of the settings in force; without any, nobody is asked for a token."""
        return self._operators()

    def _by_cookie(self, headers: Headers, role: Role) -> OperatorSettings | None:
        if not comes_from_here(headers, changes=role is Role.OPERATOR):
            return None
        return self.sessions.find(headers, self._operators())

    def _by_token(self, operators: tuple[OperatorSettings, ...], token: str, address: str) -> OperatorSettings | Denied:
        place = _neighbourhood(address)
        if (wait_s := self._wait_s(place)) > 0:
            return Denied(429, "too_many_failures", "expected fewer wrong tokens; try again later", wait_s)
        found = _find(operators, token)
        if found is None:
            self._failed(place)
            return _WRONG_TOKEN
        return found

    def _wait_s(self, address: str) -> int:
        since, count = self._failures.get(address, (0.0, 0))
        left_s = since + WINDOW_S - self._now()
        return int(left_s) + 1 if count >= MOST_FAILURES and left_s > 0 else 0

    def _failed(self, address: str) -> None:
        now = self._now()
        since, count = self._failures.pop(address, (now, 0))
        if now - since >= WINDOW_S:
            since, count = now, 0
        self._failures[address] = (since, count + 1)
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)
        log.warning("control.wrong_token", address=address, failures=count + 1)


def _token(headers: Headers) -> str | None:
    given = headers.getlist("authorization")
    if not given:
        return None
    scheme, _, token = given[0].partition(" ")
    return token.strip()[:MOST_TOKEN] if len(given) == 1 and scheme.lower() == "bearer" else ""


def _find(operators: tuple[OperatorSettings, ...], token: str) -> OperatorSettings | None:
    digest = key_digest(token).encode()
    found = None
    for row in operators:
        if hmac.compare_digest(row.token.encode(), digest):
            found = row
    return found


def _neighbourhood(address: str) -> str:
    """Return what failures are counted for: an address, of IPv6 the network that a single customer gets (/64)."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
