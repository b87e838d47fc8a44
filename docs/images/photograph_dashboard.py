"""Photograph the dashboard under load: ``.venv/bin/python3 docs/images/photograph_dashboard.py [SECONDS] [PICTURE]``.

Two simulated engines, seven tenants of three bands, two batches, clients that leave and one that asks too much. Needs
the development environment and Chromium (``scripts/install_chromium.sh``). The curves begin with the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright

from tidegate.backends import Upstream
from tidegate.config import key_digest
from tidegate.simserver.text import filler_text
from tidegate.testing.gateway_process import GatewayProcess, gateway_process
from tidegate.testing.processes import engine_process

CONFIG = """
models:
  - name: sim
    backends:
      - {{name: gpu-a, url: "{first}", engine: tidegate, seats: 38}}
      - {{name: gpu-b, url: "{second}", engine: tidegate, seats: 24}}
tenants:
{tenants}
jobs: {{store: "sqlite:///{folder}/jobs.db", files: "{folder}/files"}}
"""
TENANTS = {  # band, requests a second, tokens of prompt and answer
    "checkout": ("p0", 2.0, 60, 40),
    "support-chat": ("p1", 0.8, 300, 120),
    "search": ("p1", 0.8, 200, 60),
    "analytics": ("p2", 2.0, 500, 300),
    "evaluation": ("p2", 3.0, 400, 350),
    "moderation": ("p2", 2.5, 250, 200),
    "reports": ("p2", 1.0, 300, 200),
}
LEAVES = "evaluation"  # one in eight of its clients goes before its answer is whole
LIMITED = "reports"
ROWS = 2000


def tenant_row(name: str) -> str:
    limits = ", limits: {requests_per_minute: 30}" if name == LIMITED else ""
    return f'  - {{name: {name}, keys: ["{key_digest(name)}"], band: {TENANTS[name][0]}{limits}}}'


def headers(name: str, kind: bytes = b"application/json") -> list[tuple[bytes, bytes]]:
    return [(b"content-type", kind), (b"authorization", f"Bearer {name}".encode())]


def body(prompt: int, answer: int, number: int, **more: object) -> dict[str, object]:
    message = {"role": "user", "content": filler_text(prompt, number)}
    return {"model": "sim", "messages": [message], "max_tokens": answer, **more}


async def ask(client: Upstream, name: str, number: int, draw: random.Random) -> None:
    _, _, prompt, answer = TENANTS[name]
    asked = json.dumps(body(draw.randint(1, 2 * prompt), draw.randint(1, 2 * answer), number, stream=True)).encode()
    response = await client.request(b"POST", b"/v1/chat/completions", headers(name), asked)
    if name == LEAVES and number % 8 == 0:
        await response.read()
        await asyncio.sleep(2.0)
        response.abort()
        return
    await response.read_all(1 << 24)


async def keep_asking(client: Upstream, name: str) -> None:
    """Come at random, however slow the answers are."""
    draw, asked = random.Random(name), set[asyncio.Task[None]]()
    try:
        for number in range(10**6):
            await asyncio.sleep(draw.expovariate(TENANTS[name][1]))
            task = asyncio.ensure_future(ask(client, name, number, draw))
            asked.add(task)
            task.add_done_callback(asked.discard)
    finally:
        for task in list(asked):
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def submit(client: Upstream, name: str) -> None:
    rows = (
        {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body(200, 60, n)}
        for n in range(ROWS)
    )
    edge = "cut"
    parts = f'--{edge}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{edge}\r\n'
    parts += 'content-disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
    parts += "\n".join(map(json.dumps, rows)) + f"\r\n--{edge}--\r\n"
    kind = f"multipart/form-data; boundary={edge}".encode()
    sent = await client.request(b"POST", b"/v1/files", headers(name, kind), parts.encode())
    file = json.loads(await sent.read_all(1 << 20))["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = await client.request(b"POST", b"/v1/batches", headers(name), json.dumps(asked).encode())
    await made.read_all(1 << 20)


async def photograph(gateway: GatewayProcess, seconds: float, picture: Path) -> None:
    client = Upstream(gateway.url, max_open=4000, connect_timeout_s=30, head_timeout_s=None)
    for name in ("analytics", "evaluation"):
        await submit(client, name)
    asking = [asyncio.ensure_future(keep_asking(client, name)) for name in TENANTS]
    await asyncio.sleep(seconds)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    async with async_playwright() as play:
        opened = await play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await opened.new_page(
            viewport={"width": 1920, "height": 1080}, device_scale_factor=2 / 3, color_scheme="dark", locale="en-US"
        )
        await page.goto(f"{gateway.control}/")
        await page.wait_for_selector("#refusals tbody tr")
        await page.wait_for_timeout(6000)  # one point of the curves, and jobs that have been asked
        await page.screenshot(path=picture)
        await opened.close()
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(client.close(), 10)


def main(seconds: float, picture: Path) -> None:
    """Set the stage and take the picture."""
    engine = {"model": "sim", "profile": "slow", "max_sequences": 40}
    with (
        tempfile.TemporaryDirectory() as folder,
        engine_process(**engine) as first,
        engine_process(**engine) as second,
        gateway_process(
            config=CONFIG.format(first=first, second=second, folder=folder, tenants="\n".join(map(tenant_row, TENANTS)))
        ) as gateway,
    ):
        asyncio.run(photograph(gateway, seconds, picture))


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 300.0,
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("dashboard.png"),
    )
