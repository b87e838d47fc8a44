"""The ledger in PostgreSQL, for small installations that run jobs there anyway. Needs the extra ``postgres``.

A turn is one transaction under an advisory lock of its pool: read the state, decide by the reference model here, write
what changed, notify. It takes two round trips, in which the others wait. The tables are unlogged: they are empty after
a crash of the server, which every ledger survives. A replica that is frozen inside a transaction would stop the pool,
so the server ends transactions that idle.

NOTIFY does not tell who listens. So a listener holds an advisory lock, shared, for as long as its connection lives,
and whoever grants tries to take that lock: where it succeeds nobody listens. No pool of transactions may stand between
us and the server, because LISTEN and locks belong to a session.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.stores import ledger_model
from tidegate.stores.ledger_handle import CALL_S, LedgerHandle, NoConfigurationError
from tidegate.stores.ledger_postgres_link import PostgresSubscription, bounded, channel, connect, psycopg, translated
from tidegate.stores.ledger_protocol import Grant, News, PoolConfig, PoolView, Pushed, Reply, Report
from tidegate.stores.ledger_rules import Rules, is_news, rules_of
from tidegate.stores.ledger_state import Record, State, new_state, stays

_SCHEMA_LOCK: Final = 0x7469_6466
_TABLES: Final = f"""
BEGIN;
SELECT pg_advisory_xact_lock({_SCHEMA_LOCK});
CREATE SCHEMA IF NOT EXISTS tidegate;
CREATE UNLOGGED TABLE IF NOT EXISTS tidegate.ledger_pools (
    pool bigint PRIMARY KEY, revision bigint NOT NULL, config bytea NOT NULL, state bytea
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS tidegate.ledger_replicas (
    pool bigint, replica bigint, record bytea NOT NULL, PRIMARY KEY (pool, replica)
) WITH (fillfactor = 50);
COMMIT
"""
# Planned once for a connection, then run several in one message, which is one round trip.
_STATEMENTS: Final = """
PREPARE tg_pool (bigint) AS
    SELECT revision, state, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint
    FROM tidegate.ledger_pools WHERE pool = $1;
PREPARE tg_replicas (bigint) AS
    SELECT replica, record, pg_try_advisory_xact_lock(replica) FROM tidegate.ledger_replicas WHERE pool = $1;
PREPARE tg_state (bigint, bytea) AS UPDATE tidegate.ledger_pools SET state = $2 WHERE pool = $1;
PREPARE tg_change (bigint, bigint, bytea) AS
    UPDATE tidegate.ledger_replicas SET record = $3 WHERE pool = $1 AND replica = $2;
PREPARE tg_add (bigint, bigint, bytea) AS INSERT INTO tidegate.ledger_replicas VALUES ($1, $2, $3);
PREPARE tg_drop (bigint, bigint) AS DELETE FROM tidegate.ledger_replicas WHERE pool = $1 AND replica = $2
"""
_pack = msgspec.msgpack.Encoder().encode
_configs = msgspec.json.Decoder(PoolConfig)
_states = msgspec.msgpack.Decoder(State)


class _Row(Struct):
    """A replica as stored: its name with it, since its key is a number."""

    name: str
    record: Record


_rows = msgspec.msgpack.Decoder(_Row)


def _number(*words: str) -> int:
    """A key of 64 bits for a name; it also names the lock of a pool or a listener."""
    return int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "big", signed=True)


_MISSING: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.InvalidSqlStatementName,
)


async def _prepare(connection: psycopg.AsyncConnection[Any]) -> None:
    """Make tables that are missing, and plan the statements."""
    for sql in (_TABLES, "DEALLOCATE ALL", _STATEMENTS):
        await connection.execute(sql.encode())


class PostgresLedgerStore:
    """The ledgers in one database, by one connection for calls, of ``call_s`` at most; subscriptions have their own."""

    def __init__(self, url: str, *, call_s: float = CALL_S) -> None:
        self.url = url
        self._call_s = call_s
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._pools: dict[str, PostgresLedger] = {}
        self._turn: asyncio.Lock | None = None

    def pool(self, name: str) -> PostgresLedger:
        """Return the ledger of one pool."""
        if name not in self._pools:
            self._pools[name] = PostgresLedger(self, name)
        return self._pools[name]

    async def run(self, work: Callable[[psycopg.AsyncConnection[Any]], Any]) -> Any:
        """Do ``work`` on the connection, alone, in time; make tables that are missing."""
        return await bounded(asyncio.get_running_loop().create_task(self._run(work)), self._call_s)

    async def _run(self, work: Callable[[psycopg.AsyncConnection[Any]], Any]) -> Any:
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            connection = self._connection
            if connection is None or connection.closed:
                connection = self._connection = await self._prepared()
            with translated():
                try:
                    return await work(connection)
                except _MISSING:
                    await connection.execute("ROLLBACK")
                    await _prepare(connection)
                    return await work(connection)
                except BaseException:
                    if not connection.closed and connection.pgconn.transaction_status:
                        await connection.close()
                    raise

    async def _prepared(self) -> psycopg.AsyncConnection[Any]:
        connection = await connect(self.url)
        with translated():
            try:
                try:
                    await connection.execute(_STATEMENTS.encode())
                except _MISSING:  # asked first: a user may not have the right to make what is there
                    await _prepare(connection)
            except BaseException:
                await connection.close()
                raise
        return connection

    async def close(self) -> None:
        """Close connections and subscriptions."""
        for ledger in self._pools.values():
            await ledger.close()
        if self._connection is not None:
            await self._connection.close()


class PostgresLedger(LedgerHandle):
    """The ledger of one pool."""

    def __init__(self, store: PostgresLedgerStore, pool: str) -> None:
        super().__init__()
        self._store, self._pool = store, pool
        self._key = _number("pool", pool)
        self._rules: tuple[int, Rules] | None = None  # and the revision they are of
        self._load = (
            f"BEGIN; SELECT pg_advisory_xact_lock({self._key}); "
            f"EXECUTE tg_pool ({self._key}); EXECUTE tg_replicas ({self._key})"
        ).encode()

    def listener(self, replica: str) -> int:
        """Return the number of a replica: its key, and the lock that its listener holds."""
        return _number("replica", self._pool, replica)

    async def _configuration(self) -> PoolConfig | None:
        async def work(connection: psycopg.AsyncConnection[Any]) -> PoolConfig | None:
            cursor = await connection.execute(
                f"SELECT config FROM tidegate.ledger_pools WHERE pool = {self._key}".encode()
            )
            row = await cursor.fetchone()
            return None if row is None else _configs.decode(row[0])

        config: PoolConfig | None = await self._store.run(work)
        return config

    async def _configure(self, config: PoolConfig) -> None:
        rules_of(config)
        raw = msgspec.json.encode(config)
        revision = int.from_bytes(hashlib.sha256(raw).digest()[:8], "big", signed=True)

        async def work(connection: psycopg.AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({self._key})".encode())
                cursor = await connection.execute(
                    f"SELECT config, state FROM tidegate.ledger_pools WHERE pool = {self._key}".encode()
                )
                row = await cursor.fetchone()
                before = None if row is None else _configs.decode(row[0])
                if not is_news(config, before):
                    return
                if row is not None and before is not None and len(before.bands) != len(config.bands):
                    await self._begin_anew(connection, before, row[1], len(config.bands))
                await connection.execute(
                    "INSERT INTO tidegate.ledger_pools (pool, revision, config) VALUES (%s, %s, %s) "
                    "ON CONFLICT (pool) DO UPDATE SET revision = EXCLUDED.revision, config = EXCLUDED.config",
                    (self._key, revision, raw),
                )

        await self._store.run(work)

    async def _begin_anew(
        self, connection: psycopg.AsyncConnection[Any], before: PoolConfig, raw: bytes | None, bands: int
    ) -> None:
        """Make the pool a new one for another number of bands, see ``ledger_state.stays``; inside a transaction."""
        state = None if raw is None else _states.decode(raw)
        if state is not None:
            cursor = await connection.execute(
                f"SELECT record FROM tidegate.ledger_replicas WHERE pool = {self._key}".encode()
            )
            rows = [_rows.decode(record) async for (record,) in _each(cursor)]
            state.replicas = {row.name: row.record for row in rows}
        stays(state, rules_of(before), bands)
        for sql in (
            f"UPDATE tidegate.ledger_pools SET state = NULL WHERE pool = {self._key}",
            f"DELETE FROM tidegate.ledger_replicas WHERE pool = {self._key}",
        ):
            await connection.execute(sql.encode())

    async def _turn(self, replica: str, report: Report, *, at_ms: int | None = None) -> Reply:
        """``at_ms``: the time, in tests; a name with an x has no listener then."""

        async def work(connection: psycopg.AsyncConnection[Any]) -> Reply:
            pool = await self._begin(connection)
            now = pool.now if at_ms is None else at_ms
            state = pool.state or new_state(pool.rules, now)
            state.replicas = pool.records
            pushes: list[tuple[int, bytes]] = []

            def push(to: str, epoch: int, grant: Grant) -> bool:
                listener = self.listener(to)
                if at_ms is not None:
                    return not to.startswith("x")
                if listener in pool.deaf:
                    return False
                pushes.append((listener, base64.b64encode(_pack(Pushed(epoch, grant)))))
                return True

            reply = ledger_model.turn(state, pool.rules, now, replica, report, push)
            await self._end(connection, state, pool.raw, pushes)
            return reply

        reply: Reply = await self._store.run(work)
        return reply

    async def leave(self, replica: str) -> None:
        """Forget a replica."""

        async def work(connection: psycopg.AsyncConnection[Any]) -> None:
            where = f"pool = {self._key} AND replica = {self.listener(replica)}"
            await connection.execute(
                f"BEGIN; SELECT pg_advisory_xact_lock({self._key}); "
                f"DELETE FROM tidegate.ledger_replicas WHERE {where}; COMMIT".encode()
            )

        await self._store.run(work)

    async def view(self) -> PoolView | None:
        """Return the whole pool."""

        async def work(connection: psycopg.AsyncConnection[Any]) -> PoolView | None:
            try:
                pool = await self._begin(connection)
            except NoConfigurationError:
                return None
            await connection.execute("COMMIT")
            if pool.state is None:
                return None
            pool.state.replicas = pool.records
            return ledger_model.view(pool.state, pool.rules, pool.now)

        view: PoolView | None = await self._store.run(work)
        return view

    async def _begin(self, connection: psycopg.AsyncConnection[Any]) -> _Pool:
        cursor = await connection.execute(self._load)
        cursor.nextset()
        cursor.nextset()
        row = await cursor.fetchone()
        if row is None:
            await connection.execute("ROLLBACK")
            raise NoConfigurationError("ledger: the pool has no configuration yet")
        cursor.nextset()
        pool = _Pool(
            await self._rules_of(connection, row[0]), None if row[1] is None else _states.decode(row[1]), row[2]
        )
        async for number, raw, deaf in _each(cursor):
            stored = _rows.decode(raw)
            pool.records[stored.name] = stored.record
            pool.raw[number] = raw
            if deaf:
                pool.deaf.add(number)
        return pool

    async def _rules_of(self, connection: psycopg.AsyncConnection[Any], revision: int) -> Rules:
        if self._rules is None or self._rules[0] != revision:
            cursor = await connection.execute(
                f"SELECT config FROM tidegate.ledger_pools WHERE pool = {self._key}".encode()
            )
            row = await cursor.fetchone()
            assert row is not None  # under the lock
            self._rules = revision, rules_of(_configs.decode(row[0]))
        return self._rules[1]

    async def _end(
        self,
        connection: psycopg.AsyncConnection[Any],
        state: State,
        before: dict[int, bytes],
        pushes: list[tuple[int, bytes]],
    ) -> None:
        """Write what changed, notify, commit, all in one message."""
        records, state.replicas = state.replicas, {}
        after = {self.listener(name): _pack(_Row(name, record)) for name, record in records.items()}
        parts = [f"EXECUTE tg_state ({self._key}, '\\x{_pack(state).hex()}')"]
        parts += [
            f"EXECUTE {'tg_change' if number in before else 'tg_add'} ({self._key}, {number}, '\\x{raw.hex()}')"
            for number, raw in after.items()
            if raw != before.get(number)
        ]
        parts += [f"EXECUTE tg_drop ({self._key}, {number})" for number in before.keys() - after.keys()]
        parts += [f"SELECT pg_notify('{channel(number)}', '{payload.decode()}')" for number, payload in pushes]
        parts.append("COMMIT")
        await connection.execute("; ".join(parts).encode())

    def _subscription(self, replica: str, listener: Callable[[News], None]) -> PostgresSubscription:
        return PostgresSubscription(self._store.url, self.listener(replica), listener)


class _Pool:
    """A pool as read at the beginning of a turn. ``deaf``: numbers of replicas without a listener."""

    def __init__(self, rules: Rules, state: State | None, now: int) -> None:
        self.rules, self.state, self.now = rules, state, now
        self.records: dict[str, Record] = {}
        self.raw: dict[int, bytes] = {}
        self.deaf: set[int] = set()


async def _each(cursor: psycopg.AsyncCursor[Any]) -> AsyncIterator[Any]:
    for row in await cursor.fetchall():
        yield row
