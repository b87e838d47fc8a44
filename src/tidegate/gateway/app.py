"""The gateway as one plain application: find the route, answer, write the log line.

No framework, no middleware, no task of its own for a request. The routes that run on a model are in ``completions``;
the others are small and answered from here.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import structlog

from tidegate.classify import (
    Classifier,
    RawHeaders,
    Refused,
    Route,
    check_headers,
    foreign_host,
    is_loopback_host,
    may_pass,
)
from tidegate.config import Settings
from tidegate.core import Outcome, Reason
from tidegate.gateway.application import Application, AsgiApp, as_task
from tidegate.gateway.call import Call
from tidegate.gateway.completions import Completions
from tidegate.gateway.cycle import Cycle
from tidegate.gateway.models import Models
from tidegate.gateway.refusing import Refuser
from tidegate.gateway.requests import PATH as REQUESTS
from tidegate.gateway.requests import Requests
from tidegate.runtime import Clock, Driver
from tidegate.telemetry.log import Log
from tidegate.telemetry.traces import Traces

log = structlog.get_logger("tidegate.gateway")

TEXT = (b"content-type", b"text/plain; charset=utf-8")
JSON = (b"content-type", b"application/json")
SERVED = (Route.CHAT, Route.COMPLETIONS, Route.EMBEDDINGS, Route.RESPONSES)
_SERVED: Final[dict[str, Route]] = {route.value: route for route in SERVED}
MODELS = "/v1/models"
HEALTH = ("/livez", "/readyz")
JOBS = ("/v1/files", "/v1/batches")
PATHS = (*SERVED, MODELS, f"{REQUESTS}NAME", *HEALTH)
READ = ("GET", "HEAD")


class Gateway(Application):
    """The application that clients speak to."""

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
        self._jobs = None if jobs is None else as_task(jobs)
        self._traces = traces
        self._local_only = settings.gateway.listen.is_loopback
        self._count = 0
        self._prefix = f"req-{secrets.token_hex(6)}-"

    async def answer(self, cycle: Cycle) -> None:
        """Answer one request."""
        self._count += 1
        call = Call(self._prefix + hex(self._count)[2:], self._clock.now())
        link = cycle.link
        link.request_id = call.request_id
        path = cycle.path
        route = _SERVED.get(path)
        if route is None and path in HEALTH:
            await self._health(call, cycle)
            return
        if self._traces is not None:
            call.trace = self._traces.begin(cycle.method, path, cycle.headers)
        try:
            if route is not None and cycle.method == "POST":
                await self._completions.run(call, route, cycle)
            else:
                await self._other(call, cycle)
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
                await self._refuser.fault(call, cycle.send)
        finally:
            if link.refused:
                self._refuser.past(call, link.refused)
            if self._log.tells_requests or call.trace is not None:
                line = call.line(self._clock.now(), self._clock.utc_now())
                self._log.request(line)
                if call.trace is not None:
                    call.trace.end(line)

    async def _other(self, call: Call, cycle: Cycle) -> None:
        method, path = cycle.method, cycle.path
        if path in _SERVED:
            await self._wrong_method(call, cycle, allowed=b"POST")
        elif path == MODELS or path.startswith((MODELS + "/", REQUESTS)):
            if method in READ:
                await self._look_up(call, cycle, path=path)
            else:
                await self._wrong_method(call, cycle, allowed=b"GET, HEAD")
        elif path in JOBS or path.startswith(tuple(f"{root}/" for root in JOBS)):
            await self._batch(call, cycle)
        elif method == "POST" and may_pass(cycle.raw_path):
            await self._completions.run(call, Route.OTHER, cycle)
        else:
            detail = (
                f"expected one of {', '.join((*SERVED, MODELS, REQUESTS + 'NAME', *HEALTH))}; got {method} {path[:200]}"
            )
            await self._refuse(call, cycle, Refused(Reason.BAD_REQUEST, detail, status=404))

    async def _health(self, call: Call, cycle: Cycle) -> None:
        """Answer a probe. No log line: there is one every few seconds."""
        if cycle.method not in READ:
            await self._wrong_method(call, cycle, allowed=b"GET, HEAD")
            return
        host = cycle.link.named.get(b"host")
        if self._local_only and not is_loopback_host(host):
            await self._refuse(call, cycle, foreign_host(host))
            return
        problem = self._driver.not_ready() if cycle.path == "/readyz" else None
        headers = [TEXT, *call.headers(call.arrived)]
        await call.answer(cycle.send, 503 if problem else 200, headers, f"{problem or 'ok'}\n".encode())

    async def _look_up(self, call: Call, cycle: Cycle, *, path: str) -> None:
        named = cycle.link.named
        tenant = check_headers(cycle.headers, named) or self._classifier.identify(named)
        if isinstance(tenant, Refused):
            await self._refuse(call, cycle, tenant)
            return
        if path.startswith(REQUESTS):
            name = path[len(REQUESTS) :]
            found = await self._requests.ask(
                tenant, named, cycle.link, wait_id=call.request_id, name=name, query=cycle.query
            )
        else:
            found = self._models.find(path[len(MODELS) + 1 :])
        if isinstance(found, Refused):
            await self._refuse(call, cycle, found)
            return
        call.ended(Outcome.COMPLETED)
        await call.answer(cycle.send, 200, [JSON, *call.headers(self._clock.now())], found)

    async def _batch(self, call: Call, cycle: Cycle) -> None:
        """Pass a request on to the routes of batch jobs, with its tenant."""
        named = cycle.link.named
        tenant = check_headers(cycle.headers, named) or self._classifier.identify(named)
        if isinstance(tenant, Refused):
            await self._refuse(call, cycle, tenant)
            return
        if self._jobs is None:
            detail = "batch jobs are not set up on this gateway: its settings have no block jobs"
            await self._refuse(call, cycle, Refused(Reason.BAD_REQUEST, detail, status=404))
            return

        async def told(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                call.ended(Outcome.COMPLETED if call.status < 400 else Outcome.REJECTED)
                message = {**message, "headers": [*message["headers"], *call.headers(self._clock.now())]}
            await cycle.send(message)

        scope = cycle.scope()
        scope["state"]["tenant"] = tenant
        await self._jobs(scope, cycle.receive, told)

    async def _wrong_method(self, call: Call, cycle: Cycle, *, allowed: bytes) -> None:
        detail = f"expected {allowed.decode()}, got {cycle.method[:20]}"
        refused = Refused(Reason.BAD_REQUEST, detail, status=405)
        await self._refuse(call, cycle, refused, extra=[(b"allow", allowed)])

    async def _refuse(self, call: Call, cycle: Cycle, refused: Refused, *, extra: RawHeaders | None = None) -> None:
        link = cycle.link
        await self._refuser.early(call, cycle.send, refused, headers=link.named, link=link, extra=extra)
