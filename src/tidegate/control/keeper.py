"""The control store, asked without holding up the event loop.

A store has a thread of its own. A durable one waits there for a disk or a network. Most calls of one in memory take
microseconds, but the usage of many tenants is much to add up: a page of 10,000 tenants after ten hours takes 57 ms, to
count what is old 7 ms. Tests in virtual time, where a thread has no place, ask one in memory at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidegate.stores import MEMORY_URL, KnobStore, Unavailable, open_knob_store

PATIENCE_S = 20.0
"""Longest time that a question waits; a store that hangs must not hang those who ask."""

T = TypeVar("T")


class Keeper:
    """Holds the control store.

    Args:
        url: where it is; ``None``: in memory.
        aside: one in memory has a thread, too.

    Attributes:
        durable: what it keeps outlives the process.
        waits: whether an answer comes later than at once.
    """

    def __init__(self, url: str | None, *, aside: bool = False) -> None:
        self._url = url or MEMORY_URL
        self.durable = self._url != MEMORY_URL
        self.waits = self.durable or aside
        self._thread = ThreadPoolExecutor(1, "control-store") if self.waits else None
        self._store = None if self.waits else open_knob_store(self._url)

    async def open(self) -> None:
        """Open the store.

        Raises:
            StoreError: it cannot be opened.
        """
        if self._store is None:
            self._store = await self._in_thread(lambda: open_knob_store(self._url))

    async def ask(self, question: Callable[[KnobStore], T]) -> T:
        """Ask the store something.

        Raises:
            StoreError: as the store says; ``Unavailable`` when it is not open, or takes too long.
        """
        store = self._store
        if store is None:
            raise Unavailable("control.store is not open")
        return question(store) if self._thread is None else await self._in_thread(lambda: question(store))

    async def close(self) -> None:
        """Close the store; what is being written is written."""
        store, self._store = self._store, None
        if store is not None and self._thread is None:
            store.close()
        elif store is not None:
            await self._in_thread(store.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        answer = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.shield(answer)
        except TimeoutError:
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody waits for it any more
            raise Unavailable(f"control.store: no answer within {PATIENCE_S:g} s") from None
