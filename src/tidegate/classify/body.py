"""Read a request body once: the few fields that decide anything, and the rest untouched.

Large fields stay raw JSON inside the received bytes; nothing is copied and unknown fields are not looked at. When a
key stands twice, the last one counts, as in the engines' own parsers. Only fields that decide something here are
checked: what an engine may understand and we do not is the engine's to judge.

JSON with ``NaN``, unpaired surrogates, bytes that are not UTF-8, or deeper nesting than the interpreter's recursion
limit is refused: an engine would refuse it too, after holding a seat.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from tidegate.classify.fields import DECODER, Number, ParsedBody
from tidegate.classify.outcome import Refused
from tidegate.classify.route import Route
from tidegate.core import Reason

_decode: Final[Callable[[bytes], ParsedBody]] = DECODER.decode
_CHAT: Final = Route.CHAT
_OTHER: Final = Route.OTHER
_UNSET: Final = UNSET
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
}
_WORDS |= {"array": "an array", "null": "null"}
_TYPES = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `\$\.(\w+)`)?")
_AT = re.compile(r" - at `\$\.(\w+)`")


def parse_body(raw: bytes, route: Route, *, ascii_only: bool | None = None) -> ParsedBody | Refused:
    """Parse a JSON body. Never raises.

    Args:
        raw: the body as it came, without content encoding.
        route: the endpoint; chat needs ``messages``.
        ascii_only: whether ``raw`` is ASCII alone, where that is known.
    """
    try:
        if not (raw.isascii() if ascii_only is None else ascii_only):
            raw.decode()
        parsed = _decode(raw)
    except UnicodeDecodeError as error:
        return _bad(f"expected a body in UTF-8, got a byte that is not at position {error.start}")
    except msgspec.ValidationError as error:
        return _bad_field(str(error))
    except msgspec.DecodeError as error:
        return _bad(f"expected a JSON object, got {'an empty body' if not raw.strip() else f'invalid JSON: {error}'}")
    except RecursionError:
        return _bad("expected a JSON object, got one that is nested too deeply")
    if route is _CHAT and not parsed.messages:
        return Refused(Reason.BAD_REQUEST, "messages: expected an array of messages, got none", "messages")
    if route is _OTHER and parsed.service_tier == "standard_only":
        parsed.service_tier = UNSET  # the Messages API's word for nothing special
    return parsed


def output_limit(body: ParsedBody) -> int | None:
    """Return the least number of output tokens that a body allows each choice, ``None`` when it names none."""
    value = body.max_tokens
    least = None if value is _UNSET else _lesser(value, None)
    value = body.max_completion_tokens
    if value is not _UNSET:
        least = _lesser(value, least)
    value = body.max_output_tokens
    if value is not _UNSET:
        least = _lesser(value, least)
    value = body.n_predict
    if value is not _UNSET:
        least = _lesser(value, least)
    return least if least is None or isinstance(least, int) else int(least)


def _lesser(value: Number, least: int | float | None) -> int | float | None:
    if value is None or value is _UNSET or value < 0:
        return least
    return value if least is None or value < least else least


def is_given(field: Raw) -> bool:
    """Whether a raw field is there and not ``null``, ``false`` or empty."""
    return bool(field) and bytes(field) not in (b"null", b"false", b"[]", b"{}", b'""')


def fallback_allowed(parsed: ParsedBody, route: Route) -> bool:
    """Whether a shed request may get an apology as its answer: only plain chat (SPEC §6).

    Structured callers would parse the apology, so they get the error instead.
    """
    return (
        route is Route.CHAT
        and (parsed.n is None or parsed.n == 1)
        and not is_given(parsed.tools)
        and not is_given(parsed.functions)
        and not is_given(parsed.response_format)
        and not is_given(parsed.logprobs)
    )


def _bad(detail: str) -> Refused:
    return Refused(Reason.BAD_REQUEST, detail)


def _bad_field(message: str) -> Refused:
    """Turn msgspec's message into ours: field, what was expected, what came."""
    if match := _TYPES.search(message):
        expected = " or ".join(_WORDS.get(word, word) for word in match[1].split(" | "))
        got, field = _WORDS.get(match[2], match[2]), match[3]
        return Refused(Reason.BAD_REQUEST, f"{field or 'body'}: expected {expected}, got {got}", field)
    at = _AT.search(message)
    field = at[1] if at else None
    return Refused(Reason.BAD_REQUEST, f"{field or 'body'}: expected a number in range, got one out of range", field)
