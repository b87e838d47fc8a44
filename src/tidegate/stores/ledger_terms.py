"""What a replica is told of its part in a pool, and what it tells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class StoreLoss(StrEnum):
    """What becomes of the solo share when the ledger stays away for longer than ``lease_ttl``."""

    KEEP = "keep"
    SHRINK = "shrink"


class Standing(StrEnum):
    """How a replica stands with its pool."""

    SHARED = "shared"  # every seat takes a grant
    SOLO = "solo"  # alone, within its share
    QUIET = "quiet"  # the pool is about to open


@dataclass(slots=True, frozen=True)
class Terms:
    """What is configured for a replica in a pool.

    Attributes:
        on_store_loss: see ``StoreLoss``.
        ttl_s: after so long without an answer the ledger has given this replica's seats to others.
        first_share: seats it may use alone before it was ever dealt a share.
        auto: the backends whose seats are found by the seat controller.
        reserves: seats that each band wants lower ones to leave free; ``None``: as many as it takes.
        seats: of the file's backends, ``None`` where they are found; ``file``: digest of those.
    """

    first_share: int
    on_store_loss: StoreLoss = StoreLoss.KEEP
    ttl_s: float = 5.0
    auto: frozenset[str] = frozenset()
    reserves: tuple[int | None, ...] = ()
    seats: dict[str, int | None] = field(default_factory=dict)
    file: str = ""


@dataclass(slots=True)
class Counts:
    """What happened since the start.

    Attributes:
        calls: answered by the ledger; ``failures`` were not.
        call_s: time that the answered ones took, all together.
        grants: used to start work; ``late`` ones came too late, ``wasted`` ones found nothing to start.
        solo_s: time alone, up to the last look.
    """

    calls: int = 0
    failures: int = 0
    call_s: float = 0.0
    grants: int = 0
    late: int = 0
    wasted: int = 0
    solo_s: float = 0.0
