"""Read a form, of which no more is needed than the model that it names."""

from __future__ import annotations

from msgspec import UNSET

from tidegate.classify import Headers, ParsedBody, Place, model_of_form


def read_form(headers: Headers, raw: bytes) -> tuple[ParsedBody, Place | None]:
    """Give what a body of JSON would have said, and where the form names its model."""
    found = model_of_form(raw, headers[b"content-type"])
    name, place = (UNSET, None) if found is None else found
    return ParsedBody(name), place
