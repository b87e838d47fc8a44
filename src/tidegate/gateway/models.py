"""The list of models as OpenAI's API gives it. Under the wildcard these are what the backends say they have."""

from __future__ import annotations

import msgspec

from tidegate.config import WILDCARD, Settings
from tidegate.gateway.pools import Pools
from tidegate.runtime import Clock


class Models:
    """Writes the list, or one of it."""

    def __init__(self, settings: Settings, pools: Pools, clock: Clock) -> None:
        self._pools = pools
        self._created = int(clock.utc_now().timestamp())
        self._own = [
            name for model in settings.models if model.name != WILDCARD for name in (model.name, *model.aliases)
        ]
        self._wild = next((model.pool for model in settings.models if model.name == WILDCARD), None)

    def names(self) -> list[str]:
        """Return all names in the order of the file, then those of the wildcard's backends."""
        found = [name for b in self._pools.backends.values() if b.pool == self._wild for name in b.models]
        return list(dict.fromkeys([*self._own, *found]))

    def all(self) -> bytes:
        """Return the list."""
        return msgspec.json.encode({"object": "list", "data": [self._item(name) for name in self.names()]})

    def one(self, name: str) -> bytes | None:
        """Return one entry, ``None`` when there is no such model."""
        return msgspec.json.encode(self._item(name)) if name in self.names() else None

    def _item(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "tidegate"}
