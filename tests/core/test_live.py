"""The table of live tickets: a mapping, spread over parts that grow at different times."""

from __future__ import annotations

from tidegate.core import Ticket
from tidegate.core.live import PARTS, Live
from tidegate.core.ordering import Entry
from tidegate.core.tenants import Tenants


def entry_of(ticket_id: str) -> Entry:
    return Entry(Ticket(ticket_id, "m", 0, "t"), Tenants(()).crowd, 0, 0.0, 0.0, 1.0)


def test_what_is_put_in_is_found_until_it_is_taken_out() -> None:
    live = Live()
    entries = {name: entry_of(name) for name in (f"r{number}" for number in range(200))}
    for name, entry in entries.items():
        assert name not in live
        live[name] = entry
    assert all(live.get(name) is entry for name, entry in entries.items())
    assert sorted(entry.ticket.id for entry in live.values()) == sorted(entries)
    del live["r7"]
    assert "r7" not in live
    assert live.get("r7") is None
    assert len(list(live.values())) == 199


def test_no_part_grows_to_hold_most_of_them() -> None:
    live = Live()
    for number in range(4_000):
        live[f"r{number}"] = entry_of("")
    largest = max(len(part) for part in live._parts)
    assert largest < 2 * 4_000 / PARTS
