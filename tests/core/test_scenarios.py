"""Run the scripts of ``tests/scenarios``: a command, then the actions it caused.

``policy KEY=VALUE …`` sets the policy (``BAND.KEY`` for a band, ``TENANT!KEY`` for a tenant, ``seats=2`` or
``seats=2,3`` for the backends ``b0``, ``b1`` of pool ``m``, beside it their ``tokens_per_minute``).
``at T COMMAND …`` runs one command; the lines that begin with ``->`` are the actions expected. ``release`` without an
id ends the work that began first. ``--rewrite-scenarios`` writes what was seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tidegate.core import (
    Action,
    BackendSpec,
    BacklogOrder,
    Band,
    Began,
    Declined,
    Discipline,
    Dispatch,
    Drain,
    Full,
    Health,
    Order,
    Outcome,
    Paused,
    Policy,
    PoolSpec,
    Preempt,
    Promote,
    Reading,
    Release,
    Requeue,
    Saturated,
    Scheduler,
    Seats,
    Stoppable,
    TenantSpec,
    Ticket,
    Unit,
    Waiter,
    WorkEstimate,
)

FOLDER = Path(__file__).parent.parent / "scenarios"
PLAIN = (
    Band("p0", 100, 0.05, ttl_s=86400.0),
    Band("p1", 20, 0.02, ttl_s=86400.0),
    Band("p2", 1, 0.005, ttl_s=86400.0),
)
READ: dict[str, Any] = {
    "floor": Fraction,
    "ceiling": Fraction,
    "overtake_cap": Fraction,
    "order": Order,
    "full": Full,
    "backlog_order": BacklogOrder,
    "discipline": Discipline,
    "unit": Unit,
    "shed_hopeless": lambda text: text == "yes",
    "allow_lending": lambda text: text == "yes",
    "admit": lambda text: text == "yes",
    "preemptible": lambda text: text == "yes",
    "may_preempt": lambda text: text == "yes",
    "preempt_rate": Fraction,
    "observe_only": lambda text: text == "yes",
    "when_saturated": Saturated,
}


def words(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


def value(key: str, text: str) -> Any:
    if key in READ:
        return READ[key](text)
    return float(text) if "." in text else int(text)


class Script:
    """Interprets one file and keeps what it saw."""

    def __init__(self) -> None:
        self.policy = Policy(bands=PLAIN, overtake_cap=Fraction(1), pools=(PoolSpec("m", (BackendSpec("b0", 1),)),))
        self.scheduler: Scheduler | None = None
        self.leases: dict[str, int] = {}
        self.running: dict[str, None] = {}

    def run(self, line: str) -> list[str]:
        """Carry out one command line; return the actions as lines."""
        if line.startswith("policy"):
            self._set_policy(words(line.removeprefix("policy")))
            return []
        _, at, command, *rest = line.split(None, 3)
        if self.scheduler is None:
            self.scheduler = Scheduler(self.policy)
        now = float(at)
        actions = self._command(self.scheduler, now, command, rest[0] if rest else "")
        return [self._show(action) for action in actions]

    def _set_policy(self, given: dict[str, str]) -> None:
        bands = {band.name: band for band in self.policy.bands}
        tenants = {tenant.name: tenant for tenant in self.policy.tenants}
        whole: dict[str, Any] = {}
        for name, text in given.items():
            if name == "seats":
                per_minute = int(given["tokens_per_minute"]) if "tokens_per_minute" in given else None
                backends = tuple(
                    BackendSpec(f"b{n}", int(seats), tokens_per_minute=per_minute)
                    for n, seats in enumerate(text.split(","))
                )
                whole["pools"] = (
                    PoolSpec("m", backends),
                    *(each for each in self.policy.pools if each.name != "m"),
                )
            elif name == "tokens_per_minute":
                continue
            elif name.startswith("pool:"):
                pool = name.removeprefix("pool:")
                pools = whole.get("pools", self.policy.pools)
                others = tuple(each for each in pools if each.name != pool)
                whole["pools"] = (*others, PoolSpec(pool, (BackendSpec(f"{pool}0", int(text)),)))
            elif "!" in name:
                tenant, key = name.split("!")
                spec = tenants.get(tenant, TenantSpec(tenant))
                tenants[tenant] = dataclasses.replace(spec, **{key: value(key, text)})
            elif "." in name:
                band, key = name.split(".")
                key = {"ttl": "ttl_s", "promote_after": "promote_after_s", "ttft_slo": "ttft_slo_s"}.get(key, key)
                bands[band] = dataclasses.replace(bands[band], **{key: value(key, text)})
            else:
                whole[name] = value(name, text)
        self.policy = dataclasses.replace(
            self.policy, bands=tuple(bands.values()), tenants=tuple(tenants.values()), **whole
        )

    def _command(self, scheduler: Scheduler, now: float, command: str, rest: str) -> list[Action]:
        if command == "policy":
            self._set_policy(words(rest))
            return scheduler.set_policy(now, self.policy)
        given = words(rest)
        match command:
            case "submit":
                return scheduler.submit(now, self._ticket(given))
            case "release":
                outcome = Outcome(given.get("outcome", "completed"))
                tokens = int(given["tokens"]) if "tokens" in given else None
                used = None if tokens is None else 0
                ticket = given.get("id") or next(iter(self.running))
                self.running.pop(ticket, None)
                return scheduler.release(now, self.leases[ticket], Release(outcome, used, tokens))
            case "cancel":
                return scheduler.cancel(now, given["id"])
            case "health":
                return scheduler.observe(now, Health(given["backend"], given["up"] == "yes"))
            case "seats":
                return scheduler.observe(now, Seats(given["backend"], int(given["seats"])))
            case "reading":
                return scheduler.observe(now, Reading(given["backend"], now, float(given["free"])))
            case "pause":
                return scheduler.observe(now, Paused(given["backend"], float(given["until"])))
            case "requeue":
                self.running.pop(given["id"], None)
                return scheduler.release(now, self.leases[given["id"]], Requeue(avoid=given.get("avoid") == "yes"))
            case "began":
                return scheduler.observe(now, Began(self.leases[given["id"]]))
            case "declined":
                return scheduler.observe(now, Declined(self.leases[given["id"]]))
            case "drain":
                return scheduler.observe(now, Drain())
            case "wait" | "unwait":
                band = [each.name for each in self.policy.bands].index(given["band"])
                signal = Waiter(given["waiter"], given["tenant"], band, given["for"], command == "wait")
                return scheduler.observe(now, signal)
            case _:
                assert command == "tick", f"no command {command!r}"
                return scheduler.tick(now)

    def _ticket(self, given: dict[str, str]) -> Ticket:
        number: dict[str, Any] = {
            {"ttl": "ttl_s", "size": "size_bytes"}.get(key, key): value(key, given[key])
            for key in ("ttl", "deadline", "arrived", "size")
            if key in given
        }
        return Ticket(
            given["id"],
            given.get("pool", "m"),
            [band.name for band in self.policy.bands].index(given.get("band", "p1")),
            given.get("tenant", "a"),
            work=WorkEstimate(int(given.get("tokens", "1")), 0),
            flow=given.get("flow", ""),
            name=given.get("name", ""),
            stoppable=Stoppable(given.get("stoppable", "")),
            depends_on=tuple(given["after"].split(",")) if "after" in given else (),
            **number,
        )

    def _show(self, action: Action) -> str:
        ticket = action.ticket.id
        if isinstance(action, Dispatch):
            self.leases[ticket] = action.lease.id
            self.running[ticket] = None
            lease = action.lease
            extra = "" if lease.kind == "turn" else f" kind={lease.kind}"
            extra += "" if lease.backend == "b0" else f" backend={lease.backend}"
            extra += "" if lease.band == action.ticket.band else f" band={self.policy.bands[lease.band].name}"
            return f"-> dispatch id={ticket}{extra}"
        if isinstance(action, Promote):
            return f"-> promote id={ticket} band={self.policy.bands[action.band].name} why={action.why}"
        if isinstance(action, Preempt):
            return f"-> preempt id={ticket} by={self.policy.bands[action.by].name}"
        after = "" if action.retry_after_s is None else f" retry_after={action.retry_after_s:g}"
        return f"-> {type(action).__name__.lower()} id={ticket} reason={action.reason}{after}"


def replay(text: str) -> Iterator[str]:
    """Yield the lines of a script with the actions really seen in place of those written."""
    script = Script()
    for line in text.splitlines():
        if line.startswith("->"):
            continue
        yield line
        if line and not line.startswith("#"):
            yield from script.run(line)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    seen = "\n".join(replay(text)) + "\n"
    if request.config.getoption("--rewrite-scenarios"):
        path.write_text(seen)
    assert seen.splitlines() == path.read_text().splitlines()
