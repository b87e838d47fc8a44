"""Files and batches through the official client."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from e2e.jobs_stage import (
    ENDPOINT,
    calls,
    client_of,
    config,
    engine,
    lines_of,
    names,
    reach,
    records,
    row,
    rows,
    submit,
)
from e2e.raw import Visit, ask, gateway, until, whole
from tidegate.config import key_digest

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_a_batch_from_its_file_to_its_answers(tmp_path: Path) -> None:
    async with (
        engine().running() as upstream,
        gateway(config(tmp_path, upstream.url)) as process,
        client_of(process.url) as client,
    ):
        file = await client.files.create(file=("in.jsonl", rows(40)), purpose="batch")
        assert (file.purpose, file.filename, file.bytes, file.status) == (
            "batch",
            "in.jsonl",
            len(rows(40)),
            "processed",
        )
        assert (await client.files.retrieve(file.id)).id == file.id
        assert (await client.files.content(file.id)).content == rows(40)
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={"who": "me"}
        )
        assert batch.metadata == {"who": "me"}
        assert batch.expires_at == batch.created_at + 86_400
        batch = await reach(client, batch)
        assert batch.status == "completed"
        assert batch.error_file_id is None
        output, _ = await records(client, batch)
        for record in output:
            assert record["error"] is None
            assert record["response"]["status_code"] == 200
            assert record["response"]["request_id"]
            assert record["response"]["body"]["choices"][0]["message"]["content"] == record["custom_id"]
        assert set(calls(upstream).values()) == {1}
        assert batch.model_extra is not None
        assert batch.model_extra["x_tidegate"]["band"] == "p2"
        assert [each.id async for each in client.batches.list()] == [batch.id]
        assert {each.purpose async for each in client.files.list()} == {"batch", "batch_output"}
        assert [each.id async for each in client.files.list(purpose="batch")] == [file.id]
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)
        held = {path.name for path in (tmp_path / "files").iterdir() if path.is_file()}
        assert held == {batch.output_file_id}
        assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "files").rglob("*"))


async def test_pages_follow_each_other(tmp_path: Path) -> None:
    async with (
        engine().running() as upstream,
        gateway(config(tmp_path, upstream.url)) as process,
        client_of(process.url) as client,
    ):
        made = [(await submit(client, rows(1))).id for _ in range(5)]
        first = await client.batches.list(limit=2)
        assert first.has_more
        assert [batch.id async for batch in client.batches.list(limit=2)] == made[::-1]
        files = [file.id async for file in client.files.list(limit=2, order="asc", purpose="batch")]
        assert len(files) == len(set(files)) == 5
        with pytest.raises(openai.NotFoundError):
            await client.batches.list(after="batch_none")


async def test_a_batch_says_when_it_will_be_done(tmp_path: Path) -> None:
    async def slowly(visit: Visit) -> None:
        await asyncio.sleep(0.05)
        visit.answer(whole())

    async with (
        engine(slowly).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=2)) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(160))
        expected = None
        while batch.status in ("validating", "in_progress") and expected is None:
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
            assert batch.model_extra is not None
            expected = batch.model_extra["x_tidegate"]["expected_at"]
        assert expected is not None
        assert -2 < expected - time.time() < 600
        batch = await reach(client, batch, within_s=40)
        assert batch.model_extra is not None
        assert batch.model_extra["x_tidegate"]["expected_at"] is None


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (row("a") + b"\n{broken\n" + row("b"), "invalid_json_line", 2),
        (row("a") + b"\n" + row("b") + b"\n" + row("a"), "duplicate_custom_id", 3),
        (
            row("a") + b'\n{"method": "POST", "url": "/v1/chat/completions", "body": {}}',
            "missing_required_parameter",
            2,
        ),
        (row("a").replace(ENDPOINT.encode(), b"/v1/embeddings"), "mismatched_url", 1),
        (row("a").replace(b"POST", b"GET"), "invalid_method", 1),
        (rows(60), "too_many_lines", 51),
        (b"\n \n", "empty_file", None),
    ],
)
async def test_a_file_that_is_not_right_fails_the_batch_and_names_the_line(
    content: bytes, code: str, line: int | None, tmp_path: Path
) -> None:
    async with (
        engine().running() as upstream,
        gateway(config(tmp_path, upstream.url, jobs=", max_lines: 50")) as process,
        client_of(process.url) as client,
    ):
        batch = await reach(client, await submit(client, content))
        assert batch.status == "failed"
        assert batch.failed_at is not None
        assert batch.errors is not None
        assert batch.errors.data
        assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, line)
        assert not upstream.visits


async def test_a_row_that_is_wrong_fails_alone(tmp_path: Path) -> None:
    """Refused by the gateway, refused by the engine: each with the body that a single request would have got."""

    async def serve(visit: Visit) -> None:
        if json.loads(visit.body).get("temperature") == 9:
            visit.answer(b'{"error": {"message": "too warm",\n "code": "bad"}}', 400)
        else:
            visit.answer(whole())

    bad = [row("model", model="none"), row("stream", stream=True), row("engine", temperature=9), row("twin", seed=1)]
    content = b"\n".join([*bad, row("twin2", seed=1), row("blank").replace(b'"messages"', b'"m"')])
    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url)) as process,
        client_of(process.url) as client,
    ):
        batch = await reach(client, await submit(client, content))
        output, errors = await records(client, batch)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 4)
        assert names(output) == {"twin", "twin2"}
        status = {record["custom_id"]: record["response"]["status_code"] for record in errors}
        assert status == {"model": 404, "stream": 400, "engine": 400, "blank": 400}
        said = next(record for record in errors if record["custom_id"] == "engine")
        assert said["response"]["body"]["error"]["code"] == "bad"
        assert calls(upstream)["engine"] == 1


async def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    keys = {"one": "key-one", "two": "key-two"}
    tenants = [f'{{name: {name}, keys: ["{key_digest(key)}"], band: p1}}' for name, key in keys.items()]
    tenants.append(f'{{name: strict, keys: ["{key_digest("key-strict")}"], strict_bands: true}}')
    more = f"tenants: [{', '.join(tenants)}]\n"
    async with engine().running() as upstream, gateway(config(tmp_path, upstream.url, more=more)) as process:
        async with client_of(process.url, "key-one") as one, client_of(process.url, "key-two") as two:
            batch = await reach(one, await submit(one, rows(3), band="p0"))
            assert batch.model_extra is not None
            assert batch.model_extra["x_tidegate"]["band"] == "p1"  # clamped to the tenant's highest
            assert process.total("tidegate_clamped_total", band="p1") == 1
            assert batch.output_file_id is not None
            for call in (
                two.batches.retrieve(batch.id),
                two.batches.cancel(batch.id),
                two.files.content(batch.output_file_id),
                two.files.delete(batch.output_file_id),
                two.files.retrieve(batch.input_file_id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await call
            with pytest.raises(openai.BadRequestError):
                await two.batches.create(input_file_id=batch.input_file_id, endpoint=ENDPOINT, completion_window="24h")
            assert not [each async for each in two.batches.list()]
            assert not [each async for each in two.files.list()]
            assert len(await lines_of(one, batch.output_file_id)) == 3
        async with client_of(process.url, "key-strict") as strict:
            with pytest.raises(openai.PermissionDeniedError) as forbidden:
                await submit(strict, rows(1), band="p0")
            assert (forbidden.value.code, forbidden.value.param) == ("forbidden_band", "metadata")
            assert forbidden.value.response.headers["x-tidegate-reason"] == "forbidden_band"
            assert (await reach(strict, await submit(strict, rows(1)))).status == "completed"
            assert process.total("tidegate_clamped_total") == 1
        async with client_of(process.url, "key-none") as nobody:
            with pytest.raises(openai.AuthenticationError):
                await nobody.batches.list()


async def test_what_is_asked_for_wrongly_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, "http://127.0.0.1:9", jobs=", max_file: 10KiB")
    async with gateway(settings) as process, client_of(process.url) as client:
        for arguments in (
            {"file": ("a", b"x"), "purpose": "fine-tune"},
            {"file": ("a", b"x" * 11_000), "purpose": "batch"},
        ):
            with pytest.raises(openai.APIStatusError) as error:
                await client.files.create(**arguments)  # type: ignore[arg-type]
            assert error.value.status_code in (400, 413)
        name = "../../../etc/x\\y\n.jsonl"
        file = await client.files.create(file=(name, rows(1)), purpose="batch")
        assert "/" not in file.filename
        for change in ({"endpoint": "/v1/none"}, {"completion_window": "soon"}, {"metadata": {"band": "p9"}}):
            wish: dict[str, Any] = {
                "input_file_id": file.id,
                "endpoint": ENDPOINT,
                "completion_window": "24h",
                **change,
            }
            with pytest.raises(openai.BadRequestError) as refused:
                await client.batches.create(**wish)
            assert refused.value.param == next(iter(change))
        for path in (
            "/v1/files/..%2f..%2fjobs.db",
            "/v1/files/owners",
            "/v1/batches/x",
            "/v1/files/x/y/z",
            "/v1/files/",
        ):
            assert (await ask(process.url, method="GET", path=path)).status == 404
        assert (await ask(process.url, method="PUT", path="/v1/batches")).status == 405
        kept = {path.name for path in (tmp_path / "files").iterdir() if path.is_file()}
        assert kept == {file.id}


async def test_without_jobs_the_paths_say_so() -> None:
    async with gateway(None, "--backend", "http://127.0.0.1:9") as process:
        answer = await ask(process.url, method="GET", path="/v1/batches")
        assert answer.status == 404
        assert "jobs" in answer.error["message"]


async def test_who_waits_for_a_batch_hears_of_its_end_and_lends_its_band(tmp_path: Path) -> None:
    """Rows of p2 stand behind a queue of p1; once a p0 caller waits for their batch, they go first."""
    steps: asyncio.Queue[None] = asyncio.Queue()

    async def serve(visit: Visit) -> None:
        await steps.get()
        visit.answer(whole())

    def chat(name: str) -> dict[str, object]:
        return {"model": "raw", "messages": [{"role": "user", "content": name}]}

    more = "policy: {discipline: strict, bands: {p0: {reserve: 0}}}\n"
    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1, more=more)) as process,
        client_of(process.url) as client,
    ):
        singles = [asyncio.ensure_future(ask(process.url, chat(f"s{number}"))) for number in range(4)]
        await until(lambda: process.total("tidegate_queue_depth", band="p1") >= 3, within_s=10)
        batch = await submit(client, rows(2))
        await until(lambda: process.total("tidegate_queue_depth", band="p2") >= 2, within_s=10)
        path = f"/v1/batches/{batch.id}?wait=15s"
        waiting = asyncio.ensure_future(ask(process.url, method="GET", path=path, headers={"x-tidegate-band": "p0"}))
        await until(lambda: process.total("tidegate_inheritances_total") >= 2, within_s=10)
        for _ in range(6):
            steps.put_nowait(None)
        answer = json.loads((await waiting).body)
        assert answer["status"] == "completed"
        await asyncio.gather(*singles)
        assert [next(iter(calls_of)) for calls_of in order(upstream.visits)][1:3] == ["r0", "r1"]


def order(visits: list[Visit]) -> list[list[str]]:
    return [[json.loads(visit.body)["messages"][0]["content"]] for visit in visits]
