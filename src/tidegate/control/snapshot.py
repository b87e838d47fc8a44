"""One snapshot for all screens: what the scheduler says of itself, what the recorder counted of late, put together.

It costs as much with a hundred thousand tickets waiting as with none: it reads one row per pool and band, one per
backend, and tables of bounded size. Names and texts stand here as they are; the page shows them as text.

It is made in parts, between which the event loop turns, so that nothing waits for a screen. The first part reads the
scheduler, the counters, the settings and the mode, all at one moment; the heaviest tenants, the last refusals and what
other processes said come in with the last one, some milliseconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from tidegate.config import Settings
from tidegate.control.history import shortened
from tidegate.control.live import Live
from tidegate.control.snapshot_bounds import Bound, Bounds
from tidegate.control.snapshot_replicas import replicas_of
from tidegate.control.snapshot_verdict import judge
from tidegate.control.snapshot_windows import RATE_S, WINDOW_S, BandWindow, Recent, WasteWindow
from tidegate.core import Discipline, GateKind, Policy, Unit
from tidegate.core.snapshots import BackendSnapshot, BandSnapshot, Snapshot
from tidegate.runtime import Driver
from tidegate.splice import Waste
from tidegate.telemetry import Recorder

TOP = 10
REFUSALS = 20
AT_ONCE = 64
"""Rows of pools or backends in one part."""

Document = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")
Parts = Generator[None, None, R]
"""Work in parts: the loop may turn at each step; its end returns what came of it."""


class JobsView(Protocol):
    """What the dashboard shows of batch jobs."""

    def rows_waiting(self) -> Sequence[int]:
        """Rows that wait in the scheduler, by the index of their band; cheap."""
        ...

    async def overview(self) -> Document:
        """Batches in progress with their counts, and how many dead letters there are. Raises ``StoreError``."""
        ...


class Observer:
    """Puts the numbers together. ``mark`` is to be called once a second, ``numbers`` as often as somebody looks."""

    def __init__(self, driver: Driver, recorder: Recorder, live: Live, jobs: JobsView | None = None) -> None:
        self._driver = driver
        self._recorder = recorder
        self._live = live
        self._jobs = jobs
        now = driver.now()
        self._windows = {name: BandWindow(recorder.accounts[name], now) for name in recorder.bands}
        self._waste = WasteWindow(recorder.waste, now)
        self._bounds = Bounds()
        self._effective: tuple[Settings, str, Settings, Policy] | None = None
        self._seen: tuple[object, ...] = ()
        self._revision = 0
        self.jobs_document: Document | None = None
        self.cluster_document: Document | None = None

    def mark(self) -> None:
        """Remember the counters of this second."""
        now = self._driver.now()
        for window in self._windows.values():
            window.mark(now)
        self._waste.mark(now)

    def peaks(self) -> dict[str, float]:
        """Return the gauges of which the history keeps the peaks; empty after a fault."""
        if self._driver.faulty:
            return {}
        rows = _by_band(self._driver.snapshot(), self._windows)
        return {
            f"{name}.depth": float(sum(row.depth for row in bands))
            for name, bands in zip(self._windows, rows, strict=True)
        }

    def point(self) -> dict[str, float | None]:
        """Return the numbers of which the history keeps the last."""
        if self._driver.faulty:
            return {}
        now, snapshot = self._driver.now(), self._driver.snapshot()
        point: dict[str, float | None] = {}
        for name, window in self._windows.items():
            recent = window.read(now, None)
            point[f"{name}.wait_p99_s"] = recent.wait_p99_s
            point[f"{name}.dispatched_per_s"] = recent.dispatched_per_s
            point[f"{name}.refused_per_s"] = recent.refused_per_s
            point[f"{name}.written_per_s"] = recent.written_per_s
        seats = sum(backend.seats for backend in snapshot.backends if backend.up)
        point["seats_taken"] = snapshot.running / seats if seats else None
        point["kv_free"] = min((b.kv_free for b in snapshot.backends if b.kv_free is not None), default=None)
        return point

    def numbers(self) -> Document:
        """Return everything that the page shows now."""
        return at_once(self.in_parts())

    def in_parts(self) -> Parts[Document]:
        """Put together what ``numbers`` returns, as it is at the first part."""
        driver, live = self._driver, self._live
        if driver.faulty:
            return {"fault": driver.not_ready(), "mode": _mode(live), "revision": self._revise()}
        now, snapshot = driver.now(), driver.snapshot()
        settings, policy = self._in_force()
        chosen, targets = live.settings, [band.ttft_slo for band in settings.policy.bands.values()]
        recents = [window.read(now, target) for window, target in zip(self._windows.values(), targets, strict=True)]
        patient = [] if self._jobs is None else self._jobs.rows_waiting()
        document = {
            "fault": None,
            "revision": self._revise(),
            "not_ready": driver.not_ready(snapshot),
            "mode": _mode(live),
            **_totals(snapshot),
            "waste": _wasted(self._waste.read()),
        }
        held_s = self._recorder.held.read(now)
        yield
        bounds = self._bounds.of(policy, _seats(snapshot), held_s)
        rows = _by_band(snapshot, self._windows)
        document["service_s"] = self._bounds.service_s
        document["verdict"] = _verdict(document["not_ready"], recents[0], rows[0], targets[0], snapshot)
        shares = _shares(settings, recents)
        document["bands"] = [
            _band(*row, share=share)
            for *row, share in zip(self._windows, rows, recents, bounds, targets, shares, strict=True)
        ]
        document["modes"] = [_effect(chosen, name, rows, patient) for name in chosen.mode_names]
        yield
        document["pools"] = yield from _in_parts(_by_pool(snapshot), _pool)
        document["backends"] = yield from _in_parts(snapshot.backends, lambda row: _backend(row, now))
        document["tenants"] = yield from self._heaviest(now)
        document["refusals"] = self._refusals(now)
        document["jobs"] = self.jobs_document
        document["replicas"] = replicas_of(self.cluster_document)
        return document

    def _heaviest(self, now: float) -> Parts[Document]:
        """Return the tenants that used most and were refused most."""
        found = {}
        for name, amounts in (("tokens", self._recorder.tenant_tokens), ("refused", self._recorder.tenant_refusals)):
            yield from amounts.add_up(now)
            found[name] = amounts.top(now, TOP)
            yield
        return found

    def _refusals(self, now: float) -> list[Document]:
        """Return the last refusals."""
        return [
            {
                "age_s": shortened(max(0.0, now - row.at)),
                "id": row.request_id,
                "tenant": row.tenant,
                "band": row.band,
                "model": row.model,
                "reason": row.reason.value,
                "status": row.status,
                "retry_after_s": row.retry_after_s,
            }
            for row, _ in zip(self._recorder.recent.newest(), range(REFUSALS), strict=False)
        ]

    def _revise(self) -> int:
        """Count the changes of settings, mode and the list of changes: then a page reads anew what it has of them."""
        newest = self._live.audit.newest(1)
        seen = (self._live.settings, self._live.mode, *newest)
        if len(seen) != len(self._seen) or any(a is not b for a, b in zip(seen, self._seen, strict=True)):
            self._seen = seen
            self._revision += 1
        return self._revision

    def _in_force(self) -> tuple[Settings, Policy]:
        """Return the settings with the mode laid over them, and their policy; made anew when either changes."""
        settings, mode = self._live.settings, self._live.mode
        if self._effective is None or self._effective[0] is not settings or self._effective[1] != mode:
            self._effective = (settings, mode, settings.in_mode(mode), settings.core_policy(mode))
        return self._effective[2:]


def at_once(parts: Parts[R]) -> R:
    """Do work in parts without a pause; return what comes of it."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found: R = end.value
            return found


def _in_parts(things: Sequence[T], row: Callable[[T], Document]) -> Parts[list[Document]]:
    """Return a row for each thing."""
    rows: list[Document] = []
    for first in range(0, len(things), AT_ONCE):
        rows += map(row, things[first : first + AT_ONCE])
        yield
    return rows


def _totals(snapshot: Snapshot) -> Document:
    return {
        "queued": snapshot.queued,
        "queued_bytes": snapshot.queued_bytes,
        "parked": snapshot.parked,
        "running": snapshot.running,
        "seats": sum(backend.seats for backend in snapshot.backends if backend.up),
        "draining": snapshot.draining,
        "storm": snapshot.storm,
        "would": dict(snapshot.would),
        "window_s": WINDOW_S,
        "rate_s": RATE_S,
    }


def _verdict(
    not_ready: str | None,
    recent: Recent,
    rows: Sequence[BandSnapshot],
    target_s: float | None,
    snapshot: Snapshot,
) -> Document:
    """Judge the highest band."""
    state, findings = judge(
        not_ready=not_ready,
        recent=recent,
        depth=sum(row.depth for row in rows),
        running=sum(row.running for row in rows),
        oldest_s=max((row.oldest_wait_s for row in rows), default=0.0),
        target_s=target_s,
        reserve_short=any(row.reserve_short for row in rows),
        backends=snapshot.backends,
    )
    return {
        "state": state.value,
        "findings": [{"state": f.state.value, "code": f.code, "number": shortened(f.number)} for f in findings],
    }


def _wasted(waste: Waste) -> Document:
    return {"tokens": waste.total, "part": shortened(waste.part, 5), "causes": waste.largest_first()}


def _mode(live: Live) -> Document:
    state = live.state()
    return {
        "name": state.mode,
        "by": state.by,
        "since_utc": state.since_utc.isoformat(),
        "reverts_to": state.reverts_to,
        "reverts_in_s": shortened(state.reverts_in_s),
    }


def _by_band(snapshot: Snapshot, names: Iterable[str]) -> list[list[BandSnapshot]]:
    """Return the rows of each band, in the order of ``names``."""
    found: dict[str, list[BandSnapshot]] = {name: [] for name in names}
    for row in snapshot.bands:
        found[row.name].append(row)
    return list(found.values())


def _seats(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the seats of each pool that are up."""
    seats: dict[str, int] = {}
    for row in snapshot.backends:
        seats[row.pool] = seats.get(row.pool, 0) + (row.seats if row.up else 0)
    return tuple(seats.values())


def _band(
    name: str, rows: Sequence[BandSnapshot], recent: Recent, bound: Bound, target_s: float | None, *, share: Document
) -> Document:
    gates = [  # a band that has nothing waiting misses no seat: one of several gateways has none at hand until it asks
        {"pool": row.pool, "kind": row.gate.kind.value, "gated": row.gate.gated}
        for row in rows
        if row.gate is not None and (row.depth or row.gate.kind is not GateKind.NO_SEAT)
    ]
    return {
        "name": name,
        "depth": sum(row.depth for row in rows),
        "running": sum(row.running for row in rows),
        "oldest_s": shortened(max((row.oldest_wait_s for row in rows), default=0.0)),
        "bound_s": shortened(bound.oldest_s),
        "next_s": shortened(bound.next_s),
        "ttl_s": bound.ttl_s,
        "target_s": target_s,
        "within": shortened(recent.within_slo, 4),
        "wait_p50_s": shortened(recent.wait_p50_s),
        "wait_p99_s": shortened(recent.wait_p99_s),
        "ttft_p50_s": shortened(recent.ttft_p50_s),
        "ttft_p99_s": shortened(recent.ttft_p99_s),
        "dispatched": recent.dispatched,
        "dispatched_per_s": shortened(recent.dispatched_per_s),
        "refused_per_s": shortened(recent.refused_per_s),
        "read_per_s": shortened(recent.read_per_s),
        "written_per_s": shortened(recent.written_per_s),
        "refusals": {reason.value: count for reason, count in recent.refusals.items()},
        "gates": gates,
        **share,
    }


def _shares(settings: Settings, recents: Sequence[Recent]) -> Iterable[Document]:
    """Yield each band's part of the last minute's dispatches beside what is configured: its share, or its floor.

    The weighted discipline by tokens counts estimated tokens, everything else dispatches.
    """
    policy = settings.policy
    weighted = policy.discipline is Discipline.WEIGHTED
    by_work = weighted and policy.unit is Unit.TOKENS
    amounts = [recent.work if by_work else recent.dispatched for recent in recents]
    total = sum(amounts)
    shares = sum(band.share for band in policy.bands.values())
    for amount, band in zip(amounts, policy.bands.values(), strict=True):
        wanted = band.share / shares if weighted else float(band.floor or 0)
        yield {
            "share": shortened(amount / total) if total else None,
            "share_wanted": shortened(wanted),
            "share_kind": "share" if weighted else "floor",
        }


_Pool = tuple[str, list[BackendSnapshot], list[int]]


def _by_pool(snapshot: Snapshot) -> list[_Pool]:
    """Return each pool's name, its backends that are up and what waits in its bands, where there are several."""
    found: dict[str, _Pool] = {row.pool: (row.pool, [], []) for row in snapshot.backends}
    if len(found) < 2:
        return []
    for backend in snapshot.backends:
        if backend.up:
            found[backend.pool][1].append(backend)
    for band in snapshot.bands:
        if band.pool in found:
            found[band.pool][2].append(band.depth)
    return list(found.values())


def _pool(pool: _Pool) -> Document:
    name, backends, depths = pool
    seats, running = sum(row.seats for row in backends), sum(row.running for row in backends)
    return {"name": name, "seats": seats, "running": running, "depths": depths}


def _backend(row: BackendSnapshot, now: float) -> Document:
    return {
        "pool": row.pool,
        "name": row.name,
        "up": row.up,
        "seats": row.seats,
        "running": row.running,
        "engine_running": row.engine_running,
        "engine_waiting": row.engine_waiting,
        "kv_free": shortened(row.kv_free),
        "stale": row.stale,
        "budget": shortened(row.budget_level),
        "paused_s": None if row.paused_until is None else shortened(row.paused_until - now),
    }


def _effect(settings: Settings, name: str, rows: Sequence[Sequence[BandSnapshot]], patient: Sequence[int]) -> Document:
    """Say what a mode does to what waits now: whom it answers, and whose rows go on waiting."""
    mode = settings.mode(name)
    admits = settings.band_names if mode.admit is None else mode.admit
    closed: list[Document] = []
    for index, band in enumerate(settings.band_names):
        if band not in admits and not mode.observe:
            depth = sum(row.depth for row in rows[index])
            waiting_rows = min(depth, patient[index] if index < len(patient) else 0)
            closed.append({"band": band, "requests": depth - waiting_rows, "rows": waiting_rows})
    return {"name": name, "observes": mode.observe, "closes": closed}
