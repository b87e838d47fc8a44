"""Decide who runs, who waits and who is refused. Pure: no I/O, no clock, no chance."""

from tidegate.core.actions import Action, Dispatch, Evict, Promote, Reject
from tidegate.core.errors import PolicyError, TidegateError
from tidegate.core.model import Lease, Outcome, Reason, Release, Ticket, Turn, WorkEstimate
from tidegate.core.policy import (
    BackendSpec,
    BacklogOrder,
    Band,
    Discipline,
    Full,
    Order,
    Policy,
    PoolSpec,
    TenantSpec,
    Unit,
)
from tidegate.core.signals import Drain, Health, Seats, Signal, Waiter

__all__ = [
    "Action",
    "BackendSpec",
    "BacklogOrder",
    "Band",
    "Discipline",
    "Dispatch",
    "Drain",
    "Evict",
    "Full",
    "Health",
    "Lease",
    "Order",
    "Outcome",
    "Policy",
    "PolicyError",
    "PoolSpec",
    "Promote",
    "Reason",
    "Reject",
    "Release",
    "Seats",
    "Signal",
    "TenantSpec",
    "Ticket",
    "TidegateError",
    "Turn",
    "Unit",
    "Waiter",
    "WorkEstimate",
]
