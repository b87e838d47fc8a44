"""What a ledger needs of a policy, as its whole numbers; and what a replica's side of it needs. Pure."""

from __future__ import annotations

import hashlib
from fractions import Fraction

from tidegate.core import AUTO, Policy, PoolSpec, Unit
from tidegate.core.adaptive import START_SEATS
from tidegate.stores.ledger_client import StoreLoss, Terms
from tidegate.stores.ledger_protocol import PPM, BackendConfig, BandConfig, PoolConfig, TenantConfig

FIRST_PART = Fraction(1, 8)
"""Of the seats, what a replica may use before it was ever dealt a share; all of up to eight together fit."""


def pool_config(
    policy: Policy, spec: PoolSpec, *, version: int, mode: str = "", document: str = "", ttl_s: float = 5.0
) -> PoolConfig:
    """Return the configuration of one pool's ledger.

    Args:
        policy: with the mode in force compiled into it.
        spec: the pool.
        version: see ``PoolConfig``.
        mode: its name, handed through.
        document: what replicas read, handed through.
        ttl_s: ``lease_ttl``.
    """
    return PoolConfig(
        version=version,
        bands=tuple(
            BandConfig(
                name=band.name,
                weight_ppm=_ppm(band.weight),
                aging_ppm=_ppm(band.aging_per_ms),
                floor_ppm=_ppm(band.floor),
                promote_after_ms=0 if band.promote_after_s is None else max(1, round(band.promote_after_s * 1000)),
                ceiling_ppm=_ppm(band.ceiling),
                share=band.share,
                reserve=0 if band.reserve == AUTO else band.reserve,
            )
            for band in policy.bands
        ),
        backends=tuple(
            BackendConfig(
                name=each.name,
                seats=START_SEATS if each.seats == AUTO else each.seats,
                auto=each.seats == AUTO,
                tokens_per_minute=each.tokens_per_minute or 0,
                requests_per_minute=each.requests_per_minute or 0,
            )
            for each in spec.backends
        ),
        tenants=tuple(
            TenantConfig(
                name=tenant.name,
                weight_ppm=_ppm(tenant.weight),
                tokens_per_minute=tenant.tokens_per_minute or 0,
                requests_per_minute=tenant.requests_per_minute or 0,
            )
            for tenant in policy.tenants
            if tenant.weight != 1 or tenant.tokens_per_minute or tenant.requests_per_minute
        ),
        discipline=policy.discipline,
        by_tokens=policy.unit is Unit.TOKENS,
        cap_ppm=_ppm(policy.overtake_cap),
        mode=mode,
        document=document,
        ttl_ms=round(ttl_s * 1000),
    )


def terms_of(
    policy: Policy,
    spec: PoolSpec,
    *,
    on_store_loss: StoreLoss = StoreLoss.KEEP,
    ttl_s: float = 5.0,
    first_part: Fraction = FIRST_PART,
) -> Terms:
    """Return what a replica goes by in a pool."""
    seats = {each.name: None if each.seats == AUTO else each.seats for each in spec.backends}
    total = sum(START_SEATS if each is None else each for each in seats.values())
    return Terms(
        first_share=max(1, int(total * first_part)),
        on_store_loss=on_store_loss,
        ttl_s=ttl_s,
        auto=frozenset(each.name for each in spec.backends if each.seats == AUTO),
        reserves=tuple(None if band.reserve == AUTO else band.reserve for band in policy.bands),
        seats=seats,
        file=hashlib.sha256(repr(sorted(seats.items())).encode()).hexdigest()[:8],
    )


def _ppm(part: float | Fraction) -> int:
    return round(part * PPM)
