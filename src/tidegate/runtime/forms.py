"""How an event log's values are read: the classes of the core need not keep their annotations, these do.

They are written as they are, field by field. What an older log does not have stands at its default.
"""

from __future__ import annotations

from msgspec import Struct

from tidegate.core import Outcome, Reason, Release, Requeue, Stoppable, Ticket, WorkEstimate


class WorkForm(Struct, frozen=True):
    """A ``WorkEstimate``."""

    input_tokens: int = 0
    output_tokens: int = 0

    def made(self) -> WorkEstimate:
        """Give what it stands for."""
        return WorkEstimate(self.input_tokens, self.output_tokens)


class TicketForm(Struct, frozen=True):
    """A ``Ticket``."""

    id: str
    pool: str
    band: int
    tenant: str
    work: WorkForm = WorkForm()
    flow: str = ""
    ttl_s: float | None = None
    deadline: float | None = None
    arrived: float | None = None
    size_bytes: int = 0
    name: str = ""
    depends_on: tuple[str, ...] = ()
    affinity: int = 0
    patient: bool = False
    stoppable: Stoppable = Stoppable.NEVER

    def made(self) -> Ticket:
        """Give what it stands for."""
        return Ticket(
            id=self.id,
            pool=self.pool,
            band=self.band,
            tenant=self.tenant,
            work=self.work.made(),
            flow=self.flow,
            ttl_s=self.ttl_s,
            deadline=self.deadline,
            arrived=self.arrived,
            size_bytes=self.size_bytes,
            name=self.name,
            depends_on=self.depends_on,
            affinity=self.affinity,
            patient=self.patient,
            stoppable=self.stoppable,
        )


class ReleaseForm(Struct, frozen=True):
    """A ``Release``."""

    outcome: Outcome = Outcome.COMPLETED
    input_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None

    def made(self) -> Release:
        """Give what it stands for."""
        return Release(self.outcome, self.input_tokens, self.output_tokens, self.ttft_s, self.tpot_s)


class RequeueForm(Struct, frozen=True):
    """A ``Requeue``."""

    avoid: bool = False
    reason: Reason = Reason.UPSTREAM_ERROR
    begun: bool = False

    def made(self) -> Requeue:
        """Give what it stands for."""
        return Requeue(self.avoid, self.reason, self.begun)


Form = WorkForm | TicketForm | ReleaseForm | RequeueForm


def made(value: object) -> object:
    """Give what a form stands for, and anything else as it is."""
    return value.made() if isinstance(value, Form) else value
