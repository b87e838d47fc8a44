"""Fakes and helpers for tests, published: time in the test's hands, and a backend that only takes time."""

from tidegate.testing.clock import BlockingCallError, LoopClock, ManualClock, VirtualLoop, forbid_blocking, run_virtual
from tidegate.testing.fake_backend import FakeBackend

__all__ = [
    "BlockingCallError",
    "FakeBackend",
    "LoopClock",
    "ManualClock",
    "VirtualLoop",
    "forbid_blocking",
    "run_virtual",
]
