"""Who pays: what each tenant has waiting and running, and whether its flows are parked (SPEC §4, §15.4).

A tenant at ``max_running`` is parked: its flows bid for nothing, and count as not waiting for floors and overtakes.
Tenants without limits are remembered only while they have work here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.budget import Budget
from tidegate.core.policy import TenantSpec

if TYPE_CHECKING:
    from tidegate.core.fairness import Flow


class Tenant:
    """The counts of one tenant over all pools and bands. ``flows`` are those known now, idle ones included."""

    __slots__ = (
        "flows", "home", "known", "limit", "name", "parked", "queued", "requests", "running", "spec", "tokens",
        "weight",
    )  # fmt: skip

    def __init__(self, spec: TenantSpec, home: Tenants, *, known: bool, now: float = 0.0) -> None:
        self.home = home
        self.name = spec.name
        self.queued = 0
        self.running = 0
        self.flows: dict[Flow, None] = {}
        self.parked = False
        self.requests: Budget | None = None
        self.tokens: Budget | None = None
        self.obey(spec, known=known, now=now)

    def obey(self, spec: TenantSpec, *, known: bool, now: float) -> None:
        """Take new limits; what is queued or running stays."""
        self.spec = spec
        self.known = known
        self.weight = spec.weight
        self.limit = spec.max_running
        self.requests = _budget(self.requests, spec.requests_per_minute, now)
        self.tokens = _budget(self.tokens, spec.tokens_per_minute, now)

    def charge(self, now: float, tokens: int) -> None:
        """Count an accepted request."""
        if self.requests is not None:
            self.requests.charge(now, 1)
        if self.tokens is not None:
            self.tokens.charge(now, tokens)

    def give_back(self, charged_at: float, tokens: int) -> None:
        """Forget the charge of a request that was refused while it waited: it consumes no quota."""
        if self.requests is not None:
            self.requests.settle(charged_at, -1)
        self.correct(charged_at, -tokens)

    def correct(self, charged_at: float, tokens: int) -> None:
        """Settle the estimate of a request with what it really used."""
        if self.tokens is not None:
            self.tokens.settle(charged_at, tokens)

    def opened(self, flow: Flow) -> None:
        """Note that one of the tenant's flows was made."""
        self.flows[flow] = None

    def left(self, flow: Flow) -> None:
        """Note that one of the tenant's flows was closed."""
        del self.flows[flow]
        self.forget()

    def forget(self) -> None:
        """Leave the table if this tenant has no limits and nothing here any more."""
        if not self.known and not self.queued and not self.running and not self.flows:
            self.home.all.pop(self.name, None)

    def settle(self) -> bool:
        """Park or unpark by the count; return whether it was unparked."""
        parked = self.limit is not None and self.running >= self.limit
        if parked is self.parked:
            return False
        self.parked = parked
        for flow in self.flows:
            flow.queue.parking_changed(flow)
        return not parked


class Tenants:
    """All tenants with work here or with a ``TenantSpec``; ``flows`` counts the flows with work, of all.
    ``metered``: some have quotas."""

    __slots__ = ("all", "crowd", "flows", "metered")

    def __init__(self, specs: tuple[TenantSpec, ...]) -> None:
        self.all: dict[str, Tenant] = {}
        self.flows = 0
        self.metered = False
        self.crowd = Tenant(TenantSpec(""), self, known=True)  # owns the shared flows beyond max_flows
        self.obey(specs, 0.0)

    def get(self, name: str) -> Tenant:
        """Return the tenant, made on first sight."""
        tenant = self.all.get(name)
        if tenant is None:
            tenant = self.all[name] = Tenant(TenantSpec(name), self, known=False)
        return tenant

    def may_lend(self, name: str) -> bool:
        """Say whether a tenant may lend its bands to other tenants' work."""
        tenant = self.all.get(name)
        return tenant is not None and tenant.spec.allow_lending

    def obey(self, specs: tuple[TenantSpec, ...], now: float) -> None:
        """Take new limits for all tenants; raised ones unpark at once. A spec that is known is not looked at again."""
        self.metered = any(spec.requests_per_minute is not None or spec.tokens_per_minute is not None for spec in specs)
        named = {spec.name: spec for spec in specs}
        for name, spec in named.items():
            tenant = self.get(name)
            if tenant.spec is not spec:
                tenant.obey(spec, known=True, now=now)
                tenant.settle()
        for tenant in [tenant for name, tenant in self.all.items() if name not in named]:
            tenant.obey(TenantSpec(tenant.name), known=False, now=now)
            tenant.settle()
            tenant.forget()


def _budget(budget: Budget | None, limit: int | None, now: float) -> Budget | None:
    if limit is None:
        return None
    if budget is None:
        return Budget(limit, now)
    budget.limit = limit
    return budget
