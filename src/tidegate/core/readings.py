"""Two sensors of an engine's memory in one figure: its own page, and what was dispatched since (SPEC §5.2).

A page shows a moment that is past. What was dispatched since the page last moved is added to it, so that a burst
between two scrapes cannot overfill; so is what waits in the engine, which no gauge counts yet, and most of what the
running requests have yet to write. How much that is, is judged by how far the estimates of finished answers were off:
an estimate is a median, and the mean of answers with a long tail, which is what fills a cache, lies far above it.

A page older than ``stale_after_s``, or one that stands still while requests come and go, is not used: the ledger of
outstanding estimates goes on alone where the size of the cache is known, and without that nothing is gated; traffic
flows in either case.

An engine without a gauge (llama.cpp) has the ledger only. There a full cache fails a whole batch, so room is kept for
the largest request seen lately, unless nothing runs: an idle engine has room for whatever it can take at all.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from tidegate.core.policy import BackendSpec, Band
from tidegate.core.signals import Reading

NEVER: Final = float("inf")
_GROWTH: Final = 0.6  # of the growth to come; while some grow others end
_GROWTH_MOST: Final = 0.25  # of the cache, so that estimates far too high do not close an empty engine
_LEAST_GROWTH: Final = 0.15  # of all answers: those longer than their estimate have taken the place of others and go on
_LARGE: Final = 0.4  # of the cache: more room than that is not waited for
_FORGET: Final = 0.99  # per dispatch, of the largest request; per finished request, of the error of estimates
_RECENT: Final = 1024  # dispatches whose size is remembered; more than an engine leaves waiting
_PRIOR: Final = 5_000.0  # tokens of answers before the first, so that a few do not decide
_FIRST_ERROR: Final = 2.0  # taken for theirs: where nothing is known yet, an answer may well be long
_LEAST_ERROR: Final = 0.5
_MOST_ERROR: Final = 3.0


class Sensor:
    """What is known of one backend's KV cache.

    Attributes:
        answers: estimated tokens of the answers of all leases held.
        reading: the last page, ``None`` before the first.
        closed: per band, whether the watermark stops it here.
    """

    __slots__ = (
        "_any", "_bands", "_busy_since", "_calm", "_capacity", "_estimated", "_frozen", "_largest", "_moved", "_recent",
        "_since", "_stale_after_s", "_used", "answers", "closed", "reading",
    )  # fmt: skip

    def __init__(self, spec: BackendSpec, bands: tuple[Band, ...]) -> None:
        self.reading: Reading | None = None
        self.closed = [False] * len(bands)
        self._any = False
        self.answers = 0
        self._since = 0  # tokens dispatched that the page does not show
        self._recent: deque[int] = deque(maxlen=_RECENT)  # tokens of each dispatch, the newest first
        self._largest = 0.0
        self._estimated, self._used = _PRIOR, _PRIOR * _FIRST_ERROR
        self._moved = False  # dispatches since _busy_since
        self._busy_since = 0.0  # the page has stood still since then, with work in the engine
        self._frozen = False
        self.obey(spec, bands)

    def obey(self, spec: BackendSpec, bands: tuple[Band, ...]) -> None:
        """Take new settings."""
        self._bands = bands
        self._calm = max(band.kv_watermark for band in bands)
        self._stale_after_s = spec.stale_after_s
        self._capacity = spec.kv_tokens
        if not self.watches:  # nobody looks at it from now on, so nobody would open what it closed
            self.closed, self._any = [False] * len(bands), False

    @property
    def watches(self) -> bool:
        """Whether anything may ever be gated here."""
        return self._capacity is not None or self.reading is not None

    def dispatched(self, tokens: int) -> None:
        """Reserve the estimate of a dispatch."""
        self._since += tokens
        self._recent.appendleft(tokens)
        self._moved = True
        if self._capacity is not None:
            tokens = min(tokens, self._capacity)  # the engine refuses what is larger; no room is to be kept for that
        self._largest = max(self._largest * _FORGET, tokens)

    def finished(self, estimate: int, used: int) -> None:
        """Learn from a whole answer how far estimates of answers are off: a ratio of fading sums of tokens."""
        self._estimated = self._estimated * _FORGET + estimate
        self._used = self._used * _FORGET + used

    @property
    def error(self) -> float:
        """Tokens that answers have per token estimated, of late."""
        return min(max(self._used / max(self._estimated, 1.0), _LEAST_ERROR), _MOST_ERROR)

    def read(self, reading: Reading, running: int, outstanding: int) -> None:
        """Take in a page.

        What waits in the engine, or is on its way there, is in no gauge yet. That is the newest, so as much as was
        dispatched last stays reserved, each request with its own size: one long prompt may be a tenth of the cache.

        Args:
            reading: the page.
            running: leases held.
            outstanding: estimated tokens of those.
        """
        before, self.reading = self.reading, reading
        if before is None or _shown(before) != _shown(reading) or not running:
            self._frozen = self._moved = False
            self._busy_since = reading.at
            unseen = _unseen(reading, running)
            sizes = sum(islice(self._recent, unseen))
            others = max(0, unseen - len(self._recent))  # dispatched before there was a page
            self._since = min(outstanding, sizes + outstanding * others // max(running, 1))
        elif self._moved and reading.at - self._busy_since > self._stale_after_s and _moves(reading):
            self._frozen = True

    def stale(self, now: float) -> bool:
        """Say whether there was a page and it is not to be used."""
        reading = self.reading
        return reading is not None and (self._frozen or now >= reading.at + self._stale_after_s)

    def free(self, now: float, outstanding: int) -> float | None:
        """Return the free part of the cache, below 0 when more is promised than fits; ``None`` when unknown.

        Args:
            now: seconds.
            outstanding: estimated tokens of all leases held.
        """
        reading, capacity = self.reading, self._capacity
        if reading is not None and capacity is None:
            capacity = reading.kv_tokens
        if reading is None or reading.kv_free is None or self.stale(now):
            if capacity is None or not outstanding:
                return None if capacity is None else 1.0
            return 1.0 - (outstanding + self._room(reading)) / capacity
        if capacity is None:
            return reading.kv_free
        since = min(self._since, outstanding)
        written = since + (1.0 - reading.kv_free) * capacity
        expected = outstanding + (self.error - 1.0) * self.answers
        growth = (
            max(_LEAST_GROWTH * self.error * self.answers, expected - written) / capacity
        )  # what is running has yet to write
        return reading.kv_free - since / capacity - min(_GROWTH_MOST, _GROWTH * growth)

    def fits(self, now: float, outstanding: int, tokens: int) -> bool:
        """Say whether a request has room beside what is there and the growth of that; unknown counts as room."""
        capacity = self._capacity
        if capacity is None and self.reading is not None:
            capacity = self.reading.kv_tokens
        free = self.free(now, outstanding)
        if free is None or capacity is None:
            return True
        if self._room(self.reading):  # it counts itself there, and is not to fill what fails when it is full
            return not outstanding or outstanding + tokens <= capacity
        return free >= min(_LARGE, tokens / capacity)

    def gate(self, now: float, outstanding: int) -> bool:
        """Bring ``closed`` up to date, each band with its hysteresis; return whether any is closed."""
        free = self.free(now, outstanding)
        if free is None:
            free = 1.0
        closed = self.closed
        if free >= self._calm and not self._any:
            return False
        for index, band in enumerate(self._bands):
            limit = band.kv_resume if closed[index] else band.kv_watermark
            closed[index] = free < limit or free < 0.0
        self._any = any(closed)
        return self._any

    def changes_at(self, now: float) -> float:
        """Return when the page goes stale, which may open what it closes; infinity when it is or there is none."""
        reading = self.reading
        return NEVER if reading is None or self.stale(now) else reading.at + self._stale_after_s

    def _room(self, reading: Reading | None) -> float:
        """Return the tokens to keep free where the ledger is all there is, by design and not by an outage."""
        return self._largest if reading is None or reading.kv_free is None else 0.0


def _shown(reading: Reading) -> tuple[object, ...]:
    return reading.kv_free, reading.running, reading.waiting, reading.preemptions, reading.generated


def _unseen(reading: Reading, running: int) -> int:
    """Return how many of the leases held are not in the page's batch."""
    shown = running if reading.running is None else reading.running
    return min(running, max(reading.waiting or 0, running - shown))


def _moves(reading: Reading) -> bool:
    """Say whether the page of a working engine cannot stand still."""
    return reading.kv_free is not None or reading.generated is not None
