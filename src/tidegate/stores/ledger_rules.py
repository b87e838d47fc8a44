"""A pool's configuration as the whole numbers that the auction works with. Pure.

Every implementation decides by these, so what has to be divided is divided here, once: periods of floors, what a
contended dispatch earns (``core.between``), steps of shares (``core.shares``), what a token costs a tenant. Products
stay below 2**53, which a Lua number holds exactly: work up to a million tokens, quotas up to 100 million a minute,
waits up to 100 days.

A quota is a leaky bucket that holds one sixtieth of it and lets the rest through evenly over a minute: whatever the
minute, not more than the quota starts in it, plus the one request that may overdraw it. Its level is counted in
``BUCKET`` units for one token or request, so that what drains in a millisecond is whole.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Final

from msgspec import Struct

from tidegate.core.between import Between
from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_protocol import PPM, BandConfig, LedgerConflict, PoolConfig

BUCKET: Final = 3_600_000
DRAIN: Final = 59
"""Per millisecond and unit of quota: 59/60 of the quota in a minute."""
DEPTH: Final = 60_000
"""Per unit of quota: 1/60 of the quota."""
TOKEN: Final = 1000
"""Units of a tenant's counter for one token at a weight of 1."""
BANDS_MAX: Final = 8
_DISCIPLINES = ("aging", "weighted", "strict")


class Quota(Struct, frozen=True, array_like=True):
    """Tokens and requests in a minute, 0 for no limit."""

    tokens: int
    requests: int


class BandRule(Struct, frozen=True):
    """One band: its bid, its accounts and how it is held back."""

    weight: int
    aging: int
    promote_after_ms: int
    ceiling_ppm: int
    period: int
    join: int
    step: int
    reserve: int


class Rules(Struct, frozen=True):
    """What the auction obeys. ``key``: equal for two versions whose accounts mean the same.

    Attributes:
        unit: credit for one overtake.
        earn: what a contended dispatch earns.
        backends: names in order.
        seats: per backend.
        auto: per backend, whether the seat controller moves its seats.
        quotas: per backend that has one.
        steps: per tenant with a weight of its own what a token costs it.
        budgets: per tenant that has one.
    """

    version: int
    mode: str
    discipline: str
    by_tokens: bool
    bands: tuple[BandRule, ...]
    unit: int
    earn: int
    key: str
    backends: tuple[str, ...]
    seats: tuple[int, ...]
    auto: tuple[bool, ...]
    quotas: dict[str, Quota]
    steps: dict[str, int]
    budgets: dict[str, Quota]
    ttl_ms: int
    heartbeat_ms: int
    recall_ms: int
    rebuild_ms: int
    unconfirmed_max: int


def is_news(config: PoolConfig, current: PoolConfig | None) -> bool:
    """Say whether ``config`` replaces what is in force; false when it is that.

    Raises:
        LedgerConflict: it is older, or another one of the same version.
    """
    if current is None:
        return True
    if config == current:
        return False
    if config.version <= current.version:
        raise LedgerConflict(
            f"ledger: expected a configuration newer than version {current.version}, got version {config.version}",
            current.version,
        )
    return True


def other_bands(living: int, ours: int) -> StoreError:
    """Return what is said of a configuration with another number of bands than those who live."""
    return StoreError(
        f"ledger: policy.bands: expected {living} bands, as long as gateways run that have {living}, got {ours}; "
        "what is different comes in force when the last of them has ended"
    )


def rules_of(config: PoolConfig) -> Rules:
    """Check a configuration and work it out.

    Raises:
        StoreError: no ledger can obey it; says why.
    """
    _check(config)
    bands = config.bands
    floors, cap = _between(config)
    between = Between(floors, cap)
    common = lcm(*(band.share for band in bands))
    weights, agings = _bids(config)
    return Rules(
        version=config.version,
        mode=config.mode,
        discipline=config.discipline,
        by_tokens=config.by_tokens,
        bands=tuple(
            BandRule(
                weight=weights[index],
                aging=agings[index],
                promote_after_ms=band.promote_after_ms if index else 0,
                ceiling_ppm=band.ceiling_ppm,
                period=between.period[index],
                join=between.join[index],
                step=common // band.share,
                reserve=band.reserve,
            )
            for index, band in enumerate(bands)
        ),
        unit=between.unit,
        earn=between.earn,
        key=f"{[band.floor_ppm for band in bands]} {config.cap_ppm} {[band.share for band in bands]}",
        backends=tuple(backend.name for backend in config.backends),
        seats=tuple(backend.seats for backend in config.backends),
        auto=tuple(backend.auto for backend in config.backends),
        quotas={
            each.name: Quota(each.tokens_per_minute, each.requests_per_minute)
            for each in config.backends
            if each.tokens_per_minute or each.requests_per_minute
        },
        steps={each.name: max(1, TOKEN * PPM // each.weight_ppm) for each in config.tenants if each.weight_ppm != PPM},
        budgets={
            each.name: Quota(each.tokens_per_minute, each.requests_per_minute)
            for each in config.tenants
            if each.tokens_per_minute or each.requests_per_minute
        },
        ttl_ms=config.ttl_ms,
        heartbeat_ms=config.heartbeat_ms,
        recall_ms=config.recall_ms,
        rebuild_ms=config.rebuild_ms,
        unconfirmed_max=config.unconfirmed_max,
    )


def _between(config: PoolConfig) -> tuple[list[Fraction], Fraction]:
    return [Fraction(band.floor_ppm, PPM) for band in config.bands], Fraction(config.cap_ppm, PPM)


def _bids(config: PoolConfig) -> tuple[list[int], list[int]]:
    """Weights and ageing of the bands' bids; by rank where bids do not age (``core.claims``)."""
    count = len(config.bands)
    if config.discipline == "aging":
        return [band.weight_ppm for band in config.bands], [band.aging_ppm for band in config.bands]
    if config.discipline == "strict":
        return [count - band for band in range(count)], [0] * count
    return [0] * count, [0] * count


def _check(config: PoolConfig) -> None:
    bands, names = config.bands, [backend.name for backend in config.backends]
    if not 1 <= len(bands) <= BANDS_MAX:
        raise StoreError(f"ledger: expected one to {BANDS_MAX} bands, got {len(bands)}")
    if config.discipline not in _DISCIPLINES:
        raise StoreError(f"ledger: expected a discipline of {', '.join(_DISCIPLINES)}, got {config.discipline!r}")
    if not names or len(set(names)) < len(names) or "" in names:
        raise StoreError(f"ledger: expected backends, each with a name of its own, got {names}")
    if min(backend.seats for backend in config.backends) < 0:
        raise StoreError("ledger: expected 0 or more seats for every backend")
    for index, band in enumerate(bands):
        _check_band(index, band)
    floors = sum(band.floor_ppm for band in bands)
    if not floors <= config.cap_ppm <= PPM:
        raise StoreError(f"ledger: expected a cap from {floors} (the sum of the floors) to {PPM}, got {config.cap_ppm}")
    if any(tenant.weight_ppm < 1 for tenant in config.tenants):
        raise StoreError("ledger: expected a weight of at least one millionth for every tenant")
    if min(config.ttl_ms, config.heartbeat_ms, config.recall_ms) < 1 or min(config.rebuild_ms, config.version) < 0:
        raise StoreError("ledger: expected times above 0, and a version and a rebuild time of at least 0")


def _check_band(index: int, band: BandConfig) -> None:
    numbers = (band.weight_ppm, band.aging_ppm, band.floor_ppm, band.promote_after_ms, band.reserve)
    if min(numbers) < 0 or band.share < 1 or not 0 < band.ceiling_ppm <= PPM:
        raise StoreError(f"ledger: band {index} has a number that is out of range: {band}")
