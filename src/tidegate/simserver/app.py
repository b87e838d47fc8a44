"""The HTTP side of the simulated engine: a plain ASGI callable."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tidegate.simserver.answers import Choice, Envelope
from tidegate.simserver.compose import Composer, Composition
from tidegate.simserver.exchange import Exchange, Message
from tidegate.simserver.faults import Fault, FaultKind, FaultSwitch, retry_headers
from tidegate.simserver.metrics import MetricsPage
from tidegate.simserver.options import EngineOptions
from tidegate.simserver.requests import GenerateRequest, Refused, error_body, read_request
from tidegate.simserver.stepper import Stepper
from tidegate.simulation import EngineModel

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
_STREAM_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}


class EngineApp:
    """Routes of the engine. ``run`` must be running for requests to be answered."""

    def __init__(self, options: EngineOptions) -> None:
        """Build an idle engine.

        Raises:
            ValueError: options that contradict each other; the message names the option.
        """
        self.options = options
        self.faults = FaultSwitch(options.fault, options.seed)
        self.model = EngineModel(
            options.profile,
            kv_tokens=options.kv_tokens,
            max_sequences=options.max_sequences,
            token_budget=options.token_budget,
            order=options.order,
            noise=options.noise,
            seed=options.seed,
        )
        self.stepper = Stepper(self.model, self.faults, speed=options.speed)
        self._metrics = MetricsPage(self.stepper, options.model)
        self._composer = Composer(options, self.model)
        self._numbers = itertools.count(1)
        self._started = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            ("POST", "/v1/chat/completions"): self._generate,
            ("POST", "/v1/completions"): self._generate,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics_page,
            ("GET", "/sim/stats"): self._stats,
            ("GET", "/sim/fault"): self._fault,
            ("POST", "/sim/fault"): self._set_fault,
        }

    async def run(self) -> None:
        """Run the engine's steps until cancelled."""
        await self.stepper.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await answer(send, 404, error_body(404, "NotFoundError", "Not Found"))
            return
        try:
            await route(scope, receive, send)
        except Refused as refusal:
            body = error_body(refusal.status, refusal.kind, refusal.message, refusal.param)
            await answer(send, refusal.status, body)

    # -- generation ----------------------------------------------------------------------------------------------

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        headers = dict(scope["headers"])
        request = read_request(body, headers)
        self._check_model(request)
        fault = self.faults.strike()
        if fault is not None and fault.kind in (FaultKind.BUSY, FaultKind.ERROR):
            await _refuse(send, fault)
            return
        chat = scope["path"] == "/v1/chat/completions"
        number = next(self._numbers)
        name = headers.get(b"x-request-id", b"").decode("latin-1") or f"{self.options.seed:x}-{number}"
        envelope = Envelope(f"{'chatcmpl' if chat else 'cmpl'}-{name}", self.options.model, int(time.time()), chat)
        composition = self._composer.compose(request, envelope, number)
        await self._converse(request, composition, fault, receive=receive, send=send)

    def _check_model(self, request: GenerateRequest) -> None:
        if request.model is not None and request.model != self.options.model:
            raise Refused(404, "NotFoundError", f"The model `{request.model}` does not exist.", "model")

    async def _converse(
        self,
        request: GenerateRequest,
        composition: Composition,
        fault: Fault | None,
        *,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run the sequences; the step loop writes, this task only waits for the end or for the client to leave."""
        choices: list[Choice] = composition.choices
        exchange = Exchange(
            send,
            composition.envelope,
            choices,
            prompts=composition.prompts,
            stream=bool(request.stream),
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
            fault=fault,
        )
        if request.stream:
            await send(_STREAM_START)
        self.stepper.add(exchange, composition.sequences)
        try:
            if fault is not None and fault.kind is FaultKind.CUT:
                await _first(disconnected(receive), exchange.over)
            else:
                await disconnected(receive)
        finally:
            self.stepper.abort(composition.sequences)

    # -- the other routes ----------------------------------------------------------------------------------------

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        model = {
            "id": self.options.model,
            "object": "model",
            "created": self._started,
            "owned_by": "tidegate",
            "root": self.options.model,
            "max_model_len": self.options.max_model_len,
        }
        await answer(send, 200, msgspec.json.encode({"object": "list", "data": [model]}))

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await answer(send, 200, b"")

    async def _metrics_page(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await answer(send, 200, self._metrics.render(), [(b"content-type", MetricsPage.content_type)])

    async def _stats(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await answer(send, 200, msgspec.json.encode(self.stats()))

    async def _fault(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await answer(send, 200, msgspec.json.encode(self.faults.fault))

    async def _set_fault(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if client is None or not ipaddress.ip_address(client[0]).is_loopback:
            raise Refused(403, "Forbidden", "Faults can only be set from this machine.")
        try:
            fault = msgspec.json.decode(await read_body(receive), type=Fault)
        except msgspec.MsgspecError as error:
            raise Refused(400, "BadRequestError", str(error)) from None
        self.faults.set(fault)
        await answer(send, 200, msgspec.json.encode(fault))

    def stats(self) -> dict[str, Any]:
        """Totals for whoever judges a run; ``lag_share`` is time lost against the model as a part of its time."""
        stepper, totals = self.stepper, self.model.counters
        return {
            "profile": self.model.profile.name,
            "speed": stepper.speed,
            "running": self.model.running,
            "waiting": self.model.waiting,
            "kv_use": self.model.kv.use,
            "steps": totals.steps,
            "model_s": stepper.model_s,
            "lost_s": stepper.lost_s,
            "lag_share": stepper.lost_s / stepper.model_s if stepper.model_s else 0.0,
            "late_max_s": stepper.late_max_s,
            "prompt_tokens": totals.prompt,
            "generation_tokens": totals.generated,
            "computed_tokens": totals.computed,
            "recomputed_tokens": totals.recomputed,
            "preemptions": totals.preemptions,
            "finished": dict(stepper.finished),
            "struck": self.faults.struck,
        }


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    message = await receive()
    if not message.get("more_body"):
        return bytes(message.get("body", b""))
    parts = [message["body"]]
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def disconnected(receive: Receive) -> None:
    """Wait until the answer is complete or the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    """Send a whole response, JSON unless the headers say otherwise."""
    fields = [*(headers if headers is not None else [(b"content-type", JSON)]), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _refuse(send: Send, fault: Fault) -> None:
    if fault.kind is FaultKind.BUSY:
        body = error_body(429, "rate_limit_exceeded", "The simulated engine was told to be busy.")
        await answer(send, 429, body, [(b"content-type", JSON), *retry_headers(fault)])
    else:
        await answer(send, 500, error_body(500, "InternalServerError", "The simulated engine was told to fail."))


async def _first(waiting: Awaitable[None], over: asyncio.Future[None]) -> None:
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
