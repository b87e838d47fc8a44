"""Housekeeping of the worker: what is kept too long goes, what anybody may still need stays."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tidegate.jobs import owners
from tidegate.jobs.folder import OWNERS, Folder, new_file_id
from tidegate.jobs.messages import Hello, Setup
from tidegate.jobs.worker import RUBBISH_AGE_S, Worker
from tidegate.stores import JobStore, NewBatch, NotFound, StoredFile, open_job_store
from tidegate.testing.jobs import started

NOW = 1_800_000_000.0
KEEP_S = 1000.0


class Place:
    """A store, a folder, and a worker that serves nobody."""

    def __init__(self, folder: Path, store: JobStore, connection: socket.socket) -> None:
        self.store = store
        self.folder = Folder(folder / "files")
        setup = Setup(store="", files=str(self.folder.path), owner="o", keep_s=KEEP_S)
        self.worker = Worker(connection, Hello(setup, [], NOW), store, self.folder)

    def write(self, age_s: float, *, part: bool = False) -> str:
        file_id = new_file_id()
        with self.folder.create(file_id) as target:
            target.write(b"x\n")
        if not part:
            self.folder.keep(file_id)
        path = self.folder.path / (file_id + (".part" if part else ""))
        os.utime(path, (NOW - age_s, NOW - age_s))
        return file_id

    def listed(self, age_s: float, expires_in_s: float) -> str:
        file_id = self.write(age_s)
        self.store.add_file(
            StoredFile(
                id=file_id,
                tenant="t",
                purpose="batch",
                name="n",
                bytes=2,
                created_at_utc=NOW - age_s,
                expires_at_utc=NOW + expires_in_s,
            )
        )
        return file_id

    def batch(self, file_id: str) -> None:
        self.store.create_batch(
            NewBatch(
                id="batch_1",
                tenant="t",
                endpoint="/v1/embeddings",
                input_file_id=file_id,
                window="24h",
                band="p2",
                created_at_utc=NOW,
                expires_at_utc=NOW + 86_400,
            )
        )

    def there(self) -> set[str]:
        return {path.name for path in self.folder.path.iterdir() if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    ours, theirs = socket.socketpair()
    store = open_job_store(f"sqlite:///{tmp_path}/jobs.db")
    with ours, theirs:
        yield Place(tmp_path, store, ours)
    store.close()


def test_files_go_when_their_time_is_over_but_not_under_a_batch(place: Place) -> None:
    over, used, young = place.listed(50, -1), place.listed(50, -1), place.listed(50, 1)
    place.batch(used)
    place.worker._sweep(NOW)
    assert place.there() == {used, young}
    with pytest.raises(NotFound):
        place.store.get_file(over, tenant=None)
    place.store.get_file(used, tenant="t")


def test_what_nobody_knows_goes_after_a_day(place: Place) -> None:
    """Uploads that broke off, and files of an assembly that was never listed; never a file that counts."""
    old, fresh = RUBBISH_AGE_S + 1, RUBBISH_AGE_S - 60
    listed = place.listed(old, 1)
    new = {place.write(fresh), f"{place.write(fresh, part=True)}.part"}
    place.write(old)
    place.write(old, part=True)
    (place.folder.path / "notes.txt").write_text("somebody else's")
    place.worker._sweep(NOW)
    assert place.there() == {listed, "notes.txt", *new}


def test_an_ended_batch_is_forgotten_when_its_time_is_over(place: Place) -> None:
    place.batch(place.listed(50, 1))
    place.store.cancel_batch("batch_1", tenant=None, now_utc=NOW)
    place.worker._sweep(NOW + KEEP_S - 1)
    place.store.get_batch("batch_1", tenant="t")
    for _ in range(3):  # bounded steps
        place.worker._sweep(NOW + KEEP_S + 1)
    with pytest.raises(NotFound):
        place.store.get_batch("batch_1", tenant="t")


def test_lock_files_of_gateways_go_when_they_are_gone_or_long_silent(place: Place) -> None:
    folder = place.folder.path / OWNERS
    gone, silent = (f"gateway-{kernel}-0123456789abcdef" for kernel in (owners.kernel(), "00000000"))
    for owner, age_s in ((gone, 0.0), (silent, RUBBISH_AGE_S + 1)):
        (folder / owner).touch()
        os.utime(folder / owner, (NOW - age_s, NOW - age_s))
    place.worker._judged = owners.kernel()
    place.worker._take_back(NOW)
    assert [path.name for path in folder.iterdir()] == [silent]
    place.worker._sweep(NOW)
    assert list(folder.iterdir()) == []


def test_a_gateway_with_another_folder_is_told_of_after_two_looks(place: Place) -> None:
    owner = f"gateway-{owners.kernel()}-0123456789abcdef"
    started(place.store, 3)
    with structlog.testing.capture_logs() as lines:
        place.worker._look_for_strangers()
        place.store.lease("batch-1", 1, owner=owner, now_utc=NOW, until_utc=NOW + 60)
        place.worker._look_for_strangers()
        assert lines == [], "it may just have gone"
        place.worker._look_for_strangers()
        assert [(line["event"], line["owner"]) for line in lines] == [("jobs.files_not_shared", owner)]
        (place.folder.path / OWNERS / owner).touch()
        place.worker._look_for_strangers()
        place.worker._look_for_strangers()
    assert len(lines) == 1


def test_why_the_store_does_nothing_is_told_once_and_now_and_then(place: Place) -> None:
    with structlog.testing.capture_logs() as lines:
        for at in range(600):
            place.worker._rest(at / 2, "refused")
        place.worker._rest(300.0, "no password")
    assert [line["error"] for line in lines] == ["refused"] * 5 + ["no password"]
