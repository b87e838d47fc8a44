"""Stages on real servers. Imported late: they need the drivers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from conformance.ledger_stage import Stage
from tidegate.stores.ledger_postgres import PostgresLedger, PostgresLedgerStore
from tidegate.stores.ledger_protocol import Reply, Report
from tidegate.stores.ledger_valkey import ValkeyLedger, ValkeyLedgerStore
from tidegate.stores.ledger_valkey_link import open_link
from tidegate.testing.postgres import PostgresProcess
from tidegate.testing.valkey import ValkeyProcess

PATIENT_S = 15.0
"""What is asked here is whether answers are right, not whether a machine that does much else gives them in time."""


class ValkeyStage(Stage):
    """The function inside a real Valkey."""

    def __init__(self, server: ValkeyProcess) -> None:
        super().__init__()
        link = open_link(urlsplit(server.url), call_s=PATIENT_S)
        self.store = ValkeyLedgerStore(link)
        self.handle: ValkeyLedger = self.store.pool("pool")
        self.ledger = self.handle
        self.wipe()

    def turn(self, replica: str, report: Report) -> Reply:
        return self.run(turn_at(self.handle, self.now, replica, report))

    def forget(self) -> None:
        self.run(self.handle._link.call("", "FUNCTION", "FLUSH"))

    def change_release(self) -> None:
        name, text = self.handle.library
        other = name.removesuffix("_b") if name.endswith("_b") else f"{name}_b"
        self.handle.library = other, text.replace(name, other)

    def wipe(self) -> None:
        async def work() -> None:
            await self.handle._link.call("", "FLUSHALL")
            await self.handle._link.call("", "FUNCTION", "FLUSH")

        self.run(work())

    def close(self) -> None:
        self.run(self.store.close())
        super().close()


class PostgresStage(Stage):
    """The model inside transactions of a real PostgreSQL."""

    def __init__(self, server: PostgresProcess) -> None:
        super().__init__()
        self.store = PostgresLedgerStore(server.url, call_s=PATIENT_S)
        self.handle: PostgresLedger = self.store.pool("pool")
        self.ledger = self.handle
        self.wipe()

    def turn(self, replica: str, report: Report) -> Reply:
        return self.run(turn_at(self.handle, self.now, replica, report))

    def wipe(self) -> None:
        async def work(connection: Any) -> None:
            await connection.execute("SET client_min_messages = error")
            await connection.execute("DROP TABLE IF EXISTS tidegate.ledger_pools, tidegate.ledger_replicas")

        self.run(self.store.run(work))

    def close(self) -> None:
        self.run(self.store.close())
        super().close()


async def turn_at(handle: ValkeyLedger | PostgresLedger, now: int, replica: str, report: Report) -> Reply:
    """One turn at a time of the test's choice, with all that a handle does around it."""
    plain = handle._turn

    async def timed(replica: str, report: Report) -> Reply:
        return await plain(replica, report, at_ms=now)

    handle._turn = timed  # type: ignore[assignment]
    try:
        return await handle.turn(replica, report)
    finally:
        del handle._turn
