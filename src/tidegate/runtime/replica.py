"""Carries the messages between the pools of this gateway and their ledgers.

The rules are those of ``stores.ledger_client``; here are the calls, the pushes and one timer for each pool. Nothing
here is waited for by a request: what the ledger says comes to the driver as signals, like the health of a backend.

Invariant: a link that is open always has a call under way or a timer set, whatever is raised meanwhile. Nobody waits
for it, so one that stopped would leave a pool without grants, and without anybody who says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import structlog

from tidegate.core import PoolBids, Signal, TidegateError
from tidegate.runtime.clock import Clock
from tidegate.stores.ledger_client import Client, Standing
from tidegate.stores.ledger_protocol import Ledger, Lost, News, Pushed, Reply, Subscription

CALL_S = 2.0
"""The longest that a call may take; the scheduler goes on alone long before."""
LEAVE_S = 1.0
AGAIN_S = 0.2
"""After a fault while it looked, until it looks again."""
TELL_S = 10.0
"""A fault that comes again, or another reason why the store does not answer, is told in the log so often."""

log = structlog.get_logger("tidegate.cluster")

Bids = Callable[[float, str], PoolBids]
Observe = Callable[[Signal], None]


class PoolLink:
    """One pool's connection to its ledger.

    Args:
        replica: this gateway's name, unique among those that share the pool.
        client: the rules.
        ledger: where the pool's seats are dealt.
        bids: what the scheduler wants, at a time, in a pool.
        observe: tells the scheduler.
        clock: the driver's.
        answered: hears each reply after the scheduler did.
    """

    def __init__(
        self,
        replica: str,
        client: Client,
        ledger: Ledger,
        *,
        bids: Bids,
        observe: Observe,
        clock: Clock,
        answered: Callable[[PoolLink, Reply], None] = lambda _link, _reply: None,
    ) -> None:
        self.replica = replica
        self.client = client
        self.ledger = ledger
        self._bids = bids
        self._observe = observe
        self._clock = clock
        self._answered = answered
        self._timer: asyncio.TimerHandle | None = None
        self._at = float("inf")
        self._call: asyncio.Task[None] | None = None
        self._soon = False
        self._subscription: Subscription | None = None
        self._alone = False
        self._open = False
        self._fault_told = self._why_told = float("-inf")
        self._why = ""  # why the store does not answer, as told last

    def start(self) -> None:
        """Join the pool; call it inside the loop."""
        self._open = True
        self._subscription = self.ledger.subscribe(self.replica, self._hear)
        self.go_on()

    async def stop(self) -> None:
        """Leave the pool, so that its seats are free at once."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.cancel()
            await asyncio.gather(self._call, return_exceptions=True)
        if self._subscription is not None:
            try:
                await self._subscription.close()
                await asyncio.wait_for(self.ledger.leave(self.replica), LEAVE_S)
            except (TidegateError, TimeoutError):
                pass  # its lease ends by itself
            except Exception:  # the other pools are to be left, and the store to be closed
                log.exception("cluster.fault", pool=self.client.pool, what="leave")

    def changed(self) -> None:
        """There is something to tell; what else happens in this turn of the loop goes along."""
        if self._open and not self._soon and self._call is None:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._on_soon)

    def go_on(self) -> None:
        """Do what is due, and set the timer for what comes next."""
        if not self._open:
            return
        now = self._clock.now()
        at = now + AGAIN_S
        with self._survived("look"):
            self._tell(self.client.look(now))
            if self._call is None and self.client.due(now):
                self._call = asyncio.get_running_loop().create_task(self._ask())
            at = self.client.wakes_at()
        if self._timer is None or at < self._at:
            self._arm(at, now)

    def _on_soon(self) -> None:
        self._soon = False
        self.go_on()

    def _arm(self, at: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.001, at - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.go_on()

    async def _ask(self) -> None:
        reply: Reply | None = None
        with self._survived("ask"):
            reply = await self._answer()
        self._call = None
        with self._survived("hear the answer"):
            if reply is None:
                self._tell(self.client.failed(self._clock.now()))
            else:
                self._tell(self.client.answered(self._clock.now(), reply))
                self._answered(self, reply)
        self.go_on()

    async def _answer(self) -> Reply | None:
        now = self._clock.now()
        report = self.client.report(now, self._bids(now, self.client.pool))
        try:
            reply = await asyncio.wait_for(self.ledger.turn(self.replica, report), CALL_S)
        except (TidegateError, TimeoutError) as error:
            self._tell_why(str(error) or "it took too long")
            return None
        self._why = ""
        return reply

    def _tell_why(self, why: str) -> None:
        """Say why there is no answer, once in an outage, and again when it is another reason after a while."""
        now = self._clock.now()
        if not self._why or (why != self._why and now >= self._why_told + TELL_S):
            self._why, self._why_told = why, now
            log.warning("cluster.no_answer", pool=self.client.pool, why=why)

    def _hear(self, news: News) -> None:
        now = self._clock.now()
        with self._survived("hear a push"):
            if isinstance(news, Pushed):
                self._tell(self.client.pushed(now, news))
            elif not isinstance(news, Lost):
                self._tell(self.client.subscribed(now))
        self.go_on()

    @contextlib.contextmanager
    def _survived(self, what: str) -> Iterator[None]:
        """Go on after what nobody has foreseen, be it of a library of the store, and tell it in the log."""
        try:
            yield
        except Exception as fault:
            now = self._clock.now()
            if now >= self._fault_told + TELL_S:
                self._fault_told = now
                log.error("cluster.fault", pool=self.client.pool, what=what, exc_info=fault)

    def _tell(self, signals: list[Signal]) -> None:
        for signal in signals:
            with self._survived("tell the scheduler"):  # each alone: the rules do not tell anything twice
                self._observe(signal)
        client = self.client
        if (
            self._alone
        ):  # until seats are dealt again: a pool that is about to open is no news, and a late answer no end
            news = client.standing is Standing.SHARED
        else:
            news = client.standing is Standing.SOLO and not client.answer_late
        if news:
            self._alone = not self._alone
            log.warning(f"cluster.{client.standing}", pool=client.pool, degraded=client.degraded)
