"""What runs a dispatched request in a world: a plain server of fixed service time, or an engine replica.

A server never reads a clock. The world tells it when something starts, asks ``next_event`` and calls ``advance`` then.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tidegate.simulation.arrivals import Request
from tidegate.simulation.engine_model import EngineModel
from tidegate.simulation.sequences import EngineSequence, StepResult, Work

NEVER = float("inf")


@dataclass(slots=True, frozen=True)
class Leg:
    """What one server has done for work that was stopped for the sake of other work, and goes on later.

    Attributes:
        server: where; there the engine's cache may hold the text yet.
        done: tokens of the answer that are written.
        work: what was done in all.
        owner: whose blocks they are in that engine's cache.
        run_after: units of the prompt's chain before them.
    """

    server: Server
    done: int
    work: Work
    owner: int
    run_after: int

    def joined(self, work: Work | None) -> Work:
        """Add what the next leg did; that computed anew what its engine had not kept of this one.

        The last token that was written had gone through no model yet: the next leg reads it for the first time.
        """
        before = self.work
        if work is None:
            return replace(before, preempted=before.preempted + 1)
        held = before.computed - before.recomputed + before.cached - (self.done > 0)
        read = work.computed - work.recomputed
        again = max(0, min(read, held - work.cached))
        return Work(
            before.cached,
            before.computed + work.computed - (self.done > 0 and read > again),
            before.recomputed + work.recomputed + again,
            before.preempted + 1 + work.preempted,
        )


class Progress(Protocol):
    """Whom a server tells about the work with a number."""

    def first_token(self, now: float, number: int) -> None:
        """Its first token is out."""
        ...

    def finished(self, now: float, number: int) -> None:
        """It is complete."""
        ...

    def paused(self, now: float, number: int, leg: Leg) -> None:
        """It has stopped, as it was asked to."""
        ...


class Server(Protocol):
    """One upstream."""

    def start(self, now: float, number: int, request: Request, after: Leg | None = None) -> None:
        """Begin the work with this number, or go on with it after a leg elsewhere or here."""
        ...

    def pause(self, number: int) -> bool:
        """Stop that work so that it can go on later, and tell ``Progress``; false when that is not possible."""
        ...

    def stop(self, number: int) -> None:
        """Give up that work, of which ``Progress`` hears nothing more."""
        ...

    def work(self, number: int) -> Work | None:
        """What was done for that work so far; ``None`` when this server does not tell.

        MUST answer while ``Progress`` is told that it is complete, and before it is stopped.
        """
        ...

    def next_event(self) -> float:
        """When ``advance`` has something to do, ``inf`` for never."""
        ...

    def advance(self, now: float, progress: Progress) -> None:
        """Do what is due at ``now``; what finishes may start other work here at once."""
        ...


class FixedServer:
    """Every request takes the same time, or what ``service_s`` says for it; its first token comes at the end."""

    def __init__(self, service_s: float | Callable[[Request], float]) -> None:
        self._service_s = service_s
        self._ends: list[tuple[float, int]] = []

    def start(self, now: float, number: int, request: Request, after: Leg | None = None) -> None:  # noqa: ARG002
        """See ``Server``; nothing is ever paused here."""
        service_s = self._service_s(request) if callable(self._service_s) else self._service_s
        heapq.heappush(self._ends, (now + service_s, number))

    def stop(self, number: int) -> None:
        """See ``Server``."""
        self._ends = [each for each in self._ends if each[1] != number]
        heapq.heapify(self._ends)

    def pause(self, number: int) -> bool:  # noqa: ARG002
        """See ``Server``."""
        return False

    def work(self, number: int) -> Work | None:  # noqa: ARG002
        """See ``Server``."""
        return None

    def next_event(self) -> float:
        """See ``Server``."""
        return self._ends[0][0] if self._ends else NEVER

    def advance(self, now: float, progress: Progress) -> None:
        """See ``Server``."""
        while self._ends and self._ends[0][0] <= now:
            number = heapq.heappop(self._ends)[1]
            progress.first_token(now, number)
            progress.finished(now, number)


class RhythmServer:
    """Ends whatever runs longest at times that are given beforehand, so that two runs get seats back alike.

    With times of service every delay moves all that comes later, and two runs soon have nothing in common; here what
    differs between them is what was done with a seat that fell free.
    """

    def __init__(self, times: Iterable[float]) -> None:
        self._times = iter(times)
        self._next = next(self._times, NEVER)
        self._running: dict[int, None] = {}

    def start(self, now: float, number: int, request: Request, after: Leg | None = None) -> None:  # noqa: ARG002
        """See ``Server``; nothing is ever paused here."""
        self._running[number] = None

    def stop(self, number: int) -> None:
        """See ``Server``."""
        self._running.pop(number, None)

    def pause(self, number: int) -> bool:  # noqa: ARG002
        """See ``Server``."""
        return False

    def work(self, number: int) -> Work | None:  # noqa: ARG002
        """See ``Server``."""
        return None

    def next_event(self) -> float:
        """See ``Server``."""
        return self._next

    def advance(self, now: float, progress: Progress) -> None:
        """See ``Server``."""
        while self._next <= now:
            self._next = next(self._times, NEVER)
            if self._running:
                number = next(iter(self._running))
                del self._running[number]
                progress.first_token(now, number)
                progress.finished(now, number)


class EngineServer:
    """One engine replica; ``http_s`` passes between dispatch and its waiting list (HTTP and tokenising).

    Attributes:
        model: the engine.
        page: its metrics page, written between two steps, with those who came during the last one.
    """

    def __init__(self, model: EngineModel, *, http_s: float = 0.005) -> None:
        self.model = model
        self._http_s = http_s
        self._coming: list[tuple[float, int, EngineSequence]] = []
        self._order = itertools.count()
        self._step: StepResult | None = None
        self._step_end = NEVER
        self._stopped: set[str] = set()
        self._pausing: dict[str, None] = {}
        self._ended: EngineSequence | None = None  # whose end is being told
        self.page = model.signals()

    def start(self, now: float, number: int, request: Request, after: Leg | None = None) -> None:
        """See ``Server``. What is written already is part of the prompt, some of which this engine may yet have."""
        done = after.done if after is not None else 0
        sequence = EngineSequence(
            str(number),
            request.prompt_tokens + done,
            request.output_tokens - done,
            priority=request.band,
            chain=request.chain,
            unit_tokens=request.unit_tokens,
        )
        if after is not None and after.server is self:
            sequence.owner, sequence.run_after = after.owner, after.run_after
        heapq.heappush(self._coming, (now + self._http_s, next(self._order), sequence))

    def stop(self, number: int) -> None:
        """See ``Server``; an engine learns of it when its step ends."""
        self._stopped.add(str(number))

    def pause(self, number: int) -> bool:
        """See ``Server``; an engine learns of it when its step ends."""
        self._pausing[str(number)] = None
        return True

    def work(self, number: int) -> Work | None:
        """See ``Server``."""
        sequence = self.model.find(str(number)) or self._ended
        return self.model.work_for(sequence) if sequence is not None and sequence.id == str(number) else None

    def next_event(self) -> float:
        """See ``Server``."""
        return min(self._step_end, self._coming[0][0] if self._coming else NEVER)

    def advance(self, now: float, progress: Progress) -> None:
        """See ``Server``."""
        if self._step is not None and self._step_end <= now:
            step, self._step, self._step_end = self._step, None, NEVER
            self._tell(now, step, progress)
        while self._coming and self._coming[0][0] <= now:
            self.model.add(heapq.heappop(self._coming)[2], now)
        if self._step is None:
            self._forget_stopped()
            for number in list(self._pausing):
                self._let_go(now, number, progress)
            self.page = self.model.signals()
            if not self.model.idle:
                self._step = self.model.step()
                self._step_end = now + self._step.duration_s

    def _tell(self, now: float, step: StepResult, progress: Progress) -> None:
        for sequence in step.prefilled:
            if self.model.generated(sequence) == 1 and sequence.id not in self._stopped:
                progress.first_token(now, int(sequence.id))
        for sequence in step.finished:
            if sequence.id not in self._stopped:
                self._ended = sequence
                progress.finished(now, int(sequence.id))
                self._ended = None
            self._stopped.discard(sequence.id)
            self._pausing.pop(sequence.id, None)

    def _let_go(self, now: float, number: str, progress: Progress) -> None:
        """Give up a sequence that is to pause; one that is on its way here yet is met when it has come."""
        sequence = self.model.find(number)
        if number in self._stopped:
            del self._pausing[number]
        elif sequence is not None:
            del self._pausing[number]
            done, work = self.model.generated(sequence), self.model.work_for(sequence)
            self.model.abort(number)
            progress.paused(now, int(number), Leg(self, done, work, sequence.owner, sequence.run_after))

    def _forget_stopped(self) -> None:
        self._stopped = {number for number in self._stopped if not self.model.abort(number)}  # others come yet
