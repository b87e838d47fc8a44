"""A batch whose engine answers 429 for a whole minute: how often each row is tried, and that none is given up."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.cli._server import Server
from tidegate.testing.counting_engine import counting_engine
from tidegate.testing.gateway_process import gateway_process

Row = tuple[str, str, str]


def run(rows: int = 200, busy_s: float = 60.0) -> Iterator[Row]:
    """Let a batch wait for its engine. One attempt for each row, so that a single one that counts would end it."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "asked")
        with counting_engine(record, busy_s=busy_s) as engine:
            config = (
                f'models: [{{name: raw, backends: [{{url: "{engine.url}", engine: openai, seats: 16}}]}}]\n'
                f'jobs: {{store: "sqlite:///{folder}/jobs.db", files: "{folder}/files", max_attempts: 1}}\n'
            )
            with gateway_process(config=config) as gateway:
                batch = _batch(Server(gateway.url, None), Path(folder, "in.jsonl"), rows)
            asked = engine.asked()
    counts = batch["request_counts"]
    began = asked[0].at
    tries = Counter(each.row for each in asked if each.at <= began + 50)
    assert counts == {"total": rows, "completed": rows, "failed": 0}, batch
    yield f"{rows} rows, engine says 429 for {busy_s:.0f} s: dead letters", str(batch["x_tidegate"]["dead"]), "0"
    yield "most tries of a row within 50 s", str(max(tries.values())), "<= 10"
    yield "from the engine's return to the end of the batch", f"{asked[-1].at - began - busy_s:.0f} s", "-"


def _batch(server: Server, source: Path, rows: int) -> dict[str, Any]:
    url = "/v1/chat/completions"
    with source.open("w") as target:
        for number in range(rows):
            body = {"model": "raw", "messages": [{"role": "user", "content": f"row {number}"}]}
            target.write(json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}) + "\n")
    wish = {"input_file_id": server.upload(source)["id"], "endpoint": url, "completion_window": "24h"}
    batch = server.ask("POST", "/v1/batches", wish)
    while batch["status"] not in ("completed", "failed", "expired"):
        time.sleep(0.5)
        batch = server.ask("GET", f"/v1/batches/{batch['id']}")
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--busy-s", type=float, default=60.0)
    options = parser.parse_args()
    for row in run(options.rows, options.busy_s):
        print(": ".join(row))


if __name__ == "__main__":
    main()
