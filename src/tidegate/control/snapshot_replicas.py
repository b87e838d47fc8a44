"""What the dashboard shows of the gateways that share the pools: a row for each, all pools together. Pure."""

from __future__ import annotations

from typing import Any

from tidegate.control.history import shortened

Document = dict[str, Any]

MOST_ROWS = 64
LOST_S = 3.0
"""A gateway that was not heard of for so long counts as lost; a healthy one is heard of several times a second."""


def replicas_of(cluster: Document | None) -> Document | None:
    """Return the rows, this gateway's first and the others by name; ``None`` for a gateway that is alone.

    Args:
        cluster: how all gateways stand, as ``/admin/state`` says it. Of a store that does not answer there are no rows.
    """
    if cluster is None:
        return None
    own, found = cluster["replica"], dict[str, Document]()
    for pool in cluster["pools"].values():
        for row in pool["replicas"]:
            _add(found, row)
    rows = sorted(found.values(), key=lambda row: (row["name"] != own, row["name"]))
    return {
        "own": own,
        "degraded": cluster["degraded"],
        "number": len(rows),
        "rows": [
            {**row, "seen_s": shortened(row["seen_s"]), "lost": row["seen_s"] > LOST_S} for row in rows[:MOST_ROWS]
        ],
    }


def _add(found: dict[str, Document], row: Document) -> None:
    """Add what a gateway has in one more pool; it was heard of when any pool heard of it."""
    waiting = list(row["waiting"])
    before = found.get(row["name"])
    if before is None:
        found[row["name"]] = {
            "name": row["name"],
            "seen_s": row["seen_s_ago"],
            "seats": row["held"],
            "waiting": waiting,
        }
        return
    before["seen_s"] = min(before["seen_s"], row["seen_s_ago"])
    before["seats"] += row["held"]
    before["waiting"] = [one + other for one, other in zip(before["waiting"], waiting, strict=False)]
