"""Lines of every endpoint that batches have, from the file to the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs_stage import client_of, config, engine, reach, records
from e2e.raw import Visit, gateway

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": ["one", "two"]},
    "/v1/responses": {"input": "hi"},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ho"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    },
    "/v1/completions": {
        "object": "text_completion",
        "choices": [{"index": 0, "text": "ho", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    },
    "/v1/embeddings": {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": [0.25, -1.0]} for index in range(2)],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    },
    "/v1/responses": {
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "ho"}]}],
        "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
    },
}


@pytest.mark.parametrize("endpoint", BODIES)
async def test_lines_of_an_endpoint_are_answered_there(endpoint: str, tmp_path: Path) -> None:
    async def serve(visit: Visit) -> None:
        visit.answer(json.dumps(ANSWERS[endpoint]).encode())

    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": endpoint, "body": {"model": "raw", **BODIES[endpoint]}}
        for number in range(5)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url)) as process,
        client_of(process.url) as client,
    ):
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,  # type: ignore[arg-type]  # a text, to be one of those that the client's type knows
            completion_window="24h",
        )
        batch = await reach(client, batch)
        output, errors = await records(client, batch)
        assert (batch.endpoint, batch.status, len(output), errors) == (endpoint, "completed", 5, [])
        assert {visit.path for visit in upstream.visits} == {endpoint}
        for visit in upstream.visits:
            assert json.loads(visit.body) == lines[0]["body"]
        for record in output:
            assert record["response"]["body"] == ANSWERS[endpoint]
        assert process.total("tidegate_tokens_total", band="p2", kind="input") == 25
        assert process.total("tidegate_tokens_total", band="p2", kind="output") == (
            0 if endpoint == "/v1/embeddings" else 10
        )
