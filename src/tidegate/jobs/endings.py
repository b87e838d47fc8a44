"""Tells those who wait for a batch that it has ended, as far as this gateway hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

LOOK_S: Final = 2.0
"""How often a batch is looked at while somebody waits for it: another gateway may have ended it."""


class Endings:
    """One event for each wait, so that whoever clears its own takes nobody else's."""

    def __init__(self) -> None:
        self._events: dict[str, list[asyncio.Event]] = {}

    def told(self, batch_id: str) -> None:
        """Wake whoever waits for a batch."""
        for event in self._events.get(batch_id, ()):
            event.set()

    @contextlib.contextmanager
    def of(self, batch_id: str) -> Iterator[asyncio.Event]:
        """Give an event for the end of a batch."""
        event = asyncio.Event()
        events = self._events.setdefault(batch_id, [])
        events.append(event)
        try:
            yield event
        finally:
            events.remove(event)
            if not events:
                del self._events[batch_id]
