"""The ledger in Valkey, or Redis 7 and later: one function inside the server decides, in one atomic call.

The function is ``ledger.lua``; its library is named after its text, so that two releases can use one server while a
rolling upgrade lasts. A server that does not have it (new, wiped, failed over) gets it from whoever calls first. The
layout of the keys has a number of its own, which stands in their hash tag: all keys and channels of a pool lie in one
slot, so a cluster spreads pools, not parts of a pool. Nothing needs to be kept on disk.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable
from importlib.resources import files
from operator import itemgetter
from typing import Any, Final

import msgspec

from tidegate.stores.ledger_handle import LedgerHandle, LedgerSubscription, NoConfigurationError
from tidegate.stores.ledger_protocol import (
    LedgerConflict,
    News,
    PoolConfig,
    PoolView,
    Pushed,
    ReplicaRow,
    Reply,
    Report,
    Subscribed,
)
from tidegate.stores.ledger_rules import BANDS_MAX, other_bands, rules_of
from tidegate.stores.ledger_valkey_link import Link, Refused, translated

LAYOUT: Final = 2
_PARTS: Final = ("rules", "state", "records", "reports", "budgets", "document")
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
    """The ledger of one pool. ``tag`` is the hash tag of its keys, ``library`` name and text of the function."""

    def __init__(self, link: Link, tag: str) -> None:
        super().__init__()
        self._link = link
        self._tag = tag
        self._document = f"{tag}:document"
        self.library = library()

    def keys(self) -> list[str]:
        """Return all keys of the pool, in the order in which the function takes them, for as many bands as may be."""
        parts = [*_PARTS, *(f"counters:{band}" for band in range(BANDS_MAX))]
        return [f"{self._tag}:{part}" for part in parts]

    async def _configuration(self) -> PoolConfig | None:
        with translated():
            raw = await self._link.call(self._document, "GET", self._document)
        return None if raw is None else msgspec.json.decode(raw, type=PoolConfig)

    async def _configure(self, config: PoolConfig) -> None:
        rules, document = msgspec.json.encode(rules_of(config)), msgspec.json.encode(config)
        said, version = await self._call("configure", self.keys(), rules, document)
        if said == b"OLD":
            raise LedgerConflict(
                f"ledger: expected a configuration newer than version {version}, got version {config.version}", version
            )
        if said == b"BANDS":
            raise other_bands(version, len(config.bands))

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
        return self.keys()

    async def _call(self, function: str, keys: list[str], *arguments: str | bytes) -> Any:
        name, text = self.library
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

    def _subscription(self, replica: str, listener: Callable[[News], None]) -> ValkeySubscription:
        return ValkeySubscription(self._link, self._document, f"{self._tag}:to:{replica}", listener)


class ValkeySubscription(LedgerSubscription):
    """One channel; see ``LedgerSubscription``."""

    def __init__(self, link: Link, key: str, channel: str, listener: Callable[[News], None]) -> None:
        super().__init__(listener)
        self._link, self._key, self._channel = link, key, channel

    async def _hear(self) -> None:
        async with self._link.listen(self._key, self._channel, every_s=_PING_S) as messages:
            async for message in messages:
                if message is None:
                    self._tell(Subscribed())
                else:
                    with contextlib.suppress(msgspec.MsgspecError):  # none of ours
                        self._tell(_pushed.decode(message))


def _view(raw: Any, config: PoolConfig) -> PoolView:
    """Make the picture from the state as the function packs it."""
    now, state, listed = raw
    names = [backend.name for backend in config.backends]
    seats, held = (dict(state[part] or {}) for part in ("seats", "held"))
    rules = rules_of(config)
    rows = [_row(row, now, names, state["control"]) for row in sorted(listed, key=itemgetter(0))]
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


def _row(row: Any, now: int, names: list[str], control: str) -> ReplicaRow:
    name, epoch, seen, held, unconfirmed, waiting, bids, file = row
    held = dict(held or {})
    return ReplicaRow(
        name=name,
        epoch=epoch,
        seen_ms_ago=max(0, now - seen),
        held=tuple(held.get(backend, 0) for backend in names),
        unconfirmed=unconfirmed,
        waiting=tuple(waiting),
        bid=tuple(bids),
        controller=name == control,
        file=file,
    )
