"""The block ``cluster``: where gateways that share their seats meet."""

from __future__ import annotations

from fractions import Fraction

from pydantic import Field

from tidegate.config.fields import LeaseSeconds, LedgerUrl, Name, Part, Section, StoreLossName
from tidegate.config.fields import StoreLoss as StoreLoss


class ClusterSettings(Section):
    """Several gateways that share the seats of their backends. Absent: this gateway is alone."""

    store: LedgerUrl = Field(
        repr=False,
        description="Where they meet: `valkey://HOST:PORT/DB` or `redis://…` (7 and later; `valkeys://` with TLS, "
        "`valkey+sentinel://HOST,HOST/SERVICE`, `valkey+cluster://HOST,HOST`), with the extra `valkey`; "
        "`postgresql://…` for up to 8 gateways, with the extra `postgres`; `unix:///PATH` as `serve --workers` has it.",
    )
    pool: Name = Field(default="default", description="Those of one name share; each model is shared by itself.")
    replica: Name | None = Field(
        default=None,
        description="Name of this gateway, unique in the pool; another living one is told in the log. "
        "Absent: made from the host's name, anew each time.",
    )
    lease_ttl: LeaseSeconds = Field(
        default=5.0, description="A gateway not heard for so long is taken for dead, and its seats go to the others."
    )
    on_store_loss: StoreLossName = Field(
        default=StoreLoss.KEEP,
        description="When the store stays away for longer than `lease_ttl`, a gateway goes on with the share of "
        "the seats that it had last, or shrinks to one seat of each model.",
    )
    first_share: Part = Field(
        default=Fraction(1, 8),
        description="Part of the seats that a gateway may use while it has not reached the store since its start. "
        "Best one over the number of gateways.",
    )
