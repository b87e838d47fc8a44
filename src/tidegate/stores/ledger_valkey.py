"""The ledger in Valkey, or Redis 7 and later: one function inside the server decides, in one atomic call.

The function is ``ledger.lua``; its library is named after its text, so that two releases can use one server while a
rolling upgrade lasts. A server that does not have it (new, wiped, failed over) gets it from whoever calls first. The
layout of the keys has a number of its own, which stands in their hash tag: all keys and channels of a pool lie in one
slot, so a cluster spreads pools, not parts of a pool. Nothing needs to be kept on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

import msgspec

from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_handle import RECONNECT_LONGEST_S, RECONNECT_S, LedgerHandle, NoConfigurationError, end
from tidegate.stores.ledger_protocol import (
    LedgerConflict,
    LedgerUnavailable,
    Lost,
    News,
    PoolConfig,
    PoolView,
    Pushed,
    ReplicaRow,
    Reply,
    Report,
    Subscribed,
)
from tidegate.stores.ledger_rules import rules_of
from tidegate.stores.ledger_valkey_link import Link, Refused, translated

LAYOUT: Final = 1
_PARTS: Final = ("rules", "state", "replicas", "seen", "pending", "budgets", "document")
_BAND_PARTS: Final = ("heads", "oldest", "counters")
_PING_S: Final = 0.5
_reply = msgspec.msgpack.Decoder(Reply)
_pushed = msgspec.msgpack.Decoder(Pushed)
_pack = msgspec.msgpack.Encoder()


@functools.cache
def library() -> tuple[str, str]:
    """Return name and text of the function library."""
    text = "\n".join(
        files("tidegate.stores").joinpath(f"ledger_{part}.lua").read_text()
        for part in ("state", "between", "auction", "turn")
    )
    name = f"tidegate_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return name, text.replace("@LIBRARY@", name)


class ValkeyLedgerStore:
    """The ledgers behind one connection."""

    def __init__(self, link: Link, *, prefix: str = "tg") -> None:
        self._link = link
        self._prefix = prefix
        self._pools: dict[str, ValkeyLedger] = {}

    def pool(self, name: str) -> ValkeyLedger:
        """Return the ledger of one pool."""
        if name not in self._pools:
            self._pools[name] = ValkeyLedger(self._link, f"{{{self._prefix}{LAYOUT}:{name}}}")
        return self._pools[name]

    async def close(self) -> None:
        """Close connections and subscriptions."""
        for ledger in self._pools.values():
            await ledger.close()
        await self._link.close()


class ValkeyLedger(LedgerHandle):
    """The ledger of one pool. ``tag`` is the hash tag of its keys."""

    def __init__(self, link: Link, tag: str) -> None:
        super().__init__()
        self._link = link
        self._tag = tag
        self._document = f"{tag}:document"
        self._subscriptions: set[ValkeySubscription] = set()

    def keys(self, bands: int) -> list[str]:
        """Return all keys of the pool, in the order in which the function takes them."""
        parts = [*_PARTS, *(f"{part}:{band}" for band in range(bands) for part in _BAND_PARTS)]
        return [f"{self._tag}:{part}" for part in parts]

    async def _configuration(self) -> PoolConfig | None:
        with translated():
            raw = await self._link.call(self._document, "GET", self._document)
        return None if raw is None else msgspec.json.decode(raw, type=PoolConfig)

    async def _configure(self, config: PoolConfig) -> None:
        rules, document = msgspec.json.encode(rules_of(config)), msgspec.json.encode(config)
        said, version = await self._call("configure", self.keys(len(config.bands)), rules, document)
        if said == b"OLD":
            raise LedgerConflict(
                f"ledger: expected a configuration newer than version {version}, got version {config.version}", version
            )
        if said == b"BANDS":
            raise LedgerConflict("ledger: the number of bands cannot change while replicas run", version)

    async def _turn(self, replica: str, report: Report, *, at_ms: int | None = None) -> Reply:
        """``at_ms``: the time, in tests; nothing is pushed then."""
        channels = f"{self._tag}:to:"
        more = () if at_ms is None else (str(at_ms),)
        raw = await self._call(
            "turn", await self._keys(), replica, _pack.encode(report), channels, self._link.publish, *more
        )
        return _reply.decode(raw)

    async def leave(self, replica: str) -> None:
        """Forget a replica."""
        await self._call("leave", await self._keys(), replica)

    async def view(self) -> PoolView | None:
        """Return the whole pool."""
        if self.known is None and await self.configuration() is None:
            return None
        raw = await self._call("view", await self._keys())
        return None if raw is None or self.known is None else _view(msgspec.msgpack.decode(raw), self.known)

    async def _keys(self) -> list[str]:
        if self.known is None and await self.configuration() is None:
            raise NoConfigurationError("ledger: the pool has no configuration yet")
        assert self.known is not None
        return self.keys(len(self.known.bands))

    async def _call(self, function: str, keys: list[str], *arguments: str | bytes) -> Any:
        name, text = library()
        command = ("FCALL", f"{name}_{function}", len(keys), *keys, *arguments)
        with translated():
            try:
                return await self._link.call(self._document, *command)
            except Refused as error:
                if str(error).startswith("NOCONFIG"):
                    raise NoConfigurationError("ledger: the pool has no configuration yet") from None
                if "Function not found" not in str(error):
                    raise
            await self._link.call(self._document, "FUNCTION", "LOAD", "REPLACE", text)
            try:
                return await self._link.call(self._document, *command)
            except Refused as error:
                if str(error).startswith("NOCONFIG"):
                    raise NoConfigurationError("ledger: the pool has no configuration yet") from None
                raise

    def subscribe(self, replica: str, listener: Callable[[News], None]) -> ValkeySubscription:
        """Have grants pushed."""
        subscription = ValkeySubscription(self._link, self._document, f"{self._tag}:to:{replica}", listener)
        self._subscriptions.add(subscription)
        subscription.task.add_done_callback(lambda _: self._subscriptions.discard(subscription))
        return subscription

    async def close(self) -> None:
        """End its subscriptions."""
        for subscription in list(self._subscriptions):
            await subscription.close()


class ValkeySubscription:
    """One channel on a connection of its own, made again whenever it breaks or falls silent."""

    def __init__(self, link: Link, key: str, channel: str, listener: Callable[[News], None]) -> None:
        self._link, self._key, self._channel, self._listener = link, key, channel, listener
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End it."""
        await end(self.task)

    async def _run(self) -> None:
        pause_s = RECONNECT_S
        while True:
            subscribed = False
            with contextlib.suppress(LedgerUnavailable, StoreError):
                async with self._link.listen(self._key, self._channel, every_s=_PING_S) as messages:
                    async for message in messages:
                        if message is None:
                            subscribed, pause_s = True, RECONNECT_S
                            self._listener(Subscribed())
                        else:
                            with contextlib.suppress(msgspec.MsgspecError):  # none of ours
                                self._listener(_pushed.decode(message))
            if subscribed:
                self._listener(Lost())
            await asyncio.sleep(pause_s)
            pause_s = min(RECONNECT_LONGEST_S, 2 * pause_s)


def _view(raw: Any, config: PoolConfig) -> PoolView:
    """Make the picture from the state as the function packs it."""
    now, state, listed = raw
    names = [backend.name for backend in config.backends]
    seats, held = (dict(state[part] or {}) for part in ("seats", "held"))
    rules = rules_of(config)
    bands = range(len(config.bands))
    records = zip(listed[::2], listed[1::2], strict=True)
    rows = [_row(name, record, now, names, bands, state["control"]) for name, record in sorted(records)]
    return PoolView(
        now_ms=now,
        open_in_ms=max(0, state["open"] - now),
        version=config.version,
        mode=config.mode,
        backends=tuple(names),
        seats=tuple(seats.get(each.name, each.seats) for each in config.backends),
        held=tuple(held.get(name, 0) for name in names),
        granted=state["grants"],
        gaps=tuple(state["gap"]),
        credits=tuple(state["credit"]),
        unit=rules.unit,
        rows=tuple(rows),
    )


def _row(name: str, record: Any, now: int, names: list[str], bands: range, control: str) -> ReplicaRow:
    held, bids = dict(record["h"] or {}), _by_number(record["b"])
    return ReplicaRow(
        name=name,
        epoch=record["e"],
        seen_ms_ago=max(0, now - record["t"]),
        held=tuple(held.get(backend, 0) for backend in names),
        unconfirmed=len(record["p"]),
        waiting=tuple(record["w"]),
        bid=tuple(bids[band + 1][0] if band + 1 in bids else 0 for band in bands),
        controller=name == control,
    )


def _by_number(table: Any) -> dict[int, Any]:
    """A table of the function by its numbers, which is packed as a list where they have no holes."""
    return dict(enumerate(table, start=1)) if isinstance(table, list) else table
