"""The two gateways of the demo as configuration files, in the form a user would write them."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from tidegate.cli.demo._plan import BANDS, TENANTS

SEATS = 32
"""How many requests the gateway lets the engine run at once, in both runs."""

ENGINE_PROFILE = "slow"
"""The simulated engine: some 900 answer tokens per second with 32 seats, so that two cores carry it easily."""

_COMMON = """\
gateway: {{listen: "127.0.0.1:{gateway}", drain_timeout: 1s}}
control: {{listen: "127.0.0.1:{control}"}}
preset: flash-sale
models:
  - name: demo
    backends:
      - {{name: engine, url: "http://127.0.0.1:{engine}", engine: tidegate, seats: {seats}}}
"""


@dataclass(slots=True, frozen=True)
class Setup:
    """One run: its name, its file, and the key that each band's client uses."""

    name: str
    text: str
    keys: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Ports:
    """The loopback ports of one run."""

    engine: int
    gateway: int
    control: int


def engine_arguments(ports: Ports, *, seed: int) -> tuple[str, ...]:
    """Arguments of the simulated engine; it heeds priorities in its own waiting list, as vLLM can be told to."""
    where = f"127.0.0.1:{ports.engine}"
    what = ("--profile", ENGINE_PROFILE, "--model", "demo", "--order", "priority", "--seed", str(seed))
    return ("engine", "--listen", where, *what)


def fifo_setup(ports: Ports) -> Setup:
    """One FIFO queue: everybody is one tenant in one band that nothing holds back; only the arrival order is left."""
    key = _new_key()
    tenants = f'tenants:\n  - {{name: everyone, keys: ["{_digest(key)}"], band: p2}}\n'
    policy = "policy: {bands: {p2: {kv_watermark: 0, kv_resume: 0}}}\n"
    return Setup("FIFO", _common(ports) + tenants + policy, (key,) * len(BANDS))


def tidegate_setup(ports: Ports) -> Setup:
    """The flash-sale preset as it ships, and three tenants, one per band."""
    keys = tuple(_new_key() for _ in BANDS)
    rows = [
        f'  - {{name: {tenant}, keys: ["{_digest(key)}"], band: {band}}}'
        for tenant, key, band in zip(TENANTS, keys, BANDS, strict=True)
    ]
    return Setup("tidegate", _common(ports) + "\n".join(["tenants:", *rows]) + "\n", keys)


def _common(ports: Ports) -> str:
    return _COMMON.format(engine=ports.engine, gateway=ports.gateway, control=ports.control, seats=SEATS)


def _new_key() -> str:
    return "tg-" + secrets.token_urlsafe(24)


def _digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()
