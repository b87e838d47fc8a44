"""A batch while its gateway, its engine or its database is killed at random moments (``kill -9``).

Each row has exactly one record, counts never run backwards, and the engine is asked for no more than the rows and
those that were in flight at a kill: asked for by then, and their end not yet in the store just before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sqlite3
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from tidegate.cli._server import Server
from tidegate.testing.counting_engine import CountingEngine, counting_engine
from tidegate.testing.gateway_process import GatewayProcess, gateway_process
from tidegate.testing.postgres import PostgresProcess, postgres_process

SEATS = 16
ENDED = ("completed", "failed", "expired", "cancelled")
VICTIMS = ("gateway", "engine", "postgres")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victim", choices=(*VICTIMS, "any"), default="gateway")
    parser.add_argument("--gateways", type=int, default=1, help="more than one share a PostgreSQL")
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="default: what the other options need")
    parser.add_argument("--delay-s", type=float, default=0.03, help="time that the engine takes for a row")
    options = parser.parse_args()
    shared = options.gateways > 1 or options.victim in ("postgres", "any") or options.store == "postgres"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        postgres = stack.enter_context(postgres_process()) if shared else None
        record = Path(folder, "asked")
        engine = stack.enter_context(counting_engine(record, delay_s=options.delay_s))
        story = Story(options, Path(folder), engine, postgres)
        story.run()


class Counts:
    """Polls a batch from any gateway that answers, and sees that its counts never run backwards."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._before = (0, 0)
        self.batch: dict[str, Any] | None = None

    def look(self) -> None:
        """Ask one gateway; one that is dead or without its store says nothing."""
        assert self.batch is not None
        for gateway in self._story.gateways:
            try:
                self.batch = get(f"{gateway.url}/v1/batches/{self.batch['id']}")
            except OSError:
                continue
            counts = self.batch["request_counts"]
            now = (counts["completed"], counts["failed"])
            assert now[0] >= self._before[0], (self._before, now)
            assert now[1] >= self._before[1], (self._before, now)
            self._before = now
            return


class Story:
    """One run."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, engine: CountingEngine, postgres: PostgresProcess | None
    ) -> None:
        self.options = options
        self.folder = folder
        self.engine = engine
        self.postgres = postgres
        self.gateways: list[GatewayProcess] = []
        self._stacks: list[contextlib.ExitStack] = []
        self._chance = random.Random(options.seed)
        self._counts = Counts(self)
        store = f"sqlite:///{folder}/jobs.db" if postgres is None else postgres.url
        self._config = (
            f'models: [{{name: raw, backends: [{{url: "{engine.url}", engine: openai, seats: {SEATS}}}]}}]\n'
            f'jobs: {{store: "{store}", files: "{folder}/files"}}\n'
        )

    def run(self) -> None:
        """Kill, look, and judge."""
        rows, began, kills, in_flight = self.options.rows, time.monotonic(), Counter[str](), 0
        for _ in range(self.options.gateways):
            self.gateways.append(self._started())
        try:
            self._submit()
            while kills.total() < self.options.kills and self._goes_on():
                if self._ended(self._chance.uniform(0.02, 0.5)):
                    break
                victim = self.options.victim if self.options.victim != "any" else self._chance.choice(VICTIMS)
                in_flight += self._kill(victim)
                kills[victim] += 1
            self._ended(1e9)
            records = self._records()
        finally:
            for stack in self._stacks:
                stack.close()
        calls = self.engine.calls()
        batch = self._counts.batch
        assert batch is not None
        print(f"{dict(kills)} killed in {time.monotonic() - began:.0f} s: {batch['status']}, {batch['request_counts']}")
        print(f"{len(records)} rows with a record, most records of a row {max(records.values())}")
        more = calls.total() - rows
        print(f"{calls.total()} calls of the engine, {more} more than rows; {in_flight} rows in flight at the kills")
        assert batch["status"] == "completed"
        assert len(records) == len(calls) == rows
        assert max(records.values()) == 1
        assert calls.total() <= rows + in_flight

    def _started(self) -> GatewayProcess:
        stack = contextlib.ExitStack()
        self._stacks.append(stack)
        return stack.enter_context(gateway_process(config=self._config))

    def _submit(self) -> None:
        source = self.folder / "in.jsonl"
        with source.open("w") as target:
            for number in range(self.options.rows):
                body = {"model": "raw", "messages": [{"role": "user", "content": f"row {number}"}], "max_tokens": 1}
                line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
                target.write(json.dumps(line) + "\n")
        file = Server(self.gateways[0].url, None).upload(source)
        wish = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        self._counts.batch = get(f"{self.gateways[0].url}/v1/batches", wish)

    def _goes_on(self) -> bool:
        """Wait until rows are asked for again, so that the next kill hits some; false when the batch has ended."""
        before = self.engine.size()
        while self.engine.size() == before:
            if self._ended(0.05):
                return False
        return True

    def _ended(self, within_s: float) -> bool:
        """Look until the batch has ended, at most so long."""
        until = time.monotonic() + within_s
        while True:
            self._counts.look()
            assert self._counts.batch is not None
            if self._counts.batch["status"] in ENDED:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)

    def _kill(self, victim: str) -> int:
        """Kill something and start it again; return how many rows were in flight at most."""
        done = self._done()
        if victim == "gateway":
            number = self._chance.randrange(len(self.gateways))
            self.gateways[number].signal(signal.SIGKILL)
            self.gateways[number].wait(10)
        elif victim == "engine":
            self.engine.kill()
        else:
            assert self.postgres is not None
            self.postgres.kill()
        asked = len(self.engine.calls())
        pause_s = self._chance.uniform(0.0, 0.3)
        time.sleep(pause_s)
        if victim == "gateway":
            self.gateways[number] = self._started()
        elif victim == "engine":
            self.engine.start()
        else:
            assert self.postgres is not None
            self.postgres.start()
        return asked - done

    def _done(self) -> int:
        """Rows whose end is in the store."""
        sql = "SELECT completed + failed + dead FROM batches"
        if self.postgres is None:
            with contextlib.closing(sqlite3.connect(f"file:{self.folder}/jobs.db?mode=ro", uri=True)) as connection:
                return int(connection.execute(sql).fetchone()[0])
        import psycopg

        with psycopg.connect(self.postgres.url) as database:
            found = database.execute(sql.replace("batches", "tidegate.batches")).fetchone()
            assert found is not None
            return int(found[0])

    def _records(self) -> Counter[str]:
        batch, names = self._counts.batch, Counter[str]()
        assert batch is not None
        for key in ("output_file_id", "error_file_id"):
            if batch[key]:
                url = f"{self.gateways[0].url}/v1/files/{batch[key]}/content"
                with urllib.request.urlopen(url, timeout=60) as answer:
                    names.update(json.loads(line)["custom_id"] for line in answer)
        return names


def get(url: str, body: object = None) -> dict[str, Any]:
    """Ask for JSON. Raises ``OSError`` when there is no answer of status 200."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


if __name__ == "__main__":
    main()
