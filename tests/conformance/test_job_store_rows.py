"""Rows: leased once at a time, settled once in all, and never left behind."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tidegate.stores import (
    Answer,
    BatchState,
    Bury,
    Conflict,
    Finish,
    GiveBack,
    JobStore,
    NotFound,
    RecordKind,
    Retry,
    RowState,
)
from tidegate.testing.jobs import LEASE_S, NOW, OWNER, answered, ended, leased, started


def test_rows_are_leased_in_order_and_once(store: JobStore) -> None:
    started(store, 5)
    first, second, third = leased(store, 3), leased(store, 3), leased(store, 3)
    assert [row.line for row in first + second + third] == [1, 2, 3, 4, 5]
    assert third == []
    assert {row.token for row in first} != {row.token for row in second}
    assert len({row.token for row in first}) == 1
    with pytest.raises(NotFound):
        leased(store, 1, "no-such-batch")


@pytest.mark.parametrize("count", [0, -1])
def test_no_rows_are_leased_when_none_are_asked_for(store: JobStore, count: int) -> None:
    started(store, 2)
    assert leased(store, count) == []
    assert len(leased(store, 9)) == 2


def test_a_second_verdict_changes_nothing(store: JobStore) -> None:
    started(store, 3)
    one, two, _ = leased(store, 3)
    lie = Finish(one, RowState.FAILED, Answer(code="late"))
    settled = store.settle([answered(one), lie, answered(two)], now_utc=NOW)
    assert (settled.accepted, settled.stale, settled.left) == (2, (one,), ())
    for verdict in (lie, GiveBack(one, NOW), Retry(one, NOW), Bury(one, Answer(code="late"))):
        settled = store.settle([verdict], now_utc=NOW)
        assert (settled.accepted, settled.stale) == (0, (one,))
    batch = store.get_batch("batch-1", tenant=None)
    assert (batch.completed, batch.failed, batch.dead) == (2, 0, 0)
    store.cancel_batch("batch-1", tenant=None, now_utc=NOW)
    store.release_owner(OWNER, now_utc=NOW)
    _, records = ended(store)
    assert records[0].answer == answered(one).answer


def test_an_answer_is_kept_as_it_came(store: JobStore) -> None:
    started(store, 2)
    one, two = leased(store, 2)
    body = bytes(range(256)) * 5000
    store.settle(
        [
            Finish(one, RowState.COMPLETED, Answer(status=200, request_id="r\x00", body=body)),
            Finish(two, RowState.FAILED, Answer(code="bad_request", message="无效 '\"")),
        ],
        now_utc=NOW,
    )
    _, (first, second) = ended(store)
    assert first.answer == Answer(status=200, request_id="r\ufffd", body=body)
    assert second.answer == Answer(code="bad_request", message="无效 '\"")


def test_returned_rows_wait_for_their_time_and_count_their_way(store: JobStore) -> None:
    started(store, 2)
    one, two = leased(store, 2)
    assert (one.attempts, one.returns) == (0, 0)
    store.settle([GiveBack(one, NOW + 20, "429"), Retry(two, NOW + 10, "500")], now_utc=NOW)
    assert leased(store, 9, now=NOW + 9.9) == []
    (work,) = store.work(NOW + 9.9)
    assert (work.fresh, work.due, work.leased, work.next_due_at_utc) == (0, 0, 0, NOW + 10)
    (work,) = store.work(NOW + 10)
    assert (work.due, work.next_due_at_utc) == (1, NOW + 20)
    (again,) = leased(store, 9, now=NOW + 10)
    assert (again.line, again.attempts, again.returns) == (2, 1, 0)
    store.settle([GiveBack(again, NOW + 20)], now_utc=NOW + 10)
    rows = leased(store, 9, now=NOW + 20)
    assert [(row.line, row.attempts, row.returns) for row in rows] == [(1, 0, 1), (2, 1, 1)]


@pytest.mark.parametrize(("count", "wanted"), [(4, [[7, 8, 1, 2], [9, 10, 3, 4], [11, 12, 5, 6], [13, 14, 15, 16]])])
def test_returned_rows_get_half_while_fresh_ones_wait(store: JobStore, count: int, wanted: list[list[int]]) -> None:
    started(store, 16)
    store.settle([GiveBack(row, NOW + row.line) for row in leased(store, 6)], now_utc=NOW)
    assert [[row.line for row in leased(store, count, now=NOW + 9)] for _ in wanted] == wanted


def test_groups_of_one_take_turns(store: JobStore) -> None:
    started(store, 6)
    store.settle([GiveBack(row, NOW) for row in leased(store, 3)], now_utc=NOW)
    lines = [leased(store, 1)[0].line for _ in range(6)]
    assert lines in ([4, 1, 5, 2, 6, 3], [1, 4, 2, 5, 3, 6])


def test_rows_that_wait_long_can_be_brought_forward(store: JobStore) -> None:
    """As when they were given back by a clock that has been set back since."""
    started(store, 3)
    for row, wait_s in zip(leased(store, 3), (30, 91, 3600), strict=True):
        store.settle([GiveBack(row, NOW + wait_s)], now_utc=NOW)
    assert store.bring_forward(NOW, most_s=90) == 2
    assert sorted(row.line for row in leased(store, 9)) == [2, 3]
    assert store.bring_forward(NOW, most_s=90) == 0
    assert [row.line for row in leased(store, 9, now=NOW + 30)] == [1]


def test_who_shares_a_store_has_one_clock(store: JobStore) -> None:
    utc = store.utc()
    assert utc is None or abs(utc - time.time()) < 60


def test_a_lost_lease_returns_its_rows_without_an_attempt(store: JobStore) -> None:
    started(store, 4)
    rows = leased(store, 3)
    store.settle([answered(rows[1])], now_utc=NOW)
    assert store.reap(NOW + LEASE_S - 0.1) == 0
    assert store.reap(NOW + LEASE_S) == 2
    assert store.reap(NOW + LEASE_S) == 0
    again = leased(store, 9, now=NOW + LEASE_S)
    assert sorted((row.line, row.attempts, row.returns) for row in again) == [(1, 0, 1), (3, 0, 1), (4, 0, 0)]
    late = store.settle([answered(rows[0])], now_utc=NOW + LEASE_S)
    assert (late.accepted, late.stale) == (0, (rows[0],))
    assert store.settle([answered(row) for row in again], now_utc=NOW).left == ("batch-1",)
    assert store.get_batch("batch-1", tenant=None).completed == 4


def test_renewed_leases_last_and_lost_ones_are_told(store: JobStore) -> None:
    started(store, 4)
    (one,), (two,), (three,) = leased(store, 1), leased(store, 1), leased(store, 1)
    store.settle([answered(three)], now_utc=NOW)
    assert store.renew([one.token, three.token], until_utc=NOW + 3 * LEASE_S) == {one.token}
    assert store.renew([one.token], until_utc=NOW) == {one.token}, "never shorter"
    assert store.renew([], until_utc=NOW) == frozenset()
    assert store.reap(NOW + 2 * LEASE_S) == 1
    assert store.renew([one.token, two.token], until_utc=NOW + 3 * LEASE_S) == {one.token}
    assert store.settle([answered(one)], now_utc=NOW).accepted == 1


def test_the_rows_of_an_owner_that_is_gone_return_at_once(store: JobStore) -> None:
    started(store, 3, "b1")
    started(store, 3, "b2")
    gone = leased(store, 2, "b1", owner="gone") + leased(store, 1, "b2", owner="gone")
    mine = leased(store, 1, "b1")
    assert store.owners() == {"gone": NOW + LEASE_S, OWNER: NOW + LEASE_S}
    assert store.release_owner("gone", now_utc=NOW) == 3
    assert store.owners() == {OWNER: NOW + LEASE_S}
    assert store.settle([answered(row) for row in gone + mine], now_utc=NOW).stale == tuple(gone)
    assert [row.line for row in leased(store, 9, "b1")] == [1, 2]


def test_a_lease_lost_while_cancelling_lets_the_batch_end(store: JobStore) -> None:
    started(store, 3)
    leased(store, 2)
    store.cancel_batch("batch-1", tenant=None, now_utc=NOW)
    assert store.reap(NOW + LEASE_S) == 2
    batch, records = ended(store)
    assert (batch.state, len(records)) == (BatchState.CANCELLED, 3)


def test_work_is_listed_by_deadline(store: JobStore) -> None:
    started(store, 5, "late", window_s=100)
    started(store, 5, "early", window_s=50, tenant="other")
    started(store, 1, "done")
    store.settle([answered(row) for row in leased(store, 1, "done")], now_utc=NOW)
    leased(store, 2, "late")
    early, late = store.work(NOW)
    assert (early.batch_id, early.tenant, early.fresh, early.leased) == ("early", "other", 5, 0)
    assert (late.batch_id, late.band, late.fresh, late.leased) == ("late", "p2", 3, 2)
    assert (early.input_file_id, early.expires_at_utc) == ("input-of-early", NOW + 50)


def test_one_commit_settles_rows_of_many_batches(store: JobStore) -> None:
    for name in ("b3", "b1", "b2"):
        started(store, 2, name)
    rows = [row for name in ("b1", "b2", "b3") for row in leased(store, 2, name)]
    settled = store.settle([answered(row) for row in rows[1:]], now_utc=NOW)
    assert (settled.accepted, settled.stale) == (5, ())
    assert set(settled.left) == {"b2", "b3"}
    assert store.settle([], now_utc=NOW).accepted == 0


def test_verdicts_on_a_forgotten_batch_are_stale(store: JobStore) -> None:
    started(store, 1)
    (row,) = leased(store, 1)
    store.cancel_batch("batch-1", tenant=None, now_utc=NOW)
    store.reap(NOW + LEASE_S)
    ended(store)
    while store.sweep(ended_before_utc=NOW + 999):
        pass
    assert store.settle([answered(row)], now_utc=NOW).stale == (row,)


def test_dead_letters_are_listed_with_their_last_error(store: JobStore) -> None:
    for name, tenant in (("b1", "acme"), ("b2", "other")):
        started(store, 3, name, tenant=tenant)
        for row in leased(store, 3, name):
            store.settle([Retry(row, NOW)], now_utc=NOW)
        rows = leased(store, 3, name)
        store.settle(
            [Bury(row, Answer(status=500, body=b"oops", message=row.custom_id)) for row in rows], now_utc=NOW + 7
        )
    letters = store.dead_letters()
    assert [(letter.batch_id, letter.line) for letter in letters] == [(b, n) for b in ("b1", "b2") for n in (1, 2, 3)]
    letter = letters[3]
    assert (letter.tenant, letter.custom_id, letter.attempts, letter.died_at_utc) == ("other", "request-1", 1, NOW + 7)
    assert letter.answer == Answer(status=500, body=b"oops", message="request-1")
    assert store.dead_letters(tenant="other") == letters[3:]
    assert store.dead_letters(batch_id="b1") == letters[:3]
    assert store.dead_letters(after=("b1", 2), limit=2) == letters[2:4]
    with pytest.raises(NotFound):
        store.dead_letters(batch_id="b1", tenant="other")


def test_an_overview_tells_of_unended_batches_and_dead_letters(store: JobStore) -> None:
    assert (store.overview().batches, store.overview().unended, store.overview().dead) == ((), 0, 0)
    for number in range(3):
        started(store, 2, f"b{number}")
    (row,) = leased(store, 1, "b1")
    store.settle([Bury(row, Answer(code="late"))], now_utc=NOW)
    store.cancel_batch("b0", tenant=None, now_utc=NOW)
    ended(store)
    found = store.overview(limit=1)
    assert ([batch.id for batch in found.batches], found.unended, found.dead) == (["b1"], 2, 1)
    assert (found.batches[0].total, found.batches[0].dead) == (2, 1)


def test_redriven_while_in_progress_a_row_is_one_of_its_batch_again(store: JobStore) -> None:
    started(store, 3)
    for row in leased(store, 2):
        store.settle([GiveBack(row, NOW)], now_utc=NOW)
    rows = store.lease("batch-1", 4, owner=OWNER, now_utc=NOW, until_utc=NOW)
    (third,) = [row for row in rows if row.line == 3]
    rows = [row for row in rows if row.line != 3]
    store.settle([GiveBack(third, NOW), *(Bury(row, Answer(code="x")) for row in rows)], now_utc=NOW)
    with pytest.raises(NotFound):
        store.redrive("batch-1", [3], now_utc=NOW, new_batch_id="unused", window_s=1)
    redriven = store.redrive("batch-1", [2, 3], now_utc=NOW, new_batch_id="unused", window_s=1)
    assert (redriven.batch_id, redriven.rows) == ("batch-1", 1)
    assert [letter.line for letter in store.dead_letters()] == [1]
    again = leased(store, 9)
    assert sorted((row.line, row.attempts, row.returns) for row in again) == [(2, 0, 0), (3, 0, 1)]
    assert store.settle([answered(row) for row in again], now_utc=NOW).left == ("batch-1",)
    batch, records = ended(store)
    assert (batch.completed, batch.failed) == (2, 1)
    assert len(records) == 3
    assert records[1].answer == answered(rows[1]).answer


def test_redriven_after_the_end_rows_go_into_a_new_batch(store: JobStore) -> None:
    started(store, 3)
    rows = leased(store, 3)
    store.settle([answered(rows[0]), *(Bury(row, Answer(code="x")) for row in rows[1:])], now_utc=NOW)
    with pytest.raises(Conflict):
        store.redrive("batch-1", None, now_utc=NOW, new_batch_id="again", window_s=60)
    old, _ = ended(store)
    while store.sweep(ended_before_utc=0):
        pass
    assert [letter.line for letter in store.dead_letters()] == [2, 3]
    redriven = store.redrive("batch-1", None, now_utc=NOW, new_batch_id="again", window_s=60)
    assert (redriven.batch_id, redriven.rows, store.dead_letters()) == ("again", 2, [])
    assert store.redrive("batch-1", None, now_utc=NOW, new_batch_id="again", window_s=60) == redriven, "repeated"
    assert store.get_batch("batch-1", tenant=None) == old
    new = store.get_batch("again", tenant="acme")
    assert (new.state, new.total, new.redrive_of, new.expires_at_utc) == (
        BatchState.IN_PROGRESS,
        2,
        "batch-1",
        NOW + 60,
    )
    again = leased(store, 9, "again")
    assert [(row.line, row.custom_id, row.offset) for row in again] == [(2, "request-2", 100), (3, "request-3", 200)]
    store.settle([answered(row) for row in again], now_utc=NOW)
    batch, records = ended(store)
    assert (batch.completed, [record.line for record in records]) == (2, [2, 3])


def test_a_dead_letter_without_its_input_cannot_be_redriven(store: JobStore) -> None:
    started(store, 1)
    store.settle([Bury(row, Answer(code="x")) for row in leased(store, 1)], now_utc=NOW)
    ended(store)
    store.delete_file("input-of-batch-1", tenant="acme")
    with pytest.raises(Conflict):
        store.redrive("batch-1", None, now_utc=NOW, new_batch_id="again", window_s=60)
    assert store.discard("batch-1", [1]) == 1
    assert store.dead_letters() == []


def test_a_discarded_dead_letter_stays_a_failure(store: JobStore) -> None:
    started(store, 3)
    rows = leased(store, 2)
    store.settle([Bury(row, Answer(code="x")) for row in rows], now_utc=NOW)
    assert store.discard("batch-1", [1]) == 1
    batch = store.get_batch("batch-1", tenant=None)
    assert (batch.dead, batch.failed) == (1, 1)
    with pytest.raises(NotFound):
        store.discard("batch-1", [1])
    with pytest.raises(NotFound):
        store.discard("batch-2", None)
    store.settle([answered(row) for row in leased(store, 9)], now_utc=NOW)
    batch, records = ended(store)
    assert (batch.failed, batch.completed, len(records)) == (2, 1, 3)
    assert (records[0].kind, records[0].answer) == (RecordKind.FAILED, Answer(code="x"))
    assert (records[1].kind, records[1].answer) == (RecordKind.DEAD, Answer(code="x"))


def test_buried_while_cancelling_a_row_is_a_failure(store: JobStore) -> None:
    started(store, 2)
    (row,) = leased(store, 1)
    store.cancel_batch("batch-1", tenant=None, now_utc=NOW)
    assert store.settle([Bury(row, Answer(code="x"))], now_utc=NOW).left == ("batch-1",)
    batch, _ = ended(store)
    assert (batch.state, batch.failed, batch.dead) == (BatchState.CANCELLED, 1, 0)


def test_sweeping_takes_rows_in_steps_then_batches_but_keeps_dead_letters(store: JobStore) -> None:
    started(store, 20, "old")
    started(store, 3, "running")
    rows = leased(store, 20, "old")
    store.settle([answered(row) for row in rows[1:]], now_utc=NOW)
    store.settle([Bury(rows[0], Answer(code="x"))], now_utc=NOW)
    ended(store, now=NOW)
    steps = []
    while done := store.sweep(ended_before_utc=NOW, limit=8):
        steps.append(done)
    assert len(steps) >= 3
    assert len(store.dead_letters()) == 1
    assert store.get_batch("old", tenant=None).completed == 19
    while store.sweep(ended_before_utc=NOW + 1, limit=8):
        pass
    assert store.dead_letters() == []
    assert [batch.id for batch in store.list_batches(tenant=None)] == ["running"]
    assert len(leased(store, 9, "running")) == 3


@pytest.mark.parametrize("again", [True, False])
def test_letters_that_are_dealt_with_leave_nothing_behind(place: Any, again: bool) -> None:
    store = place.open()
    started(store, 2)
    store.settle([Bury(row, Answer(code="x")) for row in leased(store, 2)], now_utc=NOW)
    ended(store)
    while store.sweep(ended_before_utc=0):
        pass
    assert store._db.execute("SELECT COUNT(*) FROM rows") == [(2,)]
    if again:
        store.redrive("batch-1", None, now_utc=NOW, new_batch_id="again", window_s=60)
        store.settle([answered(row) for row in leased(store, 2, "again")], now_utc=NOW)
        ended(store)
    else:
        store.discard("batch-1", None)
    while store.sweep(ended_before_utc=0):
        pass
    for table in ("rows", "answers", "waiting", "leases", "dead_letters"):
        assert store._db.execute(f"SELECT COUNT(*) FROM {table}") == [(0,)], table
