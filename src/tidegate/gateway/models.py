"""The list of models as OpenAI's API gives it. Under the wildcard these are what the backends say they have."""

from __future__ import annotations

import msgspec

from tidegate.classify import Refused
from tidegate.config import WILDCARD, Settings
from tidegate.core import Reason
from tidegate.gateway.pools import Pools
from tidegate.runtime import Clock


class Models:
    """Writes the list, or one of it."""

    def __init__(self, settings: Settings, pools: Pools, clock: Clock) -> None:
        self._pools = pools
        self._created = int(clock.utc_now().timestamp())
        self.obey(settings)

    def obey(self, settings: Settings) -> None:
        """Take other settings."""
        self._own = [
            name for model in settings.models if model.name != WILDCARD for name in (model.name, *model.aliases)
        ]
        self._wild = next((model.pool for model in settings.models if model.name == WILDCARD), None)

    def names(self) -> list[str]:
        """Return all names in the order of the file, then those of the wildcard's backends."""
        found = [name for b in self._pools.backends.values() if b.pool == self._wild for name in b.models]
        return list(dict.fromkeys([*self._own, *found]))

    def find(self, name: str) -> bytes | Refused:
        """Return the entry of a name, or the whole list for an empty one."""
        names = self.names()
        if not name:
            return msgspec.json.encode({"object": "list", "data": [self._item(each) for each in names]})
        if name not in names:
            return Refused(Reason.UNKNOWN_MODEL, f"got {name[:128]!r}", "model")
        return msgspec.json.encode(self._item(name))

    def _item(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "tidegate"}
