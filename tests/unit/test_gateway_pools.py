"""All backends together: what the scheduler is told of them, and changes while they work. Fake wire, virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest

from tidegate.backends import Overloaded, Response, Unavailable
from tidegate.config import Settings, parse_settings
from tidegate.core import BackendSnapshot, Health, Reading, Seats, Signal, Snapshot
from tidegate.gateway import Pools
from tidegate.runtime import Driver
from tidegate.testing import LoopClock
from tidegate.testing.wire import Wire, WireLoop, run_wire, settle

PAGE = b"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n"


def settings(*rows: str) -> Settings:
    return parse_settings("models: [{name: m, backends: [" + ", ".join(f"{{{row}}}" for row in rows) + "]}]")


A = 'name: a, url: "http://a:1", engine: vllm, seats: 8'
B = 'name: b, url: "http://b:1", engine: vllm, seats: 4'
OPENAI = 'name: v, url: "http://v:1", engine: openai, seats: 8'


class Stage:
    """Pools whose backends answer every GET, unless they are in ``dead``."""

    def __init__(self, loop: WireLoop, *rows: str) -> None:
        self.loop = loop
        self.told: list[Signal] = []
        self.auto_seats = 23
        self.slots = b""
        self.dead = False
        self.pools = Pools(settings(*rows), cast(Driver, self), LoopClock(), chance=lambda: 1.0)
        loop.on_connect = self._connected

    # What the pools want of a driver.

    def observe(self, signal: Signal) -> None:
        self.told.append(signal)

    def snapshot(self) -> Snapshot:
        backends = tuple(BackendSnapshot("m", name, self.auto_seats, 0, up=True) for name in "abv")
        return Snapshot(0.0, 0, 0, 0, 0, False, (), backends)

    # The engines.

    def _connected(self, wire: Wire) -> None:
        if self.dead:
            raise ConnectionRefusedError(111, "refused")
        self.loop.call_soon(self._serve, wire, 0)

    def _serve(self, wire: Wire, seen: int) -> None:
        if len(wire.sent) > seen:
            request = bytes(wire.sent[seen:])
            seen = len(wire.sent)
            if request.startswith(b"GET "):
                body = {b"/metrics": PAGE, b"/slots": self.slots}.get(request.split(b" ", 2)[1], b"{}")
                wire.deliver(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        if not wire.ended:
            self.loop.call_later(0.001, self._serve, wire, seen)

    def signals(self, backend: str) -> list[Signal]:
        """What was told of one backend, its readings aside."""
        found: list[Signal] = []
        found += [s for s in self.told if not isinstance(s, Reading) and getattr(s, "backend", "") == backend]
        self.told = [s for s in self.told if s not in found]
        return found

    def readings(self, backend: str) -> list[Reading]:
        return [s for s in self.told if isinstance(s, Reading) and s.backend == backend]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Pools]:
        await self.pools.start()
        try:
            yield self.pools
        finally:
            await self.pools.stop()
            await settle()
            assert all(wire.ended for wire in self.loop.wires)


def test_the_start_waits_for_answers_and_no_longer_than_a_second() -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, A, B)
        began = loop.time()
        async with stage.running() as pools:
            assert loop.time() - began < 0.1
            assert pools.any_up
        mute = Stage(loop, A)
        loop.on_connect = lambda _wire: None
        began = loop.time()
        async with mute.running():
            assert loop.time() - began == pytest.approx(1.0)

    run_wire(story)


def test_a_page_is_told_of_before_it_is_read() -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, A, OPENAI)
        async with stage.running():
            await asyncio.sleep(2)
            readings = stage.readings("a")
            assert readings[0] == Reading("a", 0.0)
            assert readings[1].kv_free == 0.5
            assert stage.readings("v") == []

    run_wire(story)


@pytest.mark.parametrize(("row", "seats"), [(A, 8), (A.replace("seats: 8", "seats: auto"), 23)])
def test_who_comes_back_gets_one_seat_first(row: str, seats: int) -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, row)
        async with stage.running() as pools:
            backend = pools.backends["a"]
            pools.unanswered(backend, Unavailable("refused", sent=False))
            assert stage.signals("a") == [Health("a", up=False)]
            assert not pools.any_up
            stage.auto_seats = 1
            count = len(stage.readings("a"))
            await asyncio.sleep(1.2)
            assert stage.signals("a") == [Seats("a", 1), Health("a", up=True)]
            assert len(stage.readings("a")) > count
            count = len(stage.readings("a"))
            await asyncio.sleep(2)
            assert len(stage.readings("a")) == count  # they would move the seats
            backend.prober.answered()
            assert stage.signals("a") == [Seats("a", seats), Health("a", up=True)]

    run_wire(story)


def test_what_is_not_the_backends_fault_says_nothing() -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, A, B)
        async with stage.running() as pools:
            for _ in range(9):
                pools.unanswered(pools.backends["a"], Overloaded("no room", sent=False))
            assert stage.signals("a") == []
            for _ in range(3):
                pools.unanswered(pools.backends["a"], Unavailable("reset"))
            assert stage.signals("a") == [Health("a", up=False)]
            assert pools.has_another(pools.backends["a"])
            assert not pools.has_another(pools.backends["b"])
            assert not pools.has_another(pools.backends["a"], {"b"})
            for _ in range(9):  # the last one stays
                pools.failed(pools.backends["b"], "500")
            assert stage.signals("b") == []

    run_wire(story)


def test_slots_bound_the_seats() -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, A.replace("vllm", "llamacpp"))
        stage.slots = b'[{"id":0,"n_ctx":9,"is_processing":false},{"id":1,"n_ctx":9,"is_processing":false}]'
        async with stage.running() as pools:
            await asyncio.sleep(2)
            assert stage.signals("a") == [Seats("a", 2)]
            pools.unanswered(pools.backends["a"], Unavailable("refused", sent=False))
            await asyncio.sleep(7)
            assert stage.signals("a")[-2:] == [Seats("a", 2), Health("a", up=True)]

    run_wire(story)


async def asking(pools: Pools, name: str) -> asyncio.Task[Response]:
    task = asyncio.ensure_future(pools.backends[name].upstream.request(b"POST", b"/v1/x", (), b"{}"))
    await settle()
    return task


def test_backends_come_and_go_while_others_work() -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, A, B)
        async with stage.running() as pools:
            same, gone = pools.backends["a"], pools.backends["b"]
            task = await asking(pools, "b")
            wire = next(w for w in loop.wires if b"POST" in w.sent)
            pools.obey(settings(A, OPENAI))
            assert list(pools.backends) == ["a", "v"]
            assert pools.backends["a"] is same
            await asyncio.sleep(10)
            assert gone.upstream.open == 1
            wire.deliver(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            assert await (await task).read_all(9) == b"ok"
            await asyncio.sleep(1)
            assert wire.ended
            assert gone.upstream.open == 0
            asked = len(stage.readings("b"))
            await asyncio.sleep(5)
            assert len(stage.readings("b")) == asked
            gone.prober.unreachable("late")
            assert stage.signals("b") == []

    run_wire(story)


def test_changed_settings_replace_a_backend() -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, A)
        async with stage.running() as pools:
            before = pools.backends["a"]
            pools.obey(settings(A + ", api_key: other"))
            assert pools.backends["a"] is not before
            assert pools.backends["a"].credential == "other"
            await asyncio.sleep(1)
            assert before.upstream.open == 0
            assert any(b"authorization: Bearer other" in wire.sent for wire in loop.wires)

    run_wire(story)


def test_certificates_that_cannot_be_used_change_nothing() -> None:
    async def story(loop: WireLoop) -> None:
        stage = Stage(loop, A)
        async with stage.running() as pools:
            before = pools.backends["a"]
            with pytest.raises(ValueError, match=r"tls\.ca"):
                pools.obey(settings(A, 'name: b, url: "https://b:1", engine: vllm, tls: {ca: /nowhere.pem}'))
            assert pools.backends == {"a": before}

    run_wire(story)
