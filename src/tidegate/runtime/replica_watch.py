"""Look now and then at the shared pools for mistakes that no seat goes wrong by, and that nobody would notice.

Two gateways of one name: each is dealt seats of its own, but whoever reads a log or a dashboard takes them for one.
Gateways whose files name other backends: only those of the file that was put in force last are dealt, and what waits
for others waits in vain. Both go to the log when they begin and when they end, and are told to whoever asks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import structlog

from tidegate.core import TidegateError
from tidegate.runtime.replica import PoolLink
from tidegate.stores.ledger_identity import Differences, differences, doubled, ended, name_of
from tidegate.stores.ledger_protocol import PoolView

VIEW_S = 0.25
"""The longest that somebody who looks at a pool waits for the store."""
OFTEN_S = 1.0
"""Between two looks in the first seconds: an earlier run of this gateway may have left seats behind."""
OFTEN = 10
SELDOM_S = 5.0

log = structlog.get_logger("tidegate.cluster")


class Watch:
    """Looks at the pools of one gateway.

    Args:
        links: by the names of their pools; they may come and go.

    Attributes:
        namesakes: living gateways that have this one's name, the most in any pool.
        differing: of each pool where they differ, the backends of this gateway's file beside those that are dealt.
    """

    def __init__(self, links: Mapping[str, PoolLink]) -> None:
        self._links = links
        self.namesakes = 0
        self.differing: dict[str, Differences] = {}
        self._seen: dict[str, Differences] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; call it inside the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        looks = 0
        while True:
            looks += 1
            await asyncio.sleep(OFTEN_S if looks <= OFTEN else SELDOM_S)
            try:
                await self.look()
            except Exception:  # what only looks is not to end for one look
                log.exception("cluster.fault", what="watch")

    async def look(self) -> None:
        """Look once, at all pools."""
        links = dict(self._links)
        views = await asyncio.gather(*(view_of(link) for link in links.values()))
        namesakes = 0
        for link, view in zip(links.values(), views, strict=True):
            if view is not None:
                namesakes = max(namesakes, others_of(link, view))
                await self._bury(link, view)
        if any(view is not None for view in views):  # of a store that is away nothing new is known
            self._tell_names(namesakes, next(iter(links.values())))
        self._tell_backends({name: found for name, link in links.items() if (found := differences_of(link))})

    async def _bury(self, link: PoolLink, view: PoolView) -> None:
        """Give back the seats of earlier runs of this gateway that ended without leaving."""
        for key in ended(view, link.replica):
            log.info("cluster.earlier_run_ended", pool=link.client.pool, replica=key)
            with contextlib.suppress(TidegateError, TimeoutError):
                await asyncio.wait_for(link.ledger.leave(key), VIEW_S)

    def _tell_names(self, namesakes: int, link: PoolLink) -> None:
        before, self.namesakes = self.namesakes, namesakes
        if namesakes == before:
            return
        name = name_of(link.replica)
        if namesakes:
            log.error(
                "cluster.same_name",
                replica=name,
                others=namesakes,
                why="each gateway needs a name of its own in cluster.replica; no seat is given twice meanwhile",
            )
        else:
            log.info("cluster.same_name_over", replica=name)

    def _tell_backends(self, found: dict[str, Differences]) -> None:
        """Say what was so at two looks: while files are changed one after another, they differ for a moment."""
        before = self.differing
        self.differing = {name: each for name, each in found.items() if self._seen.get(name) == each}
        self._seen = found
        for name, each in self.differing.items():
            if before.get(name) != each:
                log.warning(
                    "cluster.other_backends",
                    pool=name,
                    not_dealt=list(each.not_dealt),
                    unknown=list(each.unknown),
                    seats=[list(row) for row in each.seats],
                    why="the files of the gateways that share a pool have to name the same backends and seats",
                )
        for name in before.keys() - found.keys():
            log.info("cluster.other_backends_over", pool=name)


async def view_of(link: PoolLink) -> PoolView | None:
    """Return the picture of a pool, ``None`` when the store does not have it, or does not answer."""
    try:
        return await asyncio.wait_for(link.ledger.view(), VIEW_S)
    except (TidegateError, TimeoutError):
        return None


def others_of(link: PoolLink, view: PoolView) -> int:
    """Return how many other living gateways have this one's name."""
    found, own = doubled(view), link.replica
    return sum(key != own and name_of(key) == name_of(own) for key in found) if own in found else 0


def differences_of(link: PoolLink) -> Differences:
    """Return how the backends of the file differ from those that are dealt."""
    client = link.client
    if client.reply is None:
        return Differences()
    return differences(client.terms.seats, ((name, seats) for name, seats, *_ in client.reply.seats))
