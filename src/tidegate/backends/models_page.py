"""An engine's list of models. Apart from ``prober``, since mypyc keeps no annotations for msgspec."""

from __future__ import annotations

import msgspec


class _Named(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[_Named]


def model_names(body: bytes) -> tuple[str, ...]:
    """Give the names in a list; none where it is no such list."""
    try:
        return tuple(item.id for item in msgspec.json.decode(body, type=_List).data)
    except msgspec.DecodeError:
        return ()
