"""The one field of a form that decides something: ``model`` (audio and images come as ``multipart/form-data``).

The form is not parsed beyond that: its parts are found by their delimiter, and only their heads are looked at.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.core.compiling import mypyc_attr

MOST_PARTS = 64
"""Parts of a form that are looked at; official clients send the file and about five fields."""

_MOST_HEAD = 1024
_MOST_NAME = 256
_BOUNDARY = re.compile(rb';\s*boundary="?([!-~]{1,70}?)"?\s*(?:;|$)', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?([^";\r\n]*)', re.IGNORECASE)


@mypyc_attr(acyclic=True)
class Place:
    """Where the value of a field stands in a body: ``raw[start:end]``."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start: Final = start
        self.end: Final = end


def is_form(headers: dict[bytes, bytes]) -> bool:
    """Whether a body is a form."""
    return headers.get(b"content-type", b"").lstrip()[:19].lower() == b"multipart/form-data"


def model_of_form(raw: bytes, content_type: bytes) -> tuple[str, Place] | None:
    """Find the model that a form names, and where. ``None``: it names none, or more than one. Never raises."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        return None
    line = b"--" + match[1]
    found: list[Place] = []
    at = 0 if raw.startswith(line) else _next(raw, line, 0)
    for _ in range(MOST_PARTS):
        head = raw.find(b"\r\n\r\n", at, at + _MOST_HEAD) if at >= 0 else -1
        if head < 0:
            break
        name = _NAME.search(raw, at, head)
        at = _next(raw, line, head + 2)
        if name is not None and name[1] == b"model" and at >= 0:
            found.append(Place(head + 4, at - 2))
    if len(found) != 1 or found[0].end - found[0].start > _MOST_NAME:
        return None
    return raw[found[0].start : found[0].end].decode("latin-1"), found[0]


def with_model(raw: bytes, place: Place, model: str) -> bytes:
    """Write another model's name at its place."""
    return raw[: place.start] + model.encode() + raw[place.end :]


def _next(raw: bytes, line: bytes, start: int) -> int:
    """Where the next delimiter begins, behind its line end; -1: nowhere."""
    at = raw.find(b"\r\n" + line, start)
    return -1 if at < 0 else at + 2
