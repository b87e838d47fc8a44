"""Heads of answers. They have the same header names again and again: what these make of a head is remembered."""

from __future__ import annotations

import re
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE as _STATUS_LINE

from tidegate.classify import RawHeaders

STATUS_LINE: Final[dict[int, bytes]] = _STATUS_LINE

_NOT_A_NAME = re.compile(rb"[\x00-\x20\x7f()<>@,;:\\[\]={}\"]|^$")
_OTHERS: Final = bytes(0x20 if byte == 0x7F or (byte < 0x20 and byte != 0x09) else byte for byte in range(256))
"""Another character for each control character, and the same for all others."""

_MOST_PLANS = 256
_LONGEST_PLAN = 1024
"""Of the names together; both are bounded, since engines choose names too."""


class Plan:
    """What the names of an answer's headers make of its head.

    Attributes:
        lines: all between the status line and the body, with a place for each value.
        length: place of ``content-length``, ``None`` without one.
        connections: places of ``connection``.
    """

    __slots__ = ("connections", "length", "lines")

    def __init__(self, lines: bytes, length: int | None, connections: tuple[int, ...]) -> None:
        self.lines = lines
        self.length = length
        self.connections = connections


_plans: Final[dict[tuple[bytes, ...], Plan]] = {}


def plan_of(headers: RawHeaders) -> tuple[Plan, tuple[bytes, ...]]:
    """Give what their names make of a head, and their values. Raises ``RuntimeError`` where they make none."""
    names = tuple([name for name, _ in headers])
    return _plans.get(names) or _planned(names), tuple([value for _, value in headers])


def rendered(status: int, plan: Plan, values: tuple[bytes, ...], rest: bytes) -> bytes:
    """Return a head, and the rest behind it. The values must not hold control characters, else ``RuntimeError``."""
    text = b"".join(values)
    if text.translate(_OTHERS) != text:
        raise RuntimeError("expected header values without control characters")
    return b"".join((STATUS_LINE[status], plan.lines % values, rest))


def _planned(names: tuple[bytes, ...]) -> Plan:
    for name in names:
        if _NOT_A_NAME.search(name):
            raise RuntimeError(f"expected a header name that is a token, came {name[:80]!r}")
    lower = [name.lower() for name in names]
    if b"transfer-encoding" in lower:
        raise RuntimeError("expected an answer without transfer-encoding, which is not the application's")
    if lower.count(b"content-length") > 1:
        raise RuntimeError("expected one content-length, of digits")
    plan = Plan(
        lines=b"".join([name.replace(b"%", b"%%") + b": %b\r\n" for name in lower]) + b"\r\n",
        length=lower.index(b"content-length") if b"content-length" in lower else None,
        connections=tuple([place for place, name in enumerate(lower) if name == b"connection"]),
    )
    if sum(map(len, names)) <= _LONGEST_PLAN:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[names] = plan
    return plan
