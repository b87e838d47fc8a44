"""What a policy would have done with the traffic just seen, beside the one in force: two runs of the simulator.

The arrivals of the last minute go through the very scheduler, once under each policy, on a model of engines (which is
not the user's engines: compare the two runs with each other, not with the clock). Both begin with an empty queue.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from tidegate.config import Settings, document, tenant_document
from tidegate.control.child import ChildError
from tidegate.control.live import Aside, here
from tidegate.core.snapshots import BackendSnapshot
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder
from tidegate.telemetry.arrivals import Arrival

SPAN_S = 60.0
DRAIN_S = 30.0
MOST_REQUESTS = 20_000
PROFILE = "h100-8b"

Simulate = Callable[[str, dict[str, str]], Awaitable[dict[str, Any]]]
"""See ``child.simulate``."""


class WhatIf:
    """Runs them, one question at a time. ``aside``: where twenty thousand requests are written down."""

    def __init__(self, driver: Driver, recorder: Recorder, simulate: Simulate, aside: Aside | None = None) -> None:
        self._driver = driver
        self._aside: Aside = aside or here
        self._recorder = recorder
        self._simulate = simulate
        self.busy = False

    async def ask(self, now: Settings, after: Settings, *, profile: str | None = None) -> dict[str, Any]:
        """Return both runs, or ``{"error"}`` in words. Not while ``busy``."""
        self.busy = True
        try:
            return await self._ask(now, after, profile or PROFILE)
        except ChildError as error:
            return {"error": str(error)}
        finally:
            self.busy = False

    async def _ask(self, now: Settings, after: Settings, profile: str) -> dict[str, Any]:
        arrivals = list(self._recorder.arrivals.since(self._driver.now() - SPAN_S))[-MOST_REQUESTS:]
        if not arrivals:
            return {"error": f"no requests came in the last {SPAN_S:g} s"}
        span_s = max(1.0, self._driver.now() - arrivals[0].at)
        backends = self._driver.snapshot().backends
        runs = []
        for settings in (now, after):
            write = partial(scenario_of, settings, arrivals, backends, span_s=span_s, profile=profile)
            scenario, traces = await self._aside(write)
            runs.append(await self._simulate(scenario, traces))
        before, then = ({row["name"]: _figures(row) for row in run["runs"]["tidegate"]["bands"]} for run in runs)
        bands = {name: {"now": before[name], "then": then[name]} for name in now.band_names}
        return {"span_s": round(span_s, 1), "requests": len(arrivals), "profile": profile, "bands": bands}


def scenario_of(
    settings: Settings,
    arrivals: list[Arrival],
    backends: tuple[BackendSnapshot, ...],
    *,
    span_s: float,
    profile: str,
) -> tuple[str, dict[str, str]]:
    """Write a scenario file and its traces; pools get plain names, since models may be called anything."""
    names = {pool: f"m{index}" for index, pool in enumerate(dict.fromkeys(row.pool for row in backends))}
    tenants = dict.fromkeys(row.tenant for row in arrivals)
    asked = dict.fromkeys(row.pool for row in arrivals if row.pool in names)
    document_ = {
        "duration": f"{span_s:.3f}s",
        "drain": f"{DRAIN_S:g}s",
        "lengths": "known",
        "policy": _policy(settings),
        "tenants": [_tenant(row) for row in settings.tenants if row.name in tenants],
        "engines": [
            {"profile": profile, "model": names[row.pool], "seats": max(1, row.seats)} for row in backends if row.up
        ],
        "sources": [
            {
                "name": names[pool],
                "model": names[pool],
                "trace": f"{names[pool]}.csv",
                "arrivals": {"law": "trace"},
                "band": settings.band_names[-1],
            }
            for pool in asked
        ],
    }
    traces = {f"{names[pool]}.csv": _trace(settings, arrivals, pool) for pool in asked}
    return msgspec.json.encode(document_).decode(), traces  # JSON is YAML


def _policy(settings: Settings) -> dict[str, Any]:
    """The policy; what another model would answer counts as refused, since the simulator has no such model."""
    found = document(settings.policy)
    for band in found["bands"].values():
        if isinstance(band["shed_answer"], dict):
            band["shed_answer"] = "error"
    return found


def _trace(settings: Settings, arrivals: list[Arrival], pool: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("arrival_ms", "prompt_tokens", "output_tokens", "tenant", "band"))
    first = arrivals[0].at
    for row in arrivals:
        if row.pool == pool:
            at_ms = f"{(row.at - first) * 1000:.3f}"
            band = settings.band_names[row.band]
            writer.writerow((at_ms, max(1, row.input_tokens), max(1, row.output_tokens), row.tenant, band))
    return text.getvalue()


def _tenant(row: Any) -> dict[str, Any]:
    """A tenant without its keys: the simulator wants some, and shall have none that anybody uses."""
    return {**tenant_document(row), "name": row.name, "keys": ["sha256:" + sha256(row.name.encode()).hexdigest()]}


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "sent": row["sent"],
        "answered": row["answered"],
        "refused": row["refused"],
        "wait_p50_s": row["wait"]["p50"],
        "wait_p99_s": row["wait"]["p99"],
        "ttft_p99_s": row["ttft"]["p99"],
    }
