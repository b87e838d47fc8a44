"""Ledgers whose server is killed, hangs, is a cluster, stands behind Sentinel or TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conformance.ledger_stage import bid, config, make_stage, subscribed
from conformance.ledger_wires import LONG_S, Ear, opened, turn_soon
from tidegate.stores.ledger_protocol import (
    LedgerUnavailable,
    Lost,
    Report,
    Subscribed,
)
from tidegate.stores.ledger_socket import serve_ledger
from tidegate.testing.valkey import ValkeyProcess, self_signed, valkey_process


def test_a_socket_that_is_served_anew_is_found_again(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "ledger"
        ear = Ear()
        async with opened(f"unix://{path}") as store:
            ledger = store.pool("pool")
            with pytest.raises(LedgerUnavailable, match="no ledger is served"):
                await ledger.configure(config(2))
            server = await serve_ledger(path)
            await ledger.configure(config(2))
            await subscribed(ledger, "one", ear)
            first = await ledger.turn("one", Report())
            await server.close()
            await ear.until(Lost)
            with pytest.raises(LedgerUnavailable):
                await ledger.turn("one", Report())
            server = await serve_ledger(path)
            reply = await turn_soon(ledger, "one", Report(epoch=first.epoch))
            assert reply.version == 1
            await ear.until(Subscribed, 2)
        await server.close()

    asyncio.run(story())


@pytest.mark.services
@pytest.mark.parametrize("cluster", [False, True])
def test_a_valkey_that_was_killed_and_comes_back_empty(tmp_path: Path, cluster: bool) -> None:
    async def story() -> None:
        server = ValkeyProcess(tmp_path, cluster=cluster)
        server.start()
        try:
            ear = Ear()
            async with opened(server.url) as store:
                ledger = store.pool("pool")
                await ledger.configure(config(2, version=4, rebuild_ms=30_000))
                await subscribed(ledger, "one", ear)
                first = await ledger.turn("one", Report())
                server.kill()
                await ear.until(Lost)
                with pytest.raises(LedgerUnavailable):
                    await ledger.turn("one", Report())
                await asyncio.to_thread(server.start)
                reply = await turn_soon(ledger, "one", Report(epoch=first.epoch, used=(("b0", 1),)))
                assert (reply.version, reply.seats[0][2], 0 < reply.open_in_ms <= 30_000) == (4, 1, True)
                assert reply.epoch > first.epoch
                await ear.until(Subscribed, 2)
        finally:
            server.kill()

    asyncio.run(story())


@pytest.mark.services
def test_a_cluster_that_is_none_or_not_there_is_said_to() -> None:
    async def story() -> None:
        with valkey_process() as server:
            url = server.url.replace("valkey://", "valkey+cluster://")
            async with opened(url) as store:
                with pytest.raises(LedgerUnavailable, match="Cluster mode is not enabled"):
                    await store.pool("pool").configuration()
        async with opened(url) as store:
            for _ in range(2):
                with pytest.raises(LedgerUnavailable, match="cannot be connected"):
                    await store.pool("pool").configuration()

    asyncio.run(story())


@pytest.mark.services
def test_a_valkey_that_hangs_is_said_to_and_takes_late_reports_without_harm(tmp_path: Path) -> None:
    async def story() -> None:
        server = ValkeyProcess(tmp_path)
        server.start()
        try:
            ear = Ear()
            async with opened(server.url) as store:
                ledger = store.pool("pool")
                await ledger.configure(config(2, heartbeat_ms=10_000))
                await subscribed(ledger, "one", ear)
                first = await ledger.turn("one", Report(bids=(bid(1, 2),)))
                server.pause()
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.25):
                        await ledger.turn("one", Report(epoch=first.epoch, sequence=2, ack=2, used=(("b0", 2),)))
                assert time.monotonic() - began < 20
                with pytest.raises(LedgerUnavailable):
                    await ledger.turn("one", Report(epoch=first.epoch, sequence=3, ack=2, used=(("b0", 1),)))
                assert time.monotonic() - began < 30
                await ear.until(Lost)
                server.resume()
                last = await turn_soon(ledger, "one", Report(epoch=first.epoch, sequence=4, ack=2))
                assert last.seats[0][2] == 0
                await ear.until(Subscribed, 2)
        finally:
            server.kill()

    asyncio.run(story())


@pytest.mark.services
@pytest.mark.parametrize("kind", ["valkey_server", "valkey_cluster"])
def test_all_keys_of_a_pool_have_one_hash_tag(request: pytest.FixtureRequest, kind: str) -> None:
    from tidegate.stores.ledger_valkey import ValkeyLedger

    async def story() -> None:
        async with opened(request.getfixturevalue(kind).url) as store:
            ledger = store.pool("a b")
            assert isinstance(ledger, ValkeyLedger)
            await ledger.configure(config(1))
            await ledger.turn("one", Report(bids=(bid(1, 5), bid(2, 1))))
            raw = await ledger._link.call("{tg2:a b}:x", "KEYS", "*a b*")
            keys = {key.decode() for key in raw}
            assert keys <= set(ledger.keys())
            assert {"{tg2:a b}:state", "{tg2:a b}:reports", "{tg2:a b}:counters:1"} <= keys

    asyncio.run(story())


@pytest.mark.services
def test_the_server_that_sentinel_names_is_used(tmp_path: Path) -> None:
    async def story() -> None:
        with valkey_process() as server:
            (tmp_path / "sentinel.conf").write_text(f"sentinel monitor main 127.0.0.1 {server.port} 1\n")
            sentinel = ValkeyProcess(tmp_path, sentinel=tmp_path / "sentinel.conf")
            sentinel.start()
            try:
                async with opened(f"valkey+sentinel://127.0.0.1:{sentinel.port}/main") as store:
                    ledger = store.pool("behind")
                    await ledger.configure(config(2))
                    ear = Ear()
                    await subscribed(ledger, "one", ear)
                    assert (await ledger.turn("one", Report(bids=(bid(1, 1),)))).grants
                async with opened(server.url) as plain:
                    assert await plain.pool("behind").configuration() == config(2)
            finally:
                sentinel.kill()

    asyncio.run(story())


@asynccontextmanager
async def tls_before(port: int, folder: Path) -> AsyncIterator[tuple[int, Path]]:
    """Ends TLS before a server that has none; the port and the certificate to trust."""
    certificate, key = self_signed(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    relays: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.add(asyncio.current_task())  # type: ignore[arg-type]
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1], certificate
    server.close()
    await asyncio.wait_for(asyncio.gather(*relays, return_exceptions=True), LONG_S)


@pytest.mark.services
def test_tls_with_a_password(tmp_path: Path) -> None:
    async def story() -> None:
        with valkey_process(options=["--requirepass", "p@ss"]) as server:
            async with tls_before(server.port, tmp_path) as (port, certificate):
                url = f"rediss://:p%40ss@127.0.0.1:{port}/0"
                async with opened(url) as untrusted:
                    with pytest.raises(LedgerUnavailable, match="certificate"):
                        await untrusted.pool("pool").configuration()
                async with opened(f"{url}?ssl_ca_certs={certificate}") as store:
                    ledger = store.pool("pool")
                    await ledger.configure(config(2))
                    await subscribed(ledger, "one")
                    assert (await ledger.turn("one", Report(bids=(bid(1, 1),)))).grants

    asyncio.run(story())


@pytest.mark.services
def test_a_wrong_password_is_said_plainly() -> None:
    from tidegate.stores import StoreError

    async def story() -> None:
        with valkey_process(options=["--requirepass", "right"]) as server:
            async with opened(server.url.replace("//", "//:wrong@")) as store:
                with pytest.raises(StoreError, match="does not let us in"):
                    await store.pool("pool").configuration()

    asyncio.run(story())


@pytest.mark.services
@pytest.mark.parametrize("lost", ["records", "state", "reports", "garbage"])
def test_what_is_evicted_from_valkey_or_overwritten_costs_no_seat(request: pytest.FixtureRequest, lost: str) -> None:
    """With an eviction policy single keys vanish; whoever reads the rest anew, as another release, has to make do."""
    from conformance.ledger_servers import ValkeyStage

    stage = make_stage("valkey", request)
    assert isinstance(stage, ValkeyStage)
    try:
        stage.configure(4, unconfirmed_max=4)
        one, two = stage.replica("one"), stage.replica("two")
        one.fill(2)
        two.fill(2)
        listed = stage.handle.keys()
        keys = {key.rpartition("}:")[2]: key for key in listed}
        command = ("SET", keys["state"], "garbage") if lost == "garbage" else ("DEL", keys[lost])
        stage.run(stage.handle._link.call("", *command))
        stage.forget()
        for _ in range(3):
            stage.now += 600
            for each in (one, two):
                each.say()
                assert sum(stage.view().held) <= 4
        assert [sum(row.held) for row in stage.view().rows] == [2, 2]
        for each in (one, two):
            each.finish(2)
            each.say()
        assert sum(stage.view().held) == 0
        assert len(one.say(bid(1, 9))) == 4
    finally:
        stage.close()
