"""The control API, ``/admin/…``: look at the scheduler, change policy, mode and backends, stop one request.

What changes something goes through ``Live`` and is recorded; what looks reads the scheduler's snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from tidegate.config import ExpectedError, parse_positive_duration
from tidegate.control.books import Books
from tidegate.control.changes import ChangeRoutes, recorded
from tidegate.control.letters import DeadLetters, Letters
from tidegate.control.live import Live
from tidegate.control.logins import LoginRoutes
from tidegate.control.openapi import OpenApiRoutes
from tidegate.control.operators import Doorkeeper, Operator
from tidegate.control.policies import PolicyRoutes
from tidegate.control.routing import CHANGE, VIEW, Entrance
from tidegate.control.speech import SpokenError, answer, limit_of, only, read_json
from tidegate.control.tenant_routes import TenantRoutes
from tidegate.control.undo import Undo
from tidegate.control.usage_routes import UsageRoutes
from tidegate.control.what_if import WhatIf
from tidegate.core import Ticket
from tidegate.core.snapshots import WhyKind
from tidegate.runtime import Driver
from tidegate.splice import Waste
from tidegate.stores import StoreError

log = structlog.get_logger("tidegate.control")


@dataclass(slots=True, frozen=True)
class Hooks:
    """What the control API needs of other rooms.

    Attributes:
        stop_request: end a request that waits or runs, by its ticket's id; ``False``: there is none.
        drain: refuse what waits and what comes from now on, for good; called once.
        books: what the control room writes down.
        letters: the dead letters of batch jobs, ``None`` when there are no jobs.
        what_if: runs a policy on the traffic just seen; ``None``: nobody can.
        cluster: says how all gateways stand that share the pools; ``None``: this one is alone.
    """

    stop_request: Callable[[str], bool]
    drain: Callable[[], None]
    books: Books
    letters: Letters | None = None
    what_if: WhatIf | None = None
    cluster: Callable[[], Awaitable[dict[str, Any]]] | None = None


class Admin:
    """Answers ``/admin/…``. ``routes`` are to be mounted."""

    def __init__(self, driver: Driver, waste: Waste, live: Live, door: Doorkeeper, hooks: Hooks) -> None:
        self._driver = driver
        self._waste = waste
        self._live = live
        self._hooks = hooks
        self._drained_by: str | None = None
        entrance = Entrance(driver, door)
        route, view, change = entrance.route, VIEW, CHANGE
        self.routes = [
            route("/admin/state", {"GET": (view, self._state)}),
            route("/admin/mode", {"GET": (view, self._mode), "POST": (change, self._switch)}),
            route("/admin/reload", {"POST": (change, self._reload)}),
            route("/admin/drain", {"POST": (change, self._drain)}),
            route("/admin/requests", {"GET": (view, self._requests)}),
            route("/admin/requests/{id:path}", {"GET": (view, self._request), "DELETE": (change, self._stop_request)}),
        ]
        letters = DeadLetters(hooks.letters, live.audit)
        books = hooks.books
        self.routes += [
            *OpenApiRoutes(entrance).routes,
            *LoginRoutes(door, entrance).routes,
            *PolicyRoutes(driver, live, entrance, hooks.what_if).routes,
            *ChangeRoutes(live.audit, Undo(live, books.tenants, live.audit), entrance).routes,
            *TenantRoutes(books.tenants, entrance).routes,
            *UsageRoutes(books.usage, books.utc_now, entrance).routes,
            route("/admin/dead-letters", {"GET": (view, letters.listed)}),
            route("/admin/dead-letters/{id}", {"DELETE": (change, letters.discarded)}),
            route("/admin/dead-letters/{id}/redrive", {"POST": (change, letters.redriven)}),
        ]

    # Looking

    async def _state(self, _: Request, __: Operator) -> Response:
        snapshot = self._driver.snapshot()
        waste = self._waste
        state = msgspec.to_builtins(snapshot, enc_hook=str) | {"would": dict(snapshot.would)}
        state["waste"] = {"tokens": waste.total, "computed": waste.computed, "causes": waste.largest_first()}
        if self._hooks.cluster is not None:
            state["cluster"] = await self._hooks.cluster()
        return answer({**state, "mode": self._live.mode, "not_ready": self._driver.not_ready()})

    async def _mode(self, _: Request, __: Operator) -> Response:
        return answer(self._mode_document())

    async def _requests(self, request: Request, _: Operator) -> Response:
        band = request.query_params.get("band")
        names = self._live.settings.band_names
        if band is not None and band not in names:
            raise SpokenError(400, "bad_request", f"expected band, one of {', '.join(names)}", param="band")
        index = None if band is None else names.index(band)
        tickets, complete = self._driver.waiting_tickets(index, limit_of(request))
        return answer({"requests": [self._row(ticket) for ticket in tickets], "complete": complete})

    async def _request(self, request: Request, _: Operator) -> Response:
        ticket_id = self._ticket_id(request)
        why = self._driver.why(ticket_id)
        if why.kind is WhyKind.UNKNOWN:
            raise _unknown(request)
        return answer({"id": ticket_id, **msgspec.to_builtins(why, enc_hook=str)})

    # Changing

    async def _switch(self, request: Request, who: Operator) -> Response:
        body = only(await read_json(request), "mode", "revert_after")
        mode, after = body.get("mode"), body.get("revert_after")
        if not isinstance(mode, str):
            raise SpokenError(400, "bad_request", "expected mode, a name", param="mode")
        record = self._live.switch(mode, who=who.name, revert_after_s=None if after is None else _duration(after))
        return await recorded(self._live.audit, record, self._mode_document())

    async def _reload(self, request: Request, who: Operator) -> Response:
        only(await read_json(request))
        try:
            await self._hooks.books.tenants.load()  # those that another gateway on the same store has made
        except StoreError as error:
            log.error("control.tenants_not_read", why=str(error))
        return await recorded(self._live.audit, await self._live.reload(who=who.name))

    async def _drain(self, request: Request, who: Operator) -> Response:
        only(await read_json(request))
        if self._drained_by is None:
            self._drained_by = who.name
            self._live.audit.add(who.name, "drain", [])
            self._hooks.drain()
            await asyncio.sleep(0)
            await self._live.audit.settled()
        return answer({"waiting": self._driver.waiting, "running": self._driver.running}, 202)

    async def _stop_request(self, request: Request, who: Operator) -> Response:
        ticket_id = self._ticket_id(request)
        if not self._hooks.stop_request(ticket_id):
            raise _unknown(request)
        self._live.audit.add(who.name, "cancel", [("request", ticket_id, None)])
        await self._live.audit.settled()
        return answer({"id": ticket_id, "stopped": True})

    # Helpers

    def _mode_document(self) -> dict[str, Any]:
        state = msgspec.to_builtins(self._live.state())
        return {**state, "modes": self._live.settings.mode_names}

    def _ticket_id(self, request: Request) -> str:
        """A path with a slash is a request's full name, ``TENANT/NAME``."""
        given: str = request.path_params["id"]
        return self._driver.status(given).ticket_id or given if "/" in given else given

    def _row(self, ticket: Ticket) -> dict[str, Any]:
        return {
            "id": ticket.id,
            "name": ticket.name,
            "band": self._live.settings.band_names[ticket.band],
            "model": ticket.pool,
            "tenant": ticket.tenant,
            "estimated_tokens": ticket.work.input_tokens + ticket.work.output_tokens,
        }


def _duration(value: object) -> float:
    try:
        return parse_positive_duration(value)
    except ExpectedError as error:
        raise SpokenError(400, "bad_request", f"revert_after: {error.expected}", param="revert_after") from None


def _unknown(request: Request) -> SpokenError:
    given = request.path_params["id"][:200]
    return SpokenError(404, "unknown_request", f"expected a request that waits or runs, got {given!r}")
