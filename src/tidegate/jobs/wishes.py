"""What clients ask for: read and judged before anything is done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidegate.config import ExpectedError, parse_duration, parse_positive_duration
from tidegate.jobs.lines import ENDPOINTS

MOST_WAIT_S: Final = 60.0
"""Longest wait for a batch; the caller asks again. Proxies cut silent connections after a minute."""
MOST_WINDOW_S: Final = 30 * 86_400.0
MOST_METADATA: Final = 16
MOST_KEY: Final = 64
MOST_VALUE: Final = 512


class WishError(ValueError):
    """A request that is not valid; ``param`` is the field that is meant."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BatchWish(msgspec.Struct, frozen=True):
    """A batch to create. ``window_s`` is ``window`` in seconds."""

    input_file_id: str
    endpoint: str
    window: str
    window_s: float
    metadata: dict[str, str]


class _Body(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Any = None


def read_batch(raw: bytes) -> BatchWish:
    """Read the body of a request for a batch.

    Raises:
        WishError: it is not valid.
    """
    try:
        body = msgspec.json.decode(raw, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WishError(f"expected a JSON object with input_file_id, endpoint and completion_window: {error}") from None
    if body.endpoint not in ENDPOINTS:
        raise WishError(f"endpoint: expected one of {', '.join(ENDPOINTS)}, got {body.endpoint[:80]!r}", "endpoint")
    if body.output_expires_after is not None:
        kept = "outputs are kept as long as jobs.keep says"
        raise WishError(f"output_expires_after: not in this version; {kept}", "output_expires_after")
    window_s = _window(body.completion_window)
    metadata = body.metadata or {}
    if len(metadata) > MOST_METADATA or any(len(k) > MOST_KEY or len(v) > MOST_VALUE for k, v in metadata.items()):
        what = f"at most {MOST_METADATA} pairs of up to {MOST_KEY} and {MOST_VALUE} characters"
        raise WishError(f"metadata: expected {what}", "metadata")
    return BatchWish(body.input_file_id, body.endpoint, body.completion_window, window_s, metadata)


def _window(text: str) -> float:
    try:
        window_s = parse_positive_duration(text)
    except ExpectedError as error:
        raise WishError(f"completion_window: {error}, got {text[:40]!r}", "completion_window") from None
    if window_s > MOST_WINDOW_S:
        raise WishError("completion_window: expected at most 30 days", "completion_window")
    return window_s


def read_wait(query: Mapping[str, str]) -> float:
    """Return how long a caller wants to wait, seconds, 0 when it does not.

    Raises:
        WishError: it is no duration.
    """
    value = query.get("wait")
    if not value:
        return 0.0
    try:
        return min(parse_duration(value), MOST_WAIT_S)
    except ValueError as error:
        raise WishError(f"wait: {error}", "wait") from None


def read_limit(query: Mapping[str, str], *, default: int, most: int) -> int:
    """Return the length of a page.

    Raises:
        WishError: it is no whole number in range.
    """
    value = query.get("limit", str(default))
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= most:
        raise WishError(f"limit: expected a whole number from 1 to {most}, got {value[:20]!r}", "limit")
    return int(value)


def read_order(query: Mapping[str, str]) -> str:
    """Return the order of a listing, ``asc`` or ``desc``.

    Raises:
        WishError: it is neither.
    """
    value = query.get("order", "desc")
    if value not in ("asc", "desc"):
        raise WishError(f"order: expected asc or desc, got {value[:20]!r}", "order")
    return value


def read_expiry(fields: Mapping[str, str], *, keep_s: float) -> float:
    """Return for how long an uploaded file is kept, seconds.

    Raises:
        WishError: the form says something else than OpenAI's ``expires_after``.
    """
    seconds, anchor = fields.get("expires_after[seconds]"), fields.get("expires_after[anchor]", "created_at")
    if anchor != "created_at":
        raise WishError("expires_after[anchor]: expected created_at", "expires_after")
    if seconds is None:
        return keep_s
    if not seconds.isascii() or not seconds.isdigit() or not 1 <= int(seconds[:9]) <= MOST_WINDOW_S:
        raise WishError("expires_after[seconds]: expected up to 30 days in seconds", "expires_after")
    return min(float(seconds), keep_s)


def error_document(message: str, *, code: str, param: str | None, kind: str) -> dict[str, Any]:
    """Write OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
