"""Patch the top level of a body on its way upstream; everything else stays as it came.

Where fields are only added, they are spliced in before the closing brace and the rest of the body is byte for byte
the client's. Where a field is replaced or removed, the top level is written anew from raw values: each value keeps
its bytes, only white space between fields is lost, and a key that stood twice stands once, so that the engine sees
the very value that was judged. The messages are never decoded.
"""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec import UNSET, Raw

from tidegate.classify.fields import ParsedBody

_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_CAPPED = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_INCLUDE_USAGE = Raw(b'{"include_usage":true}')
_NULL = Raw(b"null")


class ClientPriority(Enum):
    """What becomes of the ``priority`` that a client wrote, when the gateway writes none itself."""

    DROP = "drop"
    KEEP = "keep"


class Usage(Enum):
    """Whether a streamed answer must end with its token counts."""

    AS_ASKED = "as asked"
    ENSURED = "ensured"


def upstream_body(
    raw: bytes,
    parsed: ParsedBody,
    *,
    model: str | None = None,
    priority: int | ClientPriority = ClientPriority.DROP,
    max_output_tokens: int | None = None,
    cap_field: str | None = "max_tokens",
    drop: tuple[str, ...] = (),
    usage: Usage = Usage.AS_ASKED,
) -> bytes:
    """Return the body to send upstream: ``raw`` itself when nothing changes.

    Args:
        raw: the client's body, which parsed to ``parsed``.
        parsed: what ``parse_body`` made of it.
        model: name to write instead of the client's; ``None`` keeps it.
        priority: number in the engine's own sign, which replaces the client's; or what becomes of the client's.
        max_output_tokens: cap of the band, written into each field that the request used where it is higher or means
            "without limit"; ``None``: no cap.
        cap_field: where to write the cap when the request named no limit (``CAP_FIELD``); ``None``: nowhere.
        drop: fields of ``ParsedBody`` to leave out.
        usage: add ``stream_options.include_usage`` to a stream.
    """
    stays = not parsed.priority and priority is ClientPriority.DROP
    if stays and model is None and max_output_tokens is None and usage is Usage.AS_ASKED and not drop:
        return raw  # as most do
    added: dict[str, Raw] = {}
    changed: dict[str, Raw] = {}
    dropped = [name for name in drop if _is_there(parsed, name)]
    if model is not None and model != parsed.model:
        (added if parsed.model is UNSET else changed)["model"] = Raw(msgspec.json.encode(model))
    if isinstance(priority, int):
        (changed if parsed.priority else added)["priority"] = Raw(b"%d" % priority)
    elif priority is ClientPriority.DROP and parsed.priority:
        dropped.append("priority")
    if max_output_tokens is not None:
        _cap(parsed, max_output_tokens, cap_field, added=added, changed=changed)
    if usage is Usage.ENSURED and parsed.stream and not parsed.wants_usage:
        (changed if parsed.stream_options else added)["stream_options"] = _with_usage(parsed.stream_options)
    if dropped or changed:
        return _rewritten(raw, changed | added, dropped)
    return _spliced(raw, added) if added else raw


def _cap(parsed: ParsedBody, cap: int, field: str | None, *, added: dict[str, Raw], changed: dict[str, Raw]) -> None:
    limited = False
    for name in _CAPPED:
        value = getattr(parsed, name)
        if value is UNSET or value is None:
            continue
        limited = True
        if value > cap or value < 0:  # llama.cpp reads a negative limit as "without limit"
            changed[name] = Raw(b"%d" % cap)
    if not limited and field is not None:
        (added if getattr(parsed, field) is UNSET else changed)[field] = Raw(b"%d" % cap)


def _with_usage(options: Raw) -> Raw:
    """Add ``include_usage`` to the stream options; options that are no object are left for the engine to refuse."""
    try:
        fields = _FIELDS.decode(options) if options and bytes(options) != b"null" else {}
    except msgspec.DecodeError:
        return options
    return Raw(msgspec.json.encode(fields | {"include_usage": True})) if fields else _INCLUDE_USAGE


def _spliced(raw: bytes, added: dict[str, Raw]) -> bytes:
    head = raw.rstrip()[:-1]
    tail = msgspec.json.encode(added)[1:]
    return head + (tail if head.rstrip().endswith(b"{") else b"," + tail)


def _rewritten(raw: bytes, changed: dict[str, Raw], dropped: list[str]) -> bytes:
    try:
        fields = _FIELDS.decode(raw)
    except RecursionError:
        # Parsed at a shallower stack, a body nested to the very limit: let the last key win, as it does in the engines.
        return _spliced(raw, dict.fromkeys(dropped, _NULL) | changed)
    for name in dropped:
        fields.pop(name, None)
    fields.update(changed)
    return msgspec.json.encode(fields)


def _is_there(parsed: ParsedBody, name: str) -> bool:
    value = getattr(parsed, name)
    return value is not UNSET and value is not None and (not isinstance(value, Raw) or bool(value))
