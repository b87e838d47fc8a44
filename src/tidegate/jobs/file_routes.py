"""``/v1/files``: bytes go between connection and disk here; what is to be remembered is asked of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidegate.jobs.answers import answer, route, tenant_of
from tidegate.jobs.folder import Folder, is_file_id, new_file_id
from tidegate.jobs.link import Link
from tidegate.jobs.multipart import MultipartReader, boundary_of
from tidegate.jobs.objects import file_object, page
from tidegate.jobs.uploads import receive
from tidegate.jobs.wishes import WishError, read_expiry, read_limit, read_order
from tidegate.stores import NotFound, StoredFile, StoreError

PIECE: Final = 256 * 1024
FILES: Final = "/v1/files"


class FileRoutes:
    """Answers for files.

    Args:
        link: to the worker.
        folder: of files.
        utc: wall-clock time, seconds.
        max_file: largest upload, bytes.
        keep_s: how long files are kept, seconds.
    """

    def __init__(self, *, link: Link, folder: Folder, utc: Callable[[], float], max_file: int, keep_s: float) -> None:
        self._link = link
        self._folder = folder
        self._utc = utc
        self._max_file = max_file
        self._keep_s = keep_s
        self.routes: list[Route] = [
            route(FILES, {"GET": self._list_files, "POST": self._upload}),
            route(f"{FILES}/{{id}}", {"GET": self._file, "DELETE": self._delete}),
            route(f"{FILES}/{{id}}/content", {"GET": self._content}),
        ]

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
                tenant=tenant_of(request).name,
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
        return answer(file_object(kept))

    async def _list_files(self, request: Request) -> Response:
        query = request.query_params
        limit = read_limit(query, default=10_000, most=10_000)
        found: list[StoredFile] = await self._link.ask(
            list[StoredFile],
            "list_files",
            tenant=tenant_of(request).name,
            purpose=query.get("purpose"),
            after=query.get("after"),
            limit=limit + 1,
            order=read_order(query),
        )
        return answer(page([file_object(file) for file in found], limit))

    async def _find(self, request: Request) -> StoredFile:
        file_id = request.path_params["id"]
        if not is_file_id(file_id):
            raise NotFound("there is no such file")
        found: StoredFile = await self._link.ask(
            StoredFile, "get_file", file_id=file_id, tenant=tenant_of(request).name
        )
        return found

    async def _file(self, request: Request) -> Response:
        return answer(file_object(await self._find(request)))

    async def _delete(self, request: Request) -> Response:
        file = await self._find(request)
        await self._link.ask(None, "delete_file", file_id=file.id, tenant=file.tenant)
        return answer({"id": file.id, "object": "file", "deleted": True})

    async def _content(self, request: Request) -> Response:
        file = await self._find(request)
        return Content(self._folder.place(file.id), file.bytes)


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
