"""The asyncio shell around the scheduler: clock, timer, waiters, shutdown."""

from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.driver import Driver
from tidegate.runtime.event_log import EventLog
from tidegate.runtime.gc_policy import GcPolicy
from tidegate.runtime.observed import ObservedLog
from tidegate.runtime.replay import replay
from tidegate.runtime.rounds import Parted, Rounds
from tidegate.runtime.stall import StallMonitor
from tidegate.runtime.waiters import FutureWaiter, Refusal, TicketWaiter

__all__ = [
    "Clock",
    "Driver",
    "EventLog",
    "FutureWaiter",
    "GcPolicy",
    "ObservedLog",
    "Parted",
    "Refusal",
    "Rounds",
    "StallMonitor",
    "SystemClock",
    "TicketWaiter",
    "replay",
]
