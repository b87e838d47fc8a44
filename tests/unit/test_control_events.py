"""The stream of the dashboard: one frame for all screens, and only for those who may look."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidegate.config import parse_settings
from tidegate.control.events import MOST_WATCHERS, TICK_S
from tidegate.control.history import POINTS, STEP_S
from tidegate.core import Ticket
from tidegate.stores import Unavailable
from tidegate.testing import run_virtual
from unit.control_stage import FILE, LOCAL, OPERATORS, Stage

TOKENS = FILE + f"control: {{listen: '0.0.0.0:8401', {OPERATORS}}}"


class Screen:
    """One open dashboard: what it was sent, as events."""

    def __init__(self, *, slow: asyncio.Event | None = None) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.bodies: list[bytes] = []
        self.ended = False
        self.link = SimpleNamespace(gone=False)
        self._slow = slow

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            return
        self.bodies.append(message.get("body", b""))
        self.ended = not message.get("more_body", False)
        if self._slow is not None and len(self.bodies) > 1:
            await self._slow.wait()

    @property
    def events(self) -> list[tuple[str, Any]]:
        found = []
        for event in b"".join(self.bodies).decode().split("\n\n")[:-1]:
            name, data = event.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        return found

    def of(self, kind: str) -> list[Any]:
        return [value for name, value in self.events if name == kind]


def watch(stage: Stage, screen: Screen, token: str | None = None) -> asyncio.Task[None]:
    headers = [*LOCAL] if token is None else [*LOCAL, (b"authorization", f"Bearer {token}".encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/admin/events",
        "raw_path": b"/admin/events",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": headers,
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8401),
        "state": {"link": screen.link},
    }

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    return asyncio.create_task(stage.app(scope, receive, screen.send))


@contextlib.asynccontextmanager
async def started(stage: Stage) -> AsyncIterator[None]:
    stage.feed.start(asyncio.get_running_loop())
    try:
        yield
    finally:
        stage.feed.close()
        await asyncio.sleep(0)


def test_a_screen_gets_who_it_is_the_history_and_then_numbers_twice_a_second() -> None:
    async def story() -> None:
        stage, screen = Stage(), Screen()
        async with started(stage):
            await asyncio.sleep(21)
            task = watch(stage, screen)
            await asyncio.sleep(6.2)
            assert (screen.status, screen.headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
            assert screen.headers[b"cache-control"] == b"no-store"
            names = [name for name, _ in screen.events]
            assert names[:3] == ["hello", "history", "numbers"]
            hello = screen.of("hello")[0]
            assert (hello["who"], hello["role"], hello["tokens"]) == ("local", "operator", False)
            assert screen.of("history")[0]["points"] == POINTS
            assert len(screen.of("history")[0]["series"]["p0.depth"]) == 1 + 21 // STEP_S
            assert len(screen.of("numbers")) == pytest.approx(1 + 6.2 / TICK_S, abs=1)
            assert len(screen.of("point")) in (1, 2)
            await stage.driver.acquire(Ticket("t", "m", 0, "tenant"))
            waits = asyncio.create_task(stage.driver.acquire(Ticket("u", "m", 2, "tenant")))
            await asyncio.sleep(TICK_S + 0.01)
            assert screen.of("numbers")[-1]["queued"] == 1
            waits.cancel()
        await task
        assert screen.ended

    run_virtual(story())


def test_a_hundred_screens_get_the_same_bytes_of_one_frame() -> None:
    async def story() -> None:
        stage = Stage()
        screens = [Screen() for _ in range(100)]
        async with started(stage):
            tasks = [watch(stage, screen) for screen in screens]
            await asyncio.sleep(0)
            before = stage.feed.frames
            await asyncio.sleep(10.5 * TICK_S)
            assert stage.feed.frames - before == 10
            assert {len(screen.bodies) for screen in screens} == {11}
            assert all(screen.bodies[1] is screens[0].bodies[1] for screen in screens)
        await asyncio.gather(*tasks)

    run_virtual(story())


def test_nothing_is_put_together_while_nobody_watches() -> None:
    async def story() -> None:
        stage, screen = Stage(), Screen()
        async with started(stage):
            await asyncio.sleep(60)
            assert stage.feed.frames == 0
            task = watch(stage, screen)
            await asyncio.sleep(0.01)
            screen.link.gone = True
            await asyncio.sleep(TICK_S)
            await task
            assert stage.feed.watchers == 0
            frames = stage.feed.frames
            await asyncio.sleep(60)
            assert stage.feed.frames == frames

    run_virtual(story())


def test_a_screen_that_does_not_keep_up_misses_frames_but_no_points() -> None:
    async def story() -> None:
        stage = Stage()
        ready = asyncio.Event()
        slow, quick = Screen(slow=ready), Screen()
        async with started(stage):
            tasks = [watch(stage, slow), watch(stage, quick)]
            await asyncio.sleep(30)
            assert (len(slow.bodies), len(quick.of("numbers"))) == (2, 60)
            ready.set()
            await asyncio.sleep(TICK_S)
            assert len(slow.of("numbers")) == 3
            assert slow.of("history")[-1]["series"].keys() == quick.of("history")[0]["series"].keys()
            assert len(slow.of("history")[-1]["series"]["p0.depth"]) == stage.feed.points
        await asyncio.gather(*tasks)

    run_virtual(story())


def test_only_who_may_look_gets_a_stream_and_only_as_long_as_he_may() -> None:
    async def story() -> None:
        stage = Stage(TOKENS)
        async with started(stage):
            seen = []
            for token in (None, "nobody", "wall-token", "duty-token"):
                screen = Screen()
                task = watch(stage, screen, token)
                await asyncio.sleep(0.01)
                role = screen.of("hello")[0]["role"] if screen.status == 200 else None
                seen.append((screen.status, role))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert seen == [(401, None), (401, None), (200, "viewer"), (200, "operator")]
            assert stage.feed.watchers == 0
            screen = Screen()
            task = watch(stage, screen, "wall-token")
            await asyncio.sleep(1)
            ended = [screen.ended]
            stage.live.settings = parse_settings(TOKENS.replace("wall", "hall"))
            await asyncio.sleep(6)
            ended.append(screen.ended)
            assert ended == [False, True]
            await task

    with capture_logs():
        run_virtual(story())


def test_there_is_room_for_so_many_screens_and_no_more() -> None:
    async def story() -> None:
        stage = Stage()
        async with started(stage):
            screens = [Screen() for _ in range(MOST_WATCHERS + 1)]
            tasks = [watch(stage, screen) for screen in screens]
            await asyncio.sleep(0.01)
            assert [screen.status for screen in screens[-2:]] == [200, 503]
        await asyncio.gather(*tasks)
        late = Screen()
        await watch(stage, late)
        assert late.status == 503

    run_virtual(story())


@pytest.mark.interpreted
def test_numbers_that_cannot_be_made_end_every_stream_instead_of_standing_still() -> None:
    async def story() -> None:
        stage, screen = Stage(), Screen()
        async with started(stage):
            task = watch(stage, screen)
            await asyncio.sleep(0.01)
            stage.driver.snapshot = None  # type: ignore[assignment,method-assign]
            with capture_logs() as logs:
                await asyncio.sleep(TICK_S)
            await task
            assert screen.ended
            assert [line["event"] for line in logs] == ["control.dashboard_fault"]

    run_virtual(story())


def test_jobs_are_asked_now_and_then_and_their_silence_holds_nothing_up() -> None:
    class Jobs:
        def __init__(self) -> None:
            self.asked = 0
            self.fails = False

        def rows_waiting(self) -> list[int]:
            return []

        async def overview(self) -> dict[str, Any]:
            self.asked += 1
            if self.fails:
                raise Unavailable("the store is gone")
            await asyncio.sleep(7)
            return {"batches": [], "dead": 3}

    async def story() -> None:
        stage, screen, jobs = Stage(), Screen(), Jobs()
        stage.feed._jobs = stage.feed._observer._jobs = jobs
        async with started(stage):
            task = watch(stage, screen)
            await asyncio.sleep(10)
            assert jobs.asked == 2
            assert len(screen.of("numbers")) == 20
            assert screen.of("numbers")[-1]["jobs"]["dead"] == 3
            jobs.fails = True
            await asyncio.sleep(10)
            assert screen.of("numbers")[-1]["jobs"] == {"error": "the store is gone"}
        await task

    run_virtual(story())


def test_a_stream_is_there_to_be_read_only() -> None:
    async def story() -> None:
        stage = Stage()
        async with started(stage):
            assert (await stage.ask("POST", "/admin/events", {})).status == 405
            headed = await stage.ask("HEAD", "/admin/events")
            assert (headed.status, headed.body, stage.feed.watchers) == (200, b"", 0)

    run_virtual(story())
