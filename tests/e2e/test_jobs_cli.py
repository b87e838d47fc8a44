"""``tidegate jobs`` against a running gateway."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs_stage import config, engine, prompt_of, rows
from e2e.raw import Visit, gateway, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]


async def run(*words: str) -> tuple[int, str, str]:
    """Run the command; returns status, output and errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate", "jobs", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_a_file_goes_in_and_its_answers_come_out(tmp_path: Path) -> None:
    source, answers, failures = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "err.jsonl"))
    source.write_bytes(rows(25))

    async def serve(visit: Visit) -> None:
        if prompt_of(visit) == "r3":
            visit.answer(b'{"error": {"message": "it broke"}}', 500)
        else:
            visit.answer(whole(prompt_of(visit)))

    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, jobs=", max_attempts: 1")) as process,
    ):
        url, control = ("--url", process.url), ("--url", process.control)
        places = ("--output", str(answers), "--errors", str(failures))
        status, output, errors = await run("submit", str(source), "--wait", *places, *url)
        assert status == 0, errors
        batch = output.strip()
        assert f"{batch}: completed, 24/25, 1 failed" in errors
        assert len(answers.read_text().splitlines()) == 24
        assert json.loads(failures.read_text())["custom_id"] == "r3"
        status, output, _ = await run("list", *url)
        assert status == 0
        assert batch in output
        status, output, _ = await run("show", batch, "--json", *url)
        assert json.loads(output)["status"] == "completed"
        status, output, _ = await run("dead", "list", *control)
        assert f"{batch}.4" in output
        status, output, _ = await run("dead", "discard", batch, *control)
        assert (status, output) == (0, f"1 dead letters of batch {batch} discarded\n")
        status, _, errors = await run("cancel", batch, *url)
        assert status == 1
        assert "completed" in errors
        status, _, errors = await run("show", "batch_none", *url)
        assert status == 1
        assert "batch_none" in errors


async def test_a_gateway_that_is_not_there_is_named() -> None:
    status, _, errors = await run("list", "--url", "http://127.0.0.1:9")
    assert (status, "127.0.0.1:9" in errors) == (1, True)


async def test_a_file_that_is_refused_before_its_end_says_why(tmp_path: Path) -> None:
    """The gateway answers and reads no more: what the command was still sending is no reason to say less."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(rows(1) + b" " * 64_000_000)
    async with gateway(config(tmp_path, "http://127.0.0.1:9", jobs=", max_file: 1MB")) as process:
        status, _, errors = await run("submit", str(source), "--url", process.url)
    assert (status, "1000000 bytes (jobs.max_file)" in errors) == (1, True), errors


async def test_what_cannot_be_done_with_the_answers_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(rows(1))
    junk = tmp_path / "junk.jsonl"
    junk.write_text("junk\n")
    nowhere, url = str(tmp_path / "no" / "out.jsonl"), ("--url", "http://127.0.0.1:9")
    for words, said in (
        (("submit", str(source), "--output", "out.jsonl"), "--output: expected --wait beside it"),
        (("submit", str(source), "--errors", "err.jsonl"), "--errors: expected --wait beside it"),
        (("submit", str(source), "--wait", "--output", nowhere), f"--output: expected a file to write, got {nowhere}"),
        (("submit", str(source), "--wait", "--errors", str(tmp_path)), "--errors: expected a file to write"),
        (("submit", str(junk)), "expected lines with a url, or --endpoint"),
        (("show", ""), "expected the id of a batch"),
    ):
        status, _, errors = await run(*words, *url)
        assert (status, said in errors) == (2, True), errors


async def test_a_batch_that_fails_says_why_and_a_place_that_takes_no_answers_is_named(tmp_path: Path) -> None:
    source, junk = tmp_path / "in.jsonl", tmp_path / "junk.jsonl"
    source.write_bytes(rows(1))
    junk.write_bytes(rows(1) + b"junk\n")

    async def serve(visit: Visit) -> None:
        visit.answer(whole(prompt_of(visit)))

    async with engine(serve).running() as upstream, gateway(config(tmp_path, upstream.url)) as process:
        url = ("--url", process.url)
        status, _, errors = await run("submit", str(junk), "--wait", *url)
        assert (status, "failed, 0/0" in errors, "line 2: This line is not" in errors) == (1, True, True), errors
        status, _, errors = await run("submit", str(source), "--wait", "--output", "/dev/full", *url)
        assert (status, "/dev/full: No space left on device" in errors) == (1, True), errors


def batch(status: str, output: str | None = None) -> dict[str, Any]:
    return {
        "id": "batch_a",
        "status": status,
        "errors": None,
        "request_counts": {"total": 1, "completed": int(status == "completed"), "failed": 0},
        "output_file_id": output,
        "error_file_id": None,
        "x_tidegate": {"expected_at": None, "band": "p2", "dead": 0},
    }


class Restarted(BaseHTTPRequestHandler):
    """A gateway that is started anew while somebody waits: it is closing, then not there, then back."""

    looks = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(200, {"id": "file-a"} if self.path == "/v1/files" else batch("in_progress"))

    def do_GET(self) -> None:
        if self.path.startswith("/v1/files"):
            self._answer(200, {"custom_id": "1"})
            return
        Restarted.looks += 1
        if Restarted.looks == 1:
            self._answer(503, {"error": {"message": "draining"}})
        elif Restarted.looks == 2:
            self.connection.close()
        else:
            self._answer(200, batch("completed", "file-b"))

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


async def test_who_waits_for_a_batch_waits_through_a_restart_of_the_gateway(tmp_path: Path) -> None:
    source, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(rows(1))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Restarted)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        status, _, errors = await run("submit", str(source), "--wait", "--output", str(answers), "--url", url)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
    assert (status, "batch_a: completed, 1/1" in errors) == (0, True), errors
    assert json.loads(answers.read_text()) == {"custom_id": "1"}
    assert Restarted.looks == 3
