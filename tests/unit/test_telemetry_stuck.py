"""Log lines whose reader has stopped, is gone, or has no room: nobody waits for it, and what is lost is told."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.telemetry import Log
from tidegate.telemetry.log import EVERY_S, MOST_BYTES, MOST_KEPT_BYTES
from tidegate.telemetry.stream import Nowhere, Stream, standard_error
from tidegate.testing import run_virtual

AT = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)


class Disk:
    """A file on a disk with so much room; ``left`` is what it takes still."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.data = b""

    def write(self, data: bytes, /) -> int:
        if data and not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: self.left]
        self.left -= len(taken)
        self.data += taken
        return len(taken)

    def flush(self) -> None: ...

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.data.splitlines()]


def note(log: Log, number: int, level: str = "info") -> None:
    log.event({"level": level, "event": "it", "number": number, "more": "x" * 100})


def test_a_full_disk_stops_nobody_and_loses_nothing_that_fits_in_memory() -> None:
    async def story() -> None:
        disk = Disk(1000)
        log = Log(disk)
        for number in range(100):
            note(log, number, "warning")  # each is to be written at once
        assert len(disk.data) == 1000
        await asyncio.sleep(5)
        disk.left = 10**9
        await asyncio.sleep(EVERY_S * 1.5)
        assert [line["number"] for line in disk.lines] == list(range(100))

    run_virtual(story())


@pytest.mark.parametrize("room", [0, 1000], ids=["nothing written", "torn line"])
@pytest.mark.parametrize("level", ["info", "warning"])
def test_what_is_lost_are_the_oldest_lines_whole_ones_and_their_number_is_told(room: int, level: str) -> None:
    async def story() -> None:
        disk = Disk(room)
        log = Log(disk, utc_now=lambda: AT)
        for number in range(20_000):
            note(log, number, level)
            if not number % 1000:
                await asyncio.sleep(EVERY_S)
        assert len(log._buffer) <= log._size <= MOST_KEPT_BYTES + MOST_BYTES
        disk.left = 10**9
        await asyncio.sleep(EVERY_S * 1.5)
        log.close()
        *kept, last = disk.lines
        numbers = [int(str(line["number"])) for line in kept]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 19_999
        assert last == {
            "at_utc": "2026-03-01T12:30:15Z", "level": "warning", "event": "log.lost", "lines": 20_000 - len(kept),
        }  # fmt: skip
        assert len(kept) < 20_000

    run_virtual(story())


def test_before_the_loop_runs_a_full_disk_is_no_error_either() -> None:
    disk = Disk(0)
    log = Log(disk)
    note(log, 1)
    note(log, 2, "warning")
    log.close()
    disk.left = 10**6
    note(log, 3, "warning")
    assert [line["number"] for line in disk.lines] == [1, 2, 3]


def test_a_closed_sink_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = Log(Stream(writer))
    note(log, 1, "warning")
    os.close(writer)
    note(log, 2, "warning")
    log.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_that_nobody_reads_takes_what_it_can_and_keeps_nobody_waiting(
    pipe: tuple[int, int], *, blocking: bool
) -> None:
    reader, writer = pipe
    os.set_blocking(writer, blocking)
    stream = Stream(writer)
    line = b"x" * 99 + b"\n"
    taken = stream.write(line * 5000)  # would wait for ever if it waited
    assert 0 < taken < 500_000
    assert taken % 100 == 0, "whole lines"
    assert stream.write(line) in (0, 100)
    assert os.read(reader, 1 << 20) == line * (taken // 100)
    assert stream.write(line) == 100


def test_a_line_longer_than_a_write_passes_too(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    assert Stream(writer).write(b"y" * 9000 + b"\n") == 9001
    assert len(os.read(reader, 1 << 20)) == 9001


def test_the_rest_is_written_at_the_end_while_somebody_reads(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    log = Log(Stream(writer))
    for number in range(40):
        note(log, number)
    read = subprocess.Popen([sys.executable, "-c", "import sys; print(len(sys.stdin.read().splitlines()))"],
                            stdin=reader, stdout=subprocess.PIPE, text=True)  # fmt: skip
    began = time.monotonic()
    while log._buffer and time.monotonic() - began < 15:
        log.close()
    os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    assert read.communicate(timeout=40)[0] == "40\n"


def test_a_process_without_standard_error_writes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    nowhere = standard_error()
    assert isinstance(nowhere, Nowhere)
    assert nowhere.write(b"abc") == 3
    nowhere.flush()
    nowhere.wait(1.0)


def test_a_file_is_written_to_as_a_whole(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = Stream(file.fileno())
        assert stream.write(b"z" * 100_000) == 100_000
        stream.wait(1.0)
    assert (tmp_path / "log").stat().st_size == 100_000
