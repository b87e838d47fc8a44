"""One page of metrics for all workers of ``serve --workers``: a scrape is answered by the first of them.

Each worker gives its own page to whoever connects to a socket in a folder of their parent's, which only this user can
read. The first one asks the others when it is asked itself, and puts all pages into one, each sample with the label
``worker``. Nothing is added up here: sums over that label are for whoever reads, who would else lose what a worker's
restart takes away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from tidegate.telemetry.catalogue import WORKER_UP

PATIENCE_S = 2.0
"""A worker whose page takes longer is left out: less than a scrape may take."""


class WorkerMetrics:
    """Gives a worker's page to the first one, and gathers those of all.

    Args:
        folder: where the sockets are.
        index: of this worker.
        count: how many workers there are.
    """

    def __init__(self, folder: str, index: int, count: int) -> None:
        self._folder = Path(folder)
        self._index = index
        self._count = count
        self._own: Callable[[], bytes] = bytes
        self._server: asyncio.Server | None = None

    def page_of(self, own: Callable[[], bytes]) -> Callable[[], Awaitable[bytes]]:
        """Return what makes the page of ``/metrics`` of this worker; ``own()`` is what it has to say of itself."""
        self._own = own
        return self._all if self._index == 0 else self._alone

    async def start(self) -> None:
        """Give the worker's own page to whoever connects.

        Raises:
            OSError: the socket cannot be made.
        """

        async def give(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(self._own())
                await writer.drain()
            writer.close()

        path = self._path(self._index)
        path.unlink(missing_ok=True)  # of the process before this one
        self._server = await asyncio.start_unix_server(give, str(path))

    def close(self) -> None:
        """Give no more."""
        if self._server is not None:
            self._server.close()

    async def _alone(self) -> bytes:
        return self._own()

    async def _all(self) -> bytes:
        others = [index for index in range(self._count) if index != self._index]
        found = await asyncio.gather(*(self._ask(index) for index in others))
        pages = dict(zip(others, found, strict=True)) | {self._index: self._own()}
        whole = Merged(sorted(pages))
        for index in sorted(pages):
            whole.add(index, pages[index])
            await asyncio.sleep(0)  # sixteen pages at once would hold the loop for some milliseconds
        return whole.page()

    async def _ask(self, index: int) -> bytes | None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_unix_connection(str(self._path(index)))
                try:
                    return await reader.read() or None  # it ended while it was asked
                finally:
                    writer.close()
        return None

    def _path(self, index: int) -> Path:
        return self._folder / f"metrics-{index}"


def merged(pages: Mapping[int, bytes | None]) -> bytes:
    """Put pages in the Prometheus text format into one, each sample with its worker.

    Args:
        pages: by worker; ``None`` for one that gave none.
    """
    whole = Merged(pages)
    for index, page in pages.items():
        whole.add(index, page)
    return whole.page()


class Merged:
    """What ``merged`` does, a page at a time."""

    def __init__(self, workers: Iterable[int]) -> None:
        name = WORKER_UP.name
        self._heads = {name: {"HELP": f"# HELP {name} {WORKER_UP.help}", "TYPE": f"# TYPE {name} {WORKER_UP.kind}"}}
        self._up = dict.fromkeys(workers, 0)
        self._samples: dict[str, list[str]] = {}

    def add(self, index: int, page: bytes | None) -> None:
        """Add the page of a worker, ``None``: it gave none."""
        self._up[index] = int(page is not None)
        family = WORKER_UP.name
        for line in (page or b"").decode().splitlines():
            if line.startswith("# "):
                _, kind, family = line.split(" ", 3)[:3]
                self._heads.setdefault(family, {}).setdefault(kind, line)
            elif line:
                self._samples.setdefault(family, []).append(_labelled(line, index))

    def page(self) -> bytes:
        """Return the page of all."""
        name = WORKER_UP.name
        samples = self._samples | {name: [f'{name}{{worker="{index}"}} {up}' for index, up in self._up.items()]}
        heads = self._heads.items()
        return "".join(
            f"{line}\n" for family, head in heads for line in (*head.values(), *samples.get(family, ()))
        ).encode()


def _labelled(sample: str, worker: int) -> str:
    """Write the worker's label before those that a sample has."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
