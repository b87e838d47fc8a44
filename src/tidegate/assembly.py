"""Wire the parts together: the only place that knows them all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidegate.classify import Classifier
from tidegate.clustering import make_driver
from tidegate.config import ConfigError, GatewaySettings, Problem, Settings
from tidegate.control import Audit, Books, Feed, Hooks, Keeper, Live, Sharing, build_control_app
from tidegate.control.audit import audit_file
from tidegate.control.child import simulate
from tidegate.control.what_if import WhatIf
from tidegate.core import Reason, TidegateError
from tidegate.gateway import (
    ClientServer,
    Completions,
    Crowd,
    Ends,
    Gateway,
    Limits,
    Models,
    Pools,
    Refuser,
    Requests,
    Resumer,
    Rows,
)
from tidegate.gateway.tls import certificate
from tidegate.jobs import Jobs
from tidegate.runtime import Clock, Driver, EventLog, GcPolicy, ObservedLog, Rounds, StallMonitor, SystemClock
from tidegate.telemetry import Recorder
from tidegate.telemetry.log import Form, Log
from tidegate.telemetry.opening import open_log
from tidegate.telemetry.traces import Traces

LAST_WORDS_S = 1.0
"""How long streams that were stopped may take to end with their error event."""

WATCH_S = 1.0
"""Time between two looks for answers that have gone silent, and for news of a mode that only observes."""

CONTROL_CONNECTIONS = 300
"""Room for every dashboard that may be open, one connection each, and for scrapes and commands beside them."""


@dataclass(slots=True, frozen=True)
class Options:
    """What is not in the settings file.

    Attributes:
        event_log: file for every event that the scheduler is told; ``None`` writes none.
        log_form: JSON or lines for people.
        log_level: the least level that is logged.
        reload: reads the settings again, for SIGHUP; ``None``: there is no file.
        listener: socket that clients connect to, shared with other processes; ``None``: it is bound here.
        page: is told how to get this process's metrics, and makes the page of all processes that belong to it.
    """

    event_log: Path | None = None
    log_form: Form = Form.JSON
    log_level: str = "info"
    reload: Callable[[], Settings] | None = None
    listener: socket.socket | None = None
    page: Callable[[Callable[[], bytes]], Callable[[], Awaitable[bytes]]] | None = None


@dataclass(slots=True, frozen=True)
class Parts:
    """What a service consists of."""

    log: Log
    driver: Driver
    pools: Pools
    completions: Completions
    gateway: ClientServer
    control: ClientServer
    live: Live
    collector: GcPolicy
    stalls: StallMonitor
    observed: ObservedLog
    books: Books
    traces: Traces | None
    feed: Feed
    jobs: Jobs | None = None
    sharing: Sharing | None = None


class Obeys(Protocol):
    """Answers clients as the settings say, and can be told others."""

    def obey(self, settings: Settings) -> None:
        """Take other settings for what comes from now on. MUST NOT raise for settings that have been judged."""
        ...


class InForce:
    """Puts settings in force everywhere, in one step of the event loop."""

    def __init__(
        self, driver: Driver, recorder: Recorder, pools: Pools, classifier: Classifier, edges: tuple[Obeys, ...]
    ) -> None:
        self._driver = driver
        self._classifier = classifier
        self._recorder = recorder
        self._pools = pools
        self._edges = edges

    def __call__(self, settings: Settings, mode: str) -> None:
        """See ``control.Apply``."""
        self.prepare(settings, mode)()

    def prepare(self, settings: Settings, mode: str) -> Callable[[], None]:
        """See ``control.live.Prepare``."""
        policy, effective = settings.core_policy(mode), settings.in_mode(mode)
        take_callers = self._classifier.prepared(effective)

        def put() -> None:
            try:
                self._pools.obey(settings)  # before the policy: its first dispatch may go to a new backend
            except ValueError as error:
                raise _unusable(error) from None
            self._driver.set_policy(policy)
            self._recorder.mode = mode
            take_callers()
            for edge in self._edges:
                edge.obey(effective)

        return put


class Service:
    """A gateway with its control port, in one process and one event loop. Made by ``build``."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._hurry = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None
        self._silence = Rounds(WATCH_S, parts.completions.live, parts.completions.check_silence)

    @property
    def gateway_url(self) -> str:
        """Where clients find it, with the real port."""
        return self._parts.gateway.url

    @property
    def control_url(self) -> str:
        """Where metrics are, with the real port."""
        return self._parts.control.url

    @property
    def live(self) -> Live:
        """Settings and mode in force."""
        return self._parts.live

    @property
    def driver(self) -> Driver:
        """What runs the scheduler."""
        return self._parts.driver

    async def start(self) -> None:
        """Look for the backends, then accept clients.

        Raises:
            OSError: an address is taken; nothing is left open then.
            StoreError: the job store or the control store cannot be opened; likewise.
            ConfigError: the tenants of the control store do not fit the settings; likewise.
        """
        parts = self._parts
        await parts.pools.start()
        try:
            await parts.books.start()
            if parts.sharing is not None:
                await parts.sharing.start()
            if parts.jobs is not None:
                await parts.jobs.start()
            await parts.control.start()
            await parts.gateway.start()
        except (OSError, TidegateError):
            await self._close()
            raise
        loop = asyncio.get_running_loop()
        parts.stalls.start(loop)
        parts.collector.start(loop)
        parts.feed.start(loop)
        self._silence.start(loop)
        self._look()

    async def stop(self) -> None:
        """Accept nobody, refuse what waits, let what runs finish within ``drain_timeout``, then end the rest."""
        self._parts.gateway.stop_accepting()
        pausing = None if self._parts.jobs is None else asyncio.ensure_future(self._parts.jobs.pause())
        await self._drained(self._parts.live.settings.gateway.drain_timeout)
        self._parts.completions.stop_running(Reason.DRAINING)
        await asyncio.wait((asyncio.ensure_future(self._parts.driver.drain(LAST_WORDS_S)),))
        if pausing is not None:
            pausing.cancel()
        await self._close()

    def hurry(self) -> None:
        """Do not wait for running streams any longer."""
        self._hurry.set()

    def check_silence(self, loop_now: float) -> None:
        """Look for answers that have gone silent; done once a second by itself."""
        completions = self._parts.completions
        completions.check_silence(tuple(completions.live), loop_now)

    async def _close(self) -> None:
        parts = self._parts
        if self._watch is not None:
            self._watch.cancel()
        self._silence.stop()
        parts.live.close()
        parts.feed.close()
        await parts.gateway.stop()
        if parts.jobs is not None:
            await parts.jobs.stop()
        await parts.control.stop()
        if parts.sharing is not None:
            await parts.sharing.stop()
        await parts.books.stop()
        if parts.traces is not None:
            await asyncio.to_thread(parts.traces.stop)
        await parts.pools.stop()
        parts.collector.stop()
        parts.stalls.stop()
        parts.driver.close()
        parts.log.close()

    async def _drained(self, timeout_s: float) -> None:
        tasks = (asyncio.ensure_future(self._parts.driver.drain(timeout_s)), asyncio.ensure_future(self._hurry.wait()))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(WATCH_S, self._look)  # first: a fault is not the end of it
        self._parts.observed.look()


def build(settings: Settings, options: Options | None = None) -> Service:
    """Make a service. Opens the event log, but no socket yet. Call it inside the loop that will run it.

    Raises:
        ConfigError: a certificate or its key cannot be used.
        OSError: the event log cannot be written.
        ValueError: unknown log level.
    """
    options = options or Options()
    clock = SystemClock()
    policy = settings.core_policy()
    log = open_log(clock.utc_now, form=options.log_form, level=options.log_level)
    recorder = Recorder(policy)
    events = None if options.event_log is None else EventLog(options.event_log, policy)
    driver, replica = make_driver(settings, policy, clock, recorder, events)
    classifier = Classifier(settings)
    pools = _pools(settings, driver, clock)
    refuser = Refuser(settings, recorder, clock)
    ends = Ends()
    resumer = Resumer(settings, pools, recorder)
    completions = Completions(
        max_body=settings.gateway.max_body,
        classifier=classifier,
        driver=driver,
        pools=pools,
        refuser=refuser,
        recorder=recorder,
        clock=clock,
        ends=ends,
        resumer=resumer,
        silence_s=settings.gateway.silence_timeout,
        heartbeat_s=settings.gateway.queue_heartbeat_after,
        crowd=Crowd(settings.gateway.max_connections_per_tenant),
        outside=lambda ticket: nullcontext() if jobs is None else jobs.waiting(ticket),
    )
    models = Models(settings, pools, clock)
    rows = Rows(
        classifier=classifier, completions=completions, driver=driver, pools=pools, recorder=recorder, clock=clock
    )
    jobs: Jobs | None = None
    if settings.jobs is not None:
        jobs = Jobs(
            settings.jobs,
            driver=driver,
            sender=rows,
            classifier=classifier,
            clock=clock,
            max_line=settings.gateway.max_body,
            lend_limit=lambda: live.settings.policy.lend_limit,
            log=log.request,
            clamped=recorder.clamped,
        )
    traces = _traces(settings, clock)
    app = Gateway(
        settings,
        completions=completions,
        classifier=classifier,
        models=models,
        requests=Requests(driver, classifier, ends),
        refuser=refuser,
        driver=driver,
        clock=clock,
        log=log,
        jobs=None if jobs is None else jobs.app,
        traces=traces,
    )
    keeper = Keeper(settings.control.store, aside=True)
    audit = Audit(keeper, clock.utc_now, audit_file(settings.control.audit_file))
    in_force = InForce(driver, recorder, pools, classifier, (refuser, models, completions))
    live = Live(
        settings,
        in_force,
        audit,
        utc_now=clock.utc_now,
        prepare=in_force.prepare,
        aside=asyncio.to_thread,
        load=options.reload,
    )
    whole = None if replica is None else replica.document
    feed = Feed(driver, recorder, live, utc_now=clock.utc_now, jobs=jobs, cluster=whole)
    books = Books(keeper, audit, live, recorder.usage, utc_now=clock.utc_now)
    background: set[asyncio.Future[int]] = set()

    def drain() -> None:
        background.add(asyncio.ensure_future(driver.drain(live.settings.gateway.drain_timeout)))

    page = options.page
    hooks = Hooks(
        completions.stop_request, drain, books, jobs, WhatIf(driver, recorder, simulate, asyncio.to_thread), whole
    )
    server = ClientServer(
        app,
        address=settings.gateway.listen,
        limits=_limits(settings.gateway),
        tls=certificate(settings.gateway.tls, "gateway.tls"),
        listener=options.listener,
    )
    return Service(
        Parts(
            log=log,
            driver=driver,
            pools=pools,
            completions=completions,
            gateway=server,
            control=ClientServer(
                build_control_app(driver, recorder, live, hooks, feed, page and page(recorder.exposition)),
                address=settings.control.listen,
                limits=Limits(max_connections=CONTROL_CONNECTIONS),
                tls=certificate(settings.control.tls, "control.tls"),
            ),
            live=live,
            collector=GcPolicy(clock, lambda: driver.running + driver.waiting, lambda: server.connected),
            stalls=StallMonitor(clock, recorder),
            observed=ObservedLog(driver),
            books=books,
            traces=traces,
            feed=feed,
            jobs=jobs,
            sharing=None if replica is None else Sharing(replica, live),
        ),
    )


def _traces(settings: Settings, clock: Clock) -> Traces | None:
    if settings.traces is None:
        return None
    from tidegate.telemetry.otel import OtelTraces, OtlpJsonExporter  # the only place that needs the extra

    exporter = OtlpJsonExporter(settings.traces.endpoint)
    sample, service = float(settings.traces.sample), settings.traces.service
    return OtelTraces(exporter, sample=sample, now=clock.now, utc_now=clock.utc_now, service=service)


def _pools(settings: Settings, driver: Driver, clock: Clock) -> Pools:
    try:
        return Pools(settings, driver, clock)
    except ValueError as error:
        raise _unusable(error) from None


def _unusable(error: ValueError) -> ConfigError:
    return ConfigError([Problem("models", str(error))])


def _limits(gateway: GatewaySettings) -> Limits:
    return Limits(
        max_connections=gateway.max_connections,
        max_head=gateway.max_headers,
        head_timeout_s=gateway.header_timeout,
        body_stall_s=gateway.body_timeout,
        write_stall_s=gateway.write_stall_timeout,
    )
