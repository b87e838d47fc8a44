"""``/v1/files`` and ``/v1/batches`` as OpenAI's clients know them. Whoever mounts the app has found the tenant.

Everything that touches the store is asked of the worker; bytes of files go between connection and disk here. A
tenant sees its own and nothing else: for another's id the answer is the same as for one that never was.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidegate.classify import Classifier, Refused, Tenant
from tidegate.jobs.folder import Folder, is_file_id, new_batch_id, new_file_id
from tidegate.jobs.held import Caller
from tidegate.jobs.link import Link
from tidegate.jobs.multipart import MultipartError, MultipartReader, boundary_of
from tidegate.jobs.objects import batch_object, file_object, page
from tidegate.jobs.pump import Pump
from tidegate.jobs.uploads import UploadError, receive
from tidegate.jobs.wishes import (
    WishError,
    error_document,
    read_batch,
    read_expiry,
    read_limit,
    read_order,
    read_wait,
)
from tidegate.refusals import answer_for
from tidegate.runtime import Clock
from tidegate.stores import Batch, BatchState, Conflict, Full, NewBatch, NotFound, StoredFile, StoreError

MOST_BODY: Final = 64 * 1024
PIECE: Final = 256 * 1024
LOOK_S: Final = 2.0
"""How often a caller's batch is looked at while it waits: another gateway may have ended it."""

FILES, BATCHES = "/v1/files", "/v1/batches"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
Answering = Callable[[Request], Awaitable[Response]]


class Endings:
    """Tells those who wait that a batch has ended."""

    def __init__(self) -> None:
        self._events: dict[str, tuple[asyncio.Event, int]] = {}

    def told(self, batch_id: str) -> None:
        """Wake whoever waits for a batch."""
        if batch_id in self._events:
            self._events[batch_id][0].set()

    @contextlib.contextmanager
    def of(self, batch_id: str) -> Iterator[asyncio.Event]:
        """Give an event for the end of a batch."""
        event, count = self._events.get(batch_id, (asyncio.Event(), 0))
        self._events[batch_id] = (event, count + 1)
        try:
            yield event
        finally:
            event, count = self._events.pop(batch_id)
            if count > 1:
                self._events[batch_id] = (event, count - 1)


class Api:
    """Answers the routes. ``app`` is to be mounted behind something that puts ``tenant`` into the request's state.

    Args:
        link: to the worker.
        pump: knows how fast batches go.
        folder: of files.
        classifier: for the bands of batches and of callers that wait.
        endings: of batches.
        clock: wall-clock time.
        max_file: largest upload, bytes.
        keep_s: how long files are kept, seconds.
    """

    def __init__(
        self,
        *,
        link: Link,
        pump: Pump,
        folder: Folder,
        classifier: Classifier,
        endings: Endings,
        clock: Clock,
        max_file: int,
        keep_s: float,
    ) -> None:
        self._link = link
        self._pump = pump
        self._folder = folder
        self._classifier = classifier
        self._endings = endings
        self._clock = clock
        self._max_file = max_file
        self._keep_s = keep_s
        self._waits = itertools.count(1)
        one, stop = "{id}", "{id}/cancel"
        self.app = Starlette(
            routes=[
                _route(FILES, {"GET": self._list_files, "POST": self._upload}),
                _route(f"{FILES}/{one}", {"GET": self._file, "DELETE": self._delete}),
                _route(f"{FILES}/{one}/content", {"GET": self._content}),
                _route(BATCHES, {"GET": self._list_batches, "POST": self._create}),
                _route(f"{BATCHES}/{one}", {"GET": self._batch}),
                _route(f"{BATCHES}/{stop}", {"POST": self._cancel}),
            ],
            exception_handlers={404: _no_route, 405: _wrong_method},
        )

    # Files.

    async def _upload(self, request: Request) -> Response:
        reader = MultipartReader(boundary_of(request.headers.get("content-type", "")))
        file_id = new_file_id()
        try:
            uploaded = await receive(request.stream(), reader, self._folder, file_id, most=self._max_file)
            if uploaded.fields.get("purpose") != "batch":
                raise WishError(f"purpose: expected batch, got {uploaded.fields.get('purpose', 'none')!r}", "purpose")
            now_utc = self._utc()
            file = StoredFile(
                id=file_id,
                tenant=_tenant(request).name,
                purpose="batch",
                name=uploaded.name,
                bytes=uploaded.bytes,
                created_at_utc=now_utc,
                expires_at_utc=now_utc + read_expiry(uploaded.fields, keep_s=self._keep_s),
            )
            kept: StoredFile = await self._link.ask(StoredFile, "add_file", file=file)
        except StoreError:  # it may have been listed all the same; housekeeping takes what is not
            raise
        except BaseException:
            self._folder.drop(file_id)
            raise
        return _answer(file_object(kept))

    async def _list_files(self, request: Request) -> Response:
        query = request.query_params
        limit = read_limit(query, default=10_000, most=10_000)
        found: list[StoredFile] = await self._link.ask(
            list[StoredFile],
            "list_files",
            tenant=_tenant(request).name,
            purpose=query.get("purpose"),
            after=query.get("after"),
            limit=limit + 1,
            order=read_order(query),
        )
        return _answer(page([file_object(file) for file in found], limit))

    async def _find(self, request: Request) -> StoredFile:
        file_id = request.path_params["id"]
        if not is_file_id(file_id):
            raise NotFound("there is no such file")
        found: StoredFile = await self._link.ask(StoredFile, "get_file", file_id=file_id, tenant=_tenant(request).name)
        return found

    async def _file(self, request: Request) -> Response:
        return _answer(file_object(await self._find(request)))

    async def _delete(self, request: Request) -> Response:
        file = await self._find(request)
        await self._link.ask(None, "delete_file", file_id=file.id, tenant=file.tenant)
        return _answer({"id": file.id, "object": "file", "deleted": True})

    async def _content(self, request: Request) -> Response:
        file = await self._find(request)
        return Content(self._folder.place(file.id), file.bytes)

    # Batches.

    async def _create(self, request: Request) -> Response:
        wish = read_batch(await _body(request))
        tenant = _tenant(request)
        band = self._band(tenant, wish.metadata.get("band"))
        try:
            file: StoredFile = await self._link.ask(
                StoredFile, "get_file", file_id=wish.input_file_id, tenant=tenant.name
            )
        except NotFound:
            raise WishError(f"input_file_id: there is no file {wish.input_file_id[:80]!r}", "input_file_id") from None
        if file.purpose != "batch":
            raise WishError("input_file_id: expected a file of purpose batch", "input_file_id")
        now_utc = self._utc()
        batch = NewBatch(
            id=new_batch_id(),
            tenant=tenant.name,
            endpoint=wish.endpoint,
            input_file_id=file.id,
            window=wish.window,
            band=band,
            created_at_utc=now_utc,
            expires_at_utc=now_utc + wish.window_s,
            metadata=wish.metadata,
        )
        return self._show(await self._link.ask(Batch, "create_batch", batch=batch))

    def _band(self, tenant: Tenant, wanted: str | None) -> str:
        """The band of a batch: what its metadata say, else p2, and never above the tenant's highest."""
        names = self._classifier.band_names
        if wanted is not None and wanted not in names:
            raise WishError(f"metadata.band: expected one of {', '.join(names)}, got {wanted[:40]!r}", "metadata")
        bulk = names.index("p2") if "p2" in names else len(names) - 1
        return names[max(bulk if wanted is None else names.index(wanted), tenant.max_band)]

    async def _batch(self, request: Request) -> Response:
        wait_s = read_wait(request.query_params)
        batch = await self._get(request)
        if wait_s > 0 and not batch.state.ended:
            batch = await self._wait(request, batch, wait_s)
        return self._show(batch)

    async def _wait(self, request: Request, batch: Batch, wait_s: float) -> Batch:
        tenant = _tenant(request)
        headers = dict(request.scope["headers"])
        choice = self._classifier.caller_band(tenant, headers, BATCHES)
        if isinstance(choice, Refused):
            answer = answer_for(choice.reason, detail=choice.detail, param=choice.param, status=choice.status)
            raise _AnswerError(Response(answer.body, answer.status, dict(_text(answer.headers))))
        caller = Caller(f"batch-wait-{next(self._waits)}", tenant.name, choice.band, batch.id)
        gone = asyncio.ensure_future(_left(request))
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        try:
            with self._endings.of(batch.id) as ended, self._pump.waited_for(caller):
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
            Batch, "get_batch", batch_id=request.path_params["id"], tenant=_tenant(request).name
        )
        return batch

    async def _list_batches(self, request: Request) -> Response:
        limit = read_limit(request.query_params, default=20, most=100)
        found: list[Batch] = await self._link.ask(
            list[Batch],
            "list_batches",
            tenant=_tenant(request).name,
            after=request.query_params.get("after"),
            limit=limit + 1,
        )
        return _answer(page([self._object(batch) for batch in found], limit))

    async def _cancel(self, request: Request) -> Response:
        batch: Batch = await self._link.ask(
            Batch, "cancel_batch", batch_id=request.path_params["id"], tenant=_tenant(request).name
        )
        if batch.state in (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED):
            raise Conflict(f"a batch that is {batch.state.value} cannot be cancelled")
        return self._show(batch)

    def _show(self, batch: Batch) -> Response:
        return _answer(self._object(batch))

    def _object(self, batch: Batch) -> dict[str, Any]:
        left_s = None
        if batch.state is BatchState.IN_PROGRESS:
            left_s = self._pump.expected_s(batch.id, batch.total - batch.completed - batch.failed - batch.dead)
        return batch_object(batch, expected_at_utc=None if left_s is None else self._utc() + left_s)

    def _utc(self) -> float:
        return self._clock.utc_now().timestamp()


class Content(Response):
    """A file's bytes, read in a thread piece by piece; head and first piece are sent together."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        headers = {"content-length": str(size), "cache-control": "no-store"}
        super().__init__(None, 200, headers, "application/octet-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send it. Raises ``OSError`` before anything is sent when it cannot be opened."""
        source = await asyncio.to_thread(self._path.open, "rb")
        try:
            left = self._size
            piece = await asyncio.to_thread(source.read, PIECE)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            # The last piece ends the answer: the client may send its next request as soon as it has it.
            while left > len(piece) and piece and not scope["state"]["link"].gone:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                left -= len(piece)
                piece = await asyncio.to_thread(source.read, PIECE)
            await send({"type": "http.response.body", "body": piece})
        finally:
            source.close()


class _AnswerError(Exception):
    """Carries an answer that is ready."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def _route(path: str, methods: dict[str, Answering]) -> Route:
    async def endpoint(request: Request) -> Response:
        call = methods["GET" if request.method == "HEAD" else request.method]
        try:
            return await call(request)
        except _AnswerError as error:
            return error.response
        except (WishError, UploadError, MultipartError) as error:
            return _bad(str(error), getattr(error, "param", None), getattr(error, "status", 400))
        except NotFound as error:
            return _bad(str(error), None, 404, code="not_found")
        except Conflict as error:
            return _bad(str(error), None, 409, code="conflict")
        except Full:
            return _full()
        except StoreError as error:
            return _unavailable(str(error))
        except ClientDisconnect:
            return Response(status_code=400)
        except OSError as error:
            return _full() if error.errno in FULL else _unavailable(f"the folder of files: {error.strerror}")

    return Route(path, endpoint, methods=[*methods])


def _tenant(request: Request) -> Tenant:
    tenant: Tenant = request.state.tenant
    return tenant


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


def _text(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode("latin-1")) for name, value in headers if name != b"content-length"]


def _answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def _bad(message: str, param: str | None, status: int, code: str = "bad_request") -> Response:
    return _answer(error_document(message, code=code, param=param, kind="invalid_request_error"), status)


def _full() -> Response:
    message = "The gateway's disk or store for batches is full. What was accepted goes on."
    document = error_document(message, code="storage_full", param=None, kind="server_error")
    return _answer(document, 507, {"x-should-retry": "false"})


def _unavailable(message: str) -> Response:
    document = error_document(message, code="store_unavailable", param=None, kind="server_error")
    return _answer(document, 503, {"retry-after": "5"})


async def _no_route(request: Request, _: Exception) -> Response:
    return _bad(f"there is no {request.method} {request.url.path[:200]}", None, 404)


async def _wrong_method(request: Request, error: Exception) -> Response:
    response = _bad(f"expected another method than {request.method}", None, 405)
    response.headers.update(getattr(error, "headers", None) or {})
    return response
