"""The control port: metrics, health, and what the scheduler says of itself. Read only in this version."""

from __future__ import annotations

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tidegate.control.guard import Guard
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder


def build_control_app(driver: Driver, recorder: Recorder) -> Starlette:
    """Build the app of the control port. It MUST listen on a loopback address: it asks nobody for a token."""
    encoder = msgspec.json.Encoder(enc_hook=str, order="deterministic")

    async def metrics(_: Request) -> Response:
        return Response(recorder.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> Response:
        problem = driver.not_ready()
        return PlainTextResponse(f"{problem or 'ready'}\n", status_code=503 if problem else 200)

    async def state(_: Request) -> Response:
        if driver.faulty:
            return PlainTextResponse(f"{driver.not_ready()}\n", status_code=503)
        return Response(encoder.encode(driver.snapshot()), media_type="application/json")

    routes = [
        Route("/metrics", metrics),
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/admin/state", state),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard)])
