"""Metrics pages as a gateway gets them: now and then, and of a moment that is past."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.core import Reading
from tidegate.simulation.kv import BLOCK
from tidegate.simulation.servers import NEVER, EngineServer, Server


@dataclass(slots=True, frozen=True)
class Scrape:
    """How pages are read. Times in seconds.

    Attributes:
        every_s: mean time between two looks.
        late_s: age of what a page says when it is read.
        spread: part of ``every_s`` by which a time between two looks is longer or shorter.
        seed: of that chance.
    """

    every_s: float = 0.5
    late_s: float = 0.05
    spread: float = 0.2
    seed: int = 0


class Scraper:
    """Looks at the pages of all engines among the servers, each in its own rhythm.

    Attributes:
        next_at: when ``advance`` has something to do, ``inf`` for never.
    """

    def __init__(self, scrape: Scrape | None, servers: Mapping[str, Server]) -> None:
        self._scrape = scrape or Scrape()
        engines = {} if scrape is None else servers
        self._pages = {name: server for name, server in engines.items() if isinstance(server, EngineServer)}
        self._chance = random.Random(self._scrape.seed)
        self._looks = {name: self._gap() for name in self._pages}
        self._read: list[Reading] = []  # written, and not at the gateway yet
        self.next_at = min(self._looks.values(), default=NEVER)

    def advance(self, now: float) -> Iterable[Reading]:
        """Look at the pages that are due; return what has reached the gateway by now."""
        for name, at in self._looks.items():
            if at <= now:
                self._looks[name] = now + self._gap()
                self._read.append(_reading(name, now + self._scrape.late_s, self._pages[name]))
        come = [reading for reading in self._read if reading.at <= now]
        del self._read[: len(come)]
        told = self._read[0].at if self._read else NEVER
        self.next_at = min(told, min(self._looks.values(), default=NEVER))
        return come

    def _gap(self) -> float:
        return self._scrape.every_s * (1.0 + self._scrape.spread * self._chance.uniform(-1.0, 1.0))


def _reading(name: str, at: float, server: EngineServer) -> Reading:
    page = server.page
    return Reading(
        name,
        at,
        kv_free=1.0 - page.kv_use,
        running=page.running,
        waiting=page.waiting,
        preemptions=page.preemptions,
        kv_tokens=server.model.kv.total * BLOCK,
        generated=page.generated,
    )
