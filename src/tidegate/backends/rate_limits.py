"""What an upstream says of its quota and of when to come back, in the forms that are in use. Pure.

* ``retry-after-ms`` (Azure, OpenAI): milliseconds. ``Retry-After`` (RFC 9110 §10.2.3): seconds, or a date.
* ``x-ratelimit-remaining-requests``, ``-tokens`` and ``x-ratelimit-reset-…`` (OpenAI, Azure, Groq and most who copy
  them): a count, and a time like ``1s``, ``6m0s``, ``7.66s``, ``120ms``, or bare seconds.
* ``anthropic-ratelimit-requests-remaining``, ``-tokens-``, ``-input-tokens-``, ``-output-tokens-`` and ``…-reset``, an
  RFC 3339 time.
* ``x-ratelimit-remaining`` and ``x-ratelimit-reset`` (many gateways), ``ratelimit-remaining`` and ``ratelimit-reset``
  (IETF draft): requests; seconds, or the epoch in seconds or milliseconds.

What cannot be read is treated as not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Final

from tidegate.core.signals import RateLimit

Headers = Iterable[tuple[bytes, bytes]]

DEFAULT_PAUSE_S = 1.0
"""Pause after a 429 that says nothing."""

MOST_PAUSE_S = 3600.0
"""Longest pause that is believed; daily quotas say more, and are asked again every hour."""

_EPOCH_S = 1e9  # a number of seconds from here on is a date (2001), since no window is 31 years long
_EPOCH_MS = 1e12

_UNITS_S = {
    b"d": 86400.0,
    b"h": 3600.0,
    b"m": 60.0,
    b"s": 1.0,
    b"ms": 1e-3,
    b"us": 1e-6,
    b"\xc2\xb5s": 1e-6,
    b"ns": 1e-9,
}
_PART = re.compile(rb"(\d++(?:\.\d++)?)(ms|us|\xc2\xb5s|ns|d|h|m|s)")
_DURATION = re.compile(rb"(?:\d++(?:\.\d++)?(?:ms|us|\xc2\xb5s|ns|d|h|m|s))++")
_NUMBER = re.compile(rb"\d++(?:\.\d*+)?")

# Headers that tell what is left, each with the one that tells when it is whole again.
_REQUESTS = (
    (b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
    (b"anthropic-ratelimit-requests-remaining", b"anthropic-ratelimit-requests-reset"),
    (b"x-ratelimit-remaining", b"x-ratelimit-reset"),
    (b"ratelimit-remaining", b"ratelimit-reset"),
)
_TOKENS = (
    (b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
    (b"anthropic-ratelimit-tokens-remaining", b"anthropic-ratelimit-tokens-reset"),
    (b"anthropic-ratelimit-input-tokens-remaining", b"anthropic-ratelimit-input-tokens-reset"),
    (b"anthropic-ratelimit-output-tokens-remaining", b"anthropic-ratelimit-output-tokens-reset"),
)


_REMAINING: Final = frozenset(remaining for remaining, _ in _REQUESTS + _TOKENS)


def tells_limits(headers: list[tuple[bytes, bytes]]) -> bool:
    """Say whether ``rate_limit`` may find anything. Every answer is asked this."""
    for name, _ in headers:  # noqa: SIM110 - not ``any``, which makes a generator
        if name in _REMAINING:
            return True
    return False


def rate_limit(backend: str, headers: Headers, *, at_utc: datetime) -> RateLimit | None:
    """Read what the headers say of the upstream's quota; ``None`` when they say nothing.

    Where several headers tell of the same, the one with the least left counts.

    Args:
        backend: name for the signal.
        headers: of a response, names in lower case.
        at_utc: wall-clock time of the response.
    """
    by_name = {name: value for name, value in headers if b"ratelimit-" in name}
    if not by_name:
        return None
    requests, requests_reset_s = _least(by_name, _REQUESTS, at_utc)
    tokens, tokens_reset_s = _least(by_name, _TOKENS, at_utc)
    if requests is None and tokens is None:
        return None
    resets = [reset_s for reset_s in (requests_reset_s, tokens_reset_s) if reset_s is not None]
    return RateLimit(backend, requests, tokens, max(resets)) if resets else RateLimit(backend, requests, tokens)


def pause_s(headers: Headers, *, at_utc: datetime) -> float:
    """Return for how many seconds a 429 asks to stay away, 0 to ``MOST_PAUSE_S``.

    ``DEFAULT_PAUSE_S`` when it does not say.
    ``retry-after-ms`` is the exact form and counts before ``Retry-After``, and both before the reset of a quota of
    which nothing is left.
    """
    by_name = dict(headers)
    said = _milliseconds(by_name.get(b"retry-after-ms"))
    if said is None:
        said = _retry_after(by_name.get(b"retry-after"), at_utc)
    if said is None:
        said = _exhausted(by_name, at_utc)
    return DEFAULT_PAUSE_S if said is None else min(said, MOST_PAUSE_S)


def parse_reset_s(value: bytes, *, at_utc: datetime) -> float | None:
    """Read the time until a window is whole again: a duration, seconds, an epoch or a date. Never below 0."""
    value = value.strip()
    if _NUMBER.fullmatch(value):
        number = float(value)
        if not isfinite(number):
            return None
        if number >= _EPOCH_MS:
            number /= 1000
        return max(0.0, number - at_utc.timestamp()) if number >= _EPOCH_S else number
    if _DURATION.fullmatch(value):
        total = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(value))
        return total if isfinite(total) else None
    date = _iso(value) or _http_date(value)
    return None if date is None else max(0.0, (date - at_utc).total_seconds())


def _least(
    by_name: Mapping[bytes, bytes], pairs: tuple[tuple[bytes, bytes], ...], at_utc: datetime
) -> tuple[int | None, float | None]:
    """Of the quotas told, the one with the least left: that count, and its reset in seconds."""
    told = []
    for remaining, reset in pairs:
        left = _count(by_name.get(remaining))
        if left is not None:
            said = by_name.get(reset)
            told.append((left, None if said is None else parse_reset_s(said, at_utc=at_utc)))
    return min(told, key=lambda each: each[0]) if told else (None, None)


def _exhausted(by_name: Mapping[bytes, bytes], at_utc: datetime) -> float | None:
    """Longest reset among the quotas of which nothing is left."""
    told = [_least(by_name, pairs, at_utc) for pairs in (_REQUESTS, _TOKENS)]
    return max((reset for left, reset in told if left == 0 and reset is not None), default=None)


def _count(value: bytes | None) -> int | None:
    if value is None or not _NUMBER.fullmatch(value := value.strip()):
        return None
    number = float(value)
    return int(number) if isfinite(number) else None


def _milliseconds(value: bytes | None) -> float | None:
    if value is None or not _NUMBER.fullmatch(value := value.strip()):
        return None
    number = float(value)
    return number / 1000 if isfinite(number) else None


def _retry_after(value: bytes | None, at_utc: datetime) -> float | None:
    if value is None:
        return None
    value = value.strip()
    if _NUMBER.fullmatch(value):
        number = float(value)
        return number if isfinite(number) else None
    date = _http_date(value)
    return None if date is None else max(0.0, (date - at_utc).total_seconds())


def _http_date(value: bytes) -> datetime | None:
    try:
        date = parsedate_to_datetime(value.decode("ascii"))
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _iso(value: bytes) -> datetime | None:
    try:
        date = datetime.fromisoformat(value.decode("ascii"))
    except ValueError:
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
