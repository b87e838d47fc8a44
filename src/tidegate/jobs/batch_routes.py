"""``/v1/batches``: what is known of batches is asked of the worker; who waits for one lends its band meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.classify import Classifier, Refused, Tenant
from tidegate.core import Reason
from tidegate.jobs.answers import AnswerError, answer, route, tenant_of
from tidegate.jobs.endings import LOOK_S, Endings
from tidegate.jobs.folder import new_batch_id
from tidegate.jobs.lending import Caller
from tidegate.jobs.link import Link
from tidegate.jobs.objects import batch_object, page
from tidegate.jobs.pump import Pump
from tidegate.jobs.uploads import UploadError
from tidegate.jobs.wishes import WishError, read_batch, read_limit, read_wait
from tidegate.refusals import answer_for
from tidegate.stores import Batch, BatchState, Conflict, NewBatch, NotFound, StoredFile

MOST_BODY: Final = 64 * 1024
BATCHES: Final = "/v1/batches"


class BatchRoutes:
    """Answers for batches.

    Args:
        link: to the worker.
        pump: knows how fast batches go, and lends.
        classifier: for the bands of batches and of callers that wait.
        endings: of batches.
        utc: wall-clock time, seconds.
        clamped: counts a batch that asked for a higher band than its tenant may use, by the band that it got.
    """

    def __init__(
        self,
        *,
        link: Link,
        pump: Pump,
        classifier: Classifier,
        endings: Endings,
        utc: Callable[[], float],
        clamped: Callable[[int], None],
    ) -> None:
        self._link = link
        self._pump = pump
        self._classifier = classifier
        self._endings = endings
        self._utc = utc
        self._clamped = clamped
        self._waits = itertools.count(1)
        self.routes: list[Route] = [
            route(BATCHES, {"GET": self._list_batches, "POST": self._create}),
            route(f"{BATCHES}/{{id}}", {"GET": self._batch}),
            route(f"{BATCHES}/{{id}}/cancel", {"POST": self._cancel}),
        ]

    async def _create(self, request: Request) -> Response:
        wish = read_batch(await _body(request))
        tenant = tenant_of(request)
        band = self._band(tenant, wish.metadata.get("band"))
        try:
            file: StoredFile = await self._link.ask(
                StoredFile, "get_file", file_id=wish.input_file_id, tenant=tenant.name
            )
        except NotFound:
            raise WishError(f"input_file_id: there is no file {wish.input_file_id[:80]!r}", "input_file_id") from None
        if file.purpose != "batch":
            raise WishError("input_file_id: expected a file of purpose batch", "input_file_id")
        batch = NewBatch(
            id=new_batch_id(),
            tenant=tenant.name,
            endpoint=wish.endpoint,
            input_file_id=file.id,
            window=wish.window,
            band=band,
            created_at_utc=0.0,  # the worker knows the time
            expires_at_utc=0.0,
            metadata=wish.metadata,
        )
        return self._show(await self._link.ask(Batch, "create_batch", batch=batch, window_s=wish.window_s))

    def _band(self, tenant: Tenant, wanted: str | None) -> str:
        """The band of a batch: what its metadata say, else p2, and never above the tenant's highest: as for requests,
        asking for more is counted, or refused under ``strict_bands``.
        """
        names = self._classifier.band_names
        if wanted is not None and wanted not in names:
            raise WishError(f"metadata.band: expected one of {', '.join(names)}, got {wanted[:40]!r}", "metadata")
        bulk = names.index("p2") if "p2" in names else len(names) - 1
        asked = bulk if wanted is None else names.index(wanted)
        if wanted is not None and asked < tenant.max_band:
            if tenant.strict_bands:
                detail = (
                    f"metadata.band: expected at most {names[tenant.max_band]} for tenant {tenant.name}, got {wanted}"
                )
                raise _refusal(Refused(Reason.FORBIDDEN_BAND, detail, "metadata"))
            self._clamped(tenant.max_band)
        return names[max(asked, tenant.max_band)]

    async def _batch(self, request: Request) -> Response:
        wait_s = read_wait(request.query_params)
        batch = await self._get(request)
        if wait_s > 0 and not batch.state.ended:
            batch = await self._wait(request, batch, wait_s)
        return self._show(batch)

    async def _wait(self, request: Request, batch: Batch, wait_s: float) -> Batch:
        tenant = tenant_of(request)
        headers = dict(request.scope["headers"])
        choice = self._classifier.caller_band(tenant, headers, BATCHES)
        if isinstance(choice, Refused):
            raise _refusal(choice)
        caller = Caller(f"batch-wait-{next(self._waits)}", tenant.name, choice.band, batch.id)
        gone = asyncio.ensure_future(_left(request))
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        try:
            with self._endings.of(batch.id) as ended, self._pump.lending.by(caller):
                while not batch.state.ended and not gone.done() and (left_s := until - loop.time()) > 0:
                    end = asyncio.ensure_future(ended.wait())
                    await asyncio.wait((gone, end), timeout=min(LOOK_S, left_s), return_when="FIRST_COMPLETED")
                    end.cancel()
                    batch = await self._get(request)
        finally:
            gone.cancel()
        return batch

    async def _get(self, request: Request) -> Batch:
        batch: Batch = await self._link.ask(
            Batch, "get_batch", batch_id=request.path_params["id"], tenant=tenant_of(request).name
        )
        return batch

    async def _list_batches(self, request: Request) -> Response:
        limit = read_limit(request.query_params, default=20, most=100)
        found: list[Batch] = await self._link.ask(
            list[Batch],
            "list_batches",
            tenant=tenant_of(request).name,
            after=request.query_params.get("after"),
            limit=limit + 1,
        )
        return answer(page([self._object(batch) for batch in found], limit))

    async def _cancel(self, request: Request) -> Response:
        batch: Batch = await self._link.ask(
            Batch, "cancel_batch", batch_id=request.path_params["id"], tenant=tenant_of(request).name
        )
        if batch.state in (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED):
            raise Conflict(f"a batch that is {batch.state.value} cannot be cancelled")
        return self._show(batch)

    def _show(self, batch: Batch) -> Response:
        return answer(self._object(batch))

    def _object(self, batch: Batch) -> dict[str, Any]:
        left_s = None
        if batch.state is BatchState.IN_PROGRESS:
            left_s = self._pump.expected_s(batch.id, batch.total - batch.completed - batch.failed - batch.dead)
        return batch_object(batch, expected_at_utc=None if left_s is None else self._utc() + left_s)


async def _left(request: Request) -> None:
    """Wait until the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY:
            raise UploadError(f"expected a body of at most {MOST_BODY} bytes", status=413)
    return bytes(body)


def _refusal(refused: Refused) -> AnswerError:
    answer = answer_for(refused.reason, detail=refused.detail, param=refused.param, status=refused.status)
    return AnswerError(Response(answer.body, answer.status, dict(_text(answer.headers))))


def _text(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode("latin-1")) for name, value in headers if name != b"content-length"]
