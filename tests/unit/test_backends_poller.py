"""Looking at metrics pages, on a fake wire and virtual time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import structlog.testing

from tidegate.backends import SIGNALS, Page, Poller, Upstream, page_root
from tidegate.core import Reading
from tidegate.testing.wire import Wire, WireLoop, run_wire

URL = "http://engine:9000/m/metrics"
PAGE = b"vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n"
SLOTS = b'[{"id":0,"n_ctx":64,"is_processing":true},{"id":1,"n_ctx":64,"is_processing":false}]'


def whole(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


class Desk:
    """A poller at work, with what it told."""

    def __init__(self, loop: WireLoop, *, engine: str = "vllm", every_s: float = 0.5) -> None:
        names = SIGNALS[engine]
        assert names is not None
        self.loop = loop
        self.readings: list[Reading] = []
        self.slots: list[int] = []
        self.asked: list[float] = []
        self.answers: dict[bytes, bytes] = {}
        self.answer = whole(PAGE)
        draws = iter(range(10**9))
        self.poller = Poller(
            Page("b", URL, names, ((b"authorization", b"Bearer k"),), every_s=every_s),
            Upstream(page_root(URL)),
            now=loop.time,
            tell=self.readings.append,
            chance=lambda: (next(draws) * 0.37) % 1.0,
            slots=self.slots.append,
        )
        loop.on_connect = self._connected

    def _connected(self, wire: Wire) -> None:
        self.loop.call_soon(self._serve, wire, 0)

    def _serve(self, wire: Wire, seen: int) -> None:
        """Answer whatever comes on a wire with what is set now; an empty answer hangs."""
        if len(wire.sent) > seen:
            request = bytes(wire.sent[seen:])
            seen = len(wire.sent)
            target = request.split(b" ", 2)[1]
            if target.endswith(b"/metrics"):
                self.asked.append(self.loop.time())
            answer = self.answers.get(target, self.answer)
            if answer:
                wire.deliver(answer)
        if not wire.ended:
            self.loop.call_later(0.001, self._serve, wire, seen)

    async def run(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.poller.run()


def test_it_reads_at_a_drawn_pace() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await desk.run(20.0)
        assert desk.readings[0] == Reading("b", 0.0, kv_free=0.5, running=3)
        gaps = [later - sooner for sooner, later in zip(desk.asked, desk.asked[1:], strict=False)]
        assert 36 <= len(gaps) <= 42
        assert min(gaps) >= 0.4
        assert max(gaps) <= 0.61
        assert max(gaps) - min(gaps) > 0.1
        assert [reading.at for reading in desk.readings] == pytest.approx(desk.asked[: len(desk.readings)], abs=0.002)

    run_wire(story)


def test_the_page_and_the_credential_are_those_of_the_settings() -> None:
    async def story(loop: WireLoop) -> None:
        await Desk(loop).run(0.1)
        assert loop.wires[0].sent.startswith(b"GET /m/metrics HTTP/1.1\r\nhost: engine:9000\r\n")
        assert b"authorization: Bearer k\r\n" in loop.wires[0].sent

    run_wire(story)


@pytest.mark.parametrize(
    "answer",
    [
        b"",  # hangs
        whole(PAGE, 500),
        whole(b"<html>"),
        whole(b""),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nvllm:",  # hangs within the page
        b"\x00\x01\r\n\r\n",
    ],
)
def test_a_page_that_fails_is_logged_once_and_looked_at_again(answer: bytes) -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await desk.poller.look()
        desk.answer = answer
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                began = loop.time()
                await desk.poller.look()
                assert loop.time() - began <= 1.01
                assert desk.poller.problem
            assert len(desk.readings) == 1
            desk.answer = whole(PAGE)
            await desk.poller.look()
        assert desk.poller.problem is None
        assert len(desk.readings) == 2
        assert [line["event"] for line in lines] == ["metrics.lost", "metrics.back"]

    run_wire(story)


@pytest.mark.parametrize("where", ["_tell", "_tell_slots"])
def test_a_fault_of_ours_is_told_and_looking_goes_on(where: str) -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop, engine="llamacpp" if where == "_tell_slots" else "vllm")
        desk.answers[b"/m/slots"] = desk.answers[b"/slots"] = whole(SLOTS)
        setattr(desk.poller, where, lambda _: desk.asked[1000])
        with structlog.testing.capture_logs() as logs:
            await desk.run(3.1)
        assert "metrics.fault" in {entry["event"] for entry in logs}
        assert desk.asked[-1] > 2.0

    run_wire(story)


def test_no_connection_is_no_error_either() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)

        def refuse(_wire: Wire) -> None:
            raise ConnectionRefusedError(111, "refused")

        loop.on_connect = refuse
        await desk.run(3.0)
        assert desk.readings == []
        assert desk.poller.problem

    run_wire(story)


def test_a_page_without_end_is_given_up() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        desk.answer = whole(b"x" * (9 * 1024 * 1024))
        await desk.poller.look()
        assert desk.poller.problem is not None
        assert "at most" in desk.poller.problem

    run_wire(story)


def test_slots_speak_where_llamacpp_shows_no_metrics() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop, engine="llamacpp")
        desk.answers = {b"/m/slots": whole(SLOTS), b"/m/metrics": whole(b'{"error":{}}', 501)}
        for _ in range(2):
            await desk.poller.look()
        assert [reading.running for reading in desk.readings] == [1, 1]
        assert desk.slots == [2]
        desk.answers[b"/m/metrics"] = whole(b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n")
        await desk.poller.look()
        assert (desk.readings[-1].running, desk.readings[-1].waiting) == (2, 5)
        desk.answers[b"/m/slots"] = whole(b'{"error":{}}', 501)
        await desk.poller.look()
        assert desk.readings[-1].running == 2
        assert desk.slots == [2]

    run_wire(story)


def test_its_end_closes_its_connections() -> None:
    async def story(loop: WireLoop) -> None:
        desk = Desk(loop)
        await desk.run(1.0)
        assert all(wire.ended for wire in loop.wires)

    run_wire(story)
