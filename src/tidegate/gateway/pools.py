"""The upstreams by name: what each is told, how it stands, and what it shows of itself.

Each backend has a prober and, where its engine shows metrics, a poller, both tasks of their own. What they find goes
to the scheduler as signals; nothing of it is in the way of a request.

A backend that comes back gets one seat until its trial is passed (SPEC §5.4).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import Final, Protocol
from urllib.parse import urlsplit

import structlog

from tidegate.backends import (
    ENGINES,
    SIGNALS,
    BackendError,
    BackendHealth,
    EngineKind,
    HealthRules,
    Overloaded,
    Page,
    Poller,
    Prober,
    Standing,
    Upstream,
    page_root,
    tls_context,
)
from tidegate.config import BackendSettings, Settings
from tidegate.core import AUTO, Health, Reading, Seats, Signal, Snapshot
from tidegate.runtime import Clock

START_S: Final = 1.0
"""Longest time that the start waits for backends; who has not answered by then counts as up until it fails."""

HIGH_WATER: Final = 64 * 1024
"""Bytes of an answer that wait for a slow client before no more are read; what one read brings comes on top."""

NO_PAGE: Final = ("", "off")
_LOOK_S: Final = 0.5  # time between two looks at whether a backend that was taken out still works

log = structlog.get_logger("tidegate.gateway")


class Listener(Protocol):
    """Who is told what is found out, a ``Driver``."""

    def observe(self, signal: Signal) -> None:
        """Hear a fact."""
        ...

    def snapshot(self) -> Snapshot:
        """Say how things stand."""
        ...


class Backend:
    """One upstream with what the gateway needs to write a request for it.

    Attributes:
        row: its settings.
        name: its name in settings, metrics and logs.
        slots: how many requests its engine runs at a time at most, ``None`` when it does not say.
    """

    __slots__ = (
        "_tells_priority",
        "credential",
        "engine",
        "full_seats",
        "name",
        "poller",
        "pool",
        "prober",
        "row",
        "slots",
        "upstream",
    )  # fmt: skip

    def __init__(
        self,
        row: BackendSettings,
        pool: str,
        upstream: Upstream,
        engine: EngineKind,
        credential: str | None,
        prober: Prober,
    ) -> None:
        self.row = row
        self.name: str = row.name
        self._tells_priority = row.send_priority
        self.pool = pool
        self.upstream = upstream
        self.engine = engine
        self.credential = credential
        self.prober = prober
        self.poller: Poller | None = None
        self.slots: int | None = None
        self.full_seats = 0

    def priority_of(self, rank: int) -> int | None:
        """Turn a rank (0 is best) into the ``priority`` that its engine is told; ``None``: it is told none."""
        return self.engine.priority_of(rank) if self._tells_priority else None

    @property
    def up(self) -> bool:
        """Whether it takes requests as far as is known."""
        return self.prober.health.takes_requests

    @property
    def models(self) -> tuple[str, ...]:
        """Names in its list of models when it was last asked."""
        return self.prober.models


class Pools:
    """All backends. ``start`` asks each of them once; ``stop`` closes every connection.

    Args:
        settings: with the backends.
        driver: is told what is found out.
        clock: the scheduler's.
        chance: gives numbers from 0 to below 1, for the jitter.

    Raises:
        ValueError: the certificates of a backend cannot be used.
    """

    def __init__(
        self, settings: Settings, driver: Listener, clock: Clock, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._chance = chance
        self.backends = self._made(settings, {})
        self._tasks: dict[Backend, list[asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def any_up(self) -> bool:
        """Whether some backend takes requests."""
        return any(backend.up for backend in self.backends.values())

    def continues(self, pool: str) -> bool:
        """Whether every backend of a pool goes on with a text that it is given."""
        return all(backend.engine.continues for backend in self.backends.values() if backend.pool == pool)

    def tells_usage(self, pool: str) -> bool:
        """Whether every backend of a pool tells the usage in every event when asked."""
        return all(backend.engine.tells_usage for backend in self.backends.values() if backend.pool == pool)

    def has_another(self, backend: Backend, tried: Collection[str] = ()) -> bool:
        """Whether another backend of the same pool takes requests, one that is not in ``tried``."""
        return any(
            b.pool == backend.pool and b is not backend and b.up and b.name not in tried for b in self.backends.values()
        )

    async def start(self) -> None:
        """Begin to watch all backends; find out who is there, for at most ``START_S``."""
        for backend in self.backends.values():
            self._watch(backend)
        asked = [asyncio.ensure_future(backend.prober.asked.wait()) for backend in self.backends.values()]
        await asyncio.wait(asked, timeout=START_S)
        for each in asked:
            each.cancel()

    async def stop(self) -> None:
        """Stop watching and close all connections."""
        tasks = [*self._leaving, *(task for tasks in self._tasks.values() for task in tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(backend.upstream.close() for backend in self.backends.values()))

    def obey(self, settings: Settings) -> None:
        """Take other backends; call it in the turn of the loop in which the scheduler gets the policy that names them.

        One whose settings changed is replaced. Requests that run on one that leaves go on to their end.

        Raises:
            ValueError: as when made; nothing was changed then.
        """
        before = self.backends
        self.backends = self._made(settings, before)
        kept = set(self.backends.values())
        for backend in before.values():
            if backend not in kept:
                self._let_go(backend)
        for backend in kept - set(before.values()):
            self._watch(backend)

    # What requests saw.

    def failed(self, backend: Backend, why: str) -> None:
        """The backend answered, and badly: an error of its own, within a stream too, or an answer without an end."""
        backend.prober.failed(why, spare=self.has_another(backend))

    def broke(self, name: str, why: str) -> None:
        """An answer that had begun broke, or ended in an error."""
        backend = self.backends.get(name)
        if backend is not None:
            self.failed(backend, why)

    def unanswered(self, backend: Backend, error: BackendError) -> None:
        """A request got no answer."""
        if isinstance(error, Overloaded):  # says something of this machine only
            return
        if error.sent:
            self.failed(backend, str(error))
        else:
            backend.prober.unreachable(str(error))

    def doubt(self, backend: Backend) -> None:
        """Have a backend asked soon whether it is there."""
        backend.prober.doubt()

    # Making and watching.

    def _made(self, settings: Settings, known: dict[str, Backend]) -> dict[str, Backend]:
        """Give all backends of the settings; those that are known and the same stay."""
        found = {}
        for model in settings.models:
            for row in model.backends:
                old = known.get(row.name)
                same = old is not None and old.row == row and old.pool == model.pool
                found[row.name] = old if old is not None and same else self._make(model.pool, row)
        pools = [backend.pool for backend in found.values()]
        self.with_choice = {pool for pool in pools if pools.count(pool) > 1}
        return found

    def _make(self, pool: str, row: BackendSettings) -> Backend:
        kind = ENGINES[row.engine.value]
        context = tls_context(ca=row.tls.ca, verify=row.tls.verify) if row.url.startswith("https:") else None
        # No time limits here: a silent answer keeps its seat as long as its backend is healthy (SPEC §15.10).
        upstream = Upstream(
            row.url,
            name=row.name,
            reuse=kind.reuse,
            head_timeout_s=None,
            silence_timeout_s=None,
            high_water=HIGH_WATER,
            ssl_context=context,
        )
        credential = None if row.api_key is None else row.api_key.get_secret_value()
        prober = Prober(
            BackendHealth(HealthRules(look_every_s=kind.look_every_s), self._chance),
            upstream,
            target=kind.health,
            headers=_credentials(credential),
            now=self._clock.now,
            changed=lambda: self._stands(backend),
        )
        backend = Backend(row, pool, upstream, kind, credential, prober)
        names = SIGNALS[kind.name]
        if names is not None and row.metrics_url not in NO_PAGE:
            ours = _place(row.metrics_url) == _place(row.url)  # a credential goes nowhere else
            page = Page(
                row.name,
                row.metrics_url,
                names,
                _credentials(credential) if ours else (),
                every_s=row.poll_every,
                timeout_s=max(row.stale_after / 3, 0.1),
            )
            client = Upstream(
                page_root(row.metrics_url), name=f"metrics of {row.name}", reuse=kind.reuse, max_idle=1,
                idle_timeout_s=2 * row.poll_every, ssl_context=context if ours else None,
            )  # fmt: skip
            backend.poller = Poller(
                page,
                client,
                now=self._clock.now,
                tell=lambda reading: self._read(backend, reading),
                chance=self._chance,
                slots=lambda slots: self._has_slots(backend, slots),
            )
        return backend

    def _watch(self, backend: Backend) -> None:
        loop = asyncio.get_running_loop()
        tasks = self._tasks[backend] = [loop.create_task(backend.prober.run())]
        if backend.poller is not None:
            # An empty reading, so that one whose page never answers is stale too; soon, when its policy is in force.
            loop.call_soon(self._driver.observe, Reading(backend.name, self._clock.now()))
            tasks.append(loop.create_task(backend.poller.run()))

    def _let_go(self, backend: Backend) -> None:
        for task in self._tasks.pop(backend, ()):
            task.cancel()
        leaving = asyncio.get_running_loop().create_task(self._leave(backend))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, backend: Backend) -> None:
        """Close a backend's client once nothing runs on it."""
        try:
            while backend.upstream.open > backend.upstream.idle:  # noqa: ASYNC110 - rare, and nobody waits for it
                await asyncio.sleep(_LOOK_S)
        finally:
            await backend.upstream.close()

    # What probers and pollers found.

    def _stands(self, backend: Backend) -> None:
        """Tell the scheduler how a backend stands now."""
        if self.backends.get(backend.name) is not backend:
            return
        health = backend.prober.health
        up = health.takes_requests
        log.warning(f"backend.{health.standing}", backend=backend.name, pool=backend.pool, why=health.why)
        if health.standing is Standing.DOWN and backend.full_seats == 0:
            backend.full_seats = self._seats_of(backend)
        if health.standing is Standing.TRIAL:
            self._driver.observe(Seats(backend.name, min(1, backend.full_seats)))
        elif health.standing is Standing.UP:
            self._driver.observe(Seats(backend.name, backend.full_seats))
            backend.full_seats = 0
        self._driver.observe(Health(backend.name, up))

    def _seats_of(self, backend: Backend) -> int:
        """How many seats a backend has when nothing is wrong with it."""
        if backend.row.seats != AUTO:
            return backend.row.seats if backend.slots is None else min(backend.row.seats, backend.slots)
        return next((each.seats for each in self._driver.snapshot().backends if each.name == backend.name), 1)

    def _read(self, backend: Backend, reading: Reading) -> None:
        """Pass a reading on; during a trial it would move the seats of ``auto``."""
        if backend.prober.health.standing is not Standing.TRIAL:
            self._driver.observe(reading)

    def _has_slots(self, backend: Backend, slots: int) -> None:
        """Never exceed the slots of an engine that queues without priorities, and not in order (llama.cpp)."""
        backend.slots = slots
        seats = backend.row.seats
        if seats != AUTO and slots < seats:
            log.warning("backend.slots", backend=backend.name, seats=seats, slots=slots)
        if seats != AUTO and backend.prober.health.standing is Standing.UP:
            self._driver.observe(Seats(backend.name, min(seats, slots)))


def _credentials(key: str | None) -> tuple[tuple[bytes, bytes], ...]:
    return () if key is None else ((b"authorization", b"Bearer " + key.encode("ascii")),)


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
