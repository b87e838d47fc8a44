"""Choose the backend of a dispatch, and count seats (SPEC §5.1, §5.4).

``Seating`` is one pool's seats: ``free`` and ``taken`` count the backends that are up. Fewer seats never stop running
work, so ``taken`` may pass ``seats`` for a while. Where others use the same backends, ``free`` counts within the part
that is lent here (``Capacity``), and is not above 0 while a grant is needed for every seat.

The choice: requests that share a beginning (``Ticket.affinity``) go to the backend that ranks first for it by
rendezvous hashing, as long as that one would not be more than 1.25 times as loaded as the mean (consistent hashing with
bounded loads, Mirrokni et al. 2018; load is seats taken over seats), else the next; the others, and those that no
backend may take so, go where the least estimated tokens are outstanding. In all this, backends whose cache has no room
for a request count only where none has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from tidegate.core.adaptive import START_SEATS, SeatController
from tidegate.core.gates import NEVER, Gate
from tidegate.core.ordering import first_begun
from tidegate.core.policy import AUTO, BackendSpec, Band, PoolSpec
from tidegate.core.quota import Quota
from tidegate.core.readings import Sensor

if TYPE_CHECKING:
    from tidegate.core.ordering import Entry

_BOUND: Final = 1.25
_MASK: Final = (1 << 64) - 1


class Backend:
    """One upstream as the scheduler sees it.

    Attributes:
        outstanding: estimated tokens of its running work.
        sensor: what is known of its cache.
        control: finds its seats when they are ``auto``.
        tokens, requests: its quotas.
        paused_until: it takes nothing before.
        usable: what ``gates.look`` found last, its cache aside.
        full: likewise: lower bands are not to start here for want of room in the engine.
        others: requests in the engine at its last reading that were not from here.
    """

    __slots__ = (
        "_shut_until", "control", "full", "name", "others", "outstanding", "paused_until", "requests",
        "running", "salt", "seating", "seats", "sensor", "tokens", "told", "up", "usable",
    )  # fmt: skip

    def __init__(self, spec: BackendSpec, seating: Seating, bands: tuple[Band, ...]) -> None:
        self.name = spec.name
        self.salt = crc32(spec.name.encode())
        self.seating = seating
        self.running = 0
        self.outstanding = 0
        self.others = 0
        self.up = True
        self.usable = True
        self.full = False
        self.paused_until = 0.0
        self._shut_until = 0.0
        self.sensor = Sensor(spec, bands)
        self.control: SeatController | None = None
        self.tokens: Quota | None = None
        self.requests: Quota | None = None
        self.seats = 0
        self.told: int | str | None = None  # what the policy said last: only a changed figure overrides a live signal
        self.obey(spec, bands)

    def obey(self, spec: BackendSpec, bands: tuple[Band, ...]) -> None:
        """Take new settings."""
        self.sensor.obey(spec, bands)
        self.tokens = _quota(self.tokens, spec.tokens_per_minute)
        self.requests = _quota(self.requests, spec.requests_per_minute)
        self.reopen()
        if self.told == spec.seats:
            return
        if spec.seats == AUTO:
            self.control = SeatController(self.seats or START_SEATS)
            self.seats = self.control.seats
        else:
            self.control = None
            self.seats = spec.seats
        self.told = spec.seats

    @property
    def gated(self) -> bool:
        """Whether anything but its seats may stop work here."""
        return self.tokens is not None or self.requests is not None or self.paused_until > 0.0 or self.sensor.watches

    def opens_at(self, now: float) -> float:
        """Return when its quotas are open; at most ``now`` when they are."""
        if now < self._shut_until:
            return self._shut_until
        for quota in (self.tokens, self.requests):
            if quota is not None and not quota.open(now):
                self._shut_until = max(self._shut_until, quota.open_at(now))
        return self._shut_until

    def crowded(self, now: float) -> bool:
        """Say whether the engine itself, by a reading that can be believed, has no room for more."""
        return not self.sensor.stale(now) and self.running + self.others >= self.seats

    def charge(self, now: float, entry: Entry) -> None:
        """Count a dispatch against quotas and cache."""
        self.sensor.dispatched(entry.cost)
        if self.requests is not None:
            self.requests.charge(now, 1)
        if self.tokens is not None:
            entry.charged = self.tokens.charge(now, entry.cost)

    def settle(self, entry: Entry, amount: int) -> None:
        """Correct the charge of a dispatch by ``amount``; negative gives back."""
        if self.tokens is not None and entry.charged is not None:
            self.tokens.settle(entry.charged, amount)
            self.reopen()

    def reopen(self) -> None:
        """Look at the quotas anew: they were changed by something other than time."""
        self._shut_until = 0.0


class Seating:
    """Seats of one pool. ``least_free`` and ``most_taken`` are the reserve and the ceiling of each band.

    Attributes:
        reserves: seats that each band wants lower ones to leave free; of ``auto`` ones the guard's figure.
        short: the bands whose automatic reserve is less than they need.
        firm: of each band, the part of its ``least_free`` that overtakes leave free too.
        limited: some band has a reserve or a ceiling.
        gating: something but seats may stop work here, so that ``gates.look`` has to be asked; it sets
            ``stopped``, ``usable`` and ``wake``.
        closing: a mode does not admit every band.
        begun: of each band's queue, the tickets with a part of their answer.
        observing: the cache and the mode stop nothing (``Policy.observe_only``).
        only: the backend, when there is but one.
        ruled: shares, promotion or automatic reserves have a say in who is next.
        simple: only age and floors have: nothing of all this.
        lent: seats that may be taken by the own rule; 0 when each takes a grant, ``None``: all.
        share: seats that work from here may count on; ``None``: all.
        wary: lower bands start only where the engine shows room.
    """

    __slots__ = (
        "backends", "bands", "begun", "closing", "firm", "free", "gating", "least_free", "lent", "limited",
        "most_taken", "observing", "only", "reserves", "ruled", "seats", "share", "short", "simple", "stopped", "taken",
        "up", "usable", "wake", "wary",
    )  # fmt: skip

    def __init__(self, begun: list[list[Entry]]) -> None:
        self.begun = begun
        self.backends: list[Backend] = []
        self.only: Backend | None = None
        self.bands: tuple[Band, ...] = ()
        self.free = self.taken = self.seats = self.up = self.usable = 0
        self.limited = self.gating = self.observing = self.closing = self.ruled = self.simple = False
        self.lent: int | None = None
        self.share: int | None = None
        self.wary = False
        self.reserves: list[int] = []
        self.short: tuple[int, ...] = ()
        self.least_free: list[int] = []
        self.firm: list[int] = []
        self.most_taken: list[float] = []
        self.stopped: list[Gate | None] = []
        self.wake = NEVER

    def obey(self, spec: PoolSpec | None, bands: tuple[Band, ...], *, observing: bool, ruled: bool) -> None:
        """Take backends and bands of a new policy. Backends that left get no more dispatches."""
        autos = self.reserves if len(self.reserves) == len(bands) else [0] * len(bands)
        self.reserves = [autos[index] if band.reserve == AUTO else band.reserve for index, band in enumerate(bands)]
        self.bands, self.observing, self.ruled = bands, observing, ruled
        self.closing = not all(band.admit for band in bands)
        self.stopped = [None] * len(bands)
        known = {backend.name: backend for backend in self.backends}
        self.backends = []
        for each in spec.backends if spec else ():
            backend = known.pop(each.name, None)
            if backend is None:
                backend = Backend(each, self, bands)
            else:
                backend.obey(each, bands)
            self.backends.append(backend)
        self.only = self.backends[0] if len(self.backends) == 1 else None
        for gone in known.values():
            gone.up = False
        self.recount()

    def recount(self) -> None:
        """Count seats anew after a change of health, seats, gates or policy."""
        up = [backend for backend in self.backends if backend.up]
        self.up = len(up)
        self.seats = sum(backend.seats for backend in up)
        self.taken = sum(backend.running for backend in up)
        self.free = sum(max(0, backend.seats - backend.running) for backend in up)
        if self.lent is not None:
            self.free = min(self.free, self.lent - self.taken)
        self.gating = self.closing or self.wary or any(backend.gated for backend in up)
        self.reserve(self.reserves, self.short)
        self.most_taken = [int(band.ceiling * self.seats) if band.ceiling < 1 else NEVER for band in self.bands]

    def reserve(self, reserves: list[int], short: tuple[int, ...]) -> None:
        """Take the seats that each band wants lower ones to leave free, and for which bands these are too few."""
        self.reserves, self.short = reserves, short
        self.least_free = [max(reserves[:band], default=0) for band in range(len(reserves))]
        self.firm = [
            max((reserves[each] for each in short if each < band), default=-1) for band in range(len(reserves))
        ]
        self.limited = any(self.least_free) or any(band.ceiling < 1 for band in self.bands)
        self.simple = not (self.limited or self.gating or self.observing or self.ruled)

    def seat(self, entry: Entry, band: int, now: float) -> Backend:
        """Take a seat for an entry dispatched for ``band``; one must be free and, with ``gating``, open to it.

        The hot path, ``dispatching.deal``, does the same in place.
        """
        return self.seat_on(self.choose(entry, band, now), entry, now)

    def seat_on(self, backend: Backend, entry: Entry, now: float) -> Backend:
        """Take a seat on a backend."""
        backend.running += 1
        backend.outstanding += entry.cost
        backend.sensor.answers += entry.answer
        self.taken += 1
        self.free -= 1
        if self.gating:
            backend.charge(now, entry)
        return backend

    def can_take(self, backend: Backend, band: int) -> bool:
        """Say whether a backend may take work of ``band`` now; with ``gating``, by the last ``gates.look``."""
        if not backend.up or backend.running >= backend.seats:
            return False
        return not self.gating or (backend.usable and self._is_open(backend, band))

    def admits(self, band: int) -> bool:
        """Say whether the mode lets any work of a band run; whatever else gates it depends on the backend."""
        return not self.shuts(band) or first_begun(self.begun[band]) is not None

    def shuts(self, band: int) -> bool:
        """Say whether the mode lets a band begin no work: what has begun goes on."""
        return not (self.observing or self.bands[band].admit)

    def _is_open(self, backend: Backend, band: int) -> bool:
        return self.observing or not (backend.sensor.closed[band] or (band and backend.full))

    def unseat(self, entry: Entry) -> None:
        """Give a seat back; it is free again unless the backend is down or has fewer seats now."""
        backend = entry.backend
        backend.running -= 1
        backend.outstanding -= entry.cost
        backend.sensor.answers -= entry.answer
        if backend.up:
            self.taken -= 1
            if backend.running < backend.seats:
                self.free += 1
            elif self.lent is not None:
                self.recount()

    def choose(self, entry: Entry, band: int, now: float) -> Backend:
        """Return the backend that is to take an entry dispatched for ``band``, one that has room for it if one has."""
        able = [each for each in self.backends if self.can_take(each, band)]
        if entry.avoid:
            able = [each for each in able if each not in entry.avoid]
        if self.gating and len(able) > 1:
            able = [each for each in able if each.sensor.fits(now, each.outstanding, entry.cost)] or able
        return self.near(entry, able) or min(able, key=lambda each: each.outstanding)

    def near(self, entry: Entry, able: list[Backend]) -> Backend | None:
        """Return which of the backends is to have an entry for its affinity, ``None``: it is all one."""
        affinity = entry.ticket.affinity
        if affinity:
            most = _BOUND * (self.taken + 1) / self.seats
            near = [each for each in able if each.running < most * each.seats]  # the ceiling of Mirrokni et al.
            if near:
                return max(near, key=lambda each: _rank(affinity, each.salt))
        return None

    @property
    def counted(self) -> int:
        """The seats that work from here may count on."""
        return self.seats if self.share is None else min(self.seats, self.share)


def _quota(quota: Quota | None, limit: int | None) -> Quota | None:
    if limit is None:
        return None
    if quota is None:
        return Quota(limit)
    quota.limit = limit
    return quota


def _rank(affinity: int, salt: int) -> int:
    """Mix two numbers into one that looks random (the finaliser of SplitMix64, Steele et al. 2014)."""
    mixed = ((affinity ^ (salt << 32) ^ salt) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
