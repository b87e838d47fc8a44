"""Turn the text of a setting into its value, exactly.

YAML's own guesses are not used: ``0.05`` must be 1/20 and not the nearest float, ``0755`` must not become 493, and a
tenant called ``no`` must not become a boolean. So every parser takes the text as written (or a Python number, for
callers without a file) and raises ``ExpectedError``, which says what would have been right. Patterns bound the count of
digits, because ``Fraction("1e999999999")`` would compute for minutes.
"""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from fractions import Fraction
from ipaddress import ip_address
from typing import NamedTuple

_DECIMAL = r"[0-9]{1,15}(?:\.[0-9]{1,12})?"
_GROUPED = "[+-]?[0-9](?:_?[0-9]){0,17}"
"""Only what ``int`` and ``float`` read too: ``_`` between two digits, no digits of other scripts."""
_DURATION = re.compile(rf"({_DECIMAL})\s*(ms|s|min|h|d)?")
_SIZE = re.compile(rf"({_DECIMAL})\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_PART = re.compile(rf"({_DECIMAL})(?:(%)|/([0-9]{{1,12}}))?")
_WHOLE = re.compile(_GROUPED)
_NUMBER = re.compile(rf"{_GROUPED}(?:\.[0-9]{{1,17}})?(?:[eE][+-]?[0-9]{{1,2}})?")
_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
SHORTEST_LEASE_S = 1.0
"""Of a gateway: two of the heartbeats that gateways promise, one of which may be late."""
OFF = ("false", "no", "off")
_TRUE, _FALSE = {"true", "yes", "on"}, set(OFF)
_UNIT_S = {"ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))
_UNIT_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)
}


class ExpectedError(ValueError):
    """A value that cannot be read: what was expected, the nearest name, and whether the value may be shown.

    ``came``: the part of it that is wrong, where that alone is to be shown.
    """

    def __init__(
        self, expected: str, *, nearest: str | None = None, secret: bool = False, came: str | None = None
    ) -> None:
        super().__init__(expected)
        self.expected = expected
        self.came = came
        self.nearest = nearest
        self.secret = secret


class Address(NamedTuple):
    """Host and port to listen on. Port 0 lets the system choose one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name that looks most like ``name``, if any does."""
    close = get_close_matches(name.lower(), [item.lower() for item in known], n=1, cutoff=0.6)
    return next((item for item in known if close and item.lower() == close[0]), None)


MOST_DURATION_S = 36_500 * 86_400
"""The longest that uvloop's timers wait: what is longer would be said and not done."""


def parse_duration(value: object) -> float:
    """Read ``250ms``, ``15s``, ``30min``, ``24h``, ``7d``; a bare number is seconds. Returns seconds.

    Raises:
        ExpectedError: not a duration, negative, or more than a hundred years, which no timer waits for.
    """
    match = _DURATION.fullmatch(text_of(value))
    if not match:
        raise ExpectedError("expected a duration like 250ms, 15s, 30min or 24h (a bare number is seconds)")
    seconds = Fraction(match[1]) * _UNIT_S[match[2] or "s"]
    if seconds > MOST_DURATION_S:
        raise ExpectedError("expected a duration of at most 36500d")
    return float(seconds)


def parse_positive_duration(value: object) -> float:
    """Read a duration above 0."""
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ExpectedError("expected a duration above 0")
    return seconds


def parse_lease(value: object) -> float:
    """Read the lease of a gateway: no shorter than two of the heartbeats by which it is renewed."""
    seconds = parse_duration(value)
    if seconds < SHORTEST_LEASE_S:
        raise ExpectedError(f"expected {SHORTEST_LEASE_S:g}s or more: a gateway is heard of every half second")
    return seconds


def parse_size(value: object) -> int:
    """Read ``32MiB`` or ``1GB``; a bare number is bytes. Returns bytes, at least 1."""
    match = _SIZE.fullmatch(text_of(value))
    if not match:
        raise ExpectedError("expected a size like 32MiB or 1GB (a bare number is bytes)")
    size = int(Fraction(match[1]) * _UNIT_BYTES[match[2] or "B"])
    if size < 1:
        raise ExpectedError("expected a size of at least 1 byte")
    return size


def parse_part(value: object) -> Fraction:
    """Read a part of a whole, exactly: ``0.05``, ``5%`` and ``1/20`` are the same. From 0 to 1."""
    match = _PART.fullmatch(text_of(value))
    if not match or match[3] == "0" * len(match[3] or ""):
        raise ExpectedError("expected a part from 0 to 1, like 0.05")
    part = Fraction(match[1]) / (100 if match[2] else int(match[3] or 1))
    if part > 1:
        raise ExpectedError("expected a part from 0 to 1, like 0.05")
    return part


def parse_whole(value: object, least: int = 0) -> int:
    """Read a whole number of at least ``least``. Underscores may group digits; a leading zero is refused."""
    text = text_of(value)
    if not _WHOLE.fullmatch(text):
        raise ExpectedError(f"expected a whole number of at least {least}")
    if len(digits := text.lstrip("+-")) > 1 and digits[0] == "0":
        raise ExpectedError("expected a decimal number without a leading zero (YAML would read it as octal)")
    number = int(text)
    if number < least:
        raise ExpectedError(f"expected a whole number of at least {least}")
    return number


def parse_positive_whole(value: object) -> int:
    """Read a whole number of at least 1."""
    return parse_whole(value, 1)


def parse_number(value: object) -> float:
    """Read a finite number of at least 0."""
    text = text_of(value)
    if not _NUMBER.fullmatch(text) or not 0 <= (number := float(text)) < math.inf:
        raise ExpectedError("expected a number of at least 0")
    return number


def parse_positive_number(value: object) -> float:
    """Read a finite number above 0."""
    number = parse_number(value)
    if number <= 0:
        raise ExpectedError("expected a number above 0")
    return number


def parse_switch(value: object) -> bool:
    """Read ``true`` or ``false`` (also ``yes no on off``)."""
    if isinstance(value, bool):
        return value
    text = text_of(value).lower()
    if text not in _TRUE | _FALSE:
        raise ExpectedError("expected true or false")
    return text in _TRUE


def parse_text(value: object) -> str:
    """Read text that is not empty and holds no control characters but line breaks and tabs."""
    text = text_of(value)
    if not text or len(text) > 4096 or any(ord(char) < 32 and char not in "\n\t" for char in text):
        raise ExpectedError("expected text of 1 to 4096 printable characters")
    return text


def parse_name(value: object) -> str:
    """Read a name: 1 to 128 letters, digits and ``._:-``."""
    text = text_of(value)
    if not _NAME.fullmatch(text):
        raise ExpectedError("expected a name of 1 to 128 letters, digits or . _ : -")
    return text


def parse_digest(value: object) -> str:
    """Read ``sha256:`` and 64 hexadecimal digits, the digest of a key. A key itself is refused and never shown."""
    text = text_of(value)
    if not _DIGEST.fullmatch(text):
        raise ExpectedError(
            "expected a digest, sha256: and 64 hexadecimal digits; `tidegate keygen` prints a key with its digest, "
            "`printf %s KEY | sha256sum` digests one you have",
            secret=True,
        )
    return text.lower()


def parse_address(value: object) -> Address:
    """Read ``HOST:PORT`` (``127.0.0.1:8400``, ``[::1]:8400``)."""
    wanted = ExpectedError("expected HOST:PORT, like 127.0.0.1:8400")
    host, colon, port = text_of(value).rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise wanted
    bare = host.removeprefix("[").removesuffix("]")
    if (":" in bare) != (host != bare) or not is_host(bare):
        raise wanted
    return Address(bare, int(port))


def parse_choice(value: object, choices: list[str]) -> str:
    """Read one of ``choices``."""
    text = text_of(value)
    if text not in choices:
        raise ExpectedError(f"expected one of {', '.join(choices)}", nearest=nearest(text, choices))
    return text


def duration_text(seconds: float) -> str:
    """Write seconds with the largest unit that leaves a whole number."""
    for unit_s, name in _UNITS:
        count = seconds / unit_s
        if seconds and abs(count - round(count)) < 1e-9:
            return f"{round(count)}{name}"
    return f"{number_text(seconds)}s"


def size_text(count: int) -> str:
    """Write bytes with the largest binary unit that leaves a whole number."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return f"{count}B"


def number_text(value: object) -> str:
    """Write a number as a file would hold it: exact as far as 12 decimal places, without an exponent."""
    return text_of(value)


def is_host(host: str) -> bool:
    """Whether it is a name, an IPv4 or a bare IPv6 address (without a zone)."""
    if ":" not in host:
        return _HOST.fullmatch(host) is not None
    try:
        return "%" not in host and ip_address(host).version == 6
    except ValueError:
        return False


def text_of(value: object) -> str:
    """Give numbers of callers without a file the form that a file would have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | Fraction):
        return str(value)
    if isinstance(value, float):
        return f"{value:.12f}".rstrip("0").rstrip(".") if math.isfinite(value) else str(value)
    return ""
