"""The fields of a body that decide something, as JSON brings them.

This module stays Python where the others are compiled: msgspec reads these classes by their annotations, and what
compiles the package does not keep them.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

Number = int | float | None | UnsetType
"""A token count as it may come: absent, ``null``, whole or (``100.0``) a float that the engine may accept."""

ABSENT = Raw()


class ParsedBody(msgspec.Struct, gc=False):
    """The fields of a body that decide something. Raw fields are empty when absent; ``null`` stays ``null``.

    The names are those of the OpenAI API; ``n_predict`` is llama.cpp's own name for ``max_tokens`` and takes
    precedence there, so that it has to be capped too.
    """

    model: str | UnsetType = UNSET
    stream: bool | None = None
    n: int | None = None
    max_tokens: Number = UNSET
    max_completion_tokens: Number = UNSET
    max_output_tokens: Number = UNSET
    n_predict: Number = UNSET
    service_tier: str | UnsetType | None = UNSET
    messages: Raw = ABSENT
    stream_options: Raw = ABSENT
    priority: Raw = ABSENT
    metadata: Raw = ABSENT
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    response_format: Raw = ABSENT
    logprobs: Raw = ABSENT
    seed: Raw = ABSENT
    user: Raw = ABSENT

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the usage chunk of a stream."""
        return b"true" in bytes(self.stream_options) and _stream_options(self.stream_options).include_usage is True


class StreamOptions(msgspec.Struct):
    """The one stream option that concerns us."""

    include_usage: bool | None = None


DECODER = msgspec.json.Decoder(ParsedBody)
_OPTIONS = msgspec.json.Decoder(StreamOptions | None)


def _stream_options(field: Raw) -> StreamOptions:
    try:
        return _OPTIONS.decode(field) or StreamOptions()
    except msgspec.DecodeError:
        return StreamOptions()
