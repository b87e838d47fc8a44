"""A gateway that serves imports nothing: a module read from the disk holds up every request, for milliseconds each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from e2e.jobs_stage import client_of, config, lines_of, reach, rows, submit
from e2e.raw import DONE, Client, Upstream, Visit, ask, chat, chunk, gateway, until, whole
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]

WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        with open(os.environ["IMPORTS_NOTED"], "a") as file:
            file.write(f"{os.getpid()} {name}\\n")

sys.meta_path.insert(0, Watch())
"""


class Imports:
    """What a process looks for as it imports: it has a ``sitecustomize`` that says so."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(WATCH)
        self._noted = folder / "noted"
        self.environ = {"PYTHONPATH": str(folder), "IMPORTS_NOTED": str(self._noted)}

    def of(self, pid: int) -> list[str]:
        """Give the modules that a process has looked for so far."""
        pairs = (line.split() for line in self._noted.read_text().splitlines())
        return [name for process, name in pairs if int(process) == pid]


class _Engine:
    """Answers, refuses, fails or is silent as the request says; it asks for a pause once."""

    paused = False

    async def __call__(self, visit: Visit) -> None:
        if b'"stuck"' in visit.body:
            await asyncio.Event().wait()
        elif b'"fails"' in visit.body:
            visit.answer(b"no JSON", 500)
        elif b'"slow down"' in visit.body and not self.paused:
            self.paused = True
            visit.answer(b"{}", 429, more=b"retry-after: 1\r\n")
        elif b'"stream": true' in visit.body:
            visit.start_stream()
            visit.send(chunk("word") + DONE)
            visit.writer.close()
        else:
            visit.answer(whole())


async def _clients(url: str) -> set[int]:
    """Send one request of each kind; return the statuses."""
    seen = set[int]()
    for body in (chat(), chat(stream=True), chat(model="none"), chat(user="fails"), chat(user="slow down"), b"{"):
        seen.add((await ask(url, body)).status)
    long = chat(messages=[{"role": "user", "content": "hé " * 700_000}])
    seen.add((await ask(url, long)).status)
    for path in ("/v1/completions", "/v1/embeddings", "/v1/nothing"):
        seen.add((await ask(url, chat(prompt="hi", input="hi"), path=path)).status)
    for name in ("x-tidegate-band", "authorization", "x-request-id", "traceparent", "x-tidegate-ttl"):
        seen.add((await ask(url, chat(), headers={name: "Bearer p1"})).status)
    for path in ("/v1/models", "/v1/models/raw", "/v1/models/none"):
        seen.add((await ask(url, b"", method="GET", path=path)).status)
    broken = await Client.connect(url)
    broken.writer.write(b"\x16\x03\x01\r\n\r\n")
    seen.add((await broken.answer()).status)
    broken.leave()
    stuck = [await Client.connect(url) for _ in range(12)]
    for number, client in enumerate(stuck):
        client.send(chat(user="stuck", stream=number % 2 == 0), headers={"x-tidegate-band": f"p{number % 2 + 1}"})
    await asyncio.sleep(0.3)
    for client in stuck:
        client.leave()
    return seen


async def _operator(process: GatewayProcess) -> None:
    """Ask for every page of the control port, and change one of each thing that can be changed."""
    document = json.loads((await ask(process.control, b"", method="GET", path="/admin/openapi.json")).body)
    pages = ["/", "/livez", "/readyz", "/metrics", "/nothing", *document["paths"]]
    for page in pages:
        path = page.replace("{id}", "1").replace("{name}", "one")
        client = await Client.connect(process.control)
        client.send(b"", method="GET", path=path)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.answer(), 1.3)  # the dashboard's numbers never end
        client.leave()
    changes: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("POST", "/admin/mode", {"mode": "transactions_only", "revert_after": "1h"}),
        ("POST", "/admin/mode", {"mode": "normal"}),
        ("PATCH", "/admin/policy", {"queue_capacity": 500}),
        ("PATCH", "/admin/policy", {"queue_capacity": -1}),
        ("POST", "/admin/policy/preview", {"policy": {"queue_capacity": 400}}),
        ("POST", "/admin/audit/1/undo", {}),
        ("POST", "/admin/tenants", {"name": "one", "band": "p2"}),
        ("POST", "/admin/tenants/one/keys", {}),
        ("PATCH", "/admin/tenants/one", {"band": "p1"}),
        ("DELETE", "/admin/tenants/one", {}),
        ("POST", "/admin/reload", {}),
        ("POST", "/admin/login", {"token": "none"}),
        ("POST", "/admin/logout", {}),
        ("POST", "/admin/dead-letters/1/redrive", {}),
    )
    for method, path, body in changes:
        await ask(process.control, body, method=method, path=path)


@pytest.mark.parametrize("form", ["json", "console"])
async def test_nothing_is_imported_while_it_serves(tmp_path: Path, form: str) -> None:
    imports = Imports(tmp_path)
    async with Upstream(_Engine()).running() as upstream:
        more = f'control: {{store: "sqlite:///{tmp_path}/control.db"}}\npolicy: {{bands: {{p2: {{capacity: 2}}}}}}'
        settings = config(tmp_path, upstream.url, seats=2, more=more)
        async with gateway(settings, "--log-format", form, environ=dict(os.environ) | imports.environ) as process:
            await until(lambda: process.total("tidegate_backend_up") >= 1, within_s=5)
            begun = imports.of(process.pid)
            assert "tidegate.assembly" in begun, "the watch sees nothing"
            async with asyncio.timeout(40):  # whatever never ends shall say where
                assert {200, 400, 404, 500} <= await _clients(process.url)
                await _operator(process)
            async with client_of(process.url) as client:
                batch = await reach(client, await submit(client, rows(5)))
                assert len(await lines_of(client, batch.output_file_id)) == 5
            late = imports.of(process.pid)[len(begun) :]
            assert not late, f"these belong at the top of a module: {late}"
