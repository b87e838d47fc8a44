"""Say no: the only place that does (SPEC §4.1 eligibility, §15.13).

A band is *gated* when nothing may pass (no backend, no seat), *held* by a reserve or a ceiling, which some kinds of
dispatch may pass. The dispatch loop, refusals, ``why`` and the dashboard all read ``hold``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.core.routing import Seating


class GateKind(StrEnum):
    """What stops a band."""

    NO_BACKEND = "no_backend"
    NO_SEAT = "no_seat"
    RESERVE = "reserve"
    CEILING = "ceiling"


@dataclass(slots=True, frozen=True)
class Gate:
    """Why a band may not start work now.

    Attributes:
        kind: what stops it.
        detail: one sentence for people.
        gated: nothing passes; otherwise the band is only held.
    """

    kind: GateKind
    detail: str
    gated: bool


_NO_BACKEND = Gate(GateKind.NO_BACKEND, "no backend of the model is up", gated=True)
_NO_SEAT = Gate(GateKind.NO_SEAT, "every seat is taken", gated=True)
_RESERVE = Gate(GateKind.RESERVE, "the free seats are reserved for a higher band", gated=False)
_CEILING = Gate(GateKind.CEILING, "more seats are taken than the band's ceiling allows", gated=False)


def hold(pool: Seating, band: int) -> Gate | None:
    """Return what stops ``band`` from starting work in ``pool`` now, ``None`` when nothing does.

    A ceiling outranks a reserve: an overtake may pass a reserve, only a floor may pass a ceiling.
    """
    if pool.free <= 0:
        return _NO_SEAT if pool.up else _NO_BACKEND
    if pool.taken > pool.most_taken[band]:
        return _CEILING
    if pool.free <= pool.least_free[band]:
        return _RESERVE
    return None
