"""``/admin/policy`` and ``/admin/backends``: read, try out, replace, change in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.config import (
    ConfigError,
    ExpectedError,
    Role,
    Settings,
    backends_document,
    differences,
    document,
    parse_positive_duration,
    patch_policy,
    replace_backends,
    replace_policy,
)
from tidegate.control.bounds import longest_waits_of
from tidegate.control.changes import recorded
from tidegate.control.live import Live
from tidegate.control.operators import Operator
from tidegate.control.routing import CHANGE, VIEW, Entrance
from tidegate.control.speech import SpokenError, answer, only, problem_rows, read_json
from tidegate.control.what_if import WhatIf
from tidegate.core import PolicyError
from tidegate.runtime import Driver

SERVICE_S = 10.0
"""Longest time that a request holds a seat, where the question does not say: that of ``tidegate check``."""


class PolicyRoutes:
    """Answers them. ``routes`` are to be mounted."""

    def __init__(self, driver: Driver, live: Live, entrance: Entrance, what_if: WhatIf | None = None) -> None:
        self._driver = driver
        self._what_if = what_if
        self._live = live
        self.routes: list[Route] = [
            entrance.route("/admin/policy/preview", {"POST": (VIEW, self._preview)}),
            entrance.route(
                "/admin/policy",
                {"GET": (VIEW, self._policy), "PUT": (CHANGE, self._put_policy), "PATCH": (CHANGE, self._patch_policy)},
            ),
            entrance.route("/admin/backends", {"GET": (VIEW, self._backends), "PUT": (CHANGE, self._put_backends)}),
        ]

    async def _policy(self, _: Request, __: Operator) -> Response:
        return answer(document(self._live.settings.policy))

    async def _backends(self, _: Request, __: Operator) -> Response:
        return answer(backends_document(self._live.settings))

    async def _put_policy(self, request: Request, who: Operator) -> Response:
        return await self._changed(replace_policy, await read_json(request), who, "policy")

    async def _patch_policy(self, request: Request, who: Operator) -> Response:
        return await self._changed(patch_policy, await read_json(request), who, "policy")

    async def _put_backends(self, request: Request, who: Operator) -> Response:
        return await self._changed(replace_backends, await read_json(request), who, "backends")

    async def _changed(
        self, change: Callable[[Settings, object], Settings], value: object, who: Operator, action: str
    ) -> Response:
        after = change(self._live.settings, value)  # nobody else runs between this and putting it in force
        record = self._live.change(after, who=who.name, action=action)
        return await recorded(self._live.audit, record)

    async def _preview(self, request: Request, who: Operator) -> Response:
        """Say what a patch of the policy would change, or what is wrong with it; nothing happens."""
        body = only(await read_json(request), "policy", "service_time", "what_if")
        service_s = _service_s(body.get("service_time"))
        now = self._live.settings
        try:
            after = patch_policy(now, body.get("policy"))
            self._live.judge(after, action="preview")
        except (ConfigError, PolicyError) as error:
            return answer({"valid": False, "errors": problem_rows(error), "changes": [], "bounds": {}, "what_if": None})
        seats = self._seats()
        before, then = (longest_waits_of(each, seats, service_s) for each in (now, after))
        return answer(
            {
                "valid": True,
                "errors": [],
                "changes": [{"field": what, "from": a, "to": b} for what, a, b in differences(now, after)],
                "bounds": {band: {"now_s": before[band], "then_s": then[band]} for band in now.band_names},
                "assumed": {"service_s": service_s, "seats": seats},
                "what_if": await self._run(body.get("what_if"), now, after, who),
            }
        )

    async def _run(self, wanted: object, now: Settings, after: Settings, who: Operator) -> dict[str, Any] | None:
        """Run both policies on the traffic just seen, where that is wanted: ``true``, or ``{"profile": NAME}``."""
        profile = wanted.get("profile") if isinstance(wanted, dict) and set(wanted) <= {"profile"} else None
        if wanted is None or wanted is False:
            return None
        if wanted is not True and not isinstance(profile, str):
            expected = 'expected what_if, true or false or {"profile": NAME}'
            raise SpokenError(400, "bad_request", expected, param="what_if")
        if who.role is not Role.OPERATOR:
            raise SpokenError(403, "forbidden", "expected an operator's token for what_if, which costs computing time")
        if self._what_if is None:
            return {"error": "no simulator is at hand"}
        if self._what_if.busy:
            raise SpokenError(409, "busy", "expected one what-if at a time; another one runs")
        return await self._what_if.ask(now, after, profile=profile)

    def _seats(self) -> dict[str, int]:
        """Seats of each pool as they are now; those of ``auto`` have found their number."""
        seats: dict[str, int] = {}
        for row in self._driver.snapshot().backends:
            seats[row.pool] = seats.get(row.pool, 0) + row.seats
        return seats


def _service_s(value: object) -> float:
    if value is None:
        return SERVICE_S
    try:
        return parse_positive_duration(value)
    except ExpectedError as error:
        raise SpokenError(400, "bad_request", f"service_time: {error.expected}", param="service_time") from None
