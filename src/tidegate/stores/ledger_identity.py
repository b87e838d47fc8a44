"""Who is who among the replicas of a pool: names, runs of one name, and whose file says something else. Pure.

A ledger knows a replica by its key: its name and, behind a sign that no name has, which run of it this is. So two
gateways of one name are two replicas to every ledger, none of which is ever dealt the other's seats, and one that is
started anew registers beside the record of the run before, whose seats stay taken until it is known to be gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from tidegate.stores.ledger_protocol import PoolView, ReplicaRow

RUN: Final = "~"
"""Stands between name and run; no name in a file has it."""
SILENT_S: Final = 2.0
"""A run that was not heard of for so long, and not since another one of its name came, has ended: four heartbeats."""


def key_of(name: str, run: str) -> str:
    """Return what a ledger knows a run of a replica by."""
    return f"{name}{RUN}{run}" if run else name


def pool_of(group: str, pool: str) -> str:
    """Return what a store knows a pool of a group of gateways by: no other pool of any group has it.

    A model may have any name; a group's may have colons, but none of the other signs of this.
    """
    return f"{group.replace(':', '%3A')}:{pool}"


def name_of(key: str) -> str:
    """Return the name that people know."""
    return key.partition(RUN)[0]


def run_of(key: str) -> str:
    """Return which run it is; empty for a replica of a release without."""
    return key.partition(RUN)[2]


def doubled(view: PoolView) -> set[str]:
    """Return the keys of replicas that share their name with another one, both alive.

    Both were heard of after both had come. One that ended and was started anew is no such case: it never speaks again.
    """
    return {
        row.name
        for rows in _by_name(view.rows)
        for row in rows
        if any(other is not row and _both_alive(view, row, other) for other in rows)
    }


def ended(view: PoolView, key: str) -> list[str]:
    """Return the keys of earlier runs of ``key``'s name that ended without leaving: silent since before it came."""
    own = next((row for row in view.rows if row.name == key), None)
    if own is None:
        return []
    return [
        row.name
        for row in view.rows
        if row.name != key
        and name_of(row.name) == name_of(key)
        and _seen(view, row) <= own.epoch
        and row.seen_ms_ago >= SILENT_S * 1000
    ]


def _by_name(rows: Iterable[ReplicaRow]) -> Iterable[list[ReplicaRow]]:
    found: dict[str, list[ReplicaRow]] = {}
    for row in rows:
        found.setdefault(name_of(row.name), []).append(row)
    return [rows for rows in found.values() if len(rows) > 1]


def _both_alive(view: PoolView, one: ReplicaRow, other: ReplicaRow) -> bool:
    return _seen(view, one) > other.epoch and _seen(view, other) > one.epoch


def _seen(view: PoolView, row: ReplicaRow) -> int:
    return view.now_ms - row.seen_ms_ago


class Differences(Struct, frozen=True):
    """How the backends that a ledger deals differ from those of a replica's own file.

    Attributes:
        not_dealt: ours alone: nothing runs there, and what waits for them alone waits in vain.
        unknown: theirs alone: this replica uses none of their seats.
        seats: (backend, ours, dealt) where the numbers differ; not where the number is found by measuring.
    """

    not_dealt: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    seats: tuple[tuple[str, int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.not_dealt or self.unknown or self.seats)


def differences(own: Mapping[str, int | None], dealt: Iterable[tuple[str, int]]) -> Differences:
    """Compare backends and seats.

    Args:
        own: of the file; ``None`` for seats that are found by measuring.
        dealt: as the ledger says in its replies.
    """
    told = dict(dealt)
    return Differences(
        tuple(name for name in own if name not in told),
        tuple(name for name in told if name not in own),
        tuple(
            (name, seats, told[name])
            for name, seats in own.items()
            if seats is not None and name in told and told[name] != seats
        ),
    )
