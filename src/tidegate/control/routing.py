"""The way into the control API: who asks, with which right, and what is answered when something is wrong.

Every route is made here, so that none can forget to ask for a token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.config import ConfigError, Role
from tidegate.control.operators import Denied, Doorkeeper, Operator
from tidegate.control.speech import SpokenError, error_answer, of_store, refused
from tidegate.core import PolicyError
from tidegate.runtime import Driver
from tidegate.stores import StoreError

Answering = Callable[[Request, Operator], Awaitable[Response]]
OpenAnswering = Callable[[Request], Awaitable[Response]]
VIEW, CHANGE = Role.VIEWER, Role.OPERATOR


class Entrance:
    """Makes routes that let in whom ``door`` admits."""

    def __init__(self, driver: Driver, door: Doorkeeper) -> None:
        self._driver = driver
        self._door = door

    def route(self, path: str, methods: dict[str, tuple[Role, Answering]]) -> Route:
        """Make a route; each method with the role that it needs and what answers it."""

        async def endpoint(request: Request) -> Response:
            role, call = methods["GET" if request.method == "HEAD" else request.method]
            who = self._admit(request, role)
            if self._driver.faulty:
                raise SpokenError(503, "fault", str(self._driver.not_ready()))
            return await call(request, who)

        return Route(path, _spoken(endpoint), methods=[*methods])

    def open_route(self, path: str, methods: dict[str, OpenAnswering]) -> Route:
        """Make a route for everybody: that by which one gets in."""

        async def endpoint(request: Request) -> Response:
            return await methods[request.method](request)

        return Route(path, _spoken(endpoint), methods=[*methods])

    def _admit(self, request: Request, role: Role) -> Operator:
        found = self._door.admit(request.headers, address_of(request), role)
        if isinstance(found, Operator):
            return found
        raise denied(found)


def address_of(request: Request) -> str:
    """Return where a request comes from, as far as this machine sees."""
    return request.client.host if request.client else ""


def _spoken(endpoint: OpenAnswering) -> OpenAnswering:
    """Let what goes wrong become an answer."""

    async def speaking(request: Request) -> Response:
        try:
            return await endpoint(request)
        except SpokenError as error:
            return error_answer(error)
        except (ConfigError, PolicyError) as error:
            return error_answer(refused(error))
        except StoreError as error:
            return error_answer(of_store(error))

    return speaking


def denied(found: Denied) -> SpokenError:
    """Return the answer to somebody who is not let in."""
    return SpokenError(found.status, found.code, found.message, headers=_headers(found))


def _headers(found: Denied) -> dict[str, str]:
    if found.retry_after_s is not None:
        return {"retry-after": str(found.retry_after_s)}
    return {"www-authenticate": "Bearer"} if found.status == 401 else {}
