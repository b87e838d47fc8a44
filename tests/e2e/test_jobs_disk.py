"""A disk that is full: uploads are refused, accepted batches wait and lose nothing. And large files, little memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from e2e.jobs_stage import calls, client_of, config, engine, reach, records, rows, submit
from e2e.raw import Visit, gateway, until, whole

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


async def test_a_large_file_costs_no_memory(tmp_path: Path) -> None:
    """Up, validated, and down again: 100 MB leave the gateway's memory where it was."""
    line = rows(1).rstrip(b"\n")
    content = b"".join(line.replace(b'"r0"', b'"r%d"' % n, 1) + b" " * 2000 + b"\n" for n in range(45_000))
    async with gateway(config(tmp_path, "http://127.0.0.1:9")) as process, client_of(process.url) as client:
        await submit(client, rows(1))
        before = peak_kib(process.pid)
        batch = await submit(client, content)
        batch = await reach(client, batch, "in_progress", within_s=40)
        assert batch.request_counts is not None
        assert batch.request_counts.total == 45_000
        size = 0
        async with client.files.with_streaming_response.content(batch.input_file_id) as answer:
            async for piece in answer.iter_bytes():
                size += len(piece)
        assert size == len(content)
        assert peak_kib(process.pid) - before < 24 * 1024
        with contextlib.suppress(openai.APIStatusError):
            await client.batches.cancel(batch.id)


def peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
