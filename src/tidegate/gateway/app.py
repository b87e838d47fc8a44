"""The gateway as one plain ASGI callable: find the route, answer, write the log line.

No framework, no middleware, no task of its own for a request. The routes that run on a model are in ``completions``;
the others are small and answered from here.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from tidegate.classify import (
    Classifier,
    RawHeaders,
    Refused,
    Route,
    by_name,
    check_headers,
    foreign_host,
    is_loopback_host,
    may_pass,
)
from tidegate.config import Settings
from tidegate.core import Outcome, Reason
from tidegate.gateway.body import Receive
from tidegate.gateway.call import Call, Send
from tidegate.gateway.completions import Completions
from tidegate.gateway.link import ClientLink
from tidegate.gateway.models import Models
from tidegate.gateway.refusing import Refuser
from tidegate.gateway.requests import PATH as REQUESTS
from tidegate.gateway.requests import Requests
from tidegate.runtime import Clock, Driver
from tidegate.telemetry.log import Log
from tidegate.telemetry.traces import Traces

log = structlog.get_logger("tidegate.gateway")

Scope = Mapping[str, Any]
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

TEXT = (b"content-type", b"text/plain; charset=utf-8")
JSON = (b"content-type", b"application/json")
SERVED = (Route.CHAT, Route.COMPLETIONS, Route.EMBEDDINGS, Route.RESPONSES)
_SERVED = {route.value: route for route in SERVED}
MODELS = "/v1/models"
HEALTH = ("/livez", "/readyz")
JOBS = ("/v1/files", "/v1/batches")
PATHS = (*SERVED, MODELS, f"{REQUESTS}NAME", *HEALTH)
READ = ("GET", "HEAD")


class Gateway:
    """The ASGI callable that clients speak to."""

    def __init__(
        self,
        settings: Settings,
        *,
        completions: Completions,
        classifier: Classifier,
        models: Models,
        requests: Requests,
        refuser: Refuser,
        driver: Driver,
        clock: Clock,
        log: Log,
        jobs: AsgiApp | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._completions = completions
        self._classifier = classifier
        self._models = models
        self._requests = requests
        self._refuser = refuser
        self._driver = driver
        self._clock = clock
        self._log = log
        self._jobs = jobs
        self._traces = traces
        self._local_only = settings.gateway.listen.is_loopback
        self._ids = itertools.count(1)
        self._prefix = f"req-{secrets.token_hex(6)}-"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        call = Call(f"{self._prefix}{next(self._ids):x}", self._clock.now())
        link: ClientLink = scope["state"]["link"]
        link.request_id = call.request_id
        route = _SERVED.get(scope["path"])
        if route is None and scope["path"] in HEALTH:
            await self._health(call, scope, send)
            return
        if self._traces is not None:
            call.trace = self._traces.begin(scope["method"], scope["path"], scope["headers"])
        try:
            if route is not None and scope["method"] == "POST":
                await self._completions.run(call, route, scope, receive, send)
            else:
                await self._answer(call, scope, receive, send)
        except asyncio.CancelledError:
            if not link.gone:  # the server ends: whoever began the task answers
                if not call.started:
                    self._refuser.past(call, 503)
                raise
            call.left()
        except Exception:  # the task's top: whatever it is, the client gets an answer and the log a trace
            log.exception("request.fault", request_id=call.request_id)
            if call.started:
                link.cut()
            else:
                await self._refuser.fault(call, send)
        finally:
            if link.refused:
                self._refuser.past(call, link.refused)
            if self._log.tells_requests or call.trace is not None:
                line = call.line(self._clock.now(), self._clock.utc_now())
                self._log.request(line)
                if call.trace is not None:
                    call.trace.end(line)

    async def _answer(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in _SERVED:
            await self._wrong_method(call, scope, send, allowed=b"POST")
        elif path == MODELS or path.startswith((MODELS + "/", REQUESTS)):
            if method in READ:
                await self._look_up(call, scope, send, path=path)
            else:
                await self._wrong_method(call, scope, send, allowed=b"GET, HEAD")
        elif path in JOBS or path.startswith(tuple(f"{root}/" for root in JOBS)):
            await self._batch(call, scope, receive, send)
        elif method == "POST" and may_pass(scope["raw_path"]):
            await self._completions.run(call, Route.OTHER, scope, receive, send)
        else:
            detail = (
                f"expected one of {', '.join((*SERVED, MODELS, REQUESTS + 'NAME', *HEALTH))}; got {method} {path[:200]}"
            )
            await self._refuse(call, scope, send, Refused(Reason.BAD_REQUEST, detail, status=404))

    async def _health(self, call: Call, scope: Scope, send: Send) -> None:
        """Answer a probe. No log line: there is one every few seconds."""
        if scope["method"] not in READ:
            await self._wrong_method(call, scope, send, allowed=b"GET, HEAD")
            return
        host = by_name(scope["headers"]).get(b"host")
        if self._local_only and not is_loopback_host(host):
            await self._refuse(call, scope, send, foreign_host(host))
            return
        problem = self._driver.not_ready() if scope["path"] == "/readyz" else None
        headers = [TEXT, *call.headers(call.arrived)]
        await call.answer(send, 503 if problem else 200, headers, f"{problem or 'ok'}\n".encode())

    async def _look_up(self, call: Call, scope: Scope, send: Send, *, path: str) -> None:
        headers: RawHeaders = scope["headers"]
        named = by_name(headers)
        tenant = check_headers(headers) or self._classifier.identify(named)
        if isinstance(tenant, Refused):
            await self._refuse(call, scope, send, tenant)
            return
        if path.startswith(REQUESTS):
            name, link = path[len(REQUESTS) :], scope["state"]["link"]
            query: bytes = scope["query_string"]
            found = await self._requests.ask(tenant, named, link, wait_id=call.request_id, name=name, query=query)
        else:
            found = self._models.find(path[len(MODELS) + 1 :])
        if isinstance(found, Refused):
            await self._refuse(call, scope, send, found)
            return
        call.ended(Outcome.COMPLETED)
        await call.answer(send, 200, [JSON, *call.headers(self._clock.now())], found)

    async def _batch(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the routes of batch jobs, with its tenant."""
        headers: RawHeaders = scope["headers"]
        tenant = check_headers(headers) or self._classifier.identify(by_name(headers))
        if isinstance(tenant, Refused):
            await self._refuse(call, scope, send, tenant)
            return
        if self._jobs is None:
            detail = "batch jobs are not set up on this gateway: its settings have no block jobs"
            await self._refuse(call, scope, send, Refused(Reason.BAD_REQUEST, detail, status=404))
            return

        async def told(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                call.ended(Outcome.COMPLETED if call.status < 400 else Outcome.REJECTED)
                message = {**message, "headers": [*message["headers"], *call.headers(self._clock.now())]}
            await send(message)

        await self._jobs({**scope, "state": {**scope["state"], "tenant": tenant}}, receive, told)

    async def _wrong_method(self, call: Call, scope: Scope, send: Send, *, allowed: bytes) -> None:
        detail = f"expected {allowed.decode()}, got {scope['method'][:20]}"
        refused = Refused(Reason.BAD_REQUEST, detail, status=405)
        await self._refuse(call, scope, send, refused, extra=[(b"allow", allowed)])

    async def _refuse(
        self, call: Call, scope: Scope, send: Send, refused: Refused, *, extra: RawHeaders | None = None
    ) -> None:
        headers, link = by_name(scope["headers"]), scope["state"]["link"]
        await self._refuser.early(call, send, refused, headers=headers, link=link, extra=extra)
