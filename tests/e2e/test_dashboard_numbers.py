"""The page tells what the clients of a scripted run measured themselves, within the window that it states."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.browser import browser, dashboard
from e2e.raw import DONE, Upstream, Visit, chat, chunk, gateway, until
from tidegate.config import key_digest

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(200)]  # 3 to 6 s on a machine at rest

FIRST_S, REST_S = 0.15, 0.25
SEATS = 2
USAGE = {"prompt_tokens": 11, "completion_tokens": 7}
CONFIG = """
models: [{{name: raw, backends: [{{name: b0, url: "{url}", engine: openai, seats: {seats}}}]}}]
tenants:
  - {{name: shop, keys: ["{shop}"], band: p1}}
  - {{name: batch, keys: ["{batch}"], band: p2, limits: {{max_queued: 3}}}}
"""
UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0}


async def answer(visit: Visit) -> None:
    """A stream whose first content comes after a known time, and whose seat is held for a known time."""
    visit.start_stream()
    await asyncio.sleep(FIRST_S)
    for word in ("Hello", *(" you" for _ in range(8)), " all"):
        visit.send(chunk(word))
    await asyncio.sleep(REST_S)
    last = {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}
    visit.send(chunk("", "stop") + b"data: " + json.dumps(last).encode() + b"\n\n" + DONE)


@dataclass
class Seen:
    """What one client saw: time to its first content, its wait by the header, its status."""

    status: int
    first_s: float
    wait_s: float


async def asked(url: str, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask by hand; the answer ends with the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(chat(stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def request(url: str, key: str) -> Seen:
    """Ask once, so that the first content is timed when it comes."""
    reader, writer = await asked(url, key)
    began = time.monotonic()
    data, first_s = b"", 0.0
    while piece := await reader.read(65536):
        data += piece
        if not first_s and b"Hello" in data:
            first_s = time.monotonic() - began
    writer.close()
    status, wait_ms = int(data.split()[1]), re.search(rb"x-tidegate-queue-ms: (\d+)", data)
    return Seen(status, first_s, int(wait_ms[1]) / 1000 if wait_ms else 0.0)


async def leave(url: str, key: str) -> None:
    """Ask, and go when most of the content has come."""
    reader, writer = await asked(url, key)
    await reader.readuntil(b" all")
    writer.close()


async def busy(url: str, late_s: list[float]) -> None:
    """Note how long a question takes that costs nothing: what a machine that does much else adds to every time."""
    host, port = url.removeprefix("http://").split(":")
    while True:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.closing(writer):  # also when it is told to stop just here
            writer.write(f"GET /livez HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
            await reader.read()
        late_s.append(time.monotonic() - began)
        await asyncio.sleep(0.02)


def times(text: str) -> Iterator[float]:
    """The times of a cell like ``250 ms / 1.2 s``, seconds."""
    for number, unit in re.findall(r"([\d.]+) (ms|s|min)\b", text):
        yield float(number) * UNITS_S[unit]


async def test_the_page_and_the_clients_tell_the_same() -> None:
    keys = {"shop": key_digest("shop-key"), "batch": key_digest("batch-key")}
    async with (
        Upstream(answer).running() as upstream,
        gateway(CONFIG.format(url=upstream.url, seats=SEATS, **keys)) as process,
        browser() as opened,
        dashboard(opened, process.control) as screen,
    ):
        await screen.shows("#pulse", "live")
        late_s: list[float] = []
        questions = asyncio.ensure_future(busy(process.url, late_s))
        p1 = [asyncio.ensure_future(request(process.url, "shop-key")) for _ in range(12)]
        await until(lambda: process.total("tidegate_queue_depth") >= 2, within_s=5)
        p2 = [asyncio.ensure_future(request(process.url, "batch-key")) for _ in range(8)]
        seen, other = await asyncio.gather(*p1), await asyncio.gather(*p2)
        questions.cancel()
        slack_s = 0.05 + 2 * max(late_s)  # once when it was sent, once when its content came
        await screen.shows("[data-band=p1] [data-key=running]", "0")
        await screen.shows("[data-band=p2] [data-key=running]", "0")
        refused = sum(each.status == 429 for each in other)
        done = [each for each in (*seen, *other) if each.status == 200]
        assert {each.status for each in seen} == {200}
        assert refused > 0
        await screen.shows("[data-band=p2] [data-key=refusals]", f"tenant_limit {refused}")
        await screen.shows("#tenants-tokens", f"{sum(USAGE.values()) * (len(done) - len(seen))}")
        await asyncio.sleep(2)  # some frames more: everything has ended
        assert f"{refused} in 1 min: tenant limit {refused}" in await screen.text("#tile-refused-say")
        assert f"p2 {refused}" in await screen.text("#tile-refused .split")
        assert f"tenant_limit {refused}" in await screen.text("[data-band=p2] [data-key=refusals]")
        assert f"batch\t{refused}" in await screen.text("#tenants-refused")
        rows = await screen.page.locator("#refusals tbody tr").count()
        assert rows == refused

        used = sum(USAGE.values())
        tokens = await screen.text("#tenants-tokens")
        assert f"shop\t{used * len(seen)}" in tokens
        assert f"batch\t{used * (len(done) - len(seen))}" in tokens

        for key, measured in (("ttft", [each.first_s for each in seen]), ("wait", [each.wait_s for each in seen])):
            p50, p99 = times(await screen.text(f"[data-band=p1] [data-key={key}] span"))
            measured.sort()
            half = len(measured) // 2
            assert measured[half - 1] * 0.9 - slack_s <= p50 <= measured[half] * 1.1 + 0.05, (key, measured)
            assert measured[-1] * 0.9 - slack_s <= p99 <= measured[-1] * 1.1 + 0.05, (key, measured, slack_s)

        assert await screen.text("#waste") == "Computed for nothing, 1 min: 0 tokens"
        await leave(process.url, "shop-key")
        await screen.shows("#waste", "cancelled")
        thrown_away = process.total("tidegate_wasted_tokens_total", cause="cancelled")
        part = thrown_away / (thrown_away + used * len(done))
        assert (
            await screen.text("#waste")
            == f"Computed for nothing, 1 min: {part:.2%} of tokens: cancelled {thrown_away:.0f}"
        )
        async with dashboard(opened, process.control, locale="zh-CN") as chinese:
            await chinese.shows("#waste", f"近 1 分钟白算：占 token 的 {part:.2%}，已取消 {thrown_away:.0f}")

        share = float((await screen.text("[data-band=p1] [data-key=share] small")).partition("%")[0])
        assert share == pytest.approx(100 * len(seen) / len(done), abs=1)
