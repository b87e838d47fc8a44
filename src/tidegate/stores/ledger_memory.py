"""The ledger in the memory of one process: the reference model, and what several workers of one machine share.

Its clock is that of the event loop, so that it also runs on virtual time. It is empty after a restart, which is the
case that every ledger has to survive: the pool opens when all had the time to report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.stores import ledger_model
from tidegate.stores.ledger_protocol import (
    Grant,
    Ledger,
    LedgerUnavailable,
    News,
    PoolConfig,
    PoolView,
    Pushed,
    Reply,
    Report,
    Subscribed,
)
from tidegate.stores.ledger_rules import Rules, is_news, rules_of
from tidegate.stores.ledger_state import State, new_state, stays

Listener = Callable[[News], None]
Clock = Callable[[], int]


def loop_ms() -> int:
    """Return the running event loop's time in milliseconds."""
    return int(asyncio.get_running_loop().time() * 1000)


class MemoryPool:
    """One pool without any waiting: the model and its configuration, in the hands of whoever has a clock."""

    def __init__(self) -> None:
        self.config: PoolConfig | None = None
        self.state: State | None = None
        self._rules: Rules | None = None

    def configure(self, config: PoolConfig) -> None:
        """Obey another configuration from the next turn on."""
        rules = rules_of(config)
        if is_news(config, self.config):
            if self._rules is not None and not stays(self.state, self._rules, len(config.bands)):
                self.state = None
            self.config, self._rules = config, rules

    def turn(self, now: int, replica: str, report: Report, push: Callable[[str, int, Grant], bool]) -> Reply:
        """See ``ledger_model.turn``."""
        if self._rules is None:
            raise LedgerUnavailable("ledger: the pool has no configuration yet")
        if self.state is None:
            self.state = new_state(self._rules, now)
        return ledger_model.turn(self.state, self._rules, now, replica, report, push)

    def leave(self, replica: str) -> None:
        """Forget a replica."""
        if self.state is not None:
            ledger_model.leave(self.state, replica)

    def view(self, now: int) -> PoolView | None:
        """Return the whole pool."""
        if self.state is None or self._rules is None:
            return None
        return ledger_model.view(self.state, self._rules, now)


class MemoryLedgerStore:
    """Ledgers in this process. ``clock`` counts milliseconds; ``None``: the event loop's."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or loop_ms
        self._pools: dict[str, MemoryLedger] = {}

    def pool(self, name: str) -> MemoryLedger:
        """Return the ledger of one pool."""
        if name not in self._pools:
            self._pools[name] = MemoryLedger(self._clock)
        return self._pools[name]

    async def close(self) -> None:
        """Nothing to close."""


class MemoryLedger(Ledger):
    """One pool of a ``MemoryLedgerStore``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pool = MemoryPool()
        self._listeners: dict[str, Listener] = {}

    async def configuration(self) -> PoolConfig | None:
        """Return the configuration in force."""
        return self._pool.config

    async def configure(self, config: PoolConfig) -> None:
        """Put a configuration in force."""
        self._pool.configure(config)

    async def turn(self, replica: str, report: Report) -> Reply:
        """Take a report and answer."""
        return self._pool.turn(self._clock(), replica, report, self._push)

    async def leave(self, replica: str) -> None:
        """Forget a replica."""
        self._pool.leave(replica)

    async def view(self) -> PoolView | None:
        """Return the whole pool."""
        return self._pool.view(self._clock())

    def subscribe(self, replica: str, listener: Listener) -> MemorySubscription:
        """Have grants pushed."""
        self._listeners[replica] = listener
        asyncio.get_running_loop().call_soon(listener, Subscribed())
        return MemorySubscription(self._listeners, replica, listener)

    def _push(self, replica: str, epoch: int, grant: Grant) -> bool:
        listener = self._listeners.get(replica)
        if listener is None:
            return False
        asyncio.get_running_loop().call_soon(listener, Pushed(epoch, grant))
        return True


class MemorySubscription:
    """A listener that can be taken out."""

    def __init__(self, listeners: dict[str, Listener], replica: str, listener: Listener) -> None:
        self._listeners, self._replica, self._listener = listeners, replica, listener

    async def close(self) -> None:
        """Take it out, unless another one has taken its place."""
        if self._listeners.get(self._replica) is self._listener:
            del self._listeners[self._replica]
