"""An engine whose KV use is measured: the mean over time, in all and in each cell of a grid."""

from __future__ import annotations

from tidegate.simulation.engine_model import EngineModel
from tidegate.simulation.report import KvReport
from tidegate.simulation.servers import EngineServer, Progress


class MeteredServer(EngineServer):
    """Integrates its KV use from step to step."""

    def __init__(self, model: EngineModel, *, cell_s: float, http_s: float = 0.005) -> None:
        super().__init__(model, http_s=http_s)
        self._cell_s = cell_s
        self._cells: list[float] = []  # use times seconds
        self._since = self._use = self._most = 0.0

    def advance(self, now: float, progress: Progress) -> None:
        """See ``Server``."""
        super().advance(now, progress)
        self._spread(now)
        self._use = self.model.kv.use
        self._most = max(self._most, self._use)

    def metered(self, name: str, until: float) -> KvReport:
        """Return what was measured from 0 to ``until``."""
        self._spread(until)
        cells = [
            area / min(self._cell_s, max(until - number * self._cell_s, 1e-9))
            for number, area in enumerate(self._cells)
        ]
        return KvReport(name, sum(self._cells) / max(until, 1e-9), self._most, cells)

    def _spread(self, now: float) -> None:
        """Add the use since the last look to the cells that it lies in."""
        since, width, cells = self._since, self._cell_s, self._cells
        while since < now:
            cell = int(since / width)
            if (cell + 1) * width <= since:  # a point of the grid, as near as floats come
                cell += 1
            end = min(now, (cell + 1) * width)
            while len(cells) <= cell:
                cells.append(0.0)
            cells[cell] += self._use * (end - since)
            since = end
        self._since = max(self._since, now)
