"""Choose the backend of a dispatch, and count seats (SPEC §5.1, §5.4).

``Seating`` is one pool's seats: ``free`` and ``taken`` count the backends that are up. Fewer seats never stop running
work, so ``taken`` may pass ``seats`` for a while. The choice is the least outstanding estimated tokens.
"""

from __future__ import annotations

from tidegate.core.adaptive import START_SEATS
from tidegate.core.policy import AUTO, Band, PoolSpec


class Backend:
    """One upstream as the scheduler sees it. ``outstanding`` is the estimated tokens of its running work."""

    __slots__ = ("name", "outstanding", "running", "seating", "seats", "told", "up")

    def __init__(self, name: str, seats: int, seating: Seating) -> None:
        self.name = name
        self.seats = seats
        self.told = seats  # what the policy said last: only a changed figure overrides a live signal
        self.seating = seating
        self.running = 0
        self.outstanding = 0
        self.up = True


class Seating:
    """Seats of one pool. ``least_free`` and ``most_taken`` are the reserve and the ceiling of each band."""

    __slots__ = ("backends", "bands", "free", "least_free", "limited", "most_taken", "seats", "taken", "up")

    def __init__(self) -> None:
        self.backends: list[Backend] = []
        self.bands: tuple[Band, ...] = ()
        self.free = self.taken = self.seats = self.up = 0
        self.limited = False
        self.least_free: list[int] = []
        self.most_taken: list[float] = []

    def obey(self, spec: PoolSpec | None, bands: tuple[Band, ...]) -> None:
        """Take backends and bands of a new policy. Backends that left get no more dispatches."""
        self.bands = bands
        known = {backend.name: backend for backend in self.backends}
        named = spec.backends if spec else ()
        self.backends = []
        for each in named:
            seats = START_SEATS if each.seats == AUTO else each.seats
            backend = known.pop(each.name, None) or Backend(each.name, seats, self)
            if backend.told != seats:
                backend.seats = backend.told = seats
            self.backends.append(backend)
        for gone in known.values():
            gone.up = False
        self.recount()

    def recount(self) -> None:
        """Count seats anew after a change of health, seats or policy."""
        up = [backend for backend in self.backends if backend.up]
        self.up = len(up)
        self.seats = sum(backend.seats for backend in up)
        self.taken = sum(backend.running for backend in up)
        self.free = sum(max(0, backend.seats - backend.running) for backend in up)
        reserves = [0 if band.reserve == AUTO else band.reserve for band in self.bands]
        self.least_free = [max(reserves[:band], default=0) for band in range(len(reserves))]
        self.most_taken = [int(band.ceiling * self.seats) if band.ceiling < 1 else float("inf") for band in self.bands]
        self.limited = any(self.least_free) or any(band.ceiling < 1 for band in self.bands)

    def seat(self, tokens: int) -> Backend:
        """Take a seat on the backend with the least outstanding tokens; one must be free."""
        backend = self.backends[0]
        if len(self.backends) > 1:
            free = [each for each in self.backends if each.up and each.running < each.seats]
            backend = min(free, key=lambda each: each.outstanding)
        backend.running += 1
        backend.outstanding += tokens
        self.taken += 1
        self.free -= 1
        return backend

    def unseat(self, backend: Backend, tokens: int) -> None:
        """Give a seat back; it is free again unless the backend is down or has fewer seats now."""
        backend.running -= 1
        backend.outstanding -= tokens
        if backend.up:
            self.taken -= 1
            if backend.running < backend.seats:
                self.free += 1
