"""The bodies of rows, read from the input files."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Final

from tidegate.jobs.folder import Folder
from tidegate.jobs.lines import body_of
from tidegate.stores import LeasedRow

MOST_OPEN: Final = 16


class Inputs:
    """Input files, a few of them open."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._open: OrderedDict[str, int] = OrderedDict()

    def body(self, file_id: str, row: LeasedRow) -> bytes:
        """Read the body of a row.

        Raises:
            OSError: the file cannot be read.
            msgspec.DecodeError: it is not the file that was validated.
        """
        descriptor = self._open.get(file_id)
        if descriptor is None:
            descriptor = self._open[file_id] = os.open(self._folder.place(file_id), os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
        return body_of(os.pread(descriptor, row.length, row.offset))
