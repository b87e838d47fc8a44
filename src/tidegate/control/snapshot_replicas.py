"""What the dashboard shows of the gateways that share the pools: a row for each, all pools together. Pure."""

from __future__ import annotations

from typing import Any

from tidegate.control.history import shortened

Document = dict[str, Any]

MOST_ROWS = 64
MOST_NAMES = 3
LOST_S = 3.0
"""A gateway that was not heard of for so long counts as lost; a healthy one is heard of several times a second."""


def replicas_of(cluster: Document | None) -> Document | None:
    """Return the rows, this gateway's first and the others by name; ``None`` for a gateway that is alone.

    Args:
        cluster: how all gateways stand, as ``/admin/state`` says it. Of a store that does not answer there are no rows.
    """
    if cluster is None:
        return None
    own, found = (cluster["replica"], cluster["run"]), dict[tuple[str, str], Document]()
    for pool in cluster["pools"].values():
        for row in pool["replicas"]:
            _add(found, row)
    order = sorted(found, key=lambda key: (key != own, key))
    return {
        "own": cluster["replica"],
        "degraded": cluster["degraded"],
        "same_name": cluster["same_name"],
        "differs": [_differing(name, pool["differs"]) for name, pool in cluster["pools"].items() if pool["differs"]],
        "number": len(order),
        "rows": [_row(found[key], own=key == own) for key in order[:MOST_ROWS]],
    }


def _row(row: Document, *, own: bool) -> Document:
    return {**row, "own": own, "seen_s": shortened(row["seen_s"]), "lost": row["seen_s"] > LOST_S}


def _differing(pool: str, differs: Document) -> Document:
    """Say of a pool which of this gateway's backends are not dealt, which it lacks, and whose seats are others."""
    seats = [row["name"] for row in differs["seats"]]
    return {
        "pool": pool,
        "not_dealt": differs["not_dealt"][:MOST_NAMES],
        "unknown": differs["unknown"][:MOST_NAMES],
        "seats": seats[:MOST_NAMES],
    }


def _add(found: dict[tuple[str, str], Document], row: Document) -> None:
    """Add what a gateway has in one more pool; it was heard of when any pool heard of it."""
    waiting, key = list(row["waiting"]), (row["name"], row["run"])
    before = found.get(key)
    if before is None:
        found[key] = {
            "name": row["name"],
            "seen_s": row["seen_s_ago"],
            "seats": row["held"],
            "waiting": waiting,
            "same_name": row["same_name"],
            "differs": row["differs"],
        }
        return
    before["seen_s"] = min(before["seen_s"], row["seen_s_ago"])
    before["seats"] += row["held"]
    before["waiting"] = [one + other for one, other in zip(before["waiting"], waiting, strict=False)]
    before["same_name"] = before["same_name"] or row["same_name"]
    before["differs"] = before["differs"] or row["differs"]
