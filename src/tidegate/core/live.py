"""All tickets that wait or run, by id, in a table that never has to grow at one stroke.

A dict grows by copying itself: at 174,763 entries that one insertion takes 5 ms, and nothing else in the scheduler
takes half of that. So the entries are spread over ``PARTS`` dicts, which grow at different times and a part at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate.core.ordering import Entry

PARTS: Final = 16


class Live:
    """A mapping from ticket id to entry. Order is kept within a part only, so nothing is decided by walking it."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[dict[str, Entry]] = [{} for _ in range(PARTS)]

    def __setitem__(self, ticket_id: str, entry: Entry) -> None:
        self._parts[hash(ticket_id) % PARTS][ticket_id] = entry

    def __delitem__(self, ticket_id: str) -> None:
        del self._parts[hash(ticket_id) % PARTS][ticket_id]

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._parts[hash(ticket_id) % PARTS]

    def get(self, ticket_id: str) -> Entry | None:
        """Return the entry of a ticket, ``None`` when none waits or runs under this id."""
        return self._parts[hash(ticket_id) % PARTS].get(ticket_id)

    def values(self) -> Iterator[Entry]:
        """Yield every entry; walks them all."""
        for part in self._parts:
            yield from part.values()
