"""The last 15 minutes, for the sparklines: one number for each series and five seconds, in a fixed number of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

STEP_S = 5.0
POINTS = 180

Point = Mapping[str, float | None]


class History:
    """Rings of numbers, one for each series; all have the same length and the same ends."""

    def __init__(self) -> None:
        self._rings: dict[str, deque[float | None]] = {}
        self._peaks: dict[str, float] = {}
        self._length = 0
        self.number = 0

    def note_peaks(self, values: Mapping[str, float]) -> None:
        """Note values of which the largest until the next point counts, such as depths."""
        for name, value in values.items():
            if value > self._peaks.get(name, -1.0):
                self._peaks[name] = value

    def add(self, values: Point) -> dict[str, float | None]:
        """Add a point: ``values`` and the peaks noted since the last one. A series that is missing has a gap.

        Returns:
            The point, shortened to three digits.
        """
        point = {name: shortened(value) for name, value in {**self._peaks, **values}.items()}
        self._peaks = {}
        for name in point:
            if name not in self._rings:
                self._rings[name] = deque([None] * self._length, maxlen=POINTS)
        self._length = min(self._length + 1, POINTS)
        self.number += 1
        for name in list(self._rings):
            ring = self._rings[name]
            ring.append(point.get(name))
            if name not in point and all(value is None for value in ring):
                del self._rings[name]
        return point

    def series(self) -> dict[str, list[float | None]]:
        """Return every series, oldest point first."""
        return {name: list(ring) for name, ring in self._rings.items()}


def shortened(value: float | None, digits: int = 3) -> float | None:
    """Return a number with ``digits`` digits, whole from there on: it shall take little room in JSON."""
    if value is None:
        return None
    number = float(f"{value:.{digits}g}") if abs(value) < 10**digits else float(round(value))
    return int(number) if number.is_integer() else number
