"""``seats: auto``: find the knee of an engine from what it shows, and keep its queue in the gateway (SPEC §5.1).

More seats than the engine can run only move the queue behind the gateway's back, where no band can pass another; fewer
leave throughput lying. The controller looks at each sample of the engine:

* trouble (the engine queues, preempts, answered 429, or was slower than the bands' targets): fewer seats, by a factor;
  where the engine queues, down to what it runs, but at most to one half in a step;
* calm, and every seat was taken while work waited in the gateway: more seats; doubling until the first trouble, then
  a little at a time, so that the knee is passed by little;
* when the trouble was for want of KV memory, the knee is no number: it moves with the sizes of what runs, by several
  times where lengths have a long tail. Then seats grow by a part of what free memory would hold of the mean size;
* otherwise the gateway itself is the limit, and nothing is learned: the number stays.

One metrics page shows one moment, and between two engine steps newcomers always stand in its queue for a moment. So
the queue is smoothed before it is believed, except when it is long.
"""

from __future__ import annotations

from tidegate.core.model import Lease, Release
from tidegate.core.policy import Band
from tidegate.core.signals import Reading

INFINITE = float("inf")
MOST_SEATS = 4096
START_SEATS = 16
EVERY_S = 1.0  # shortest time between two steps without a metrics page
_LONG = 8  # a queue that is believed at once
_QUEUE_HIGH, _QUEUE_LOW = 1.6, 1.1  # smoothed engine queue: above is trouble, below is calm
_SMOOTH = 0.3  # part of the newest sample
_SHRINK = 0.9
_GROW = 0.05
_NEAR = 0.25
_TIGHT = 0.1  # free part of the cache below which trouble is for want of memory
_EASE = 0.95  # in place of _SHRINK when an engine preempts for want of it: one whose answers grew, not all of them
_SPARE = 0.03  # of the cache, left for what runs to grow into
_FILL = 0.35  # of the room that memory has for more; what comes in grows too
_HALF = 0.5
_SLOW_TTFT = 4.0  # first token over predicted prefill time
_RECENT = 0.2  # part of the newest answer in the mean slowness
_ENOUGH = 8  # answers in a mean before it may shrink the seats


class Prefill:
    """Predicts the time to the first token of an unloaded engine: the shortest seen, per token of input.

    The least of ``ttft / (input + BASE)`` over the answers, rising slowly so that a lucky cache hit is forgotten.
    """

    __slots__ = ("_per_token",)

    BASE = 64  # input tokens that the fixed part of a prefill is worth
    _FADE = 1.002

    def __init__(self) -> None:
        self._per_token = float("inf")

    def predict(self, ttft_s: float, input_tokens: int) -> float:
        """Learn from a first-token time; return the predicted one for this input, seconds, at most ``ttft_s``."""
        tokens = input_tokens + self.BASE
        self._per_token = min(ttft_s / tokens, self._per_token * self._FADE)
        return self._per_token * tokens


class Slowness:
    """Mean of how slow recent answers were, 1.0 being what they may be."""

    __slots__ = ("count", "mean")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the answers that were made under another number of seats."""
        self.count = 0
        self.mean = 0.0

    def note(self, part: float) -> None:
        """Take in one answer's time over its target."""
        self.count += 1
        self.mean += (part - self.mean) * max(_RECENT, 1.0 / self.count)

    @property
    def high(self) -> bool:
        """Whether enough answers were slower than they may be."""
        return self.count >= _ENOUGH and self.mean > 1.0


class SeatController:
    """The number of seats of one backend. ``seats`` is read after each call.

    Args:
        seats: to start from.
        least: never fewer.
        most: never more.
    """

    __slots__ = (
        "_blind",
        "_busy",
        "_cut_at",
        "_knee",
        "_preemptions",
        "_prefill",
        "_queue",
        "_tight",
        "_tpot",
        "_ttft",
        "least",
        "most",
        "seats",
        "stepped_at",
    )

    def __init__(self, seats: int = START_SEATS, *, least: int = 1, most: int = MOST_SEATS) -> None:
        self.least, self.most = least, most
        self.seats = min(max(seats, least), most)
        self.stepped_at = float("-inf")
        self._cut_at = float("-inf")
        self._blind = True
        self._knee: int | None = None  # seats after the last trouble; before the first the number doubles
        self._busy = False
        self._tight = False  # the last trouble was for want of memory
        self._queue = 0.0
        self._preemptions: int | None = None
        self._prefill = Prefill()
        self._ttft, self._tpot = Slowness(), Slowness()

    def answered(self, release: Release, lease: Lease, band: Band) -> None:
        """Learn from one finished answer.

        The first token may come later than the predicted prefill by the band's target. An engine that shows no queue
        is besides taken to queue when the first token takes several times the prefill.

        Args:
            release: with the first-token time and the time per output token, where known.
            lease: what it was dispatched with; from before the last cut it says nothing of the present seats.
            band: with its targets.
        """
        if lease.started < self._cut_at:
            return
        if release.ttft_s is not None:
            least_s = self._prefill.predict(release.ttft_s, release.input_tokens or lease.ticket.work.input_tokens)
            target_s = INFINITE if band.ttft_slo_s is None else band.ttft_slo_s
            if self._blind:
                target_s = min(target_s, (_SLOW_TTFT - 1.0) * least_s)
            self._ttft.note((release.ttft_s - least_s) / target_s if target_s else 0.0)
        if release.tpot_s is not None and band.tpot_slo_s is not None:
            self._tpot.note(release.tpot_s / band.tpot_slo_s)

    def refused(self) -> None:
        """The engine answered 429: it has more than it can take."""
        self._busy = True

    def step(self, now: float, reading: Reading | None, *, taken: int, limiting: bool) -> int:
        """Take one step and return the number of seats.

        Args:
            now: seconds.
            reading: what the engine shows, ``None`` without a metrics page.
            taken: leases of the backend now; above ``seats`` an earlier cut has not worked itself out yet.
            limiting: whether the seats, and not a lack of work, bounded what ran since the last step.
        """
        self.stepped_at = now
        queueing, preempting = self._look(reading)
        slow = self._ttft.high or self._tpot.high
        if queueing or preempting or self._busy or slow:
            fits = reading.running if queueing and reading is not None else None
            self._tight = reading is not None and reading.kv_free is not None and reading.kv_free < _TIGHT
            part = _EASE if preempting and self._tight else _SHRINK
            self._shrink(fits, part, settled=taken <= self.seats)
            self._cut_at = now
        elif limiting and self._queue < _QUEUE_LOW:
            self.seats += self._growth(reading)
        self.seats = min(max(self.seats, self.least), self.most)
        self._busy = False
        return self.seats

    def _growth(self, reading: Reading | None) -> int:
        """Return how many seats to add: the fewer, the closer the last trouble was (as CUBIC grows a window)."""
        if self._knee is None:
            return self.seats
        if self._tight and reading is not None and reading.kv_free is not None:
            running = self.seats if reading.running is None else reading.running
            room = running * (reading.kv_free - _SPARE) / max(1.0 - reading.kv_free, _SPARE)
            return max(1, min(int(room * _FILL), self.seats))
        return max(1, min(int(self.seats * _GROW), int(abs(self.seats - self._knee) * _NEAR)))

    def _look(self, reading: Reading | None) -> tuple[bool, bool]:
        """Say whether the engine queues and whether it has preempted since the last look."""
        self._blind = reading is None or reading.waiting is None
        if reading is None:
            return False, False
        waiting = reading.waiting or 0
        self._queue += (waiting - self._queue) * _SMOOTH
        before, self._preemptions = self._preemptions, reading.preemptions
        preempting = before is not None and reading.preemptions is not None and reading.preemptions > before
        return waiting >= _LONG or self._queue > _QUEUE_HIGH, preempting

    def _shrink(self, fits: int | None, part: float, *, settled: bool) -> None:
        """Take seats away: to one more than the engine runs where that is known, else down to a part of them."""
        wanted = int(self.seats * part) if settled else self.seats
        if fits is not None:
            wanted = min(self.seats, fits + 1) if fits < self.seats - 1 or not settled else self.seats - 1
        self.seats = max(wanted, int(self.seats * _HALF))
        self._knee = self.seats
        self._queue = 0.0
        self._ttft.clear()
        self._tpot.clear()
