"""Read the lines of an input file. Pure: a line in, a row or a fault out."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import Final

import msgspec

from tidegate.stores import BatchFault, NewRow

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MOST_CUSTOM_ID: Final = 512


class _Line(msgspec.Struct):
    custom_id: str | None = None
    method: str | None = None
    url: str | None = None
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    body: msgspec.Raw


_decoder = msgspec.json.Decoder(_Line)
_body_decoder = msgspec.json.Decoder(_Body)
_BLANK: Final = b" \t\r\n"
_FIELD: Final = re.compile(r"\$\.(\w+)")


def body_of(line: bytes) -> bytes:
    """Return the body of a line that was found to be valid.

    Raises:
        msgspec.DecodeError: it is not any more.
    """
    return bytes(_body_decoder.decode(line).body)


def read_line(data: bytes, *, line: int, offset: int, endpoint: str) -> NewRow | BatchFault | None:
    """Read a line of an input file.

    Args:
        data: the line, with its end.
        line: its number, from 1.
        offset: where it begins, in bytes.
        endpoint: that of the batch.

    Returns:
        The row, or what is wrong with it; ``None`` for a blank line.
    """
    if line == 1 and data.startswith(BOM_UTF8):  # editors of Windows write it before the first line
        data, offset = data[len(BOM_UTF8) :], offset + len(BOM_UTF8)
    bare = data.strip(_BLANK)
    if not bare:
        return None
    try:
        if not bare.isascii():
            bare.decode()
        found = _decoder.decode(bare)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        param = field[1] if field else None
        return BatchFault(
            code="invalid_type", message=f"This line is not a valid request: {error}.", line=line, param=param
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"This line is not parseable as valid JSON: {error}."
        return BatchFault(code="invalid_json_line", message=message, line=line)
    fault = _fault(found, endpoint)
    if fault is not None:
        code, param, message = fault
        return BatchFault(code=code, message=message, line=line, param=param)
    assert found.custom_id is not None
    return NewRow(line, found.custom_id, offset, len(data))


def _fault(found: _Line, endpoint: str) -> tuple[str, str, str] | None:
    name = found.custom_id
    if name is None or not name:
        return "missing_required_parameter", "custom_id", "Expected custom_id, a text that names this request."
    if len(name) > MOST_CUSTOM_ID or "\x00" in name or not _encodable(name):
        message = f"Expected custom_id to be a text of at most {MOST_CUSTOM_ID} characters without NUL."
        return "invalid_custom_id", "custom_id", message
    if found.method != "POST":
        return "invalid_method", "method", f"Expected method POST, got {(found.method or 'none')[:20]}."
    if found.url != endpoint:
        message = f"Expected url {endpoint}, which is that of the batch, got {(found.url or 'none')[:80]}."
        return "mismatched_url", "url", message
    if not bytes(found.body).startswith(b"{"):
        return "missing_required_parameter", "body", "Expected body, a JSON object."
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
