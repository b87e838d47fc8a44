"""Answers that go on after they were stopped or their backend failed: who may, and one leg of such an answer.

What a client has of its answer is carried over by ``splice``; the seat in between is the scheduler's business. A
request in a ``preemptible`` band whose client wants no stream is streamed from the engine all the same, so that what
has been written by then is not lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tidegate.backends import BackendError, Broken, Response
from tidegate.backends.response import Sink
from tidegate.classify import Route
from tidegate.config import Settings
from tidegate.core import Stoppable
from tidegate.core.compiling import mypyc_attr
from tidegate.gateway.asked import Asked
from tidegate.gateway.pools import Pools
from tidegate.gateway.relay import PIECE
from tidegate.gateway.watch import StreamWatch, Used
from tidegate.runtime import Clock
from tidegate.splice import Obstacle, Splice, read_wish
from tidegate.telemetry import Recorder

RESUME_HEADER: Final = b"x-tidegate-resume"
_ROUTES: Final = (Route.CHAT, Route.COMPLETIONS)


class Resuming:
    """What one request carries over its legs.

    Attributes:
        splice: joins them.
        left: how often it may still go on after a failure.
        seam: why the last leg was cut; empty in the first one.
        blocked: the client does not take what came: what is stopped now would keep its seat until it does.
    """

    __slots__ = ("_counted", "_cut_at", "_recorder", "blocked", "left", "seam", "splice")

    def __init__(self, splice: Splice, recorder: Recorder, left: int) -> None:
        self.splice = splice
        self._recorder = recorder
        self.left = left
        self.seam = ""
        self.blocked = False
        self._cut_at: float | None = None
        self._counted = 0

    @property
    def carries(self) -> bool:
        """Whether a leg has been cut, so that the next one goes on with it."""
        return self.splice.legs > 1

    def may_stop(self) -> bool:
        """Say whether the answer can go on when it is stopped now. One that is at its end need not be."""
        return (
            not self.blocked
            and not self.splice.complete
            and self.splice.finished is None
            and self.splice.obstacle is None
        )

    def cut(self, seam: str, now: float) -> Obstacle | None:
        """End the present leg; return why the answer cannot go on."""
        self._count_recomputed()
        self.splice.cut()
        self.seam, self._cut_at = seam, now
        return self.splice.obstacle

    def goes_on(self, now: float) -> None:
        """Note that the first piece behind a seam has come."""
        if self._cut_at is not None:
            self._recorder.resumed(self.seam, now - self._cut_at)
            self._cut_at = None

    def ended(self) -> None:
        """Note the end of the request."""
        self._count_recomputed()

    def used(self) -> Used:
        """Tokens of all legs."""
        return Used(*self.splice.used())

    def _count_recomputed(self) -> None:
        fresh = self.splice.recomputed - self._counted
        if fresh:
            self._counted += fresh
            self._recorder.recomputed(self.seam, fresh)


@mypyc_attr(acyclic=True)
class Plan:
    """How a request may be stopped, and what carries it over if it can go on. Never changed."""

    __slots__ = ("resuming", "stoppable")

    def __init__(self, stoppable: Stoppable = Stoppable.NEVER, resuming: Resuming | None = None) -> None:
        self.stoppable = stoppable
        self.resuming = resuming


NOTHING: Final = Plan()


class Resumer:
    """Says beforehand which requests may be stopped and go on."""

    def __init__(self, settings: Settings, pools: Pools, recorder: Recorder) -> None:
        self._pools = pools
        self._recorder = recorder
        self.obey(settings)

    def obey(self, settings: Settings) -> None:
        """Take other settings."""
        policy = settings.policy
        bands = tuple(policy.bands.values())
        on = policy.preempt_rate > 0 and policy.max_preemptions > 0
        self._preemptible = tuple(
            on and band.preemptible and any(higher.may_preempt for higher in bands[:index])
            for index, band in enumerate(bands)
        )
        self._attempts = policy.resume_attempts

    def plan(self, asked: Asked) -> Plan:
        """Look at a request once. Whether it can go on is known for good, but for what its answer brings."""
        pool, route = asked.classified.pool, asked.route
        preemptible = self._preemptible[asked.classified.band]
        if not preemptible and not (self._attempts and pool in self._pools.with_choice):
            return NOTHING
        if route not in _ROUTES or asked.form or not (preemptible or asked.body.stream):
            return NOTHING
        obstacle = self._forbidden(asked)
        if obstacle is None:
            wish, obstacle = read_wish(asked.raw, chat=route is Route.CHAT)
        if obstacle is not None:  # whether an answer that is no stream has begun, nobody knows
            return Plan(Stoppable.UNSTARTED) if preemptible and asked.body.stream else NOTHING
        splice = Splice(wish, told=not wish.stream and self._pools.tells_usage(pool))
        stoppable = Stoppable.ALWAYS if preemptible else Stoppable.NEVER
        return Plan(stoppable, Resuming(splice, self._recorder, self._attempts))

    def _forbidden(self, asked: Asked) -> Obstacle | None:
        if any(name == RESUME_HEADER and value.strip().lower() == b"never" for name, value in asked.headers):
            return Obstacle.FORBIDDEN
        return None if self._pools.continues(asked.classified.pool) else Obstacle.ENGINE


class Client:
    """Where the pieces of a leg go.

    Attributes:
        send: sends and waits while the client does not keep up.
        pass_on: sends at once a piece, or its chunk; ``False``: the client does not keep up.
    """

    __slots__ = ("pass_on", "send")

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], pass_on: Callable[[bytes, bytes | None], bool]
    ) -> None:
        self.send = send
        self.pass_on = pass_on


class _Through(Sink):
    """Passes pieces on of which nothing has to be changed, and keeps them."""

    __slots__ = ("_client", "_splice", "_watch")

    def __init__(self, splice: Splice, client: Client | None, watch: StreamWatch | None) -> None:
        self._splice = splice
        self._client = client
        self._watch = watch

    def take(self, piece: bytes, chunk: bytes | None) -> bool:
        splice, client, watch = self._splice, self._client, self._watch
        if len(piece) > PIECE or not splice.passes(piece):
            return False
        if client is not None and not client.pass_on(piece, chunk):
            return False
        splice.keep(piece)
        if watch is not None:
            watch.piece(piece)
        return True


async def run_leg(
    response: Response, first: bytes, resuming: Resuming, watch: StreamWatch, client: Client | None, clock: Clock
) -> BackendError | None:
    """Take in one leg; return why it ended before the answer did, ``None`` when that is complete.

    Pieces that need nothing done to them go out within the callback that brought them, as in ``relay_stream``.

    Args:
        response: the open answer.
        first: what has been read of it.
        resuming: joins the legs.
        watch: has seen ``first``; follows the first leg of a stream.
        client: ``None`` when it wants no stream.
        clock: for the pause at the seam.
    """
    splice = resuming.splice
    follows = not resuming.carries and client is not None
    through = _Through(splice, client, watch if follows else None)
    data: bytes | None = first
    try:
        while data:
            out = splice.feed(data)
            if follows and data is not first:
                watch.piece(out)
            if splice.failed:
                response.abort()
                return Broken("an error within the stream")
            resuming.goes_on(clock.now())
            if client is not None:
                resuming.blocked = True
                for start in range(0, len(out), PIECE):
                    await client.send(out[start : start + PIECE])
                resuming.blocked = False
            if response.at_end:
                break
            data = response.try_read()
            if data is None:
                data = await response.read_past(through)
    except BackendError as error:
        return error
    complete = watch.complete if follows else splice.complete
    return None if complete else Broken("the stream ended without a finish reason")
