"""Server-sent events for the dashboard: one snapshot for each tick, made and written as JSON once for all screens.

Every ``TICK_S`` while somebody watches, the numbers are put together once, over several turns of the loop so that
nothing waits for them, and the same bytes go to every screen. A
screen that does not keep up misses frames; it never makes anything wait or pile up. Counters are marked once a second,
watched or not, for the last minute and the sparklines.

Events: ``hello`` (who the screen is, once), ``history`` (once, and anew after a long gap), ``numbers``, ``point`` (one
more point of the history).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from datetime import datetime
from typing import Any

import msgspec
import structlog
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from tidegate._version import __version__
from tidegate.config import Role
from tidegate.control.history import POINTS, STEP_S, History
from tidegate.control.live import Live
from tidegate.control.operators import Denied, Doorkeeper, Operator
from tidegate.control.routing import denied
from tidegate.control.snapshot import Document, JobsView, Observer
from tidegate.control.speech import SpokenError, error_answer
from tidegate.runtime import Driver
from tidegate.stores import StoreError
from tidegate.telemetry import Recorder

TICK_S = 0.5
MARK_S = 1.0
JOBS_S = 2.0
CLUSTER_S = 1.0
MOST_WATCHERS = 200
ADMIT_EVERY = 10
"""Frames after which it is looked again whether a screen may watch."""


log = structlog.get_logger("tidegate.control")
_encoder = msgspec.json.Encoder(enc_hook=str)


def event(name: str, value: object) -> bytes:
    """Return one server-sent event; JSON has no line breaks of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(value))


class Feed:
    """Makes the frames. ``start`` arms its timers, ``close`` ends every stream.

    Args:
        driver, recorder, live: where the numbers come from.
        utc_now: the wall clock.
        jobs: batch jobs, ``None`` without any.
        cluster: says how all gateways stand that share the pools; ``None``: this one is alone.
    """

    def __init__(
        self,
        driver: Driver,
        recorder: Recorder,
        live: Live,
        *,
        utc_now: Callable[[], datetime],
        jobs: JobsView | None = None,
        cluster: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    ) -> None:
        self._observer = Observer(driver, recorder, live, jobs)
        self._history = History()
        self._jobs = jobs
        self._cluster = cluster
        self._utc_now = utc_now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._work: Iterator[None] = iter(())
        self._asking: asyncio.Task[None] | None = None
        self._asking_cluster: asyncio.Task[None] | None = None
        self._marked_at = self._pointed_at = self._asked_at = self._cluster_asked_at = float("-inf")
        self._written_history: tuple[int, bytes] = (-1, b"")
        self._news = asyncio.Event()
        self.frame = b""
        self.point = b""
        self.frames = 0
        self.watchers = 0
        self.closed = False

    @property
    def points(self) -> int:
        """How many points the history has had; ``point`` is the last of them."""
        return self._history.number

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to mark and to tick."""
        self._loop = loop
        self._tick()

    def close(self) -> None:
        """End every stream and stop the timers."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._asking, self._asking_cluster):
            if task is not None:
                task.cancel()
        self._wake()

    def history(self) -> bytes:
        """Return the whole history; written once for each point."""
        if self._written_history[0] != self.points:
            document = {"step_s": STEP_S, "points": POINTS, "series": self._history.series()}
            self._written_history = (self.points, event("history", document))
        return self._written_history[1]

    def opening(self) -> bytes:
        """Return what a new screen gets first: the history and the numbers of this moment."""
        if self.watchers <= 1:  # nobody watched before: the last frame may be old
            self._compose()
        return self.history() + self.frame

    async def next(self) -> None:
        """Wait for the next frame, or the end."""
        await self._news.wait()

    def _tick(self) -> None:
        """Begin what is due."""
        assert self._loop is not None
        self._work = self._due(self._loop.time())
        self._step(self._loop)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do a part of it; what goes wrong ends every stream, so that no screen shows old numbers as new ones."""
        try:
            next(self._work)
        except StopIteration:
            self._timer = loop.call_later(TICK_S, self._tick)
        except Exception:  # the top of a timer
            log.exception("control.dashboard_fault")
            self.close()
        else:
            self._timer = loop.call_soon(self._step, loop)

    def _due(self, now: float) -> Iterator[None]:
        """Do all that is due, in parts."""
        watched = self.watchers > 0  # who comes while this goes on has an opening of its own
        if now - self._marked_at >= MARK_S * 0.99:
            self._marked_at = now
            self._observer.mark()
            self._history.note_peaks(self._observer.peaks())
            yield
        if now - self._pointed_at >= STEP_S * 0.99:
            self._pointed_at = now
            self.point = event("point", self._history.add(self._observer.point()))
            yield
        if not watched:
            return
        self._ask_jobs(now)
        self._ask_cluster(now)
        numbers = yield from self._observer.in_parts()
        yield
        self._write(numbers)
        self._wake()

    def _compose(self) -> None:
        self._write(self._observer.numbers())

    def _write(self, numbers: Document) -> None:
        self.frames += 1
        self.frame = event("numbers", {"number": self.frames, "at_utc": self._utc_now().isoformat(), **numbers})

    def _wake(self) -> None:
        """Wake who waits now, and nobody later."""
        self._news.set()
        self._news.clear()

    def _ask_jobs(self, now: float) -> None:
        """Ask the jobs' worker now and then; its answer comes when it comes."""
        if self._jobs is not None and now - self._asked_at >= JOBS_S and (self._asking is None or self._asking.done()):
            assert self._loop is not None
            self._asked_at = now
            self._asking = self._loop.create_task(self._asked(self._jobs))

    async def _asked(self, jobs: JobsView) -> None:
        try:
            self._observer.jobs_document = await jobs.overview()
        except StoreError as error:
            self._observer.jobs_document = {"error": str(error)[:200]}

    def _ask_cluster(self, now: float) -> None:
        """Ask now and then how the other gateways stand; a store that is slow delays nothing."""
        running = self._asking_cluster is not None and not self._asking_cluster.done()
        if self._cluster is not None and now - self._cluster_asked_at >= CLUSTER_S and not running:
            assert self._loop is not None
            self._cluster_asked_at = now
            self._asking_cluster = self._loop.create_task(self._cluster_asked(self._cluster))

    async def _cluster_asked(self, cluster: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._observer.cluster_document = await cluster()


class Events:
    """The ASGI endpoint ``/admin/events``."""

    def __init__(self, feed: Feed, door: Doorkeeper) -> None:
        self._feed = feed
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the screen leaves, its token is taken away, or the gateway ends."""
        who = self._admit(scope)
        problem = self._objection(who)
        if problem is not None or isinstance(who, Denied):
            assert problem is not None
            await error_answer(problem)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await send({"type": "http.response.body", "body": b""})
            return
        self._feed.watchers += 1
        try:
            await self._stream(who, scope, send)
        finally:
            self._feed.watchers -= 1

    async def _stream(self, who: Operator, scope: Scope, send: Send) -> None:
        feed, link = self._feed, scope.get("state", {}).get("link")
        session = self._door.sessions.find(Headers(scope=scope), self._door.operators) is not None
        tokens = bool(self._door.operators)
        hello = {"who": who.name, "role": who.role, "tokens": tokens, "session": session, "version": __version__}
        known, frames = feed.points, 0
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send(_piece(event("hello", hello) + feed.opening()))
        while True:
            await feed.next()
            if feed.closed or getattr(link, "gone", False):
                break
            frames += 1
            if frames % ADMIT_EVERY == 0 and not self._door.may_stay(Headers(scope=scope), who):
                break  # tokens have changed or the login has ended: the page comes back and is looked at anew
            body = feed.frame
            if feed.points != known:
                body = (feed.point if feed.points == known + 1 else feed.history()) + body
                known = feed.points
            await send(_piece(body))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _objection(self, who: Operator | Denied) -> SpokenError | None:
        if isinstance(who, Denied):
            return denied(who)
        if self._feed.closed:
            return SpokenError(503, "draining", "expected a gateway that goes on; it stops, or its dashboard failed")
        if self._feed.watchers >= MOST_WATCHERS:
            return SpokenError(503, "too_many_screens", f"expected at most {MOST_WATCHERS} open dashboards")
        return None

    def _admit(self, scope: Scope) -> Operator | Denied:
        address = scope["client"][0] if scope.get("client") else ""
        return self._door.admit(Headers(scope=scope), address, Role.VIEWER)


HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


def _piece(body: bytes) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}
