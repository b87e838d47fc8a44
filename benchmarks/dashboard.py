"""What the dashboard costs: gateway CPU of open screens under load, and the time of one snapshot in a full house.

The gateway serves 1,000 requests a second; its CPU time (user and system) is taken without a
screen and with one or a hundred, in turns, and again without any load, where nothing hides what screens cost. The
snapshot is timed inside one process, with 100 tickets waiting and with 100,000 of 10,000 tenants.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.load import KEY
from tidegate.config import parse_settings
from tidegate.control import Audit, Keeper, Live
from tidegate.control.snapshot import Observer
from tidegate.core import Lease, Release, Scheduler, Ticket, WorkEstimate
from tidegate.runtime import Driver, Refusal
from tidegate.telemetry import Recorder
from tidegate.testing import ManualClock
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

ROOT = Path(__file__).resolve().parent.parent
RATE = 1_000
SECONDS = 2.0
SLICES = 10
SCREENS = (1, 100)
GOAL = 2.0
ROOM = "{capacity: 1000000, ttl: 24h, shed_hopeless: false}"

Row = tuple[str, str, str]


def run() -> list[Row]:
    """Give the rows: what screens add, then what a snapshot takes."""
    return [*screen_rows(measure_screens()), *snapshot_rows()]


def screen_rows(found: Screens) -> list[Row]:
    """Put CPU shares by number of screens into rows."""
    rows = [(f"gateway CPU at {RATE:,} requests/s, no screen", f"{found.alone:.1f} % of a core", "")]
    goal = f"at most {GOAL:g} %"
    for count, share in found.added.items():
        screens = f"{count} open screen{'s' if count > 1 else ''}"
        rows.append((f"dashboard: added under this load by {screens}", f"{share:+.2f} % of a core", goal))
        idle = found.idle[count] - found.idle[0]
        rows.append((f"dashboard: added to an idle gateway by {screens}", f"{idle:+.2f} % of a core", goal))
    return rows


@dataclass(frozen=True, slots=True)
class Screens:
    """CPU of the gateway as percentages of one core.

    Attributes:
        alone: under load without a screen, the median.
        added: what so many screens add to it: the median of differences between neighbouring slices of time.
        idle: without any load, by number of screens.
    """

    alone: float
    added: dict[int, float]
    idle: dict[int, float]


def measure_screens(*, slices: int = SLICES, seconds: float = SECONDS) -> Screens:
    """Measure what screens cost, in ``slices`` of so many seconds with and as many without them."""
    alone: list[float] = []
    added: dict[int, float] = {}
    with _stub() as engine, gateway_process("--log-level", "error", config=_settings(engine)) as gateway:
        idle = {count: _share(gateway, count, 2 * seconds) for count in (0, *SCREENS)}
        for count in SCREENS:
            with _load(gateway.url, slices * 2 * (seconds + 1)):
                time.sleep(1)
                pairs = [(_share(gateway, 0, seconds), _share(gateway, count, seconds)) for _ in range(slices)]
            alone += [without for without, _ in pairs]
            added[count] = median(with_screens - without for without, with_screens in pairs)
    return Screens(median(alone), added, idle)


def snapshot_rows() -> list[Row]:
    """Time one snapshot, written as JSON, in an almost empty and in a full gateway."""
    few, size = snapshot_us(waiting=100, tenants=10)
    many, _ = snapshot_us(waiting=100_000, tenants=10_000)
    return [
        ("dashboard: one snapshot, 100 tickets wait", f"{few:.0f} µs, {size:,} B", ""),
        ("dashboard: one snapshot, 100,000 tickets of 10,000 tenants", f"{many:.0f} µs", "at most twice that"),
    ]


class _Holder:
    """Takes every seat that it is given."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []

    def dispatched(self, lease: Lease) -> None:
        self.leases.append(lease)

    def refused(self, action: Refusal) -> None:
        raise AssertionError(action)


def snapshot_us(*, waiting: int, tenants: int, rounds: int = 50) -> tuple[float, int]:
    """Return the least time of a snapshot with its JSON, µs, and its size, bytes."""
    return asyncio.run(_snapshot_us(waiting, tenants, rounds))


async def _snapshot_us(waiting: int, tenants: int, rounds: int) -> tuple[float, int]:
    backend = '{name: b, url: "http://b:1", seats: 64}'
    settings = parse_settings(
        f"models: [{{name: m, backends: [{backend}]}}]\n"
        f"policy: {{queue_capacity: 1000000, bands: {{p0: {ROOM}, p1: {ROOM}, p2: {ROOM}}}}}"
    )
    clock, policy = ManualClock(), settings.core_policy()
    recorder = Recorder(policy)
    driver = Driver(Scheduler(policy), clock, recorder)
    audit = Audit(Keeper(None), _now)
    live = Live(settings, lambda settings, mode: None, audit, utc_now=_now)
    observer = Observer(driver, recorder, live)
    work = WorkEstimate(100, 100)
    holder = _Holder()
    for number in range(64 + waiting):
        driver.submit(Ticket(f"t{number}", "m", number % 3, f"tenant-{number % tenants}", work), holder)
    for number in range(4 * tenants):  # a busy minute behind it: everybody has used something
        clock.advance(30.0 / (4 * tenants))
        driver.release(holder.leases.pop(), Release(input_tokens=100, output_tokens=number % 500))
        driver.submit(Ticket(f"u{number}", "m", number % 3, f"tenant-{number % tenants}", work), holder)
    observer.mark()
    best, size = float("inf"), 0
    for _ in range(rounds):
        began = time.perf_counter()
        size = len(msgspec.json.encode(observer.numbers(), enc_hook=str))
        best = min(best, time.perf_counter() - began)
    assert driver.snapshot().queued >= waiting
    driver.close()
    return best * 1e6, size


def _now() -> datetime:
    return datetime(2026, 11, 11, tzinfo=UTC)


def _settings(engine: str) -> str:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    backend = {"name": "stub", "url": engine, "engine": "openai", "seats": 256}
    tenant = {"name": "bench", "keys": [f"sha256:{digest}"], "band": "p1"}
    return json.dumps({"models": [{"name": "bench", "backends": [backend]}], "tenants": [tenant]})  # JSON is YAML


def _share(gateway: GatewayProcess, screens: int, seconds: float) -> float:
    """Return the gateway's CPU as a percentage of one core, while ``screens`` watch."""
    with _screens(screens, seconds + 10, gateway.control):
        spent, began = _cpu_s(gateway.pid), time.monotonic()
        time.sleep(seconds)
        return 100 * (_cpu_s(gateway.pid) - spent) / (time.monotonic() - began)


def _cpu_s(pid: int) -> float:
    """CPU time of a process by its own clock (Linux, see clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def _command(kind: str, amount: float, seconds: float, url: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.dashboard_ends", kind, str(amount), str(seconds), url]


@contextmanager
def _load(url: str, seconds: float) -> Iterator[None]:
    with _ended(_command("pace", RATE, seconds, url)) as process:
        yield
        if process.poll() is not None:
            raise RuntimeError("the load client failed")
        out, _ = process.communicate(timeout=3 * seconds + 60)
    found = json.loads(out)
    if found["seconds"] > seconds * 1.05:
        sent = found["requests"] / found["seconds"]
        raise RuntimeError(f"expected {RATE} requests a second, this machine sent {sent:.0f}")


@contextmanager
def _screens(count: int, seconds: float, url: str) -> Iterator[None]:
    if not count:
        yield
        return
    with _ended(_command("screens", count, seconds, url)) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "open":
            raise RuntimeError(f"expected {count} screens to open, they did not")
        yield


@contextmanager
def _stub() -> Iterator[str]:
    with _ended([sys.executable, "-m", "benchmarks.stub_engine"]) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


@contextmanager
def _ended(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
