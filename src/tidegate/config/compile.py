"""Compile settings and a mode to the value that the core obeys; the core itself knows no modes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from tidegate.core import BackendSpec, Band, Policy, PoolSpec, TenantSpec

if TYPE_CHECKING:
    from tidegate.config.policy import BandSettings
    from tidegate.config.schema import ModelSettings, ModeSettings, Settings, TenantSettings
    from tidegate.config.upstreams import BackendSettings


def compile_policy(settings: Settings, mode: ModeSettings) -> Policy:
    """Return the core's policy: bands highest first, one pool per model, and the tenants.

    Args:
        settings: with the mode's overlay in place.
        mode: which bands are let in, and whether to observe only.

    Raises:
        PolicyError: the policy contradicts itself.
    """
    policy = settings.policy
    admitted = policy.bands.keys() if mode.admit is None else mode.admit
    return Policy(
        bands=tuple(_band(name, band, admit=name in admitted) for name, band in policy.bands.items()),
        pools=tuple(_pool(model) for model in settings.models),
        tenants=_tenants(settings.tenants),
        discipline=policy.discipline,
        unit=policy.unit,
        overtake_cap=policy.overtake_cap,
        queue_capacity=policy.queue_capacity,
        queue_bytes=policy.queue_bytes,
        backlog_after_s=policy.backlog_after,
        max_flows=policy.max_flows,
        sjf_aging=policy.sjf_aging,
        lend_limit=policy.lend_limit,
        depends_timeout_s=policy.depends_timeout,
        observe_only=mode.observe,
        preempt_rate=policy.preempt_rate,
        max_preemptions=policy.max_preemptions,
    )


def _band(name: str, band: BandSettings, *, admit: bool) -> Band:
    return Band(
        name=name,
        weight=band.weight,
        aging_per_ms=band.aging_per_ms,
        share=band.share,
        floor=band.floor or Fraction(0),
        promote_after_s=band.promote_after,
        order=band.order,
        backlog_order=band.backlog_order,
        capacity=band.capacity,
        full=band.full,
        ttl_s=band.ttl,
        reserve=band.reserve,
        ceiling=band.ceiling,
        ttft_slo_s=band.ttft_slo,
        shed_hopeless=band.shed_hopeless,
        tpot_slo_s=band.tpot_slo,
        kv_watermark=float(band.kv_watermark),
        kv_resume=float(band.kv_watermark if band.kv_resume is None else band.kv_resume),
        when_saturated=band.when_saturated,
        admit=admit,
        preemptible=band.preemptible,
        may_preempt=band.may_preempt,
        target_wait_s=band.target_wait,
    )


def _pool(model: ModelSettings) -> PoolSpec:
    return PoolSpec(model.pool, tuple(_backend(backend) for backend in model.backends))


def _backend(backend: BackendSettings) -> BackendSpec:
    return BackendSpec(
        name=backend.name,
        seats=backend.seats,
        tokens_per_minute=backend.budget.tokens_per_minute,
        requests_per_minute=backend.budget.requests_per_minute,
        stale_after_s=backend.stale_after,
        kv_tokens=backend.kv_tokens,
    )


_last: tuple[tuple[TenantSettings, ...], tuple[TenantSpec, ...]] = ((), ())
"""The tenants compiled last: a change of mode or policy leaves them as they are, one of a tenant all others, and there
may be ten thousand."""


def _tenants(tenants: tuple[TenantSettings, ...]) -> tuple[TenantSpec, ...]:
    global _last
    known, specs = _last
    if known is not tenants:
        before = dict(zip(map(id, known), specs, strict=True))  # they are kept, so that no other has the same id
        specs = tuple(before.get(id(tenant)) or _tenant(tenant) for tenant in tenants)
        _last = tenants, specs
    return specs


def _tenant(tenant: TenantSettings) -> TenantSpec:
    limits = tenant.limits
    return TenantSpec(
        name=tenant.name,
        weight=tenant.weight,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        max_queued=limits.max_queued,
        max_running=limits.max_running,
        allow_lending=tenant.allow_lending,
    )
