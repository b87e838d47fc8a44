"""Decide who runs, who waits and who is refused. Pure: no I/O, no clock, no chance."""

from tidegate.core.actions import Action, Dispatch, Evict, Promote, Reject
from tidegate.core.errors import PolicyError, TidegateError
from tidegate.core.gates import Gate, GateKind
from tidegate.core.model import Lease, Outcome, Reason, Release, Requeue, Ticket, Turn, WorkEstimate
from tidegate.core.names import Progress, Status
from tidegate.core.policy import (
    AUTO,
    Auto,
    BackendSpec,
    BacklogOrder,
    Band,
    Discipline,
    Full,
    Order,
    Policy,
    PoolSpec,
    Saturated,
    TenantSpec,
    Unit,
)
from tidegate.core.scheduler import Scheduler
from tidegate.core.signals import Drain, Elsewhere, Health, Paused, RateLimit, Reading, Seats, Signal, Waiter
from tidegate.core.snapshots import BackendSnapshot, BandSnapshot, Snapshot, Why, WhyKind

__all__ = [
    "AUTO",
    "Action",
    "Auto",
    "BackendSnapshot",
    "BackendSpec",
    "BacklogOrder",
    "Band",
    "BandSnapshot",
    "Discipline",
    "Dispatch",
    "Drain",
    "Elsewhere",
    "Evict",
    "Full",
    "Gate",
    "GateKind",
    "Health",
    "Lease",
    "Order",
    "Outcome",
    "Paused",
    "Policy",
    "PolicyError",
    "PoolSpec",
    "Progress",
    "Promote",
    "RateLimit",
    "Reading",
    "Reason",
    "Reject",
    "Release",
    "Requeue",
    "Saturated",
    "Scheduler",
    "Seats",
    "Signal",
    "Snapshot",
    "Status",
    "TenantSpec",
    "Ticket",
    "TidegateError",
    "Turn",
    "Unit",
    "Waiter",
    "Why",
    "WhyKind",
    "WorkEstimate",
]
