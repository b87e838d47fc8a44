"""Any sequence of events keeps the promises: one outcome a ticket, seats conserved, bounds kept, no seat idle."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from properties.machine import Machine

Machine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase
