"""A batch while its gateway is killed at random moments: each row has one record, and few are asked for twice."""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.jobs import ENGINE, ask
from tidegate.cli.jobs import Server
from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.processes import wait_for_line

SEATS = 16
COUNTING = ENGINE.replace(
    "self.transport.write(HEAD + ANSWER)",
    "COUNT[0] += b'POST' == head[:4].upper(); asyncio.get_running_loop().call_later(0.03, "
    "lambda a: self.transport.is_closing() or self.transport.write(a), "
    "HEAD + (ANSWER if head[:4].upper() == b'POST' else b'%-206d' % COUNT[0]))",
).replace("class Engine", "COUNT = [0]\nclass Engine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", help="another store than a fresh SQLite file")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        engine = subprocess.Popen([sys.executable, "-c", COUNTING], stdout=subprocess.PIPE)
        try:
            story(options, Path(folder), wait_for_line(engine, "listening on "), chance)
        finally:
            engine.kill()
            engine.wait()


def story(options: argparse.Namespace, folder: Path, engine: str, chance: random.Random) -> None:
    source = folder / "in.jsonl"
    row = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": "raw", "messages": [], "max_tokens": 1}}
    source.write_text("".join(json.dumps({"custom_id": f"r{n}", **row}) + "\n" for n in range(options.rows)))
    store = options.store or f"sqlite:///{folder}/jobs.db"
    config = (
        f'models: [{{name: raw, backends: [{{url: "{engine}", engine: openai, seats: {SEATS}}}]}}]\n'
        f'jobs: {{store: "{store}", files: "{folder}/files"}}\n'
    )
    batch: dict[str, Any] | None = None
    before = (0, 0)
    kills = 0
    began = time.monotonic()
    while True:
        with gateway_process(config=config) as gateway:
            if batch is None:
                file = Server(gateway.url, None).upload(source)
                wish = {"input_file_id": file["id"], "endpoint": row["url"], "completion_window": "24h"}
                batch = ask(f"{gateway.url}/v1/batches", wish)
            until = time.monotonic() + (chance.uniform(0.02, 0.5) if kills < options.kills else 1e9)
            while time.monotonic() < until and batch["status"] not in ("completed", "failed", "expired"):
                batch = ask(f"{gateway.url}/v1/batches/{batch['id']}")
                counts = batch["request_counts"]
                now = (counts["completed"], counts["failed"])
                assert now[0] >= before[0], (before, now)
                assert now[1] >= before[1], (before, now)
                before = now
                time.sleep(0.02)
            if batch["status"] in ("completed", "failed", "expired"):
                break
            gateway.signal(signal.SIGKILL)
            kills += 1
    with gateway_process(config=config) as gateway:
        names: Counter[str] = Counter()
        for key in ("output_file_id", "error_file_id"):
            if batch[key]:
                with urllib.request.urlopen(f"{gateway.url}/v1/files/{batch[key]}/content", timeout=60) as answer:
                    names.update(json.loads(line)["custom_id"] for line in answer)
    calls = ask(engine)
    print(f"{kills} kills in {time.monotonic() - began:.0f} s: {batch['status']}, {batch['request_counts']}")
    print(
        f"{len(names)} rows with a record, most records of a row {max(names.values())}; {calls} calls of the engine, "
        f"{int(str(calls)) - options.rows} more than rows ({SEATS} seats)"
    )
    assert len(names) == options.rows
    assert max(names.values()) == 1


if __name__ == "__main__":
    main()
