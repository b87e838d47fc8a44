"""Files: one tenant never sees another's, pages are stable, inputs in use stay."""

from __future__ import annotations

import dataclasses

import pytest

from tidegate.stores import BatchFault, Conflict, JobStore, NotFound, Order
from tidegate.testing.jobs import NOW, a_batch, a_file, assembling, created, ended, leased, started, validating


def test_a_file_is_kept_as_it_was_added(store: JobStore) -> None:
    file = dataclasses.replace(a_file(), name="数据.jsonl", bytes=2**40, expires_at_utc=NOW + 0.125)
    store.add_file(file)
    assert store.get_file(file.id, tenant="acme") == file
    assert store.get_file(file.id, tenant=None) == file


def test_adding_a_file_twice_is_adding_it_once(store: JobStore) -> None:
    store.add_file(a_file())
    store.add_file(a_file())
    assert store.list_files(tenant=None) == [a_file()]


def test_the_id_of_another_file_is_refused(store: JobStore) -> None:
    store.add_file(a_file())
    with pytest.raises(Conflict):
        store.add_file(dataclasses.replace(a_file(), bytes=1))
    assert store.get_file("file-in", tenant=None) == a_file()


def test_text_that_no_database_holds_is_replaced_in_names(store: JobStore) -> None:
    store.add_file(dataclasses.replace(a_file(), name="a\x00b\ud800'; DROP TABLE files; --"))
    store.add_file(dataclasses.replace(a_file(), name="a\x00b\ud800'; DROP TABLE files; --"))
    assert store.get_file("file-in", tenant=None).name == "a\ufffdb?'; DROP TABLE files; --"


@pytest.mark.parametrize("file_id", ["file-in", "no-such-file", "' OR 1=1 --", "\x00", "\ud800"])
def test_nobody_reads_or_deletes_what_is_not_theirs(store: JobStore, file_id: str) -> None:
    store.add_file(a_file())
    with pytest.raises(NotFound):
        store.get_file(file_id, tenant="other")
    with pytest.raises(NotFound):
        store.delete_file(file_id, tenant="other")
    with pytest.raises(NotFound):
        store.list_files(tenant="other", after=file_id)
    assert store.list_files(tenant="other") == []
    assert store.list_files(tenant="acme", purpose=file_id) == []
    assert store.get_file("file-in", tenant="acme") == a_file()


@pytest.mark.parametrize(("order", "wanted"), [(Order.NEWEST_FIRST, "43210"), (Order.OLDEST_FIRST, "01234")])
def test_pages_follow_each_other_without_gap_or_repetition(store: JobStore, order: Order, wanted: str) -> None:
    for number in range(5):
        store.add_file(a_file(f"f{number}"))
        store.add_file(a_file(f"other{number}", tenant="other"))
    seen: list[str] = []
    while page := store.list_files(tenant="acme", after=seen[-1] if seen else None, limit=2, order=order):
        assert len(page) <= 2
        seen += [file.id for file in page]
    assert seen == [f"f{number}" for number in wanted]


def test_a_listing_may_be_of_one_purpose(store: JobStore) -> None:
    store.add_file(a_file("in"))
    store.add_file(a_file("out", purpose="batch_output"))
    assert [file.id for file in store.list_files(tenant="acme", purpose="batch_output")] == ["out"]


def test_a_deleted_file_is_gone(store: JobStore) -> None:
    store.add_file(a_file())
    store.delete_file("file-in", tenant="acme")
    with pytest.raises(NotFound):
        store.get_file("file-in", tenant="acme")
    with pytest.raises(NotFound):
        store.create_batch(a_batch())


def test_the_input_of_a_batch_stays_until_the_batch_has_ended(store: JobStore) -> None:
    started(store, 1)
    with pytest.raises(Conflict):
        store.delete_file("input-of-batch-1", tenant="acme")
    store.cancel_batch("batch-1", tenant="acme", now_utc=NOW)
    with pytest.raises(Conflict):
        store.delete_file("input-of-batch-1", tenant="acme")
    ended(store)
    store.delete_file("input-of-batch-1", tenant="acme")


def test_files_expire_but_not_under_a_batch(store: JobStore) -> None:
    for file_id in ("used", "unused"):
        store.add_file(dataclasses.replace(a_file(file_id), expires_at_utc=NOW + 10))
    store.add_file(a_file("for-ever"))
    store.create_batch(a_batch(file_id="used"))
    assert store.expired_files(NOW + 9) == []
    assert [file.id for file in store.expired_files(NOW + 10)] == ["unused"]
    store.fail_batch(validating(store), [BatchFault(code="x", message="y")], now_utc=NOW)
    assert [file.id for file in store.expired_files(NOW + 10)] == ["used", "unused"]
    assert [file.id for file in store.expired_files(NOW + 10, limit=1)] == ["used"]


def test_known_files_are_listed_or_about_to_be_written(store: JobStore) -> None:
    created(store)
    claim = validating(store)
    store.start_batch(claim, now_utc=NOW)  # no rows: to be assembled at once
    planned = assembling(store, names="x")
    assert planned is not None
    assert store.known_files(["input-of-batch-1", "out-x", "err-x", "rubbish"]) == {
        "input-of-batch-1",
        "out-x",
        "err-x",
    }
    store.finish_batch(planned, output=None, errors=None, now_utc=NOW)
    assert store.known_files(["out-x", "err-x"]) == frozenset()
    assert leased(store, 1) == []
