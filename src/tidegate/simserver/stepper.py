"""The engine model on the real clock: one task runs its steps and hands each token to its exchange.

Deadlines are absolute: what one step is late, the next ones make up, up to ``CATCH_UP_S``. Beyond that the time is
lost, the engine is slower than its model, and ``Stepper.lost_s`` says by how much.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.simserver.answers import Choice
from tidegate.simserver.exchange import Exchange
from tidegate.simserver.faults import FaultSwitch
from tidegate.simulation import EngineModel, EngineSequence, StepResult

CATCH_UP_S = 0.1
"""Longest delay that later steps make up, seconds."""

_SLICE = 64
"""Streams served between two turns of the event loop, so that new requests do not wait for a thousand writes."""


@dataclass(slots=True)
class _Place:
    sequence: EngineSequence
    exchange: Exchange
    choice: Choice
    position: int = 0


class Stepper:
    """Owns the engine model; everything happens on the event loop's thread."""

    def __init__(self, model: EngineModel, faults: FaultSwitch, *, speed: float) -> None:
        """``speed`` 2 runs twice as fast as the model says."""
        self.model = model
        self.speed = speed
        self.model_s = 0.0
        self.lost_s = 0.0
        self.late_max_s = 0.0
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "tool_calls": 0}
        self._faults = faults
        self._places: dict[str, _Place] = {}
        self._wake = asyncio.Event()

    def add(self, exchange: Exchange, sequences: Sequence[EngineSequence]) -> None:
        """Put the sequences of an exchange, one for each choice, on the engine's waiting list."""
        now = time.monotonic()
        for sequence, choice in zip(sequences, exchange.choices, strict=True):
            self.model.add(sequence, now)
            self._places[sequence.id] = _Place(sequence, exchange, choice)
        self._wake.set()

    def abort(self, sequences: Sequence[EngineSequence]) -> None:
        """Forget sequences whose client left; finished ones are not touched."""
        for sequence in sequences:
            if self._places.pop(sequence.id, None) is not None:
                self.model.abort(sequence.id)
                self.finished["abort"] += 1

    async def run(self) -> None:
        """Step for ever, sleeping while there is nothing to do."""
        deadline = 0.0
        while True:
            if self.model.idle:
                self._wake.clear()
                await self._wake.wait()
                deadline = time.monotonic()
            result = self.model.step()
            duration = result.duration_s * self._faults.step_factor / self.speed
            self.model_s += duration
            deadline = await self._sleep_until(deadline + duration)
            await self._emit(result)

    async def _sleep_until(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)
            return deadline
        await asyncio.sleep(0)
        self.late_max_s = max(self.late_max_s, -left)
        if -left <= CATCH_UP_S:
            return deadline
        self.lost_s += -left - CATCH_UP_S
        return deadline - left - CATCH_UP_S

    async def _emit(self, result: StepResult) -> None:
        places = self._places
        for sequence in result.finished:
            place = places.pop(sequence.id, None)
            if place is not None:  # its client may have left since the step began
                self.finished[place.choice.reason] += 1
                place.exchange.token(place.choice, place.position, last=True)
        left = _SLICE
        for sequence in list(self.model.decoding()):
            place = places.get(sequence.id)
            if place is None or place.sequence is not sequence:
                continue
            position = place.position
            place.position = position + 1
            place.exchange.token(place.choice, position, last=False)
            left -= 1
            if not left:
                left = _SLICE
                await asyncio.sleep(0)
