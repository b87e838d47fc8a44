"""Take in an upload: from the connection to the disk, without holding it in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from tidegate.jobs.folder import Folder
from tidegate.jobs.multipart import MultipartReader, Part

BLOCK: Final = 1024 * 1024
"""Bytes that are written at a time, in a thread: a write may wait for the disk."""
MOST_FIELD: Final = 1024
MOST_NAME: Final = 255
FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


class UploadError(ValueError):
    """The upload is not what it has to be; ``param`` is the field that is meant."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


@dataclass(slots=True)
class Uploaded:
    """What came: the name that the client gave, the size in bytes, the other fields."""

    name: str = ""
    bytes: int = 0
    fields: dict[str, str] = field(default_factory=dict)


async def receive(
    stream: AsyncIterator[bytes], reader: MultipartReader, folder: Folder, file_id: str, *, most: int
) -> Uploaded:
    """Write the part ``file`` of a form to ``file_id``, not yet to count; gather the other fields.

    Args:
        stream: the body as it comes.
        reader: of its boundary.
        folder: where to.
        file_id: a fresh one.
        most: largest file, bytes.

    Raises:
        UploadError: no file, two, one that is too large, or a form that breaks off.
        MultipartError: no form.
        OSError: it cannot be written.
    """
    uploaded = Uploaded()
    part: Part | None = None
    found = False
    block = bytearray()
    file = folder.create(file_id)
    try:
        async for data in stream:
            for piece in reader.feed(data):
                if isinstance(piece, Part):
                    part = piece
                    if part.name == "file":
                        if found:
                            raise UploadError("file: expected one file, got two", "file")
                        found = True
                        uploaded.name = _shown(part.filename)
                elif part is not None and part.name == "file":
                    uploaded.bytes += len(piece)
                    if uploaded.bytes > most:
                        raise UploadError(f"expected a file of at most {most} bytes (jobs.max_file)", "file", 413)
                    block += piece
                elif part is not None and part.name in FIELDS:
                    _gather(uploaded.fields, part.name, piece)
            if len(block) >= BLOCK:
                await asyncio.to_thread(file.write, bytes(block))
                block.clear()
        if not reader.complete:
            raise UploadError("expected a whole form, this one breaks off")
        if not found:
            raise UploadError("file: expected a file, got none", "file")
        await asyncio.to_thread(file.write, bytes(block))
        await asyncio.to_thread(file.flush)
    finally:
        await asyncio.to_thread(file.close)
    return uploaded


def _shown(filename: str | None) -> str:
    """The client's name for a file, for display: no path, no control characters."""
    base = (filename or "upload.jsonl").replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in base if c.isprintable())[:MOST_NAME] or "upload.jsonl"


def _gather(fields: dict[str, str], name: str, piece: bytes) -> None:
    value = fields.get(name, "") + piece.decode(errors="replace")
    if len(value) > MOST_FIELD:
        raise UploadError(f"{name}: expected at most {MOST_FIELD} characters", name)
    fields[name] = value
