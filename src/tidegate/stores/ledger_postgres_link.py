"""Connections to PostgreSQL for ledgers, and listening on one. Needs the extra ``postgres``."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_handle import CALL_S, LedgerSubscription
from tidegate.stores.ledger_protocol import LedgerUnavailable, News, Pushed, Subscribed

try:
    import psycopg
except ImportError as error:
    raise StoreError("a ledger in PostgreSQL needs the driver psycopg 3: pip install 'tidegate[postgres]'") from error

_IDLE_MS: Final = 1000
__all__ = ["PostgresSubscription", "bounded", "channel", "connect", "psycopg", "translated"]

_OPTIONS: Final = (
    f"-c synchronous_commit=off -c lock_timeout={int(CALL_S * 1000)} -c client_min_messages=warning "
    f"-c idle_in_transaction_session_timeout={_IDLE_MS} -c plan_cache_mode=force_generic_plan"
)
_CONNECT: Final = {
    "connect_timeout": 2,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "tcp_user_timeout": 5000,
    "application_name": "tidegate-ledger",
}
_ASK_S: Final = 0.5


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError(f"cluster.store: PostgreSQL refuses: {_first_line(error)}") from error
    except (psycopg.Error, OSError) as error:
        raise LedgerUnavailable(f"cluster.store: PostgreSQL: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition(os.linesep)[0]


async def bounded(task: asyncio.Task[Any], seconds: float) -> Any:
    """Wait for a task, but not longer; the driver closes the connection of one that is cancelled twice."""
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
    if not task.done():
        raise LedgerUnavailable(f"cluster.store: no answer from PostgreSQL in {seconds:g} s")
    return task.result()


async def connect(url: str) -> psycopg.AsyncConnection[Any]:
    """Open a connection."""
    with translated():
        return await psycopg.AsyncConnection.connect(
            url,
            autocommit=True,
            prepare_threshold=None,  # else the driver deallocates all statements, ours too, when it sees a rollback
            options=_OPTIONS,
            **_CONNECT,  # type: ignore[arg-type]
        )


def channel(number: int) -> str:
    """Return the name of the channel of a replica."""
    return f"tidegate_{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"


class PostgresSubscription(LedgerSubscription):
    """A listening connection; see ``LedgerSubscription``."""

    def __init__(self, url: str, number: int, listener: Callable[[News], None]) -> None:
        super().__init__(listener)
        self._url, self._number = url, number

    async def _hear(self) -> None:
        connection = await connect(self._url)
        try:
            with translated():
                await self._bounded(connection, f"LISTEN {channel(self._number)}")
                await self._bounded(connection, f"SELECT pg_advisory_lock_shared({self._number})")
                self._tell(Subscribed())
                await self._listen(connection)
        finally:
            await connection.close()

    async def _bounded(self, connection: psycopg.AsyncConnection[Any], sql: str) -> None:
        task = asyncio.get_running_loop().create_task(connection.execute(sql.encode()))
        await bounded(task, CALL_S)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notice in connection.notifies(timeout=_ASK_S):
                with contextlib.suppress(ValueError, msgspec.MsgspecError):  # none of ours
                    self._tell(msgspec.msgpack.decode(base64.b64decode(notice.payload), type=Pushed))
            await self._bounded(connection, "SELECT 1")  # silence must not be a broken line
