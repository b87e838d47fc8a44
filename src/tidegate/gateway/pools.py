"""The upstreams by name, what each is told, and which of them are up.

The rule for health in this version, simple and honest: a backend that refuses connections, or that ends one without
a byte of an answer while another backend of its pool is up, is down at once and asked at once; one that is silent for
too long is asked too; every backend that is down is asked once a second. The question is the list of its models; any
answer below 500 within ``PROBE_TIMEOUT_S`` means up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import structlog

from tidegate.backends import ENGINES, BackendError, EngineKind, Overloaded, Upstream
from tidegate.config import BackendSettings, Settings
from tidegate.core import Health
from tidegate.runtime import Driver

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 5.0
START_S = 1.0
"""Longest time that the start waits for backends; who has not answered by then counts as up until it fails."""

_MOST_PROBED = 4 * 1024 * 1024

log = structlog.get_logger("tidegate.gateway")


@dataclass(slots=True, eq=False)
class Backend:
    """One upstream with what the gateway needs to write a request for it.

    Attributes:
        up: whether it takes requests as far as is known.
        asking: whether it is being asked.
        models: names in its list of models when it was last asked.
    """

    name: str
    pool: str
    upstream: Upstream
    engine: EngineKind
    send_priority: bool
    credential: str | None
    up: bool = True
    asking: bool = False
    models: tuple[str, ...] = ()


class Pools:
    """All backends. ``start`` asks each of them once; ``stop`` closes every connection."""

    def __init__(self, settings: Settings, driver: Driver) -> None:
        self._driver = driver
        self.backends = {row.name: _backend(model.pool, row) for model in settings.models for row in model.backends}
        self._sizes: dict[str, int] = {}
        for backend in self.backends.values():
            self._sizes[backend.pool] = self._sizes.get(backend.pool, 0) + 1
        self._doubts: set[Backend] = set()
        self._wake = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def any_up(self) -> bool:
        """Whether some backend takes requests."""
        return any(backend.up for backend in self.backends.values())

    def has_another(self, backend: Backend) -> bool:
        """Whether another backend of the same pool is up."""
        if self._sizes[backend.pool] == 1:
            return False
        return any(b.up and b.pool == backend.pool and b is not backend for b in self.backends.values())

    def size(self, pool: str) -> int:
        """How many backends a pool has."""
        return self._sizes[pool]

    async def start(self) -> None:
        """Find out who is there, then keep watching those that are not. Takes at most ``START_S``."""
        for backend in self.backends.values():
            self._ask(backend)
        await asyncio.wait(self._probes, timeout=START_S)
        self._watch = asyncio.get_running_loop().create_task(self._keep_watch())

    async def stop(self) -> None:
        """Stop watching and close all connections."""
        tasks = [*self._probes, *([self._watch] if self._watch is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(backend.upstream.close() for backend in self.backends.values()))

    def failed(self, backend: Backend, error: BackendError) -> None:
        """Learn from a request that got no answer."""
        if isinstance(error, Overloaded):  # says something of this machine only
            return
        if not error.sent or self.has_another(backend):  # so that a second try goes elsewhere
            self._set(backend, up=False, why=str(error))
        self._ask(backend)

    def doubt(self, backend: Backend) -> None:
        """Have a backend asked soon whether it is there."""
        self._doubts.add(backend)
        self._wake.set()

    async def _keep_watch(self) -> None:
        while True:
            self._doubts.update(backend for backend in self.backends.values() if not backend.up)
            if not self._doubts:
                self._wake.clear()
                await self._wake.wait()
            for backend in self._doubts:
                self._ask(backend)
            self._doubts.clear()
            await asyncio.sleep(PROBE_EVERY_S)

    def _ask(self, backend: Backend) -> None:
        if not backend.asking:
            probe = asyncio.get_running_loop().create_task(self._probe(backend))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, backend: Backend) -> None:
        backend.asking = True
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                response = await backend.upstream.request(b"GET", b"/v1/models", _credentials(backend.credential))
                body = await response.read_all(_MOST_PROBED)
        except (BackendError, TimeoutError) as error:
            self._set(backend, up=False, why=str(error) or f"no list of models within {PROBE_TIMEOUT_S} s")
        else:
            if response.status == 200:
                backend.models = _names(body)
            self._set(backend, up=response.status < 500, why=f"its list of models gave {response.status}")
        finally:
            backend.asking = False

    def _set(self, backend: Backend, *, up: bool, why: str) -> None:
        if backend.up is up:
            return
        backend.up = up
        log.warning("backend.up" if up else "backend.down", backend=backend.name, pool=backend.pool, why=why)
        self._driver.observe(Health(backend.name, up))
        if not up:
            self._wake.set()


def _backend(pool: str, row: BackendSettings) -> Backend:
    kind = ENGINES[row.engine.value]
    # No time limits here: a silent answer keeps its seat as long as its backend is healthy (SPEC §15.10).
    upstream = Upstream(row.url, name=row.name, reuse=kind.reuse, head_timeout_s=None, silence_timeout_s=None)
    credential = None if row.api_key is None else row.api_key.get_secret_value()
    return Backend(row.name, pool, upstream, kind, row.send_priority, credential)


class _Named(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[_Named]


def _names(body: bytes) -> tuple[str, ...]:
    try:
        return tuple(item.id for item in msgspec.json.decode(body, type=_List).data)
    except msgspec.DecodeError:
        return ()


def _credentials(key: str | None) -> tuple[tuple[bytes, bytes], ...]:
    return () if key is None else ((b"authorization", b"Bearer " + key.encode("ascii")),)
