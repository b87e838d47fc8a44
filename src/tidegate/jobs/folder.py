"""The folder of files. The name of a file is its id and nothing else; files are private, whole, and on disk first.

A file is written as ``ID.part``, synchronised, renamed to ``ID``, and the folder synchronised. Half a file therefore
never has a name that counts, whatever happens in between.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

_ID: Final = re.compile(r"file-[0-9a-f]{24}")
PART: Final = ".part"
OWNERS: Final = "owners"


def new_file_id() -> str:
    """A name that nobody can guess."""
    return f"file-{secrets.token_hex(12)}"


def new_batch_id() -> str:
    """As ``new_file_id``, for a batch."""
    return f"batch_{secrets.token_hex(12)}"


def is_file_id(text: str) -> bool:
    """Whether a text has the form of our file ids."""
    return _ID.fullmatch(text) is not None


class Folder:
    """Files on disk by id.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.path / OWNERS).mkdir(mode=0o700, exist_ok=True)

    def place(self, file_id: str) -> Path:
        """Where a file is.

        Raises:
            ValueError: that is no id of a file.
        """
        if not is_file_id(file_id):
            raise ValueError(f"expected the id of a file, got {file_id[:80]!r}")
        return self.path / file_id

    def create(self, file_id: str) -> BinaryIO:
        """Begin to write a file; one that was begun before is begun anew."""
        path = self.place(file_id).with_name(file_id + PART)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "wb", buffering=256 * 1024)

    def keep(self, file_id: str) -> int:
        """Make a written file count; returns its size. Doing it again does nothing."""
        final = self.place(file_id)
        part = final.with_name(file_id + PART)
        if part.exists():
            descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            part.rename(final)
        self._sync()
        return final.stat().st_size

    def drop(self, file_id: str) -> None:
        """Remove a file, whole or not."""
        final = self.place(file_id)
        final.unlink(missing_ok=True)
        final.with_name(file_id + PART).unlink(missing_ok=True)

    def old(self, before_utc: float) -> Iterator[str]:
        """Ids of the files, whole or not, that nobody has written to since then."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                file_id = entry.name.removesuffix(PART)
                if is_file_id(file_id) and entry.stat().st_mtime < before_utc:
                    yield file_id

    def _sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
