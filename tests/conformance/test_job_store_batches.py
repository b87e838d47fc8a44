"""Batches: accepted, validated, stopped, assembled, and ended exactly once."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tidegate.stores import (
    BatchFault,
    BatchState,
    Bury,
    Conflict,
    Duplicate,
    GiveBack,
    JobStore,
    NewRow,
    NotFound,
    Order,
    RecordKind,
    Retry,
    RowState,
    Verdict,
)
from tidegate.testing.jobs import (
    LEASE_S,
    NOW,
    OWNER,
    a_batch,
    a_file,
    answered,
    assembling,
    created,
    ended,
    leased,
    some_rows,
    started,
    validating,
)


def test_a_batch_is_kept_as_it_was_created(store: JobStore) -> None:
    store.add_file(a_file())
    wanted = dataclasses.replace(a_batch(), metadata={"ключ": "值\x00", "band": "p1"})
    batch = store.create_batch(wanted)
    assert batch.metadata == wanted.metadata
    assert (batch.state, batch.total, batch.errors) == (BatchState.VALIDATING, 0, ())
    assert (batch.created_at_utc, batch.expires_at_utc) == (wanted.created_at_utc, wanted.expires_at_utc)
    assert store.get_batch("batch-1", tenant="acme") == batch
    assert store.create_batch(wanted) == batch, "repeated"
    assert store.list_batches(tenant=None) == [batch]


@pytest.mark.parametrize("batch_id", ["batch-1", "no-such-batch", "\x00", "\ud800"])
def test_nobody_sees_or_stops_a_batch_that_is_not_theirs(store: JobStore, batch_id: str) -> None:
    batch = created(store)
    with pytest.raises(NotFound):
        store.get_batch(batch_id, tenant="other")
    with pytest.raises(NotFound):
        store.cancel_batch(batch_id, tenant="other", now_utc=NOW)
    with pytest.raises(NotFound):
        store.list_batches(tenant="other", after=batch_id)
    with pytest.raises(NotFound):
        store.create_batch(a_batch("batch-2", tenant="other", file_id="input-of-batch-1"))
    assert store.list_batches(tenant="other") == []
    assert store.list_batches(tenant="acme") == [batch]


def test_batches_are_listed_in_pages(store: JobStore) -> None:
    for number in range(5):
        created(store, f"b{number}")
    first = store.list_batches(tenant="acme", limit=3)
    assert [batch.id for batch in first] == ["b4", "b3", "b2"]
    assert [batch.id for batch in store.list_batches(tenant="acme", after="b2", limit=3)] == ["b1", "b0"]
    oldest = store.list_batches(tenant=None, after="b0", limit=1, order=Order.OLDEST_FIRST)
    assert [batch.id for batch in oldest] == ["b1"]


def test_one_claim_on_one_batch_and_the_oldest_first(store: JobStore) -> None:
    created(store, "b1")
    created(store, "b2")
    claims = [validating(store), validating(store)]
    assert [claim.batch.id for claim in claims] == ["b1", "b2"]
    assert store.claim_validation("other", now_utc=NOW, until_utc=NOW + 9) is None


def test_an_import_goes_on_where_the_last_one_stopped(store: JobStore) -> None:
    created(store)
    lost = validating(store)
    assert (lost.next_line, lost.next_offset) == (1, 0)
    store.add_rows(lost, some_rows(3), next_line=4, next_offset=300)
    claim = store.claim_validation("other", now_utc=NOW + LEASE_S, until_utc=NOW + 2 * LEASE_S)
    assert claim is not None
    assert (claim.next_line, claim.next_offset) == (4, 300)
    with pytest.raises(Conflict):
        store.add_rows(lost, some_rows(1, first=4), next_line=5, next_offset=400)
    store.add_rows(claim, some_rows(1, first=5), next_line=6, next_offset=500)  # line 4 is empty
    store.add_rows(claim, some_rows(1, first=5), next_line=6, next_offset=500)  # repeated: its answer was lost
    batch = store.start_batch(claim, now_utc=NOW)
    assert batch.total == 4
    assert store.start_batch(claim, now_utc=NOW + 9) == batch, "repeated"
    with pytest.raises(Conflict):
        store.start_batch(lost, now_utc=NOW)
    with pytest.raises(Conflict):
        store.fail_batch(claim, [], now_utc=NOW)
    rows = leased(store, 9)
    assert [(row.line, row.custom_id, row.offset, row.length) for row in rows] == [
        (line, f"request-{line}", (line - 1) * 100, 100) for line in (1, 2, 3, 5)
    ]


def test_a_custom_id_that_was_used_before_is_found_with_both_lines(store: JobStore) -> None:
    names = ["a", "b", "A", "a", "é", "b", "a", "ｅ", "e\u0301", " a"]
    created(store)
    claim = validating(store)
    rows = [NewRow(line, name, 0, 1) for line, name in enumerate(names, 1)]
    store.add_rows(claim, rows[:5], next_line=6, next_offset=5)
    store.add_rows(claim, rows[5:], next_line=11, next_offset=10)
    assert store.find_duplicates(claim) == [Duplicate("a", 1, 4), Duplicate("b", 2, 6), Duplicate("a", 1, 7)]
    assert store.find_duplicates(claim, limit=1) == [Duplicate("a", 1, 4)]


def test_the_same_custom_id_in_another_batch_is_no_duplicate(store: JobStore) -> None:
    started(store, 3, "b1")
    created(store, "b2")
    claim = validating(store)
    store.add_rows(claim, some_rows(3), next_line=4, next_offset=300)
    assert store.find_duplicates(claim) == []


def test_a_custom_id_with_nul_is_refused_and_the_group_with_it(store: JobStore) -> None:
    created(store)
    claim = validating(store)
    with pytest.raises(ValueError, match="NUL"):
        store.add_rows(claim, [NewRow(1, "fine", 0, 1), NewRow(2, "a\x00", 1, 1)], next_line=3, next_offset=2)
    with pytest.raises(ValueError, match="surrogate"):
        store.add_rows(claim, [NewRow(1, "fine", 0, 1), NewRow(2, "a\udcff", 1, 1)], next_line=3, next_offset=2)
    assert store.start_batch(claim, now_utc=NOW).total == 0


def test_validation_that_fails_ends_the_batch_with_its_reasons(store: JobStore) -> None:
    created(store)
    claim = validating(store)
    store.add_rows(claim, some_rows(3), next_line=4, next_offset=300)
    faults = [
        BatchFault(code="invalid_json", message="line 4: \x00", line=4),
        BatchFault(code="c", message="m", param="p"),
    ]
    batch = store.fail_batch(claim, faults, now_utc=NOW + 1)
    assert batch.state is BatchState.FAILED
    assert batch.ended_at_utc == NOW + 1
    assert batch.errors == (dataclasses.replace(faults[0], message="line 4: \ufffd"), faults[1])
    assert store.fail_batch(claim, faults, now_utc=NOW + 9) == batch, "repeated"
    assert (leased(store, 9), assembling(store), store.work(NOW)) == ([], None, [])
    with pytest.raises(Conflict):
        store.start_batch(claim, now_utc=NOW)


def test_a_batch_cancelled_in_validation_has_ended_and_its_importer_is_told(store: JobStore) -> None:
    created(store)
    claim = validating(store)
    store.add_rows(claim, some_rows(3), next_line=4, next_offset=300)
    batch = store.cancel_batch("batch-1", tenant="acme", now_utc=NOW + 1)
    assert (batch.state, batch.cancelling_at_utc, batch.ended_at_utc) == (BatchState.CANCELLED, NOW + 1, NOW + 1)
    with pytest.raises(Conflict):
        store.add_rows(claim, some_rows(1, first=4), next_line=5, next_offset=400)
    with pytest.raises(Conflict):
        store.start_batch(claim, now_utc=NOW)
    assert assembling(store) is None


def test_all_rows_answered_complete_the_batch(store: JobStore) -> None:
    started(store, 5)
    rows = leased(store, 5)
    failed = answered(rows[1], state=RowState.FAILED)
    settled = store.settle([answered(rows[0]), failed, *map(answered, rows[2:])], now_utc=NOW + 1)
    assert (settled.accepted, settled.stale, settled.left) == (5, (), ("batch-1",))
    batch = store.get_batch("batch-1", tenant=None)
    assert (batch.state, batch.finalizing_at_utc) == (BatchState.FINALIZING, NOW + 1)
    batch, records = ended(store, now=NOW + 2)
    assert (batch.state, batch.total, batch.completed, batch.failed) == (BatchState.COMPLETED, 5, 4, 1)
    assert (batch.in_progress_at_utc, batch.ended_at_utc) == (NOW, NOW + 2)
    assert [record.line for record in records] == [1, 2, 3, 4, 5]
    assert [record.kind for record in records].index(RecordKind.FAILED) == 1
    assert [record.answer for record in records] == [answered(row).answer for row in rows]
    assert {file.id for file in store.list_files(tenant="acme", purpose="batch_output")} == {
        batch.output_file_id,
        batch.error_file_id,
    }


def test_an_empty_batch_goes_straight_to_assembly(store: JobStore) -> None:
    assert started(store, 0).state is BatchState.FINALIZING
    batch, records = ended(store)
    assert (batch.state, records) == (BatchState.COMPLETED, [])


def test_a_long_batch_of_long_answers_is_read_in_order_and_whole(store: JobStore) -> None:
    count = 700
    started(store, count)
    rows = leased(store, count)
    long = {3: 6 * 2**20, 40: 2**20, 699: 1}
    finishes = [answered(row) for row in rows]
    for line, size in long.items():
        answer = dataclasses.replace(finishes[line - 1].answer, body=bytes(range(256)) * (size // 256))
        finishes[line - 1] = dataclasses.replace(finishes[line - 1], answer=answer)
    store.settle(finishes, now_utc=NOW)
    _, records = ended(store)
    assert [record.line for record in records] == list(range(1, count + 1))
    assert [record.answer for record in records] == [finish.answer for finish in finishes]


def test_cancelling_keeps_what_is_done_and_sends_nothing_more(store: JobStore) -> None:
    started(store, 10)
    rows = leased(store, 4)
    store.settle([answered(rows[0])], now_utc=NOW)
    batch = store.cancel_batch("batch-1", tenant="acme", now_utc=NOW + 1)
    assert (batch.state, batch.cancelling_at_utc) == (BatchState.CANCELLING, NOW + 1)
    again = store.cancel_batch("batch-1", tenant="acme", now_utc=NOW + 2)
    assert again == batch
    assert (leased(store, 9), store.work(NOW), assembling(store)) == ([], [], None)
    verdicts: list[Verdict] = [answered(rows[1]), GiveBack(rows[2], NOW), Retry(rows[3], NOW)]
    settled = store.settle(verdicts, now_utc=NOW + 3)
    assert (settled.accepted, settled.left) == (3, ("batch-1",))
    assert leased(store, 9, now=NOW + 9) == []
    batch, records = ended(store)
    assert (batch.state, batch.completed, batch.failed) == (BatchState.CANCELLED, 2, 0)
    assert [record.kind for record in records] == 2 * [RecordKind.COMPLETED] + 8 * [RecordKind.CANCELLED]
    assert store.cancel_batch("batch-1", tenant="acme", now_utc=NOW + 9) == batch


def test_a_window_that_ends_expires_what_is_not_done(store: JobStore) -> None:
    started(store, 4, "late", window_s=5)
    started(store, 4, "early")
    rows = leased(store, 2, "late")
    assert store.expire_batches(NOW + 4.9) == []
    (batch,) = store.expire_batches(NOW + 5)
    assert (batch.id, batch.state, batch.finalizing_at_utc) == ("late", BatchState.FINALIZING, NOW + 5)
    assert store.expire_batches(NOW + 6) == []
    assert (leased(store, 9, "late"), assembling(store)) == ([], None)
    assert store.cancel_batch("late", tenant=None, now_utc=NOW + 6).state is BatchState.FINALIZING
    settled = store.settle([answered(rows[0]), GiveBack(rows[1], NOW)], now_utc=NOW + 6)
    assert settled.left == ("late",)
    batch, records = ended(store)
    assert (batch.state, batch.completed) == (BatchState.EXPIRED, 1)
    assert Counter(record.kind for record in records) == {RecordKind.COMPLETED: 1, RecordKind.EXPIRED: 3}
    assert len(leased(store, 9, "early")) == 4


def test_an_assembly_cut_short_is_repeated_under_the_same_names(store: JobStore) -> None:
    started(store, 2)
    store.settle([answered(row) for row in leased(store, 2)], now_utc=NOW)
    lost = assembling(store, names="first")
    assert lost is not None
    assert assembling(store, names="second") is None
    claim = assembling(store, now=NOW + LEASE_S, names="second")
    assert claim is not None
    assert (claim.output_file_id, claim.error_file_id) == ("out-first", "err-first")
    output = a_file("out-first", purpose="batch_output")
    with pytest.raises(Conflict):
        store.finish_batch(lost, output=output, errors=None, now_utc=NOW)
    with pytest.raises(Conflict):
        list(store.records(lost))
    with pytest.raises(Conflict):
        store.finish_batch(claim, output=a_file("out-second"), errors=None, now_utc=NOW)
    batch = store.finish_batch(claim, output=output, errors=None, now_utc=NOW + LEASE_S)
    assert (batch.state, batch.output_file_id, batch.error_file_id) == (BatchState.COMPLETED, "out-first", None)
    assert store.finish_batch(claim, output=output, errors=None, now_utc=NOW + 999) == batch, "repeated"
    assert store.list_files(tenant="acme", purpose="batch_output") == [output]
    assert assembling(store, now=NOW + 9 * LEASE_S) is None


def test_a_claim_that_is_renewed_is_not_lost(store: JobStore) -> None:
    created(store)
    claim = validating(store)
    assert store.renew([claim.token, 12345], until_utc=NOW + 5 * LEASE_S) == {claim.token}
    assert store.renew([claim.token], until_utc=NOW) == {claim.token}, "never shorter"
    assert store.claim_validation("other", now_utc=NOW + 4 * LEASE_S, until_utc=NOW + 9 * LEASE_S) is None
    assert store.claim_validation("other", now_utc=NOW + 5 * LEASE_S, until_utc=NOW + 9 * LEASE_S) is not None
    assert store.renew([claim.token], until_utc=NOW + 9 * LEASE_S) == frozenset()


def test_the_claims_of_an_owner_that_is_gone_are_free_at_once(store: JobStore) -> None:
    created(store, "b1")
    lost = validating(store)
    assert store.owners() == {OWNER: NOW + LEASE_S}
    store.release_owner(OWNER, now_utc=NOW)
    assert store.owners() == {}
    with pytest.raises(Conflict):
        store.start_batch(lost, now_utc=NOW)
    assert store.claim_validation("other", now_utc=NOW, until_utc=NOW + 9) is not None


def test_dead_letters_become_failures_when_the_batch_ends(store: JobStore) -> None:
    started(store, 2)
    first, second = leased(store, 2)
    store.settle([Bury(first, answered(first).answer)], now_utc=NOW)
    batch = store.get_batch("batch-1", tenant=None)
    assert (batch.state, batch.dead, batch.failed) == (BatchState.IN_PROGRESS, 1, 0)
    assert store.settle([answered(second)], now_utc=NOW).left == ("batch-1",)
    batch, records = ended(store)
    assert (batch.state, batch.dead, batch.failed, batch.completed) == (BatchState.COMPLETED, 0, 1, 1)
    assert [record.kind for record in records] == [RecordKind.DEAD, RecordKind.COMPLETED]
