"""The gateway's side of the worker: starts it, replaces it when it dies, and says again what was not answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import structlog

from tidegate.jobs.messages import Ask, FromWorker, Hello, Reply, Setup, ToWorker, Unframer, frame
from tidegate.stores import Conflict, Full, NotFound, StoreError, Unavailable

T = TypeVar("T")

START_S: Final = 30.0
"""Longest time that opening the store may take: it may have to bring tables up to date."""
FIRST_PAUSE_S: Final = 0.05
MOST_PAUSE_S: Final = 5.0
STEADY_S: Final = 10.0
"""A worker that lived so long is replaced at once."""
END_S: Final = 10.0
ASK_S: Final = 30.0
MOST_TRIES: Final = 3
"""Times that a question is asked of successive workers: one that kills each of them is not worth it."""

log = structlog.get_logger("tidegate.jobs")
_decoder = msgspec.msgpack.Decoder(FromWorker)
_ERRORS: Final = {"NotFound": NotFound, "Conflict": Conflict, "Full": Full}


class _Open:
    """A question that is not answered yet."""

    __slots__ = ("ask", "future", "tries")

    def __init__(self, ask: Ask, future: asyncio.Future[Reply]) -> None:
        self.ask = ask
        self.future = future
        self.tries = 0


class Link:
    """Speaks to the worker.

    Args:
        setup: told to each worker.
        heard: called with every message but replies.
        hello: called when a worker has come up; gives the lease tokens held and what has to be said again.
        utc: wall-clock time, seconds.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        heard: Callable[[FromWorker], None],
        hello: Callable[[], tuple[list[int], list[ToWorker]]],
        utc: Callable[[], float],
    ) -> None:
        self._setup = setup
        self._heard = heard
        self._hello = hello
        self._utc = utc
        self._open: dict[int, _Open] = {}
        self._ids = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._failure = ""
        self._ending = False

    @property
    def pid(self) -> int | None:
        """Process id of the worker."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the worker and wait until it has opened the store.

        Raises:
            StoreError: it cannot.
        """
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        up = asyncio.ensure_future(self._up.wait())
        await asyncio.wait((up, self._keeper), timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if not self._up.is_set():
            await self.stop()
            raise StoreError(f"jobs: {self._failure or 'the worker did not come up, see its words above'}")

    async def stop(self) -> None:
        """End the worker after what it has been told is done."""
        self._ending = True
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write_eof()
        if self._keeper is not None:
            await asyncio.wait((self._keeper,), timeout=END_S)
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
        self._kill()
        for each in self._open.values():
            if not each.future.done():
                each.future.cancel()

    def say(self, message: ToWorker) -> None:
        """Tell the worker; nothing happens while there is none."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    async def ask(self, kind: type[T] | Any, method: str, **args: object) -> T:
        """Ask the desk; see its methods.

        Args:
            kind: type of the answer.
            method: name of the method.
            args: its arguments.

        Raises:
            NotFound, Conflict, Full, Unavailable: as the store says; ``Unavailable`` also without an answer in time.
        """
        each = _Open(Ask(next(self._ids), method, args), asyncio.get_running_loop().create_future())
        self._open[each.ask.id] = each
        try:
            if self._writer is not None:  # the worker has been greeted, even if it is not up yet
                self._put(each)
            async with asyncio.timeout(ASK_S):
                reply = await each.future
        except TimeoutError:
            raise Unavailable("the job store gives no answer; see the log of the gateway") from None
        finally:
            del self._open[each.ask.id]
        if reply.error is not None:
            raise _ERRORS.get(reply.error, Unavailable)(reply.message)
        found: T = msgspec.msgpack.decode(reply.result, type=kind)
        return found

    def _put(self, each: _Open) -> None:
        each.tries += 1
        if each.tries > MOST_TRIES:
            if not each.future.done():
                each.future.set_result(Reply(each.ask.id, error="Unavailable", message="the jobs' worker failed"))
            return
        self.say(each.ask)

    async def _keep(self) -> None:
        """Keep a worker running."""
        pause_s, loop = FIRST_PAUSE_S, asyncio.get_running_loop()
        while not self._ending:
            began = loop.time()
            try:
                await self._run()
            except Exception as error:  # a task's top: without this one there would be no worker any more
                log.exception("jobs.link_fault")
                self._failure = str(error)
            self._writer = None
            self._up.clear()
            self._kill()
            if self._ending or (self._failure and not self._open and not self._was_up):
                return
            log.error("jobs.worker_ended", why=self._failure)
            pause_s = FIRST_PAUSE_S if loop.time() - began > STEADY_S else min(2 * pause_s, MOST_PAUSE_S)
            await asyncio.sleep(pause_s)

    _was_up = False

    async def _run(self) -> None:
        """Start one worker and listen until it ends."""
        self._failure = ""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own module; starting takes a millisecond
                [sys.executable, "-m", "tidegate.jobs.process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            held, again = self._hello()
            self.say(Hello(self._setup, held, self._utc()))
            for message in again:
                self.say(message)
            for each in tuple(self._open.values()):
                self._put(each)
            unframer = Unframer()
            while data := await reader.read(2**20):
                for body in unframer.feed(data):
                    self._take(_decoder.decode(body))
        finally:
            self._writer.close()

    def _take(self, message: FromWorker) -> None:
        if not isinstance(message, Reply):
            self._was_up = True
            self._up.set()
            self._heard(message)
        elif message.id == 0:
            self._failure = message.message
        else:
            each = self._open.get(message.id)
            if each is not None and not each.future.done():
                each.future.set_result(message)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.kill()
            process.wait()
