"""Which headers pass: safety of what came, what goes upstream, what goes back to the client (SPEC §10).

Invariant: a client's credentials never reach an upstream, an upstream's never reach a client, and nothing that a
client sends overrides a decision of the gateway. Names are lower case, as ASGI gives them; headers from upstream may
be in any case.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tidegate.classify.bands import BAND_HEADERS
from tidegate.classify.identity import Headers
from tidegate.classify.labels import DEPENDS_HEADER, FAIRNESS_HEADERS, LABELS, READ_TIMEOUT_HEADER, TTL_HEADERS
from tidegate.classify.outcome import Refused
from tidegate.core import Reason

RawHeaders = list[tuple[bytes, bytes]]

_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
_CREDENTIALS = {
    b"authorization",
    b"api-key",
    b"x-api-key",
    b"x-goog-api-key",
    b"cookie",
    b"openai-organization",
    b"openai-project",
}
TOLD: Final = LABELS.union(BAND_HEADERS)
"""Headers by which a request says what shall be done with it."""

_OURS = {*BAND_HEADERS, *FAIRNESS_HEADERS, *TTL_HEADERS, b"x-request-id"}
_SINGLE = frozenset(
    {
        *_OURS,
        READ_TIMEOUT_HEADER,
        b"authorization",
        b"api-key",
        b"x-api-key",
        b"content-encoding",
        b"content-type",
        b"host",
        b"idempotency-key",
    }
)
"""Headers that say one thing: of two, one would be obeyed here and perhaps the other one elsewhere."""
_FRAMING = {b"host", b"content-length", b"expect", b"accept-encoding"}
_BROWSER = {
    b"origin",
    b"referer",
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
}
_ENGINE_PRIORITY = {b"x-vllm-priority", b"x-sglang-priority", b"x-priority", b"priority"}
_NOT_UPSTREAM = frozenset(_HOP_BY_HOP | _CREDENTIALS | _OURS | _FRAMING | _BROWSER | _ENGINE_PRIORITY)

_NOT_DOWNSTREAM = frozenset(
    _HOP_BY_HOP
    | _CREDENTIALS
    | {
        b"set-cookie",
        b"www-authenticate",
        b"server",
        b"date",
        b"alt-svc",
        b"strict-transport-security",
        b"x-request-id",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
        b"x-accel-buffering",
    }
)
_ADDED: Final[tuple[bytes, ...]] = (b"x-request-id", b"accept-encoding")
_AS_IT_IS: Final = b"identity"
"""The gateway reads usage and errors in the answer, so that it must come as it is."""
_VENDOR = (b"x-ratelimit-", b"x-tidegate-", b"cf-", b"openai-")

# As numbers: looking for one by ``bytes`` raises and catches an error inside CPython.
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0
_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


KNOWN_ROWS = 1024
KNOWN_BYTES = 1024
"""Rows of header names that are remembered, and the longest that is: the same ones come again and again."""


class HeaderNames:
    """What names of headers say by themselves, whatever their values.

    Attributes:
        valid: all are tokens (RFC 9110 §5.1).
        twice: one that may stand once and stands more often.
        length: place of ``content-length`` where that alone says how long a body is, -1 elsewhere.
        lengths: places of ``content-length``.
        coded: there is a ``transfer-encoding``.
        connection: there is a ``connection``, whose value may name others that are for this hop only.
        quiet: none says what shall be done with the request.
        places: of those that may go upstream as far as their names tell.
        sent: names of these and of what the gateway adds; ``keyed``: with its own credential.
    """

    __slots__ = (
        "coded", "connection", "keyed", "length", "lengths", "places", "quiet", "sent", "twice", "valid",
    )  # fmt: skip

    def __init__(self, names: tuple[bytes, ...]) -> None:
        coded = b"transfer-encoding" in names
        lengths = [place for place, name in enumerate(names) if name == b"content-length"]
        self.valid: Final[bool] = b"" not in names and not b"".join(names).translate(None, _TOKEN_BYTES)
        self.twice: Final = _twice(names)
        self.length: Final[int] = lengths[0] if len(lengths) == 1 and not coded else -1
        self.lengths: Final = lengths
        self.coded: Final[bool] = coded
        self.connection: Final[bool] = b"connection" in names
        self.quiet: Final[bool] = TOLD.isdisjoint(names)
        self.places: Final[list[int]] = [
            place
            for place, name in enumerate(names)
            if name not in _NOT_UPSTREAM and not name.startswith(b"x-tidegate-")
        ]
        self.sent: Final[tuple[bytes, ...]] = (*[names[place] for place in self.places], *_ADDED)
        self.keyed: Final[tuple[bytes, ...]] = (*self.sent, b"authorization")


_rows: Final[dict[tuple[bytes, ...], HeaderNames]] = {}


def _row_of(headers: RawHeaders) -> HeaderNames:
    names = tuple([name for name, _ in headers])
    row = _rows.get(names)
    return _read_row(names) if row is None else row


def _read_row(names: tuple[bytes, ...]) -> HeaderNames:
    row = HeaderNames(names)
    if sum(map(len, names)) <= KNOWN_BYTES:
        if len(_rows) >= KNOWN_ROWS:
            _rows.clear()  # whoever sends others each time makes us read them, no more
        _rows[names] = row
    return row


def _twice(names: tuple[bytes, ...]) -> bytes | None:
    if len(set(names)) == len(names):
        return None
    twice = {name for name, times in Counter(names).items() if times > 1}
    return next((name for name in names if name in twice and _says_one_thing(name)), None)


class _AnswerRow:
    """What names of an answer's headers say by themselves.

    Attributes:
        lower: the names in lower case.
        connection: there is a ``connection``.
        simple: all are in lower case, and there is no ``connection``.
        downstream: places of those that may go to the client as far as their names tell.
        unmeasured: the same, without the length.
    """

    __slots__ = ("connection", "downstream", "lower", "simple", "unmeasured")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        lower = [name.lower() for name in names]
        down = [
            place for place, name in enumerate(lower) if name not in _NOT_DOWNSTREAM and not name.startswith(_VENDOR)
        ]
        self.lower: Final = lower
        self.connection: Final[bool] = b"connection" in lower
        self.simple: Final[bool] = not self.connection and lower == list(names)
        self.downstream: Final = down
        self.unmeasured: Final = [place for place in down if lower[place] != b"content-length"]


_answer_rows: Final[dict[tuple[bytes, ...], _AnswerRow]] = {}


def _answer_row_of(headers: RawHeaders) -> _AnswerRow:
    names = tuple([name for name, _ in headers])
    row = _answer_rows.get(names)
    return _read_answer_row(names) if row is None else row


def _read_answer_row(names: tuple[bytes, ...]) -> _AnswerRow:
    row = _AnswerRow(names)
    if sum(map(len, names)) <= KNOWN_BYTES:
        if len(_answer_rows) >= KNOWN_ROWS:
            _answer_rows.clear()  # engines choose names too
        _answer_rows[names] = row
    return row


def check_headers(headers: RawHeaders, named: Headers | None = None) -> Refused | None:
    """Refuse what two HTTP parsers could read in two ways; see ``read_headers``."""
    row = read_headers(headers, named)
    return row if isinstance(row, Refused) else None


def read_headers(headers: RawHeaders, named: Headers | None = None) -> HeaderNames | Refused:
    """Return what the names of headers say, or refuse what two HTTP parsers could read in two ways. Never raises.

    That is: a length next to a transfer coding, two lengths that differ, a length that is no number, a coding other
    than ``chunked``, line breaks or NUL inside a header, and two of a header that says one thing, such as ``Host``, a
    key, or one of ours.

    Args:
        headers: as they came, names in lower case.
        named: the same ``by_name``, where that is at hand: it spares taking them apart once more.
    """
    if named is None or len(named) != len(headers):
        values = b"".join([value for _, value in headers])
        row = _row_of(headers)
    else:
        values = b"".join(list(named.values()))
        keys = list(named.keys())  # compiled, this is one call, where a tuple of them is made item by item
        names = tuple(keys)
        row = _rows.get(names) or _read_row(names)
    if not row.valid:
        return _bad("expected header names of letters, digits and signs, got another byte in one")
    if _LF in values or _CR in values or _NUL in values:
        return _bad("expected header values without line breaks, got one with CR, LF or NUL")
    if row.twice is not None:
        return _bad(f"expected one {row.twice.decode()} header, got several", row.twice.decode())
    if row.length >= 0 and headers[row.length][1].isdigit():
        return row
    if row.lengths:
        return _check_length([headers[place][1].strip(b" \t") for place in row.lengths], coded=row.coded) or row
    return (_check_coding(headers) or row) if row.coded else row


def _says_one_thing(name: bytes) -> bool:
    return name in _SINGLE or (name.startswith(b"x-tidegate-") and name != DEPENDS_HEADER)


def by_name(headers: RawHeaders) -> Headers:
    """Return headers by name; the values of a repeated one are joined by commas (RFC 9110 §5.3). Never raises."""
    found = dict(headers)
    if len(found) != len(headers):
        values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            values.setdefault(name, []).append(value)
        values.pop(b"content-length", None)
        found |= {name: b", ".join(many) for name, many in values.items() if len(many) > 1}
    return found


def _check_length(lengths: list[bytes], *, coded: bool) -> Refused | None:
    if coded:
        return _bad("expected content-length or transfer-encoding, got both", "content-length")
    if not lengths[0].isdigit() or lengths.count(lengths[0]) != len(lengths):
        return _bad("expected one content-length, a whole number; got another", "content-length")
    return None


def _check_coding(headers: RawHeaders) -> Refused | None:
    codings = [value.strip(b" \t").lower() for name, value in headers if name == b"transfer-encoding"]
    if codings != [b"chunked"]:
        return _bad("expected transfer-encoding: chunked, got another coding", "transfer-encoding")
    return None


def check_json(headers: dict[bytes, bytes], *, forms: bool = False) -> Refused | None:
    """Refuse bodies that are not plain JSON with 415 (``application/json``, no content encoding).

    Args:
        headers: by name.
        forms: take ``multipart/form-data`` too.
    """
    if b"content-encoding" in headers and headers[b"content-encoding"].strip().lower() not in (b"identity", b""):
        return _unsupported("expected a body without content-encoding, got one that is encoded", "content-encoding")
    kind = headers.get(b"content-type", b"")
    if kind == b"application/json":
        return None
    kind = kind.partition(b";")[0].strip().lower()
    if kind != b"application/json" and not (forms and kind == b"multipart/form-data"):
        got = kind[:64].decode("latin-1") or "none"
        expected = "application/json or multipart/form-data" if forms else "application/json"
        return _unsupported(f"expected content-type: {expected}, got {got}", "content-type")
    return None


def upstream_headers(headers: RawHeaders, *, request_id: str, credential: str | None = None) -> RawHeaders:
    """Return the headers to send upstream as pairs; see ``upstream_lines``."""
    names, values = upstream_lines(headers, None, request_id=request_id, credential=credential)
    return list(zip(names, values, strict=True))


def upstream_lines(
    headers: RawHeaders, names: HeaderNames | None, *, request_id: str, credential: str | None = None
) -> tuple[tuple[bytes, ...], list[bytes]]:
    """Return the headers to send upstream, without ``host`` and lengths, which the upstream client writes.

    They are names and as many values: requests that look alike get one and the same row of names.

    Args:
        headers: the client's, names in lower case.
        names: what ``read_headers`` made of them, where it is at hand.
        request_id: what the engine calls the request, ASCII; unique, as engines mix up two running ones of one name.
        credential: the backend's own key, sent as a bearer token.
    """
    row = _row_of(headers) if names is None else names
    places, sent = row.places, row.sent if credential is None else row.keyed
    if row.connection:
        hop = _named_by_connection(headers)
        if hop:
            places = [place for place in places if headers[place][0] not in hop]
            sent = (*[headers[place][0] for place in places], *sent[len(row.places) :])
    values = [headers[place][1] for place in places]
    values.append(request_id.encode())
    values.append(_AS_IT_IS)
    if credential is not None:
        values.append(b"Bearer " + credential.encode("latin-1", "replace"))
    return sent, values


def downstream_headers(headers: RawHeaders) -> RawHeaders:
    """Return the upstream's answer headers that may go to the client, names in lower case.

    Vendor rate limits and retry hints belong to the gateway's shared account and would mislead a client; the gateway
    says its own. The length stays, since the bytes do.
    """
    row = _answer_row_of(headers)
    return _passed(headers, row, row.downstream)


def unmeasured_headers(headers: RawHeaders) -> RawHeaders:
    """Return the same without the length, for an answer whose bytes may be others."""
    row = _answer_row_of(headers)
    return [headers[place] for place in row.unmeasured] if row.simple else _passed(headers, row, row.unmeasured)


def _passed(headers: RawHeaders, row: _AnswerRow, places: list[int]) -> RawHeaders:
    headers = [(name, value) for name, (_, value) in zip(row.lower, headers, strict=True)]
    named = _named_by_connection(headers) if row.connection else frozenset()
    return [headers[place] for place in places if headers[place][0] not in named]


def answer_headers(*, request_id: str, band: str, queue_s: float) -> RawHeaders:
    """Return the headers that every answer carries (SPEC §6). ``request_id`` is ASCII, as all names of requests."""
    return [
        (b"x-request-id", request_id.encode()),
        (b"x-tidegate-band", band.encode()),
        (b"x-tidegate-queue-ms", b"0" if queue_s < 0.0005 else b"%d" % round(queue_s * 1000)),
    ]


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    """Return the names that a ``Connection`` header declares to be for this hop only."""
    values = [value for name, value in headers if name == b"connection"]
    if not values or values == [b"keep-alive"]:
        return frozenset()
    named = frozenset(name.strip().lower() for value in values for name in value.split(b","))
    return named - {b"content-type", b"content-length"}  # naming those would cut off the body's meaning


def _bad(detail: str, param: str | None = None) -> Refused:
    return Refused(Reason.BAD_REQUEST, detail, param)


def _unsupported(detail: str, param: str) -> Refused:
    return Refused(Reason.BAD_REQUEST, detail, param, status=415)
