"""What the log and the metrics say of rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from e2e.jobs_stage import calls, client_of, config, engine, prompt_of, reach, records, row, submit
from e2e.raw import Visit, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]

NAMES = ("fine", "busy", "wrong", "broken", "alien")


async def test_each_row_that_has_ended_has_one_line_and_no_prompt_in_it(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    async def serve(visit: Visit) -> None:
        name = prompt_of(visit)
        seen[name] += 1
        if name == "wrong":
            visit.answer(b'{"error": {"message": "too long"}}', 400)
        elif name == "broken":
            visit.answer(b'{"error": {"message": "it broke"}}', 500)
        elif name == "busy" and seen[name] == 1:
            visit.answer(b'{"error": {"message": "later"}}', 429)
        else:
            visit.answer(whole("an answer that nobody else should read"))

    content = b"\n".join(row(name, **({"model": "none"} if name == "alien" else {})) for name in NAMES)
    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, jobs=", max_attempts: 2")) as process,
        client_of(process.url) as client,
    ):
        batch = await reach(client, await submit(client, content))
        await records(client, batch)
        assert calls(upstream) == {"fine": 1, "busy": 2, "wrong": 1, "broken": 2}
        found = {f"{batch.id}.{number}": name for number, name in enumerate(NAMES, 1)}
        await until(lambda: sum("row" in line for line in process.requests()) >= len(NAMES), within_s=5)
        lines = [line for line in process.requests() if "row" in line]
        assert sorted(line["row"] for line in lines) == sorted(found)
        by_name = {found[line["row"]]: line for line in lines}
        ends = {name: (line["status"], line["outcome"], line.get("reason")) for name, line in by_name.items()}
        assert ends == {
            "fine": (200, "completed", None),
            "busy": (200, "completed", None),
            "wrong": (400, "failed", None),
            "broken": (500, "failed", "upstream_error"),
            "alien": (404, "rejected", "unknown_model"),
        }
        fine = by_name["fine"]
        assert (fine["tenant"], fine["band"], fine["model"]) == ("anonymous", "p2", "raw")
        assert (fine["input_tokens"], fine["output_tokens"]) == (3, 2)
        assert fine["total_ms"] >= fine["queue_ms"] >= 0
        assert fine["backend"]
        assert by_name["busy"]["total_ms"] > 900  # from its first arrival, the wait after the 429 included
        text = process.log.read_text()
        assert "nobody else" not in text
        assert json.dumps("fine") not in text
        assert process.total("tidegate_requests_total", band="p2", outcome="completed") == 2
        assert process.total("tidegate_requests_total", outcome="rejected") == 1
        assert process.total("tidegate_ttft_seconds_count", band="p2") == 2
        assert process.total("tidegate_tokens_total", band="p2") == 10
