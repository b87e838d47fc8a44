"""Asking backends whether they are there, on a fake wire and virtual time."""

from __future__ import annotations

import asyncio
import contextlib

import structlog.testing

from tidegate.backends import BackendHealth, HealthRules, Prober, Standing, Upstream
from tidegate.testing.wire import Wire, WireLoop, run_wire

MODELS = b'{"object":"list","data":[{"id":"m1"},{"id":"m2"}]}'
UP, DOWN, TRIAL = Standing.UP, Standing.DOWN, Standing.TRIAL


class Desk:
    """A prober with its engine: ``status`` of the health page, or ``None`` when it refuses connections."""

    def __init__(self, loop: WireLoop) -> None:
        self.loop = loop
        self.status: int | None = 200
        self.hangs = False
        self.broken = False
        self.targets: list[bytes] = []
        self.seen: list[tuple[float, Standing]] = []
        self.upstream = Upstream("http://engine:9000", max_idle=0)
        self.prober = Prober(
            BackendHealth(HealthRules(), lambda: 1.0),
            self.upstream,
            target=b"/health",
            headers=(),
            now=loop.time,
            changed=self._changed,
        )
        loop.on_connect = self._connected
        self._task = loop.create_task(self.prober.run())

    def _changed(self) -> None:
        if self.broken:
            raise KeyError("broken")
        self.seen.append((round(self.loop.time(), 1), self.prober.health.standing))

    def _connected(self, wire: Wire) -> None:
        if self.status is None:
            raise ConnectionRefusedError(111, "refused")
        self.loop.call_later(0.001, self._serve, wire)

    def _serve(self, wire: Wire) -> None:
        self.targets.append(bytes(wire.sent).split(b" ", 2)[1])
        if self.hangs:
            return
        body = MODELS if self.targets[-1] == b"/v1/models" else b""
        wire.deliver(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (self.status or 0, len(body)) + body)

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.upstream.close()


def test_a_well_backend_is_asked_now_and_then_and_its_models_once() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await asyncio.sleep(21)
        assert desk.targets == [b"/health", b"/v1/models", *[b"/health"] * 4]
        assert desk.prober.models == ("m1", "m2")
        assert desk.seen == []
        await desk.stop()

    run_wire(story)


def test_a_fault_of_ours_is_told_and_asking_goes_on() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await asyncio.sleep(7)
        desk.status, desk.broken = None, True
        with structlog.testing.capture_logs() as logs:
            await asyncio.sleep(30)
        assert {entry["event"] for entry in logs} == {"probe.fault"}
        desk.status, desk.broken = 200, False
        await asyncio.sleep(60)
        assert desk.prober.health.standing is UP
        await desk.stop()

    run_wire(story)


def test_one_that_dies_goes_down_and_comes_back_by_a_trial() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await asyncio.sleep(7)
        desk.status = None
        await asyncio.sleep(60)
        desk.status = 200
        await asyncio.sleep(10)
        assert [standing for _, standing in desk.seen] == [DOWN, TRIAL, UP]
        down, trial, up = (at for at, _ in desk.seen)
        assert down == 10.0
        assert 67.0 <= trial <= 68.1
        assert up == trial + 5.0
        await desk.stop()

    run_wire(story)


def test_a_doubt_is_looked_into_at_once() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await asyncio.sleep(1)
        desk.status = 503
        desk.prober.doubt()
        await asyncio.sleep(0.1)
        assert desk.seen == [(1.0, DOWN)]
        assert desk.prober.health.why == "its health page gave 503"
        await desk.stop()

    run_wire(story)


def test_a_page_that_hangs_is_bounded_and_believed_only_without_other_signs_of_life() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await asyncio.sleep(1)
        desk.hangs = True
        desk.prober.doubt()
        await asyncio.sleep(3)
        desk.prober.answered()
        await asyncio.sleep(3)
        assert desk.seen == []
        desk.prober.doubt()
        await asyncio.sleep(6)
        assert desk.seen == [(12.0, DOWN)]
        await desk.stop()

    run_wire(story)


def test_failed_requests_are_counted_and_an_answer_passes_the_trial() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await asyncio.sleep(1)
        for _ in range(3):
            desk.prober.failed("500", spare=True)
        assert desk.prober.health.standing is DOWN
        await asyncio.sleep(1.1)
        assert desk.prober.health.standing is TRIAL
        desk.prober.answered()
        assert [standing for _, standing in desk.seen] == [DOWN, TRIAL, UP]
        desk.prober.unreachable("refused")
        assert desk.prober.health.standing is DOWN
        await desk.stop()

    run_wire(story)


def test_this_machines_own_shortage_says_nothing_of_the_backend() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)

        def no_room(_wire: Wire) -> None:
            raise OSError(24, "too many open files")

        loop.on_connect = no_room
        desk.prober.doubt()
        await asyncio.sleep(3)
        assert desk.prober.asked.is_set()
        assert desk.seen == []
        await desk.stop()

    run_wire(story)
