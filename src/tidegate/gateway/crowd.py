"""How many requests each tenant has open, so that one cannot take all connections."""

from __future__ import annotations

from tidegate.classify import Refused
from tidegate.core import Reason


class Crowd:
    """Counts open requests. ``most`` for each tenant, ``None``: without limit; it may be changed at any time."""

    __slots__ = ("_open", "most")

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._open: dict[str, int] = {}

    def enter(self, tenant: str) -> Refused | None:
        """Count one more, or refuse it. Whoever was not refused must ``leave``."""
        count = self._open.get(tenant, 0)
        if self.most is not None and count >= self.most:
            detail = f"the tenant has {count} requests open, gateway.max_connections_per_tenant"
            return Refused(Reason.TENANT_LIMIT, detail)
        self._open[tenant] = count + 1
        return None

    def leave(self, tenant: str) -> None:
        """Count one less."""
        left = self._open[tenant] - 1
        if left:
            self._open[tenant] = left
        else:
            del self._open[tenant]
