"""Take a recorded change back: what it changed gets the value from before, and that is a change of its own.

Refused when the state has moved on, so that nobody undoes the work of another by accident, unless he says that he means
it. Some things stay done: a key that was revoked, a drain, what the file says.
"""

from __future__ import annotations

from typing import Any

from tidegate.config import (
    TenantLimits,
    TenantSettings,
    backends_document,
    document,
    patch_policy,
    replace_backends,
)
from tidegate.control.audit import Audit, Record
from tidegate.control.live import Live
from tidegate.control.tenants import Tenants
from tidegate.stores import Conflict

_FORGOTTEN = "backends that came, left or moved are remembered, with their credentials, only by the process itself"


class Undo:
    """Takes changes back. All methods raise ``Conflict``, ``NotFound``, ``StoreError`` or ``ConfigError``."""

    def __init__(self, live: Live, tenants: Tenants, audit: Audit) -> None:
        self._live = live
        self._tenants = tenants
        self._audit = audit

    async def undo(self, record_id: int, *, who: str, force: bool = False) -> Record | None:
        """Take back a change; with ``force`` also one after which the state has moved on.

        Returns the record of that, ``None`` when all was as before already.

        Raises:
            NotFound: there is no such record.
            Conflict: the state has moved on, or such a change cannot be taken back.
        """
        record = await self._audit.find(record_id)
        if record.undone_by is not None and not force:
            raise Conflict(f"change {record_id} has been taken back already, by change {record.undone_by}")
        places = [row["what"] for row in record.changes]
        if places and places[0] == "mode":
            return self._mode(record, who=who, force=force)
        elif places and all(place.startswith("policy.") for place in places):
            return self._policy(record, who=who, force=force)
        elif places and all(place.startswith("models.") for place in places) and record.action != "reload":
            return self._models(record, who=who, force=force)
        elif places and all(place.startswith("tenants.") for place in places) and record.action != "reload":
            await self._tenant(record, who=who, force=force)
            return self._audit.newest(1)[0]
        raise Conflict(f"expected a change that can be taken back; {record.action!r} cannot, or not by itself")

    def _mode(self, record: Record, *, who: str, force: bool) -> Record:
        row = record.changes[0]
        if row["from"] == row["to"]:
            raise Conflict("expected a change of the mode; this one only set when it ends")
        _expect({"mode": (row["to"], self._live.mode)}, force=force)
        return self._live.switch(row["from"], who=who, undoes=record.id)

    def _policy(self, record: Record, *, who: str, force: bool) -> Record | None:
        now = {"policy": document(self._live.settings.policy)}
        _expect({row["what"]: (row["to"], _at(now, row["what"])) for row in record.changes}, force=force)
        patch: dict[str, Any] = {}
        for row in record.changes:
            _put(patch, row["what"].split(".")[1:], row["from"])
        after = patch_policy(self._live.settings, patch)
        return self._live.change(after, who=who, action="undo", undoes=record.id)

    def _models(self, record: Record, *, who: str, force: bool) -> Record | None:
        before = None if record.id is None else self._live.models_before(record.id)
        if before is None:  # it was changed before this process began
            after = replace_backends(self._live.settings, self._backends_of(record, force=force))
            return self._live.change(after, who=who, action="undo", undoes=record.id)
        after = self._live.settings.model_copy(update={"models": before})
        if not force and any(row["what"].startswith("models") for row in self._later(record)):
            raise Conflict("the backends have been changed since; repeat with force to set them to what they were then")
        return self._live.change(after, who=who, action="undo", undoes=record.id)

    def _backends_of(self, record: Record, *, force: bool) -> dict[str, Any]:
        """Return all backends with single settings as they were; what needs a credential cannot be had back."""
        found = backends_document(self._live.settings)
        rows = {
            f"models.{model['name']}.backends.{row['name']}": row
            for model in found["models"]
            for row in model["backends"]
        }
        moved: dict[str, tuple[Any, Any]] = {}
        for change in record.changes:
            name = next((name for name in rows if change["what"].startswith(f"{name}.")), None)
            field = "" if name is None else change["what"].removeprefix(f"{name}.")
            if name is None or field == "url":
                raise Conflict(_FORGOTTEN)
            moved[change["what"]] = (change["to"], _at(rows[name], field))
            _put(rows[name], field.split("."), change["from"])
        _expect(moved, force=force)
        return found

    def _later(self, record: Record) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for other in self._audit.newest(1000):
            if other.id == record.id:
                break
            rows += other.changes
        return rows

    async def _tenant(self, record: Record, *, who: str, force: bool) -> None:
        assert record.id is not None
        first = record.changes[0]
        name, field = _tenant_place(first["what"], whole=isinstance(first["from"] or first["to"], dict))
        if field is None and first["from"] is None:
            await self._tenants.drop(name, who=who, undoes=record.id)
        elif field is None:
            value = {key: item for key, item in first["from"].items() if key != "keys"}
            await self._tenants.restore(name, value, who=who, undoes=record.id)
        elif field == "keys":
            await self._key(name, first, who, record.id)
        else:
            now = self._tenants.row(name)
            fields = {_tenant_place(row["what"])[1] or "": row for row in record.changes}
            _expect({field: (row["to"], _at(now, field)) for field, row in fields.items()}, force=force)
            patch: dict[str, Any] = {}
            for field, row in fields.items():
                _put(patch, field.split("."), row["from"])
            await self._tenants.update(name, patch, who=who, undoes=record.id)

    async def _key(self, name: str, row: dict[str, Any], who: str, record_id: int) -> None:
        if gone := [key for key in row["from"] if key not in row["to"]]:
            raise Conflict(f"key {gone[0]} is gone for good; give the tenant a new one")
        for key in row["to"]:
            if key not in row["from"]:
                await self._tenants.revoke(name, key, who=who, undoes=record_id)


def undoable(record: Record) -> bool:
    """Whether ``Undo`` takes back changes of this kind, if nothing has moved on."""
    if record.id is None or record.undone_by is not None or not record.changes:
        return False
    place = record.changes[0]["what"]
    if place == "mode":
        return bool(record.changes[0]["from"] != record.changes[0]["to"])
    if record.action == "reload":
        return all(row["what"].startswith("policy.") for row in record.changes)
    if place.endswith(".keys") and place.startswith("tenants."):
        return set(record.changes[0]["from"]) <= set(record.changes[0]["to"])
    return str(place).startswith(("policy.", "models.", "tenants."))


def _expect(values: dict[str, tuple[Any, Any]], *, force: bool) -> None:
    """Refuse when something is not what the change made it."""
    moved = [place for place, (made, found) in values.items() if made != found]
    if moved and not force:
        more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
        raise Conflict(f"{moved[0]}{more} has been changed since; repeat with force to set it to what it was then")


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _put(tree: dict[str, Any], parts: list[str], value: Any) -> None:
    *above, last = parts
    for part in above:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _tenant_place(place: str, *, whole: bool = False) -> tuple[str, str | None]:
    """Split ``tenants.NAME.FIELD``; names may hold dots."""
    rest = place.removeprefix("tenants.")
    if whole:
        return rest, None
    parts = rest.split(".")
    if len(parts) > 2 and parts[-2] == "limits" and parts[-1] in TenantLimits.model_fields:
        return ".".join(parts[:-2]), f"limits.{parts[-1]}"
    if len(parts) > 1 and parts[-1] in TenantSettings.model_fields:
        return ".".join(parts[:-1]), parts[-1]
    return rest, None
