"""The control store: changes, tenants and usage, the same on every database."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.stores import (
    HOUR_S,
    Conflict,
    KnobStore,
    NewChange,
    NotFound,
    StoredKey,
    StoredTenant,
    StoreError,
    Usage,
    UsageRow,
    open_job_store,
    open_knob_store,
)
from tidegate.stores.schema import migrations

NOW = 1_000_000.5
HOUR = 278 * HOUR_S
DAY_S = 24 * HOUR_S


def a_change(what: str = "mode", undoes: int | None = None) -> NewChange:
    return NewChange(NOW, "duty", "mode", [{"what": what, "from": {"a": [1, None]}, "to": "忙"}], undoes)


def listed(store: KnobStore, limit: int = 99, before: int | None = None) -> list[int]:
    return [change.id for change in store.changes(before=before, limit=limit)]


def used(store: KnobStore, **more: Any) -> list[UsageRow]:
    question: dict[str, Any] = {"from_utc": 0, "to_utc": 10**10, "period_s": None, "after": None, "limit": 99} | more
    return store.usage(**question)


# Changes


def test_changes_come_back_newest_first_and_in_pages(knobs: KnobStore) -> None:
    ids = [knobs.append(a_change(str(n)), keep=99) for n in range(5)]
    assert ids == sorted(ids)
    assert listed(knobs) == ids[::-1]
    assert listed(knobs, 2) == [ids[4], ids[3]]
    assert listed(knobs, 2, before=ids[3]) == [ids[2], ids[1]]
    assert listed(knobs, before=ids[0]) == []
    change = knobs.change(ids[2])
    assert (change.at_utc, change.who, change.action) == (NOW, "duty", "mode")
    assert change.changes == [{"what": "2", "from": {"a": [1, None]}, "to": "忙"}]


def test_only_the_last_changes_are_kept(knobs: KnobStore) -> None:
    ids = [knobs.append(a_change(), keep=3) for _ in range(5)]
    assert listed(knobs) == ids[:1:-1]
    with pytest.raises(NotFound):
        knobs.change(ids[0])


def test_what_was_taken_back_says_by_which_change(knobs: KnobStore) -> None:
    one, two = knobs.append(a_change(), keep=99), knobs.append(a_change(), keep=99)
    three = knobs.append(a_change(undoes=one), keep=99)
    assert [(c.id, c.undoes, c.undone_by) for c in knobs.changes(before=None, limit=9)] == [
        (three, one, None),
        (two, None, None),
        (one, None, three),
    ]
    four = knobs.append(a_change(undoes=one), keep=99)
    assert knobs.change(one).undone_by == four


# Tenants


def a_tenant(name: str = "shop", **more: Any) -> StoredTenant:
    return StoredTenant(name, **{"settings": {"band": "p1", "limits": {"max_queued": 3}}} | more)


def test_tenants_are_made_changed_and_taken_out(knobs: KnobStore) -> None:
    keys = (StoredKey("sha256:" + "a" * 64, NOW), StoredKey("sha256:" + "b" * 64, NOW, NOW + 60))
    knobs.save_tenant(a_tenant("z"), None, keep=9)
    knobs.save_tenant(a_tenant(keys=keys), None, keep=9)
    assert knobs.tenants() == [a_tenant(keys=keys, revision=1), a_tenant("z", revision=1)]
    knobs.save_tenant(a_tenant(settings={}, keys=keys[1:], revision=1), None, keep=9)
    assert knobs.tenants()[0] == StoredTenant("shop", {}, keys[1:], 2)
    knobs.drop_tenant("shop", 2, None, keep=9)
    assert [tenant.name for tenant in knobs.tenants()] == ["z"]


def test_a_tenant_and_its_record_are_written_together_or_not_at_all(knobs: KnobStore) -> None:
    made = knobs.save_tenant(a_tenant(), a_change("made"), keep=9)
    assert made == listed(knobs)[0]
    attempts: list[Callable[[], object]] = [
        lambda: knobs.save_tenant(a_tenant(), a_change("again"), keep=9),
        lambda: knobs.save_tenant(a_tenant(revision=7), a_change("late"), keep=9),
        lambda: knobs.save_tenant(a_tenant("nobody", revision=1), a_change("gone"), keep=9),
        lambda: knobs.drop_tenant("shop", 7, a_change("late"), keep=9),
        lambda: knobs.drop_tenant("nobody", 1, a_change("gone"), keep=9),
    ]
    for attempt in attempts:
        with pytest.raises(Conflict, match="expected tenant"):
            attempt()
    assert listed(knobs) == [made]
    assert knobs.tenants() == [a_tenant(revision=1)]
    assert knobs.drop_tenant("shop", 1, a_change("dropped"), keep=9) == listed(knobs)[0]


# Usage


def test_usage_adds_up(knobs: KnobStore) -> None:
    one = Usage(1, 2, 3, 4, 5, 6, 7, 8, 0.5, 0.25, {"shed": 2, "expired": 1})
    knobs.add_usage(HOUR, {"shop": one, "other": Usage(completed=1)})
    knobs.add_usage(HOUR, {"shop": Usage(completed=1, longest_wait_s=9.0, refusals={"shed": 1})})
    knobs.add_usage(HOUR + HOUR_S, {"shop": Usage(wait_s=1.5, longest_wait_s=1.0)})
    knobs.add_usage(HOUR, {})
    assert used(knobs, from_utc=HOUR) == [
        UsageRow(HOUR, "other", Usage(completed=1)),
        UsageRow(HOUR, "shop", Usage(2, 2, 3, 4, 5, 6, 7, 8, 2.0, 9.0, {"shed": 3, "expired": 1})),
    ]
    (row,) = used(knobs, from_utc=HOUR + HOUR_S)
    assert row == UsageRow(HOUR + HOUR_S, "shop", Usage(wait_s=1.5, longest_wait_s=1.0))
    assert used(knobs, to_utc=HOUR) == []


@pytest.mark.parametrize("period_s", [None, HOUR_S, DAY_S])
def test_pages_of_usage_are_the_whole_in_order(knobs: KnobStore, period_s: int | None) -> None:
    chance = random.Random(3)
    sums: dict[tuple[int, str], int] = {}
    first = HOUR // DAY_S * DAY_S
    for _ in range(60):
        hour, tenant = first + HOUR_S * chance.randrange(50), chance.choice("abcdeé-忙Z")
        knobs.add_usage(hour, {tenant: Usage(completed=1, refusals={"shed": 1})})
        start = first if period_s is None else hour // period_s * period_s
        sums[start, tenant] = sums.get((start, tenant), 0) + 1
    rows: list[UsageRow] = []
    while True:
        after = (rows[-1].start_utc, rows[-1].tenant) if rows else None
        page = used(knobs, from_utc=first, period_s=period_s, after=after, limit=4)
        rows += page
        if len(page) < 4:
            break
    assert [(row.start_utc, row.tenant) for row in rows] == sorted(sums)
    assert {(row.start_utc, row.tenant): row.usage.completed for row in rows} == sums
    assert {(row.start_utc, row.tenant): row.usage.refusals["shed"] for row in rows} == sums


def test_old_usage_is_forgotten_by_age_and_by_number(knobs: KnobStore) -> None:
    for number in range(6):
        tenants = {f"t{n}": Usage(completed=1, refusals={"shed": 1}) for n in range(3)}
        knobs.add_usage(HOUR + number * HOUR_S, tenants)
    assert knobs.forget_usage(HOUR, most_rows=100) == 0
    assert knobs.forget_usage(HOUR + 2 * HOUR_S, most_rows=100) == 6
    assert knobs.forget_usage(HOUR + 2 * HOUR_S, most_rows=100) == 6
    assert knobs.forget_usage(HOUR + 2 * HOUR_S, most_rows=100) == 0
    assert {row.start_utc for row in used(knobs, period_s=HOUR_S)} == {HOUR + n * HOUR_S for n in range(2, 6)}
    while knobs.forget_usage(0, most_rows=7):
        pass
    rows = used(knobs, period_s=HOUR_S)
    assert [row.start_utc for row in rows] == [HOUR + 4 * HOUR_S] * 3 + [HOUR + 5 * HOUR_S] * 3
    assert all(row.usage.refusals == {"shed": 1} for row in rows)


# Durability


def test_everything_is_there_when_it_is_opened_again_and_for_others(knob_place: Any) -> None:
    store = knob_place.open()
    number = store.append(a_change(), keep=9)
    store.save_tenant(a_tenant(), a_change(), keep=9)
    store.add_usage(HOUR, {"shop": Usage(completed=3)})
    again = knob_place.open()
    assert again.change(number) == store.change(number)
    assert again.tenants() == store.tenants()
    assert used(again) == used(store)
    again.add_usage(HOUR, {"shop": Usage(completed=4)})
    assert used(store)[0].usage.completed == 7


KILLED = """
import os, signal, sys
from tidegate.stores import NewChange, open_knob_store
store = open_knob_store(sys.argv[1])
number = store.append(NewChange(1.0, "duty", "mode", []), keep=9)
sys.stdout.write(str(number)); sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_change_survives_the_process_that_wrote_it(knob_place: Any) -> None:
    knob_place.open()
    done = subprocess.run([sys.executable, "-c", KILLED, knob_place.url], capture_output=True, text=True, timeout=40)
    assert done.returncode == -9, done.stderr
    assert knob_place.open().change(int(done.stdout)).who == "duty"


def test_it_may_share_a_database_with_the_job_store(knob_place: Any) -> None:
    jobs = open_job_store(knob_place.url)
    store = knob_place.open()
    store.append(a_change(), keep=9)
    assert jobs.list_files(tenant=None) == []
    jobs.close()
    open_job_store(knob_place.url).close()


def test_a_store_of_a_later_version_is_refused(knob_place: Any) -> None:
    knob_place.open()._db.execute("UPDATE knob_schema SET version = 999")
    with pytest.raises(StoreError, match=r"control\.store has schema version 999"):
        knob_place.open()


def test_a_released_migration_is_never_edited() -> None:
    texts = migrations("knob_migrations")
    assert [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts] == ["104de4065151f121"]


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:///", "sqlite:////no/such/folder/x.db"])
def test_what_is_no_store_is_refused_by_the_settings_name(url: str) -> None:
    with pytest.raises(StoreError, match=r"^control\.store"):
        open_knob_store(url)
