from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from tidegate.backends import tells_limits
from tidegate.backends.rate_limits import DEFAULT_PAUSE_S, MOST_PAUSE_S, parse_reset_s, pause_s, rate_limit
from tidegate.core import RateLimit

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({b"retry-after": b"7"}, 7.0),
        ({b"retry-after": b" 0.25 "}, 0.25),
        ({b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after": b"2", b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after": b"2", b"retry-after-ms": b"soon"}, 2.0),
        ({b"retry-after": b"Sun, 01 Mar 2026 12:00:07 GMT"}, 7.0),
        ({b"retry-after": b"Sunday, 01-Mar-26 12:00:07 GMT"}, 7.0),
        ({b"retry-after": b"Sun, 01 Mar 2026 11:59:00 GMT"}, 0.0),
        ({b"retry-after": b"0"}, 0.0),
        # Nothing that can be read.
        ({}, DEFAULT_PAUSE_S),
        ({b"retry-after": b"in a while"}, DEFAULT_PAUSE_S),
        ({b"retry-after": b"-3"}, DEFAULT_PAUSE_S),
        ({b"retry-after": b"nan"}, DEFAULT_PAUSE_S),
        ({b"retry-after": b"\xff\xfe"}, DEFAULT_PAUSE_S),
        # More than anybody waits.
        ({b"retry-after": b"86400"}, MOST_PAUSE_S),
        ({b"retry-after": b"9" * 400}, DEFAULT_PAUSE_S),
        # Only the quota that is used up says when.
        ({b"x-ratelimit-remaining-tokens": b"0", b"x-ratelimit-reset-tokens": b"6m0s"}, 360.0),
        (
            {
                b"x-ratelimit-remaining-requests": b"5",
                b"x-ratelimit-reset-requests": b"50s",
                b"x-ratelimit-remaining-tokens": b"0",
                b"x-ratelimit-reset-tokens": b"2s",
            },
            2.0,
        ),
        ({b"x-ratelimit-remaining-tokens": b"9", b"x-ratelimit-reset-tokens": b"6m0s"}, DEFAULT_PAUSE_S),
        (
            {
                b"anthropic-ratelimit-input-tokens-remaining": b"0",
                b"anthropic-ratelimit-input-tokens-reset": b"2026-03-01T12:00:20Z",
            },
            20.0,
        ),
    ],
)
def test_pauses(headers: dict[bytes, bytes], seconds: float) -> None:
    assert pause_s(headers.items(), at_utc=NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1s", 1.0),
        (b"6m0s", 360.0),
        (b"1h2m3.5s", 3723.5),
        (b"2m59.56s", 179.56),
        (b"12ms", 0.012),
        (b"1d", 86_400.0),
        ("250µs".encode(), 0.00025),
        (b"7.66", 7.66),
        (b"30", 30.0),
        (b"%d" % (NOW.timestamp() + 90), 90.0),
        (b"%d" % ((NOW.timestamp() + 90) * 1000), 90.0),
        (b"%d" % (NOW.timestamp() - 90), 0.0),
        (b"2026-03-01T12:00:59Z", 59.0),
        (b"2026-03-01T14:00:59+02:00", 59.0),
        (b"Sun, 01 Mar 2026 12:01:00 GMT", 60.0),
        (b"", None),
        (b"soon", None),
        (b"1x", None),
        (b"s", None),
        (b"-5", None),
        (b"9" * 400 + b"s", None),
    ],
)
def test_resets(value: bytes, seconds: float | None) -> None:
    found = parse_reset_s(value, at_utc=NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "signal"),
    [
        (
            {
                b"x-ratelimit-limit-requests": b"60",
                b"x-ratelimit-remaining-requests": b"59",
                b"x-ratelimit-reset-requests": b"1s",
                b"x-ratelimit-remaining-tokens": b"149984",
                b"x-ratelimit-reset-tokens": b"6m0s",
            },
            RateLimit("b", 59, 149_984, 360.0),
        ),
        ({b"x-ratelimit-remaining-tokens": b"0"}, RateLimit("b", None, 0)),
        (
            {b"x-ratelimit-remaining": b"3", b"x-ratelimit-reset": b"%d" % (NOW.timestamp() + 5)},
            RateLimit("b", 3, None, 5.0),
        ),
        (
            {
                b"anthropic-ratelimit-requests-remaining": b"49",
                b"anthropic-ratelimit-requests-reset": b"2026-03-01T12:00:01Z",
                b"anthropic-ratelimit-input-tokens-remaining": b"30000",
                b"anthropic-ratelimit-input-tokens-reset": b"2026-03-01T12:00:02Z",
                b"anthropic-ratelimit-output-tokens-remaining": b"800",
                b"anthropic-ratelimit-output-tokens-reset": b"2026-03-01T12:00:04Z",
            },
            RateLimit("b", 49, 800, 4.0),
        ),
        ({}, None),
        ({b"content-type": b"text/plain"}, None),
        ({b"x-ratelimit-remaining-tokens": b"many"}, None),
        ({b"x-ratelimit-limit-tokens": b"100"}, None),
    ],
)
def test_what_is_left(headers: dict[bytes, bytes], signal: RateLimit | None) -> None:
    assert rate_limit("b", headers.items(), at_utc=NOW) == signal


def test_no_value_is_an_error() -> None:
    rng = random.Random(3)
    names = (b"retry-after", b"retry-after-ms", b"x-ratelimit-reset-tokens", b"x-ratelimit-remaining-tokens")
    for _ in range(3000):
        value = bytes(rng.choice(b"0123456789.smhdZT:-+, GMTeE\xff\xc2\xb5\x00") for _ in range(rng.randrange(1, 12)))
        headers = dict.fromkeys(names, value)
        assert 0.0 <= pause_s(headers.items(), at_utc=NOW) <= MOST_PAUSE_S
        rate_limit("b", headers.items(), at_utc=NOW)


def test_an_answer_tells_of_limits_if_a_header_says_what_is_left() -> None:
    plain, reset = [(b"content-type", b"a")], [(b"content-type", b"a"), (b"x-ratelimit-reset", b"1s")]
    assert not any(tells_limits(headers) for headers in ([], plain, reset, [(b"ratelimit-x-remaining", b"1")]))
    for name in (
        b"x-ratelimit-remaining-tokens",
        b"ratelimit-remaining",
        b"anthropic-ratelimit-output-tokens-remaining",
    ):
        assert tells_limits([*plain, (name, b"1")])
        assert rate_limit("b", [*plain, (name, b"1")], at_utc=NOW) is not None
