"""A disk that is full: uploads are refused, accepted batches wait and lose nothing. And large files, little memory."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from e2e.jobs_stage import (
    ENDED,
    ENDPOINT,
    calls,
    children,
    client_of,
    config,
    engine,
    reach,
    records,
    row,
    rows,
    submit,
)
from e2e.raw import Visit, gateway, until, whole
from tidegate.cli._server import Server
from tidegate.testing.counting_engine import counting_engine

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]


def mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or not mount(folder, "size=3m"):
        pytest.skip("a small file system needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_pauses_batches_and_refuses_uploads(small_disk: Path) -> None:
    async def serve(visit: Visit) -> None:
        visit.answer(whole("x" * 4000))

    async with (
        engine(serve).running() as upstream,
        gateway(config(small_disk, upstream.url)) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(1000))
        await until(lambda: "no room left" in process.log.read_text(), within_s=15)
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=("more.jsonl", b"x" * 3_000_000), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (507, "storage_full")
        batch = await client.batches.retrieve(batch.id)
        assert batch.status == "in_progress"
        assert batch.request_counts is not None
        assert batch.request_counts.failed == 0
        assert await asyncio.to_thread(mount, small_disk, "remount,size=60m")
        batch = await reach(client, batch, within_s=30)
        output, errors = await records(client, batch)
        assert (len(output), len(errors)) == (1000, 0)
        assert max(calls(upstream).values()) <= 2


async def test_a_store_that_may_not_grow_pauses_batches_and_refuses_uploads(tmp_path: Path) -> None:
    """The same with a limit of the process on the size of files, which needs no right to mount."""

    async def serve(visit: Visit) -> None:
        visit.answer(whole("x" * 4000))

    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url)) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(600))
        limit(process.pid, 1_000_000)
        await until(lambda: "jobs.store" in process.log.read_text(), within_s=15)
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=("more.jsonl", b"x" * 3_000_000), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (507, "storage_full")
        batch = await client.batches.retrieve(batch.id)
        assert batch.status == "in_progress"
        assert batch.request_counts is not None
        assert batch.request_counts.failed == 0
        limit(process.pid, resource.RLIM_INFINITY)
        batch = await reach(client, batch, within_s=30)
        output, errors = await records(client, batch)
        assert (len(output), len(errors)) == (600, 0)
        assert max(calls(upstream).values()) <= 2


def limit(pid: int, size: int) -> None:
    """Let no file of a gateway and its worker become larger."""
    for each in (pid, *children(pid)):
        resource.prlimit(each, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


LINE_BYTES, LINES = 1_000_000, 200


async def test_a_file_of_200_megabytes_costs_little_memory(tmp_path: Path) -> None:
    """Up, validated, sent line by line, its answers as large, and down again: gateway and worker stay small."""
    source, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("wb") as target:
        for number in range(LINES):
            target.write(row(f"r{number}", messages=[{"role": "user", "content": f"row {number} " + "x" * LINE_BYTES}]))
            target.write(b"\n")
    assert source.stat().st_size >= 200_000_000
    with counting_engine(answer_bytes=LINE_BYTES) as counting:
        async with gateway(config(tmp_path, counting.url, seats=4, jobs=", max_file: 210MB")) as process:
            server = Server(process.url, None)
            file = await asyncio.to_thread(server.upload, source)
            assert file["bytes"] == source.stat().st_size
            wish = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
            batch = await asyncio.to_thread(server.ask, "POST", "/v1/batches", wish)
            async with asyncio.timeout(60):
                while batch["status"] not in ENDED:
                    await asyncio.sleep(0.2)
                    batch = await asyncio.to_thread(server.ask, "GET", f"/v1/batches/{batch['id']}")
            assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
            await asyncio.to_thread(server.download, batch["output_file_id"], answers)
            with answers.open("rb") as lines:
                assert sum(1 for _ in lines) == LINES
            assert answers.stat().st_size >= 200_000_000
            (worker,) = children(process.pid)
            peaks = peak_kib(process.pid) >> 10, peak_kib(worker) >> 10
            assert max(peaks) < 160, peaks


def peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
