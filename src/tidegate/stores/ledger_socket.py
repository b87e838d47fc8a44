"""The ledger of one machine: in the memory of one process, for the others over a Unix socket.

``serve_ledger`` serves it, ``SocketLedgerStore`` is the handle of another process. On the wire each message is its
length in four bytes and that many of MessagePack. A process that ends takes its subscriptions with it, so nothing is
granted to one that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import structlog
from msgspec import Raw, Struct

from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_handle import (
    CALL_S,
    LedgerHandle,
    LedgerSubscription,
    NoConfigurationError,
    survived,
)
from tidegate.stores.ledger_memory import MemoryLedgerStore, MemorySubscription
from tidegate.stores.ledger_protocol import (
    LedgerConflict,
    LedgerUnavailable,
    News,
    PoolConfig,
    PoolView,
    Pushed,
    Reply,
    Report,
    Subscribed,
)

_LENGTH: Final = 4
_FRAME_MAX: Final = 16 * 1024 * 1024
_pack = msgspec.msgpack.Encoder().encode

log = structlog.get_logger("tidegate.cluster")


class _Ask(Struct, frozen=True, array_like=True):
    number: int
    method: str
    pool: str
    replica: str
    body: Raw


class _Answer(Struct, frozen=True, array_like=True):
    """``number`` of the question, 0 for a push. ``fault`` empty when there is a body; ``version`` with a conflict."""

    number: int
    fault: str
    message: str
    version: int
    body: Raw


_asks = msgspec.msgpack.Decoder(_Ask)
_answers = msgspec.msgpack.Decoder(_Answer)
_NOTHING: Final = Raw(_pack(None))
_CONFLICT, _EMPTY, _REFUSED = "conflict", "no configuration", "refused"


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    if length > _FRAME_MAX:
        raise OSError(f"expected a message of at most {_FRAME_MAX} bytes, got {length}")
    return await reader.readexactly(length)


def _write(writer: asyncio.StreamWriter, value: _Ask | _Answer) -> None:
    data = _pack(value)
    writer.write(len(data).to_bytes(_LENGTH, "big") + data)


class LedgerServer:
    """Ledgers served on a socket; see ``serve_ledger``."""

    def __init__(self, store: MemoryLedgerStore) -> None:
        self._store = store
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        """Listen. A socket that nobody serves any more is replaced; only this user may use the new one."""
        try:
            self._server = await asyncio.start_unix_server(self._accept, str(path))
            os.chmod(path, 0o600)
        except OSError as error:
            raise LedgerUnavailable(f"cluster.store: cannot serve the ledger at {path}: {error}") from error

    async def close(self) -> None:
        """Stop listening, and hang up."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._clients):
            writer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        subscriptions: list[MemorySubscription] = []
        self._clients.add(writer)
        try:
            with survived("serving the ledger", OSError, EOFError, msgspec.MsgspecError):
                while True:
                    ask = _asks.decode(await _read(reader))
                    if ask.method == "subscribe":
                        listener = _forward(writer)
                        subscriptions.append(self._store.pool(ask.pool).subscribe(ask.replica, listener))
                    else:
                        _write(writer, await self._answer(ask))
                        await writer.drain()
        finally:
            for subscription in subscriptions:
                await subscription.close()
            self._clients.discard(writer)
            writer.close()

    async def _answer(self, ask: _Ask) -> _Answer:
        ledger = self._store.pool(ask.pool)
        try:
            if ask.method == "turn":
                body: Any = await ledger.turn(ask.replica, msgspec.msgpack.decode(ask.body, type=Report))
            elif ask.method == "configure":
                body = None
                await ledger.configure(msgspec.msgpack.decode(ask.body, type=PoolConfig))
            elif ask.method == "configuration":
                body = await ledger.configuration()
            elif ask.method == "view":
                body = await ledger.view()
            else:
                body = None
                await ledger.leave(ask.replica)
        except LedgerConflict as error:
            return _Answer(ask.number, _CONFLICT, str(error), error.version, _NOTHING)
        except LedgerUnavailable as error:
            return _Answer(ask.number, _EMPTY, str(error), 0, _NOTHING)
        except StoreError as error:
            return _Answer(ask.number, _REFUSED, str(error), 0, _NOTHING)
        except msgspec.MsgspecError:
            raise  # it is not of this release
        except Exception:  # one pool's fault must not hang up on all of a process
            log.exception("cluster.fault", what=f"ledger: {ask.method}", pool=ask.pool, replica=ask.replica)
            return _Answer(ask.number, _REFUSED, "ledger: an internal fault; see the log of who serves it", 0, _NOTHING)
        return _Answer(ask.number, "", "", 0, Raw(_pack(body)))


def _forward(writer: asyncio.StreamWriter) -> Callable[[News], None]:
    def listener(news: News) -> None:
        body = Raw(_pack(news)) if isinstance(news, Pushed) else _NOTHING
        if not writer.is_closing():
            _write(writer, _Answer(0, "", "", 0, body))

    return listener


async def serve_ledger(path: str | Path, store: MemoryLedgerStore | None = None) -> LedgerServer:
    """Serve ledgers to the processes of this machine, from this event loop, until ``close``.

    Args:
        path: of the socket, in a folder where only this user may create files.
        store: the ledgers; ``None``: new, empty ones.

    Raises:
        LedgerUnavailable: the socket cannot be made.
    """
    server = LedgerServer(store or MemoryLedgerStore())
    await server.start(Path(path))
    return server


class SocketLedgerStore:
    """The ledgers of another process of this machine. Connects when needed, and anew after a break."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._pools: dict[str, SocketLedger] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting: asyncio.Lock | None = None

    def pool(self, name: str) -> SocketLedger:
        """Return the ledger of one pool."""
        if name not in self._pools:
            self._pools[name] = SocketLedger(self, name)
        return self._pools[name]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection of its own."""
        try:
            return await asyncio.open_unix_connection(self._path)
        except OSError as error:
            raise LedgerUnavailable(f"cluster.store: no ledger is served at {self._path}: {error}") from error

    async def ask(self, method: str, pool: str, replica: str = "", body: Any = None) -> Raw:
        """Send one question and wait for its answer."""
        number = next(self._numbers)
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CALL_S):
                writer = await self._connected()
                self._waiting[number] = answer
                _write(writer, _Ask(number, method, pool, replica, Raw(_pack(body))))
                said = await answer
        except TimeoutError:
            raise LedgerUnavailable(f"cluster.store: no answer from {self._path} in {CALL_S:g} s") from None
        finally:
            self._waiting.pop(number, None)
        return said.body if not said.fault else _raise(said)

    async def _connected(self) -> asyncio.StreamWriter:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._writer is None or self._writer.is_closing():
                reader, self._writer = await self.connect()
                self._reading = asyncio.get_running_loop().create_task(self._read(reader, self._writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with survived("reading the ledger's answers", OSError, EOFError, msgspec.MsgspecError):
                while True:
                    said = _answers.decode(await _read(reader))
                    waiting = self._waiting.get(said.number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(said)
        finally:
            writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(LedgerUnavailable(f"cluster.store: the ledger at {self._path} hung up"))

    async def close(self) -> None:
        """Close the connection and subscriptions."""
        for ledger in self._pools.values():
            await ledger.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def _raise(said: _Answer) -> NoReturn:
    if said.fault == _CONFLICT:
        raise LedgerConflict(said.message, said.version)
    if said.fault == _EMPTY:
        raise NoConfigurationError(said.message)
    raise StoreError(said.message)


class SocketLedger(LedgerHandle):
    """The ledger of one pool in another process."""

    def __init__(self, store: SocketLedgerStore, pool: str) -> None:
        super().__init__()
        self._store, self._pool = store, pool

    async def _configuration(self) -> PoolConfig | None:
        raw = await self._store.ask("configuration", self._pool)
        return msgspec.msgpack.decode(raw, type=PoolConfig | None)

    async def _configure(self, config: PoolConfig) -> None:
        await self._store.ask("configure", self._pool, body=config)

    async def _turn(self, replica: str, report: Report) -> Reply:
        return msgspec.msgpack.decode(await self._store.ask("turn", self._pool, replica, report), type=Reply)

    async def leave(self, replica: str) -> None:
        """Forget a replica."""
        await self._store.ask("leave", self._pool, replica)

    async def view(self) -> PoolView | None:
        """Return the whole pool."""
        return msgspec.msgpack.decode(await self._store.ask("view", self._pool), type=PoolView | None)

    def _subscription(self, replica: str, listener: Callable[[News], None]) -> SocketSubscription:
        return SocketSubscription(self._store.connect, self._pool, replica, listener)


_Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class SocketSubscription(LedgerSubscription):
    """See ``LedgerSubscription``."""

    def __init__(self, connect: _Connect, pool: str, replica: str, listener: Callable[[News], None]) -> None:
        super().__init__(listener)
        self._connect = connect
        self._ask = _Ask(0, "subscribe", pool, replica, _NOTHING)

    async def _hear(self) -> None:
        reader, writer = await self._connect()
        try:
            _write(writer, self._ask)
            with contextlib.suppress(msgspec.MsgspecError):  # not of this release
                while True:
                    pushed = msgspec.msgpack.decode(_answers.decode(await _read(reader)).body, type=Pushed | None)
                    self._tell(Subscribed() if pushed is None else pushed)
        finally:
            writer.close()
