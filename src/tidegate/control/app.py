"""The control port: metrics, health, and the control API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tidegate.control.admin import Admin, Hooks
from tidegate.control.events import Events, Feed
from tidegate.control.guard import Guard
from tidegate.control.live import Live
from tidegate.control.operators import Doorkeeper
from tidegate.control.site import site_routes
from tidegate.control.speech import SpokenError, error_answer
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder


def build_control_app(
    driver: Driver,
    recorder: Recorder,
    live: Live,
    hooks: Hooks,
    feed: Feed,
    page: Callable[[], Awaitable[bytes]] | None = None,
) -> Starlette:
    """Build the app of the control port; ``feed`` makes the dashboard's numbers, and is to be started by the caller.

    ``page`` makes the page of metrics where that has more than this process's own.

    It MUST listen where the settings of ``live`` say: on a loopback address without operators, it asks nobody for a
    token.
    """
    local = live.settings.control.listen.is_loopback

    async def metrics(_: Request) -> Response:
        found = recorder.exposition() if page is None else await page()
        return Response(found, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> Response:
        problem = driver.not_ready()
        return PlainTextResponse(f"{problem or 'ready'}\n", status_code=503 if problem else 200)

    door = Doorkeeper(lambda: live.settings.control.operators, driver.now, local=local)
    routes = [
        Route("/metrics", metrics),
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/admin/events", Events(feed, door), methods=["GET"]),
        *Admin(driver, recorder.waste, live, door, hooks).routes,
        *site_routes(),
    ]
    handlers = {404: _no_route, 405: _wrong_method}
    app = Starlette(routes=routes, middleware=[Middleware(Guard, local=local)], exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirect would name the host and scheme that a proxy in front has hidden
    return app


async def _no_route(request: Request, _: Exception) -> Response:
    return error_answer(SpokenError(404, "not_found", f"there is no {request.method} {request.url.path[:200]}"))


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None)
    message = f"expected another method than {request.method}"
    return error_answer(SpokenError(405, "bad_request", message, headers=headers))
