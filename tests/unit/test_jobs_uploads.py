"""Forms, frames, and the folder of files."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidegate.jobs import owners
from tidegate.jobs.folder import PART, Folder, is_file_id, new_file_id
from tidegate.jobs.messages import Ask, Unframer, frame
from tidegate.jobs.multipart import MultipartError, MultipartReader, Part, boundary_of
from tidegate.jobs.uploads import UploadError, receive
from tidegate.jobs.wishes import WishError, read_batch, read_expiry, read_limit, read_order, read_wait


def form(content: bytes, *, purpose: str = "batch", mark: str = "xyz", name: str = "in.jsonl") -> bytes:
    return (
        (
            f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        + content
        + f"\r\n--{mark}--\r\n".encode()
    )


def parts(pieces: list[bytes], mark: bytes = b"xyz") -> tuple[dict[str, bytes], MultipartReader]:
    reader, found, name = MultipartReader(mark), dict[str, bytes](), ""
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, Part):
                name = event.name
                found[name] = b""
            else:
                found[name] += event
    return found, reader


@pytest.mark.parametrize(
    "content", [b"", b"a", b"\r\n--xy\r\n--xyy\r\n\r\n--", b"--xyz--", b"\r\n" * 300, bytes(range(256))]
)
def test_content_arrives_as_it_was_however_it_is_cut(content: bytes) -> None:
    whole = form(content)
    chance = random.Random(3)
    cuts = [[whole], [whole[i : i + 1] for i in range(len(whole))]]
    for _ in range(20):
        places = sorted(chance.sample(range(len(whole)), 5))
        cuts.append([whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)])
    for pieces in cuts:
        found, reader = parts(pieces)
        assert found == {"purpose": b"batch", "file": content}
        assert reader.complete


def test_little_is_held_back() -> None:
    reader = MultipartReader(b"xyz")
    whole = form(b"z" * 100_000)
    size = sum(len(event) for event in reader.feed(whole[:50_000]) if isinstance(event, bytes))
    assert size > 49_000


@pytest.mark.parametrize(
    "body",
    [b"x" * 70_000, b"--xyz\r\n\r\n\r\nvalue", b"--xyz?!", b"--xyz\r\n" + b"a: b\r\n" * 5000, b"--xyz\r\nx: y\r\n\r\n"],
)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(MultipartError):
        list(MultipartReader(b"xyz").feed(body))


def test_the_boundary_stands_in_the_content_type() -> None:
    assert boundary_of('multipart/form-data; boundary="a b"') == b"a b"
    for bad in (
        "",
        "application/json",
        "multipart/form-data",
        "multipart/mixed; boundary=x",
        "multipart/form-data; boundary=",
    ):
        with pytest.raises(MultipartError):
            boundary_of(bad)


def taken(folder: Folder, body: bytes, *, most: int = 10_000, piece: int = 7) -> tuple[str, object]:
    async def stream() -> AsyncIterator[bytes]:
        for at in range(0, len(body), piece):
            yield body[at : at + piece]

    file_id = new_file_id()
    return file_id, asyncio.run(receive(stream(), MultipartReader(b"xyz"), folder, file_id, most=most))


def test_an_upload_counts_once_it_is_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "files")
    file_id, uploaded = taken(folder, form(b"abc\n", name="../../x/in.jsonl"))
    assert getattr(uploaded, "name") == "in.jsonl"  # noqa: B009
    assert not folder.place(file_id).exists()
    assert folder.keep(file_id) == folder.keep(file_id) == 4
    assert folder.place(file_id).read_bytes() == b"abc\n"
    assert folder.place(file_id).stat().st_mode & 0o077 == 0
    assert list(folder.old(2e10)) == [file_id]
    assert list(folder.old(0)) == []
    folder.drop(file_id)
    folder.drop(file_id)
    assert list(folder.old(2e10)) == []


def test_a_file_is_on_the_disk_before_its_name_counts_and_then_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path / "files")
    file_id, _ = taken(folder, form(b"abc\n"))
    final, synchronised = folder.place(file_id), list[tuple[str, bool]]()

    def fsync(descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        places = (final.with_name(file_id + PART), final, folder.path)
        what = next(path.name for path in places if path.exists() and path.stat().st_ino == inode)
        synchronised.append((what, final.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    folder.keep(file_id)
    assert synchronised == [(file_id + PART, False), (folder.path.name, True)]


def test_an_upload_that_is_not_right_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "files")
    two = form(b"a")[:-8] + form(b"b")
    for body, status in ((form(b"x" * 200), 413), (form(b"x")[:-10], 400), (two, 400)):
        with pytest.raises(UploadError) as error:
            taken(folder, body, most=100)
        assert error.value.status == status


@pytest.mark.parametrize("name", ["", "..", "../x", "file-", "file-" + "g" * 24, "file-" + "0" * 23 + "\n", "owners"])
def test_no_other_name_becomes_a_path(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "files")
    assert not is_file_id(name)
    with pytest.raises(ValueError, match="expected the id of a file"):
        folder.place(name)
    assert is_file_id(new_file_id())


def test_frames_arrive_whole_however_they_are_cut() -> None:
    messages = [Ask(number, "m", {"x": "y" * number}) for number in range(40)]
    stream = b"".join(map(frame, messages))
    for size in (1, 3, 1000):
        unframer = Unframer()
        found = [body for at in range(0, len(stream), size) for body in unframer.feed(stream[at : at + size])]
        assert [frame(message)[4:] for message in messages] == found
    with pytest.raises(ValueError, match="expected a frame"):
        list(Unframer().feed(b"\xff" * 8))


def test_an_owner_is_gone_when_its_lock_is_free(tmp_path: Path) -> None:
    folder = Folder(tmp_path).path / "owners"
    here = owners.Presence(folder)
    assert not owners.is_gone(folder, here.owner)
    assert owners.all_gone(folder) == []
    here.leave()
    assert owners.all_gone(folder) == [here.owner]
    owners.forget(folder, here.owner)
    assert not owners.is_gone(folder, here.owner)  # nothing is known of it
    assert not owners.is_gone(folder, "../x")


def test_wishes_are_read_as_they_are_meant() -> None:
    wish = read_batch(b'{"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": "90min"}')
    assert (wish.window_s, wish.metadata) == (5400.0, {})
    assert read_wait({"wait": "500s"}) == 60.0
    assert read_wait({}) == 0.0
    assert (read_limit({}, default=20, most=100), read_order({})) == (20, "desc")
    assert read_expiry({"expires_after[seconds]": "3600"}, keep_s=9e9) == 3600.0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"[]", None),
        (b"{", None),
        (b'{"input_file_id": "f", "endpoint": "/x", "completion_window": "24h"}', "endpoint"),
        (b'{"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": "0s"}', "completion_window"),
        (b'{"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": "31d"}', "completion_window"),
        (
            b'{"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": "1h", "metadata": {"k": "%s"}}'
            % (b"x" * 513),
            "metadata",
        ),
    ],
)
def test_what_is_not_meant_names_its_field(body: bytes, param: str | None) -> None:
    with pytest.raises(WishError) as error:
        read_batch(body)
    assert error.value.param == param


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"limit": "-1"}])
def test_limits_of_pages(query: dict[str, str]) -> None:
    with pytest.raises(WishError):
        read_limit(query, default=20, most=100)


def test_the_locks_of_another_machine_prove_nothing(tmp_path: Path) -> None:
    """A shared folder may give every machine the same lock; rows of a living gateway must not be taken from it."""
    folder = Folder(tmp_path).path / "owners"
    here, there = owners.Presence(folder), "gateway-00000000-0123456789abcdef"
    (folder / there).touch()
    assert here.owner.startswith(f"gateway-{owners.kernel()}-")
    here.leave()
    assert owners.all_gone(folder, under=owners.kernel()) == [here.owner]
    assert sorted(owners.all_gone(folder)) == sorted(
        [here.owner, there]
    )  # all owners on one machine: after its restart


def test_lock_files_of_machines_that_never_come_back_go_after_a_while(tmp_path: Path) -> None:
    folder = Folder(tmp_path).path / "owners"
    here, there = owners.Presence(folder), "gateway-00000000-0123456789abcdef"
    (folder / there).touch()
    (folder / "notes.txt").touch()
    for path in folder.iterdir():
        os.utime(path, (1000.0, 1000.0))
    owners.refresh(folder, here.owner, 5000.0)
    owners.refresh(folder, "gateway-00000000-ffffffffffffffff", 5000.0)
    assert owners.long_silent(folder, 4000.0) == [there]
    owners.forget(folder, there)
    assert {path.name for path in folder.iterdir()} == {here.owner, "notes.txt"}
    here.leave()


def test_a_machine_without_a_boot_id_goes_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = owners.kernel()
    monkeypatch.setattr(owners, "_BOOT", tmp_path / "none")
    assert re.fullmatch("[0-9a-f]{8}", owners.kernel())
    assert owners.kernel() != known
