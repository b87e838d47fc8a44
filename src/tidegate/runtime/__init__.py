"""The asyncio shell around the scheduler: clock, timer, waiters, shutdown."""

from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.driver import Driver
from tidegate.runtime.event_log import EventLog
from tidegate.runtime.waiters import FutureWaiter, Refusal, TicketWaiter

__all__ = [
    "Clock",
    "Driver",
    "EventLog",
    "FutureWaiter",
    "Refusal",
    "SystemClock",
    "TicketWaiter",
]
