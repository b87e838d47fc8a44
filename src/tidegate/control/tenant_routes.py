"""``/admin/tenants``: list, make, change, take away; give keys and take them back."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.config import ExpectedError, parse_duration
from tidegate.control.operators import Operator
from tidegate.control.routing import CHANGE, VIEW, Entrance
from tidegate.control.speech import SpokenError, answer, limit_of, only, read_json
from tidegate.control.tenants import Tenants


class TenantRoutes:
    """Answers them. ``routes`` are to be mounted."""

    def __init__(self, tenants: Tenants, entrance: Entrance) -> None:
        self._tenants = tenants
        one = "/admin/tenants/{name}"
        self.routes: list[Route] = [
            entrance.route("/admin/tenants", {"GET": (VIEW, self._listed), "POST": (CHANGE, self._created)}),
            entrance.route(
                one,
                {"GET": (VIEW, self._shown), "PATCH": (CHANGE, self._updated), "DELETE": (CHANGE, self._dropped)},
            ),
            entrance.route(f"{one}/keys", {"POST": (CHANGE, self._key_added)}),
            entrance.route(f"{one}/keys/{{id}}", {"DELETE": (CHANGE, self._key_revoked)}),
        ]

    async def _listed(self, request: Request, _: Operator) -> Response:
        limit = limit_of(request)
        found = await self._tenants.page(request.query_params.get("after", ""), limit + 1)
        return answer({"tenants": found[:limit], "complete": len(found) <= limit})

    async def _shown(self, request: Request, _: Operator) -> Response:
        return answer(self._tenants.row(_name(request)))

    async def _created(self, request: Request, who: Operator) -> Response:
        body = _mapping(await read_json(request))
        name = body.pop("name", None)
        key = await self._tenants.create(name, body, who=who.name)
        return answer({"tenant": self._tenants.row(str(name)), "key": key}, 201)

    async def _updated(self, request: Request, who: Operator) -> Response:
        await self._tenants.update(_name(request), _mapping(await read_json(request)), who=who.name)
        return answer(self._tenants.row(_name(request)))

    async def _dropped(self, request: Request, who: Operator) -> Response:
        await self._tenants.drop(_name(request), who=who.name)
        return answer({"name": _name(request), "deleted": True})

    async def _key_added(self, request: Request, who: Operator) -> Response:
        body, name = only(await read_json(request), "replaces", "grace"), _name(request)
        replaces, grace = body.get("replaces"), body.get("grace", 0)
        if replaces is not None and not isinstance(replaces, str):
            raise SpokenError(400, "bad_request", "expected replaces, the id of a key", param="replaces")
        try:
            grace_s = parse_duration(grace)
        except ExpectedError as error:
            raise SpokenError(400, "bad_request", f"grace: {error.expected}", param="grace") from None
        key = await self._tenants.add_key(name, who=who.name, replaces=replaces, grace_s=grace_s)
        return answer({"tenant": self._tenants.row(name), "key": key}, 201)

    async def _key_revoked(self, request: Request, who: Operator) -> Response:
        name = _name(request)
        await self._tenants.revoke(name, request.path_params["id"], who=who.name)
        return answer(self._tenants.row(name))


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpokenError(400, "bad_request", "expected a JSON object with settings of a tenant")
    return {**value}
