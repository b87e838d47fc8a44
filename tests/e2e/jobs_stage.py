"""A gateway with jobs, the official client, and engines that count what they are asked."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from openai import AsyncOpenAI
from openai.types import Batch

from e2e.raw import Upstream, Visit, whole

ENDPOINT: Final = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def config(folder: Path, *urls: str, seats: int = 8, more: str = "", jobs: str = "") -> str:
    """Settings with a backend for each URL."""
    backends = ", ".join(f'{{url: "{url}", engine: openai, seats: {seats}}}' for url in urls)
    store = f'store: "sqlite:///{folder}/jobs.db", files: "{folder}/files"'
    return f"models: [{{name: raw, backends: [{backends}]}}]\njobs: {{{store}{jobs}}}\n{more}"


def client_of(url: str, key: str = "none") -> AsyncOpenAI:
    """The official client, without its own retries."""
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=40)


def row(custom_id: str, **body: object) -> bytes:
    """A line of an input file."""
    body = {"model": "raw", "messages": [{"role": "user", "content": custom_id}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}).encode()


def rows(count: int, **body: object) -> bytes:
    """An input file."""
    return b"".join(row(f"r{number}", **body) + b"\n" for number in range(count))


async def submit(client: AsyncOpenAI, content: bytes, *, window: str = "24h", **metadata: str) -> Batch:
    """Upload a file and create a batch of it."""
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window=window,  # type: ignore[arg-type]  # the client's type knows one window only
        metadata=metadata,
    )


async def reach(client: AsyncOpenAI, batch: Batch, *states: str, within_s: float = 15) -> Batch:
    """Wait until a batch is in one of the states (ended, if none is given); counts must not run backwards."""
    before = (0, 0)
    async with asyncio.timeout(3 * within_s):  # machines are slow at times
        while batch.status not in (states or ENDED):
            await asyncio.sleep(0.03)
            batch = await client.batches.retrieve(batch.id)
            counts = batch.request_counts
            assert counts is not None
            now = (counts.completed, counts.failed)
            assert now[0] >= before[0]
            assert now[1] >= before[1]
            assert sum(now) <= max(counts.total, sum(now) if counts.total == 0 else 0)
            before = now
    return batch


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The records of a file; none of no file."""
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def records(client: AsyncOpenAI, batch: Batch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Output and errors of a batch that has ended; each row has one record, and only one."""
    output = await lines_of(client, batch.output_file_id)
    errors = await lines_of(client, batch.error_file_id)
    names = Counter(record["custom_id"] for record in (*output, *errors))
    assert set(names.values()) <= {1}
    assert batch.request_counts is not None
    assert len(names) == batch.request_counts.total
    return output, errors


def names(found: Iterable[dict[str, Any]]) -> set[str]:
    """The rows' own names."""
    return {record["custom_id"] for record in found}


def prompt_of(visit: Visit) -> str:
    """What a row asked: its own name, as ``row`` writes it."""
    text: str = json.loads(visit.body)["messages"][0]["content"]
    return text


def engine(behave: Callable[[Visit], Awaitable[None]] | None = None) -> Upstream:
    """An engine that answers each row with its prompt, at once unless told otherwise."""

    async def at_once(visit: Visit) -> None:
        visit.answer(whole(prompt_of(visit)))

    return Upstream(behave or at_once)


def calls(upstream: Upstream) -> Counter[str]:
    """How often each row was asked for."""
    return Counter(prompt_of(visit) for visit in upstream.visits)


def children(pid: int) -> list[int]:
    """Processes that a process has started: the worker of a gateway."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]
