"""Faults that the simulated engine can be told to show."""

from __future__ import annotations

import math
import random
import time
from email.utils import formatdate
from enum import StrEnum

import msgspec


class FaultKind(StrEnum):
    """What goes wrong.

    ``slow`` stretches every step; the others strike single requests. ``stream_error`` and ``cut`` strike an answer
    that is not streamed as a 500 and as half a body; ``hang`` never says anything (more).
    """

    NONE = "none"
    SLOW = "slow"
    BUSY = "429"
    ERROR = "500"
    STREAM_ERROR = "stream_error"
    CUT = "cut"
    HANG = "hang"


class RetryForm(StrEnum):
    """How a 429 says when to come back."""

    SECONDS = "seconds"
    MILLISECONDS = "ms"
    DATE = "date"


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fault now set.

    Attributes:
        kind: what goes wrong.
        share: part of the requests that it strikes, drawn from the engine's seed.
        times: strike that many requests, then none; ``None``: no end.
        after_tokens: tokens that get out before ``stream_error``, ``cut`` or ``hang``.
        factor: how many times longer a step takes under ``slow``.
        retry_after_s: what a 429 asks for, seconds.
        retry_form: ``Retry-After`` in seconds, ``retry-after-ms``, or ``Retry-After`` as a date.
    """

    kind: FaultKind = FaultKind.NONE
    share: float = 1.0
    times: int | None = None
    after_tokens: int = 0
    factor: float = 10.0
    retry_after_s: float = 1.0
    retry_form: RetryForm = RetryForm.SECONDS

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share: expected a part from 0 to 1, got {self.share}")
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor: expected a number above 0, got {self.factor}")
        for name, value in (("times", self.times or 0), ("after_tokens", self.after_tokens)):
            if value < 0:
                raise ValueError(f"{name}: expected at least 0, got {value}")
        if not 0 <= self.retry_after_s < math.inf:
            raise ValueError(f"retry_after_s: expected at least 0 seconds, got {self.retry_after_s}")


class FaultSwitch:
    """Holds the fault now set and decides whom it strikes."""

    def __init__(self, fault: Fault, seed: int) -> None:
        self._random = random.Random(seed)
        self.struck = 0
        self.set(fault)

    def set(self, fault: Fault) -> None:
        """Replace the fault; running requests keep what they have."""
        self.fault = fault
        self._left = fault.times

    @property
    def step_factor(self) -> float:
        """How many times longer steps take now."""
        return self.fault.factor if self.fault.kind is FaultKind.SLOW else 1.0

    def strike(self) -> Fault | None:
        """The fault that a new request meets, if any."""
        fault = self.fault
        if fault.kind is FaultKind.NONE or fault.kind is FaultKind.SLOW or self._left == 0:
            return None
        if fault.share < 1.0 and self._random.random() >= fault.share:
            return None
        if self._left is not None:
            self._left -= 1
        self.struck += 1
        return fault


def retry_headers(fault: Fault) -> list[tuple[bytes, bytes]]:
    """Headers of a 429."""
    if fault.retry_form is RetryForm.MILLISECONDS:
        return [(b"retry-after-ms", b"%d" % round(fault.retry_after_s * 1000))]
    if fault.retry_form is RetryForm.DATE:
        return [(b"retry-after", formatdate(time.time() + fault.retry_after_s, usegmt=True).encode())]
    return [(b"retry-after", b"%d" % round(fault.retry_after_s))]
