"""Which headers pass: safety of what came, what goes upstream, what goes back to the client (SPEC §10).

Invariant: a client's credentials never reach an upstream, an upstream's never reach a client, and nothing that a
client sends overrides a decision of the gateway. Names are lower case, as ASGI gives them; headers from upstream may
be in any case.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.classify.bands import BAND_HEADERS
from tidegate.classify.identity import Headers
from tidegate.classify.labels import DEPENDS_HEADER, FAIRNESS_HEADERS, READ_TIMEOUT_HEADER, TTL_HEADERS
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
_VENDOR = (b"x-ratelimit-", b"x-tidegate-", b"cf-", b"openai-")

_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def check_headers(headers: RawHeaders) -> Refused | None:
    """Refuse what two HTTP parsers could read in two ways. Never raises.

    That is: a length next to a transfer coding, two lengths that differ, a length that is no number, a coding other
    than ``chunked``, line breaks or NUL inside a header, and two of a header that says one thing, such as ``Host``, a
    key, or one of ours.
    """
    names = [name for name, _ in headers]
    if b"".join(names).translate(None, _TOKEN_BYTES) or b"" in names:
        return _bad("expected header names of letters, digits and signs, got another byte in one")
    values = b"".join([value for _, value in headers])
    if b"\n" in values or b"\r" in values or b"\0" in values:
        return _bad("expected header values without line breaks, got one with CR, LF or NUL")
    if len(set(names)) != len(names):
        for name in names:
            if names.count(name) > 1 and _says_one_thing(name):
                return _bad(f"expected one {name.decode()} header, got several", name.decode())
    return _check_length(headers, names) if b"content-length" in names else _check_coding(headers, names)


def _says_one_thing(name: bytes) -> bool:
    return name in _SINGLE or (name.startswith(b"x-tidegate-") and name != DEPENDS_HEADER)


def by_name(headers: RawHeaders) -> Headers:
    """Return headers by name; the values of a repeated one are joined by commas (RFC 9110 §5.3). Never raises."""
    found = dict(headers)
    if len(found) != len(headers):
        names = [name for name, _ in headers]
        for repeated in {name for name in names if names.count(name) > 1} - {b"content-length"}:
            found[repeated] = b", ".join([value for name, value in headers if name == repeated])
    return found


def _check_length(headers: RawHeaders, names: list[bytes]) -> Refused | None:
    if b"transfer-encoding" in names:
        return _bad("expected content-length or transfer-encoding, got both", "content-length")
    length = headers[names.index(b"content-length")][1].strip(b" \t")
    if not length.isdigit() or (names.count(b"content-length") > 1 and not _all_equal(headers, length)):
        return _bad("expected one content-length, a whole number; got another", "content-length")
    return None


def _all_equal(headers: RawHeaders, length: bytes) -> bool:
    return all(value.strip(b" \t") == length for name, value in headers if name == b"content-length")


def _check_coding(headers: RawHeaders, names: list[bytes]) -> Refused | None:
    if b"transfer-encoding" not in names:
        return None
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
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        return _unsupported("expected a body without content-encoding, got one that is encoded", "content-encoding")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not (forms and kind == b"multipart/form-data"):
        got = kind[:64].decode("latin-1") or "none"
        expected = "application/json or multipart/form-data" if forms else "application/json"
        return _unsupported(f"expected content-type: {expected}, got {got}", "content-type")
    return None


def upstream_headers(headers: RawHeaders, *, request_id: str, credential: str | None = None) -> RawHeaders:
    """Return the headers to send upstream, without ``host`` and lengths, which the upstream client writes.

    Args:
        headers: the client's, names in lower case.
        request_id: what the engine calls the request; unique, as engines mix up two running ones of the same name.
        credential: the backend's own key, sent as a bearer token.
    """
    named = _named_by_connection(headers)
    sent = [
        (name, value)
        for name, value in headers
        if name not in _NOT_UPSTREAM and name not in named and not name.startswith(b"x-tidegate-")
    ]
    sent.append((b"x-request-id", request_id.encode("latin-1", "replace")))
    # The gateway reads usage and errors in the answer, so that it must come as it is.
    sent.append((b"accept-encoding", b"identity"))
    if credential is not None:
        sent.append((b"authorization", b"Bearer " + credential.encode("latin-1", "replace")))
    return sent


def downstream_headers(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return the upstream's answer headers that may go to the client, names in lower case.

    Vendor rate limits and retry hints belong to the gateway's shared account and would mislead a client; the gateway
    says its own. The length stays, since the bytes do.
    """
    received = [(name.lower(), value) for name, value in headers]
    named = _named_by_connection(received)
    return [
        (name, value)
        for name, value in received
        if name not in _NOT_DOWNSTREAM and name not in named and not name.startswith(_VENDOR)
    ]


def answer_headers(*, request_id: str, band: str, queue_s: float) -> RawHeaders:
    """Return the headers that every answer carries (SPEC §6)."""
    return [
        (b"x-request-id", request_id.encode("latin-1", "replace")),
        (b"x-tidegate-band", band.encode()),
        (b"x-tidegate-queue-ms", b"%d" % max(0, round(queue_s * 1000))),
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
