"""``/admin/audit``: the list of changes, and taking one back."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.control.audit import Audit, Record
from tidegate.control.operators import Operator
from tidegate.control.routing import CHANGE, VIEW, Entrance
from tidegate.control.speech import SpokenError, answer, limit_of, number_of, only, read_json
from tidegate.control.undo import Undo, undoable


class ChangeRoutes:
    """Answers them. ``routes`` are to be mounted."""

    def __init__(self, audit: Audit, undo: Undo, entrance: Entrance) -> None:
        self._audit = audit
        self._undo = undo
        self.routes: list[Route] = [
            entrance.route("/admin/audit", {"GET": (VIEW, self._listed)}),
            entrance.route("/admin/audit/{id}/undo", {"POST": (CHANGE, self._undone)}),
        ]

    async def _listed(self, request: Request, _: Operator) -> Response:
        limit, before = limit_of(request), number_of(request, "before")
        found = await self._audit.page(before, limit)
        return answer({"records": [_row(record) for record in found], "complete": len(found) < limit})

    async def _undone(self, request: Request, who: Operator) -> Response:
        force = only(await read_json(request), "force").get("force", False)
        if not isinstance(force, bool):
            raise SpokenError(400, "bad_request", "expected force, true or false", param="force")
        text = request.path_params["id"]
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise SpokenError(404, "not_found", f"expected the id of a recorded change, got {text[:60]!r}")
        record = await self._undo.undo(int(text), who=who.name, force=force)
        return await recorded(self._audit, record, {"undone": int(text)})


async def recorded(audit: Audit, record: Record | None, more: dict[str, Any] | None = None) -> Response:
    """Answer a change once its record is written: what differs, and the record's id.

    Without a record nothing differed; a record without an id could not be written yet.
    """
    await audit.settled()
    changes, number = ([], None) if record is None else (record.changes, record.id)
    return answer({**(more or {}), "changes": changes, "record": number})


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(record)
    return {**row, "undoable": undoable(record)}
