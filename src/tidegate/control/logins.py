"""``/admin/login``, ``/admin/logout``, ``/admin/me``: a browser's way in, out, and who it is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.control.operators import Denied, Doorkeeper, Operator
from tidegate.control.routing import VIEW, Entrance, address_of, denied
from tidegate.control.sessions import cookie_of, set_cookie
from tidegate.control.speech import SpokenError, answer, only, read_json


class LoginRoutes:
    """Answers them. ``routes`` are to be mounted."""

    def __init__(self, door: Doorkeeper, entrance: Entrance) -> None:
        self._door = door
        self.routes: list[Route] = [
            entrance.open_route("/admin/login", {"POST": self._login}),
            entrance.open_route("/admin/logout", {"POST": self._logout}),
            entrance.route("/admin/me", {"GET": (VIEW, self._me)}),
        ]

    async def _login(self, request: Request) -> Response:
        token = only(await read_json(request), "token").get("token")
        if not isinstance(token, str) or not token:
            raise SpokenError(400, "bad_request", "expected token, an operator's token", param="token")
        found = self._door.login(token, address_of(request))
        if isinstance(found, Denied):
            raise denied(found)
        who, secret = found
        response = answer({"name": who.name, "role": who.role})
        secure = request.url.scheme == "https"
        response.headers["set-cookie"] = set_cookie(request.headers, secret, secure=secure)
        return response

    async def _logout(self, request: Request) -> Response:
        only(await read_json(request))
        ended = self._door.sessions.end(request.headers)
        response = answer({"ended": ended})
        secure = request.url.scheme == "https"
        response.headers["set-cookie"] = set_cookie(request.headers, "", secure=secure)
        return response

    async def _me(self, request: Request, who: Operator) -> Response:
        by_cookie = cookie_of(request.headers) is not None and "authorization" not in request.headers
        session = by_cookie and self._door.sessions.find(request.headers, self._door.operators) is not None
        return answer({"name": who.name, "role": who.role, "session": session, "login": bool(self._door.operators)})
