"""The whole policy as one immutable value, validated on construction.

A live change is a new ``Policy`` handed to ``set_policy``; nothing here is patched. The defaults are those of the
``flash-sale`` preset (SPEC §2); the reason of each stands beside it. Shares, floors and the cap are exact
fractions: ten times 0.1 is below 1 in floats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from tidegate.core.errors import PolicyError


class Discipline(StrEnum):
    """Who is wanted between bands (SPEC §4.1)."""

    AGING = "aging"
    WEIGHTED = "weighted"
    STRICT = "strict"


class Unit(StrEnum):
    """What the weighted discipline counts."""

    TOKENS = "tokens"
    REQUESTS = "requests"


class Order(StrEnum):
    """Order inside one flow (SPEC §4.3)."""

    FIFO = "fifo"
    SJF = "sjf"
    EDF = "edf"


class BacklogOrder(StrEnum):
    """Order once a band's queue has not been empty for ``backlog_after_s``."""

    SAME = "same"
    NEWEST_FIRST = "newest_first"


class Full(StrEnum):
    """What a band at its capacity does with a newcomer."""

    REJECT_NEWEST = "reject_newest"
    EVICT_OLDEST = "evict_oldest"


class Saturated(StrEnum):
    """What a newcomer of a band gets while the ceiling or the KV watermark stops the band."""

    QUEUE = "queue"
    SHED = "shed"


Auto = Literal["auto"]
AUTO: Auto = "auto"


@dataclass(slots=True, frozen=True)
class Band:
    """One priority band. Times in seconds; ``aging_per_ms`` is score per millisecond of waiting.

    ``kv_watermark`` and ``kv_resume`` are free parts of a backend's KV cache: below the first the band is not
    dispatched there, above the second it is again. ``admit`` false is how a mode closes the band: newcomers and
    waiting tickets are shed, patient ones (of jobs) wait until it opens again, what runs goes on. A band that
    ``may_preempt`` has running work of ``preemptible`` lower bands stopped when it waits half of ``target_wait_s`` and
    no seat is in sight.
    """

    name: str
    weight: float
    aging_per_ms: float
    share: int = 1
    floor: Fraction = Fraction(0)
    promote_after_s: float | None = None
    order: Order = Order.FIFO
    backlog_order: BacklogOrder = BacklogOrder.SAME
    capacity: int = 20_000
    full: Full = Full.REJECT_NEWEST
    ttl_s: float = 86_400.0
    reserve: int | Auto = 0
    ceiling: Fraction = Fraction(1)
    ttft_slo_s: float | None = None
    shed_hopeless: bool = False
    tpot_slo_s: float | None = None
    kv_watermark: float = 0.0
    kv_resume: float = 0.0
    when_saturated: Saturated = Saturated.QUEUE
    admit: bool = True
    preemptible: bool = False
    may_preempt: bool = False
    target_wait_s: float = 0.05


@dataclass(slots=True, frozen=True)
class BackendSpec:
    """One upstream of a pool.

    Attributes:
        name: unique in the policy.
        seats: how many requests it runs at once; ``"auto"``: found by the seat controller.
        tokens_per_minute: its quota of tokens, ``None`` without one.
        requests_per_minute: its quota of requests, ``None`` without one.
        stale_after_s: age at which a reading of its metrics is not used any more.
        kv_tokens: size of its KV cache where its metrics do not tell (llama.cpp: the context it was started with).
    """

    name: str
    seats: int | Auto
    tokens_per_minute: int | None = None
    requests_per_minute: int | None = None
    stale_after_s: float = 3.0
    kv_tokens: int | None = None


@dataclass(slots=True, frozen=True)
class PoolSpec:
    """One ``models`` entry with its backends. A backend belongs to exactly one pool."""

    name: str
    backends: tuple[BackendSpec, ...]


@dataclass(slots=True, frozen=True)
class TenantSpec:
    """What the core needs of a tenant: fair-share weight and limits (``None``: no limit)."""

    name: str
    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_queued: int | None = None
    max_running: int | None = None
    allow_lending: bool = False


P0 = Band(
    "p0",
    100,
    0.05,
    share=8,
    order=Order.SJF,
    capacity=2000,
    ttl_s=10.0,
    ttft_slo_s=1.0,
    tpot_slo_s=0.05,
    may_preempt=True,
)
P1 = Band(
    "p1",
    20,
    0.02,
    share=2,
    floor=Fraction(1, 20),
    capacity=5000,
    ttl_s=15.0,
    ttft_slo_s=10.0,
    tpot_slo_s=0.1,
    shed_hopeless=True,
    kv_watermark=0.08,
    kv_resume=0.12,
)
P2 = Band(
    "p2",
    1,
    0.005,
    share=1,
    floor=Fraction(1, 20),
    promote_after_s=1800.0,
    kv_watermark=0.15,
    kv_resume=0.20,
    preemptible=True,
)


@dataclass(slots=True, frozen=True)
class Policy:
    """Everything the scheduler obeys.

    Attributes:
        bands: highest first, one to eight.
        pools: the pools with their backends.
        tenants: those that differ from a weight of 1 without limits.
        overtake_cap: most part of contended dispatches in which a lower band passes a higher one.
        queue_capacity: most tickets waiting in all bands and pools.
        queue_bytes: most body bytes waiting in all bands and pools.
        backlog_after_s: see ``BacklogOrder``.
        max_flows: distinct flows per scheduler; those beyond share one.
        sjf_aging: estimated tokens that a waiting millisecond is worth in ``sjf``.
        lend_limit: most waiting tickets that one waiter lends to at a time.
        depends_timeout_s: longest wait for a dependency.
        observe_only: decide and count, but refuse nothing, and run all in order of arrival; seats are respected.
        dependency_grace_s: how long an unknown name may still appear.
        preempt_rate: most part of dispatches that may be preemptions.
        max_preemptions: how often one ticket may be stopped.
    """

    bands: tuple[Band, ...] = (P0, P1, P2)
    pools: tuple[PoolSpec, ...] = ()
    tenants: tuple[TenantSpec, ...] = field(default=())
    discipline: Discipline = Discipline.AGING
    unit: Unit = Unit.TOKENS
    overtake_cap: Fraction = Fraction(15, 100)
    queue_capacity: int = 25_000
    queue_bytes: int = 512 * 1024 * 1024
    backlog_after_s: float = 1.0
    max_flows: int = 10_000
    sjf_aging: float = 1.0
    lend_limit: int = 8
    depends_timeout_s: float = 600.0
    dependency_grace_s: float = 2.0
    observe_only: bool = False
    preempt_rate: Fraction = Fraction(1, 20)
    max_preemptions: int = 2

    def __post_init__(self) -> None:
        _check_bands(self)
        _check_floors(self)
        _check_pools(self)
        _check_numbers(self)


def _check_bands(policy: Policy) -> None:
    if not 1 <= len(policy.bands) <= 8:
        raise PolicyError("policy.bands", f"expected one to eight bands, got {len(policy.bands)}")
    names = [band.name for band in policy.bands]
    for name in names:
        if names.count(name) > 1:
            raise PolicyError(f"policy.bands.{name}", "expected each band once, got the name twice")
    for band in policy.bands:
        where = f"policy.bands.{band.name}"
        for key, value, low in (
            ("weight", band.weight, 0),
            ("aging_per_ms", band.aging_per_ms, 0),
            ("share", band.share, 1),
            ("capacity", band.capacity, 1),
            ("reserve", 0 if band.reserve == AUTO else band.reserve, 0),
        ):
            if not low <= value < float("inf"):
                raise PolicyError(f"{where}.{key}", f"expected a number of at least {low}, got {value}")
        if not 0 < band.ttl_s < float("inf"):
            raise PolicyError(f"{where}.ttl", f"expected a time above 0, got {band.ttl_s} s")
        if not 0 <= band.floor < 1:
            raise PolicyError(f"{where}.floor", f"expected a part from 0 to below 1, got {band.floor}")
        if not 0 < band.ceiling <= 1:
            raise PolicyError(f"{where}.ceiling", f"expected a part above 0 up to 1, got {band.ceiling}")
        if not 0 <= band.kv_watermark <= band.kv_resume < 1:
            raise PolicyError(
                f"{where}.kv_watermark",
                f"expected parts with 0 <= kv_watermark <= kv_resume < 1, got {band.kv_watermark:g} and "
                f"{band.kv_resume:g}",
            )
        if not 0 < band.target_wait_s < float("inf"):
            raise PolicyError(f"{where}.target_wait", f"expected a time above 0, got {band.target_wait_s} s")
        if band.promote_after_s is not None and not band.promote_after_s > 0:
            raise PolicyError(f"{where}.promote_after", f"expected a time above 0, got {band.promote_after_s} s")


def _check_floors(policy: Policy) -> None:
    if not 0 <= policy.overtake_cap <= 1:
        raise PolicyError("policy.overtake_cap", f"expected a part from 0 to 1, got {policy.overtake_cap}")
    floored = [band for band in policy.bands if band.floor]
    total = sum((band.floor for band in floored), Fraction(0))
    if total > policy.overtake_cap:
        raise PolicyError(
            "policy.overtake_cap",
            f"expected at least the sum of the floors ({float(total):g}), got {float(policy.overtake_cap):g}: "
            "a floor dispatch passes higher work, so it is an overtake too",
        )
    most = Fraction(1, len(floored) + 1)
    for band in floored:
        if band.floor > most:
            raise PolicyError(
                f"policy.bands.{band.name}.floor",
                f"expected at most 1/{len(floored) + 1} with {len(floored)} floored bands, got {float(band.floor):g}",
            )


def _check_pools(policy: Policy) -> None:
    seen: set[str] = set()
    for pool in policy.pools:
        for backend in pool.backends:
            if backend.name in seen:
                raise PolicyError(f"models.{pool.name}.backends", f"backend name {backend.name!r} is used twice")
            seen.add(backend.name)
            _check_backend(f"models.{pool.name}.backends.{backend.name}", backend)
    names = [pool.name for pool in policy.pools]
    for name in names:
        if names.count(name) > 1:
            raise PolicyError(f"models.{name}", "expected each model once, got the name twice")


def _check_backend(where: str, backend: BackendSpec) -> None:
    if backend.seats != AUTO and backend.seats < 0:
        raise PolicyError(f"{where}.seats", f'expected 0 or more seats, or "auto", got {backend.seats}')
    if not backend.stale_after_s > 0:
        raise PolicyError(f"{where}.stale_after", f"expected a time above 0, got {backend.stale_after_s} s")
    for key in ("tokens_per_minute", "requests_per_minute", "kv_tokens"):
        limit = getattr(backend, key)
        if limit is not None and limit < 1:
            raise PolicyError(f"{where}.{key}", f"expected at least 1, got {limit}")


def _check_numbers(policy: Policy) -> None:
    if not 0 <= policy.preempt_rate <= 1:
        raise PolicyError("policy.preempt_rate", f"expected a part from 0 to 1, got {policy.preempt_rate}")
    for key, value, low in (
        ("queue_capacity", policy.queue_capacity, 1),
        ("queue_bytes", policy.queue_bytes, 1),
        ("max_flows", policy.max_flows, 1),
        ("lend_limit", policy.lend_limit, 1),
        ("max_preemptions", policy.max_preemptions, 0),
        ("backlog_after", policy.backlog_after_s, 0),
        ("sjf_aging", policy.sjf_aging, 0),
        ("depends_timeout", policy.depends_timeout_s, 0),
    ):
        if value < low:
            raise PolicyError(f"policy.{key}", f"expected at least {low}, got {value}")
    for band, lower in pairwise(policy.bands):
        if lower.weight > band.weight:
            raise PolicyError(
                f"policy.bands.{lower.name}.weight",
                f"expected at most the weight of {band.name} ({band.weight:g}), got {lower.weight:g}",
            )
