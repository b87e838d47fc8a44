"""Long answers of p2 fill every seat, and p0 keeps coming: what p0 waits, what becomes of the answers, what is wasted.

1,000 streams of p2 go through 32 seats of a simulated engine, whose text is a function of prompt and place, so that
every answer can be compared with what it would have been. p0 has no reserve: each of its requests has one of them
stopped. The abort round trip and all of HTTP are in the figures; gateway, engine and clients share the machine's cores.

What p0 waits is measured apart, where the seats are held for ten seconds each and p0 trickles in, four a second: no
seat comes free in time by itself, and little else runs on the cores. How late a timer of this process was in the same
time says what of a wait is the machine's.

Then 200 streams of three bands run on two engines, one of which is killed with SIGKILL: those that can go on do at the
other one.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidegate.backends import Upstream
from tidegate.simserver.answers import Envelope
from tidegate.simserver.compose import Composer
from tidegate.simserver.options import EngineOptions
from tidegate.simserver.requests import read_request
from tidegate.simserver.text import filler_text
from tidegate.simulation import EngineModel
from tidegate.testing.gateway_process import GatewayProcess, gateway_process
from tidegate.testing.processes import engine_process, running, wait_for_line

STREAMS, SEATS, MOST_STOPS = 1000, 32, 5
PROMPT, ANSWER = 60, 140
VIPS_A_SECOND = 25.0
TARGET = b"/v1/chat/completions"
LONG_ANSWER, LONG_STOPS, TRICKLE_S, TRICKLE_A_SECOND = 400, 20, 120.0, 4.0

CONFIG = """
models: [{{name: m, backends: [{{name: b, url: "{url}", engine: tidegate, seats: {seats}}}]}}]
policy: {{preempt_rate: 1, max_preemptions: {stops}, bands: {{p0: {{reserve: 0}}, p2: {{floor: 0}}}}}}
"""


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    waits_ms: list[float] = field(default_factory=list)
    timers_ms: list[float] = field(default_factory=list)
    same: int = 0
    other: list[str] = field(default_factory=list)


def body_of(number: int, *, prompt: int, answer: int, stream: bool) -> bytes:
    """A request of exactly so many tokens."""
    asked = {"model": "m", "messages": [{"role": "user", "content": filler_text(prompt, number)}]}
    more = {"max_tokens": answer, "ignore_eos": True, "stream": stream, "stream_options": {"include_usage": True}}
    return json.dumps(asked | (more if stream else {key: more[key] for key in ("max_tokens", "ignore_eos")})).encode()


def headers_of(band: str) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"x-tidegate-band", band.encode())]


def expected(composer: Composer, body: bytes) -> str:
    """What the engine writes when nobody stops it."""
    choice = composer.compose(read_request(body, {}), Envelope("x", "m", 0, True), 0).choices[0]
    return str(json.loads(bytes(choice.whole()["message"]["content"])))


async def stream(client: Upstream, composer: Composer, number: int, seen: Seen, band: str = "p2") -> None:
    body = body_of(number, prompt=PROMPT, answer=ANSWER + number % 60, stream=True)
    response = await client.request(b"POST", TARGET, headers_of(band), body)
    events = (await response.read_all(1 << 24)).split(b"\n\n")
    text, reasons, ends = "", [], events.count(b"data: [DONE]")
    usage: dict[str, int] = {}
    for event in events:
        if event.startswith(b"data: {"):
            chunk = json.loads(event[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                text += choice["delta"].get("content") or ""
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    whole = text == expected(composer, body) and usage.get("completion_tokens") == ANSWER + number % 60
    if whole and reasons == ["length"] and ends == 1:
        seen.same += 1
    else:
        seen.other.append(f"{number}: {reasons} {ends} {usage} {text[:60]!r}")


async def vip(client: Upstream, number: int, seen: Seen) -> None:
    body = body_of(10**6 + number, prompt=20, answer=4, stream=False)
    response = await client.request(b"POST", TARGET, headers_of("p0"), body)
    await response.read_all(1 << 20)
    assert response.status == 200
    seen.waits_ms.append(float(response.header(b"x-tidegate-queue-ms") or b"nan"))


async def play(gateway: GatewayProcess, engine: str) -> Seen:
    options = EngineOptions(model="m")
    composer = Composer(options, EngineModel(options.profile, kv_tokens=options.kv_tokens))
    seen, draw = Seen(), random.Random(1)
    client = Upstream(gateway.url, max_open=4 * STREAMS, connect_timeout_s=30, head_timeout_s=None)
    low = [asyncio.ensure_future(stream(client, composer, number, seen)) for number in range(STREAMS)]
    await asyncio.sleep(2.0)
    high: list[asyncio.Future[None]] = []
    while gateway.total("tidegate_queue_depth", band="p2") > 0 or len(high) < 20:
        for _ in range(int(VIPS_A_SECOND)):
            await asyncio.sleep(draw.expovariate(VIPS_A_SECOND))
            high.append(asyncio.ensure_future(vip(client, len(high), seen)))
    await asyncio.gather(*low, *high)
    await client.close()
    return seen


async def trickle(gateway: GatewayProcess) -> Seen:
    """Keep all seats full of long answers while p0 comes now and then; what p2 gets is not looked at here."""
    seen, draw = Seen(), random.Random(2)
    client = Upstream(gateway.url, max_open=1000, connect_timeout_s=30, head_timeout_s=None)

    async def long_answers(number: int) -> None:
        for again in range(1000):
            body = body_of(number * 1000 + again, prompt=PROMPT, answer=LONG_ANSWER, stream=True)
            await (await client.request(b"POST", TARGET, headers_of("p2"), body)).read_all(1 << 24)

    async def timers() -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0.01)
            seen.timers_ms.append(1000 * (loop.time() - began) - 10)

    low = [asyncio.ensure_future(long_answers(number)) for number in range(2 * SEATS)]
    await asyncio.sleep(2 * LONG_ANSWER * 0.026)
    watch = asyncio.ensure_future(timers())
    high = []
    for number in range(int(TRICKLE_S * TRICKLE_A_SECOND)):
        await asyncio.sleep(draw.expovariate(TRICKLE_A_SECOND))
        high.append(asyncio.ensure_future(vip(client, number, seen)))
    await asyncio.gather(*high)
    for task in (watch, *low):
        task.cancel()
    await asyncio.gather(watch, *low, return_exceptions=True)
    await client.close()
    return seen


async def outlive(gateway: GatewayProcess, kill: Callable[[], None]) -> tuple[Seen, int, int]:
    """Kill one of two engines under 200 streams; return what was seen, and of the rest the error events and ends."""
    options = EngineOptions(model="m")
    composer = Composer(options, EngineModel(options.profile, kv_tokens=options.kv_tokens))
    seen = Seen()
    client = Upstream(gateway.url, max_open=1000, connect_timeout_s=30, head_timeout_s=None)
    going = [asyncio.ensure_future(stream(client, composer, number, seen, f"p{number % 3}")) for number in range(180)]
    fixed = [asyncio.ensure_future(unable(client, number)) for number in range(20)]
    while gateway.total("tidegate_running") < 200:  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    kill()
    await asyncio.gather(*going)
    rest = await asyncio.gather(*fixed)
    await client.close()
    broken = [answer for answer in rest if b'"error"' in answer]
    good = sum(b"[DONE]" in answer and b'"error"' not in answer for answer in rest)
    wrong = sum(answer.count(b'"error"') != 1 or b"[DONE]" in answer for answer in broken)
    return seen, len(broken), len(rest) - good - len(broken) + wrong


async def unable(client: Upstream, number: int) -> bytes:
    """A stream that cannot go on, since it wants the probabilities of its tokens."""
    asked = json.loads(body_of(number, prompt=PROMPT, answer=ANSWER, stream=True)) | {"logprobs": True}
    response = await client.request(b"POST", TARGET, headers_of("p1"), json.dumps(asked).encode())
    return await response.read_all(1 << 24)


def engine_totals(url: str) -> dict[str, float]:
    """The engine's own counters."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as page:
        lines = page.read().decode()
    return {name: float(value) for name, value in re.findall(r"^vllm:(\w+)(?:\{.*\})? (\S+)$", lines, re.MULTILINE)}


def run() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table."""
    with (
        engine_process(model="m", max_sequences=SEATS + 4, noise=0) as url,
        gateway_process(config=CONFIG.format(url=url, seats=SEATS, stops=MOST_STOPS)) as gateway,
    ):
        seen = asyncio.run(play(gateway, url))
        metrics, totals = gateway.metrics(), engine_totals(url)
    yield from rows_of_stops(seen, metrics, totals)
    yield from rows_of_waits()
    yield from rows_of_a_kill()


def rows_of_waits() -> Iterator[tuple[str, str, str]]:
    """What p0 waits where only a stop brings it a seat."""
    with (
        engine_process(model="m", profile="slow", max_sequences=SEATS + 4, noise=0) as url,
        gateway_process(config=CONFIG.format(url=url, seats=SEATS, stops=LONG_STOPS)) as gateway,
    ):
        seen = asyncio.run(trickle(gateway))
        stops = gateway.total("tidegate_preemptions_total")
    waits, timers = sorted(seen.waits_ms), sorted(seen.timers_ms)
    yield (
        f"p0 wait p50 / p99 of {len(waits)}, no reserve, answers of ten seconds, {stops:.0f} stops",
        f"{pick(waits, 0.5):.0f} / {pick(waits, 0.99):.0f} ms",
        "≤ 50 ms",
    )
    yield "  a timer was late, p50 / p99", f"{pick(timers, 0.5):.0f} / {pick(timers, 0.99):.0f} ms", "few ms"


def rows_of_a_kill() -> Iterator[tuple[str, str, str]]:
    command = [sys.executable, "-m", "tidegate", "engine", "--listen", "127.0.0.1:0", "--model", "m", "--noise", "0"]
    with running(command) as doomed, engine_process(model="m", noise=0) as other:
        first = wait_for_line(doomed, "listening on ")
        rows = ", ".join(
            f'{{name: {name}, url: "{url}", engine: tidegate, seats: 200}}'
            for name, url in (("a", first), ("b", other))
        )
        plain = "policy: {preempt_rate: 0, bands: {p0: {reserve: 0}}}"
        with gateway_process(config=f"models: [{{name: m, backends: [{rows}]}}]\n{plain}") as gateway:
            seen, broken, wrong = asyncio.run(outlive(gateway, doomed.kill))
            resumed = gateway.total("tidegate_resumes_total", outcome="completed")
            held = gateway.total("tidegate_running")
    yield (
        "one of two engines killed: streams that went on, identical",
        f"{seen.same} of 180 ({resumed:.0f} on it)",
        "all",
    )
    for line in seen.other[:5]:
        yield "  not identical", line, ""
    yield "streams that cannot go on: ended by one error event; otherwise", f"{broken}; {wrong}", "0 otherwise"
    yield "seats held at the end", f"{held:.0f}", "0"


def rows_of_stops(seen: Seen, metrics: dict[str, float], totals: dict[str, float]) -> Iterator[tuple[str, str, str]]:
    stops = sum(value for name, value in metrics.items() if name.startswith("tidegate_preemptions_total"))
    resumed = sum(v for n, v in metrics.items() if n.startswith("tidegate_resumes_total") and "completed" in n)
    wasted = sum(v for n, v in metrics.items() if n.startswith("tidegate_wasted_tokens_total") and "preempted" in n)
    written = totals["generation_tokens_total"]
    read = totals["prefix_cache_queries_total"] - totals["prefix_cache_hits_total"]
    waits = sorted(seen.waits_ms)
    yield "p2 answers identical to uninterrupted ones", f"{seen.same} of {STREAMS}", "all"
    for line in seen.other[:5]:
        yield "  not identical", line, ""
    yield "preemptions, and answers that went on with a part", f"{stops:.0f}, {resumed:.0f}", "1-5 a stream"
    yield (
        f"p0 wait p50 / p99 of {len(waits)} meanwhile",
        f"{pick(waits, 0.5):.0f} / {pick(waits, 0.99):.0f} ms",
        "",
    )
    yield "tokens computed again per preemption", f"{wasted / max(stops, 1):.1f}", "half a block of 16"
    yield "part of all computed tokens", f"{wasted / (written + read):.2%}", "≤ 0.1 % (see text)"


def pick(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")
