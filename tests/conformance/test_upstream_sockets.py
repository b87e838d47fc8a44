"""The client over real loopback sockets, on both event loops: what a fake wire cannot show."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tidegate.backends import Broken, Response, Reuse, TimedOut, Unavailable, Upstream, connection

pytestmark = pytest.mark.slow

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Serve = Callable[[Reader, Writer], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.SelectorEventLoop

    def run_story(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(story)

    return run_story


class Engine:
    """A server that runs a script on every connection, and knows how many there were and are."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.port = 0
        self.connections = 0
        self.open = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def empty(self) -> None:
        """Wait until every connection has ended."""
        if self._tasks:
            await asyncio.wait_for(asyncio.gather(*self._tasks), 40)


@asynccontextmanager
async def engine(serve: Serve, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Engine]:
    made = Engine(serve)
    server = await asyncio.start_server(made.accept, host, 0, ssl=tls, backlog=1024)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
        await made.empty()
    finally:
        server.close()
        await server.wait_closed()


async def request_of(reader: Reader) -> bytes:
    """Read one request and give its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length or 0))


async def answer_all(reader: Reader, writer: Writer) -> None:
    while True:
        await request_of(reader)
        writer.write(OK)


def test_a_thousand_sequential_requests_share_one_connection(run: Callable[..., None]) -> None:
    async def story() -> None:
        async with engine(answer_all) as made:
            upstream = Upstream(f"http://127.0.0.1:{made.port}")
            for _ in range(1000):
                response = await upstream.request(b"POST", b"/v1/x", (), b"{}")
                assert await response.read_all(10) == b"ok"
            assert (made.connections, upstream.counters.connects, upstream.counters.reuses) == (1, 1, 999)
            await upstream.close()

    run(story())


def test_two_hundred_requests_at_once(run: Callable[..., None]) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def serve(reader: Reader, writer: Writer) -> None:
            while True:
                body = await request_of(reader)
                await gate.wait()
                writer.write(STREAM + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

        async with engine(serve) as made:
            upstream = Upstream(f"http://127.0.0.1:{made.port}")

            async def one(i: int) -> None:
                response = await upstream.request(b"POST", b"/v1/x", (), b"%d" % i)
                assert await response.read_all(10) == b"%d" % i

            for _ in range(2):
                tasks = [asyncio.ensure_future(one(i)) for i in range(200)]
                await asyncio.sleep(0)
                gate.set()
                await asyncio.gather(*tasks)
            assert made.connections == upstream.counters.connects == 200
            assert (upstream.open, upstream.idle) == (200, 200)
            await upstream.close()
            assert upstream.open == 0

    run(story())


@pytest.mark.parametrize("head", [True, False], ids=["in a stream", "before the head"])
@pytest.mark.parametrize("stubborn", [False, True])
def test_leaving_waits_until_the_engine_has_closed_its_side(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, *, head: bool, stubborn: bool
) -> None:
    """An engine that goes on writing is dropped half a second later, or whenever it has to be."""
    monkeypatch.setattr(connection, "LEAVE_S", 0.5 if stubborn else 60.0)

    async def serve(reader: Reader, writer: Writer) -> None:
        await request_of(reader)
        writer.write(STREAM if head else b"")
        while not reader.at_eof() or stubborn:
            await asyncio.sleep(0.01)
            writer.write(b"5\r\nhello\r\n" if head else b"")
            if writer.is_closing() or writer.transport.is_closing():
                return
            if not head and reader.at_eof() and stubborn:
                await asyncio.sleep(1.0)
                return

    async def story() -> None:
        async with engine(serve) as made:
            upstream = Upstream(f"http://127.0.0.1:{made.port}")
            sent: list[Response] = []
            asking = asyncio.ensure_future(upstream.head(None, b"POST", b"/v1/x", (), b"{}", sent=sent.append))
            while not sent or (head and not sent[0].status):  # noqa: ASYNC110 - a socket tells nobody
                await asyncio.sleep(0.005)
            left = asyncio.Event()
            loop = asyncio.get_running_loop()
            began = loop.time()
            sent[0].leave(left.set)
            assert not left.is_set(), "not before the engine has seen it"
            await asyncio.wait_for(left.wait(), 40)
            assert loop.time() - began > (0.4 if stubborn else 0.0)
            with pytest.raises(Broken):
                await (sent[0].read() if head else asking)
            if head:
                await asking
            again = asyncio.Event()
            sent[0].leave(again.set)  # it is over: nothing to wait for
            await asyncio.wait_for(again.wait(), 20)
            assert upstream.open == 0
            await upstream.close()

    run(story())


def test_the_engine_sees_an_abort_at_once(run: Callable[..., None]) -> None:
    async def story() -> None:
        closed = asyncio.Event()

        async def serve(reader: Reader, writer: Writer) -> None:
            await request_of(reader)
            writer.write(STREAM + b"1\r\nx\r\n")
            try:
                await reader.read(1)
            finally:
                closed.set()

        async with engine(serve) as made:
            upstream = Upstream(f"http://127.0.0.1:{made.port}")
            response = await upstream.request(b"POST", b"/v1/x")
            assert await response.read() == b"x"
            response.abort()
            await asyncio.wait_for(closed.wait(), 20)
            await upstream.close()

    run(story())


def test_an_engine_that_closes_after_streams_costs_no_request(run: Callable[..., None]) -> None:
    """llama.cpp announces keep-alive and closes the socket after a streamed answer."""

    async def story(reuse: Reuse) -> Upstream:
        async def serve(reader: Reader, writer: Writer) -> None:
            await request_of(reader)
            writer.write(STREAM + b"1\r\nx\r\n0\r\n\r\n")

        async with engine(serve) as made:
            upstream = Upstream(f"http://127.0.0.1:{made.port}", reuse=reuse)
            for _ in range(50):
                response = await upstream.request(b"POST", b"/v1/x", (), b"{}")
                assert await response.read_all(10) == b"x"
            await upstream.close()
        return upstream

    async def both() -> None:
        counters = (await story(Reuse.ALWAYS)).counters
        assert counters.connects == 50
        assert counters.retries == counters.reuses
        counters = (await story(Reuse.AFTER_PLAIN)).counters
        assert (counters.connects, counters.reuses, counters.retries) == (50, 0, 0)

    run(both())


def test_large_bodies_pass_both_ways_past_slow_sides(run: Callable[..., None]) -> None:
    payload = bytes(range(256)) * (32 * 1024)  # 8 MiB: more than the sockets' buffers

    async def story() -> None:
        async def serve(reader: Reader, writer: Writer) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.05)
            assert b"content-length: %d\r\n" % len(payload) in head
            body = await reader.readexactly(len(payload))
            assert body == payload
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(payload))
            writer.write(payload)
            await writer.drain()
            await reader.read()

        async with engine(serve) as made:
            upstream = Upstream(f"http://127.0.0.1:{made.port}", high_water=64 * 1024)
            response = await upstream.request(b"POST", b"/v1/x", (), payload)
            while not response._pieces:  # noqa: ASYNC110 - a socket tells nobody
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            first = response.try_read()
            assert first is not None
            assert len(first) < 1024 * 1024  # the rest waits at the engine, not here
            assert first + await response.read_all(1 << 24) == payload
            assert upstream.idle == 1
            await upstream.close()

    run(story())


def test_a_connection_reset_midway_is_broken(run: Callable[..., None]) -> None:
    async def story() -> None:
        async def serve(reader: Reader, writer: Writer) -> None:
            await request_of(reader)
            writer.write(STREAM + b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

        async with engine(serve) as made:
            upstream = Upstream(f"http://127.0.0.1:{made.port}")
            response = await upstream.request(b"POST", b"/v1/x")
            with pytest.raises(Broken):
                await response.read_all(100)
            await upstream.close()

    run(story())


def test_nobody_listens(run: Callable[..., None]) -> None:
    async def story() -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))  # bound and not listening: connecting is refused
            with pytest.raises(Unavailable) as caught:
                await Upstream(f"http://127.0.0.1:{held.getsockname()[1]}").request(b"GET", b"/")
            assert not caught.value.sent

    run(story())


@pytest.mark.parametrize("how", ["limit", "cancel"])
def test_a_tls_handshake_that_never_ends_leaves_no_connection(run: Callable[..., None], how: str) -> None:
    async def story() -> None:
        accepted = asyncio.Event()

        async def silent(reader: Reader, writer: Writer) -> None:
            accepted.set()
            await reader.read()  # up to the client's end

        async with engine(silent) as made:
            upstream = Upstream(f"https://127.0.0.1:{made.port}", connect_timeout_s=0.05 if how == "limit" else 5.0)
            task = asyncio.ensure_future(upstream.request(b"POST", b"/v1/x"))
            if how == "limit":
                with pytest.raises(TimedOut) as caught:
                    await task
                assert not caught.value.sent
            else:
                await accepted.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await made.empty()  # the server has seen the end
            assert upstream.open == 0

    run(story())


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6(run: Callable[..., None]) -> None:
    async def story() -> None:
        async with engine(answer_all, host="::1") as made:
            upstream = Upstream(f"http://[::1]:{made.port}")
            response = await upstream.request(b"POST", b"/v1/x")
            assert await response.read_all(10) == b"ok"
            await upstream.close()

    run(story())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody has signed, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command, which makes the test's certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=IP:127.0.0.1"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=engine", "-addext", names]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_tls_serves_only_with_a_certificate_that_is_trusted_and_names_the_host(
    run: Callable[..., None], certificate: tuple[Path, Path]
) -> None:
    async def story() -> None:
        server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_side.load_cert_chain(*certificate)
        trusting = ssl.create_default_context(cafile=certificate[0])
        async with engine(answer_all, tls=server_side) as made:
            upstream = Upstream(f"https://127.0.0.1:{made.port}", ssl_context=trusting)
            for _ in range(3):
                response = await upstream.request(b"POST", b"/v1/x", (), b"x" * 1_000_000)
                assert await response.read_all(10) == b"ok"
            assert upstream.counters.connects == 1
            await upstream.close()
            assert upstream.open == 0

            distrusting = Upstream(f"https://127.0.0.1:{made.port}")
            with pytest.raises(Unavailable, match=r"(?i)certificate") as caught:
                await distrusting.request(b"POST", b"/v1/x")
            assert not caught.value.sent

            misnamed = Upstream(f"https://localhost:{made.port}", ssl_context=trusting)
            with pytest.raises(Unavailable, match=r"(?i)hostname mismatch"):
                await misnamed.request(b"POST", b"/v1/x")
            assert distrusting.open == misnamed.open == 0

    run(story())
