"""The fields of an answer that are decoded. Apart from ``watch``, since mypyc keeps no annotations for msgspec."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct):
    """Tokens in the words of either API."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class Whole(msgspec.Struct):
    """A whole answer."""

    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: str | None = None


decode_usage = msgspec.json.Decoder(Usage).decode
decode_whole = msgspec.json.Decoder(Whole).decode
decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
