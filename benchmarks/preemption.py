"""What stopping work for p0 does to p0, to those who are stopped, and to what an engine has computed; on sockets.

Three situations. The simulated engine's text is a function of prompt and place, so that every answer can be compared
with what it would have been; gateway, engine and clients share the machine's cores.

*Full.* 64 seats are full of long streams of p2 (1,000 tokens of prompt, 400 of answer) all the time, p0 has no reserve
and comes as often as the default ``preempt_rate`` allows: what p0 waits, abort round trip included, whether the answers
are what they would have been, and what was computed twice, by the gateway's metric and by the engine's own counters.
How late a timer of this process was in the same time says what of a wait is the machine's.

*Storm.* 1,000 short streams of p2 go through 32 seats while p0 comes 25 times a second and any number of dispatches may
be stopped: up to five stops a stream.

*Kill.* 200 streams of three bands run on two engines, one of which is killed with SIGKILL: those that can go on do at
the other one.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
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

TARGET = b"/v1/chat/completions"
STREAMS, SEATS, MOST_STOPS, VIPS_A_SECOND = 1000, 32, 5, 25.0
SHORT, LONG = (60, 140), (1_000, 400)
"""Tokens of prompt and answer; answers are up to 59 longer."""
GOAL_MS = 50
FULL_SEATS, FULL_S, FULL_VIPS_A_SECOND = 64, 140.0, 0.6

CONFIG = """
models: [{{name: m, backends: [{{name: b, url: "{url}", engine: tidegate, seats: {seats}}}]}}]
policy: {{{policy}bands: {{p0: {{reserve: 0}}{bands}}}}}
"""
STORM = {"policy": f"preempt_rate: 1, max_preemptions: {MOST_STOPS}, ", "bands": ", p2: {floor: 0}"}


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    waits_ms: list[float] = field(default_factory=list)
    timers_ms: list[float] = field(default_factory=list)
    same: int = 0
    other: list[str] = field(default_factory=list)
    answers: list[tuple[int, bytes, bytes]] = field(default_factory=list)  # number, request and answer, to be looked at
    needed: int = 0  # tokens that an engine has to take in for these answers: all but the last one of each

    @property
    def streams(self) -> int:
        """Those that were compared."""
        return self.same + len(self.other)


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


async def stream(client: Upstream, number: int, seen: Seen, band: str = "p2", lengths: tuple[int, int] = SHORT) -> None:
    """Keep an answer for ``look``, which would take the cores from those that are measured."""
    body = body_of(number, prompt=lengths[0], answer=lengths[1] + number % 60, stream=True)
    response = await client.request(b"POST", TARGET, headers_of(band), body)
    seen.answers.append((number, body, await response.read_all(1 << 24)))


def look(seen: Seen) -> None:
    """Compare all answers that were kept with what they would have been."""
    options = EngineOptions(model="m")
    composer = Composer(options, EngineModel(options.profile, kv_tokens=options.kv_tokens))
    while seen.answers:
        number, body, answer = seen.answers.pop()
        events = answer.split(b"\n\n")
        text, reasons, ends = "", [], events.count(b"data: [DONE]")
        usage: dict[str, int] = {}
        for event in events:
            if event.startswith(b"data: {"):
                chunk = json.loads(event[6:])
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices", ()):
                    text += choice["delta"].get("content") or ""
                    reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        seen.needed += usage.get("total_tokens", 1) - 1
        whole = text == expected(composer, body) and usage.get("completion_tokens") == json.loads(body)["max_tokens"]
        if whole and reasons == ["length"] and ends == 1:
            seen.same += 1
        else:
            seen.other.append(f"{number}: {reasons} {ends} {usage} {text[:60]!r}")


async def vip(client: Upstream, number: int, seen: Seen) -> None:
    body = body_of(10**6 + number, prompt=20, answer=4, stream=False)
    response = await client.request(b"POST", TARGET, headers_of("p0"), body)
    answer = json.loads(await response.read_all(1 << 20))
    assert response.status == 200
    seen.needed += answer["usage"]["total_tokens"] - 1
    seen.waits_ms.append(float(response.header(b"x-tidegate-queue-ms") or b"nan"))


async def storm(gateway: GatewayProcess) -> Seen:
    """Send all short streams at once and p0 until none of them waits."""
    seen, draw = Seen(), random.Random(1)
    client = Upstream(gateway.url, max_open=4 * STREAMS, connect_timeout_s=30, head_timeout_s=None)
    low = [asyncio.ensure_future(stream(client, number, seen)) for number in range(STREAMS)]
    await asyncio.sleep(2.0)
    high: list[asyncio.Future[None]] = []
    while gateway.total("tidegate_queue_depth", band="p2") > 0 or len(high) < 20:
        for _ in range(int(VIPS_A_SECOND)):
            await asyncio.sleep(draw.expovariate(VIPS_A_SECOND))
            high.append(asyncio.ensure_future(vip(client, len(high), seen)))
    await asyncio.gather(*low, *high)
    await client.close()
    return seen


async def full(gateway: GatewayProcess, seconds: float) -> Seen:
    """Keep all seats full of long streams while p0 comes now and then; each stream is looked at."""
    seen, draw = Seen(), random.Random(2)
    client = Upstream(gateway.url, max_open=1000, connect_timeout_s=30, head_timeout_s=None)
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds

    async def one_after_another(first: int) -> None:
        await asyncio.sleep(first * 0.1)  # else all answers would end at once
        number = first
        while loop.time() < ends:
            await stream(client, number, seen, lengths=LONG)
            number += 2 * FULL_SEATS

    async def timers() -> None:
        while loop.time() < ends:
            began = loop.time()
            await asyncio.sleep(0.01)
            seen.timers_ms.append(1000 * (loop.time() - began) - 10)

    low = [asyncio.ensure_future(one_after_another(number)) for number in range(2 * FULL_SEATS)]
    await asyncio.sleep(0.2 * FULL_SEATS + 5.0)
    watch = asyncio.ensure_future(timers())
    high: list[asyncio.Future[None]] = []
    while loop.time() < ends:
        await asyncio.sleep(draw.uniform(0.5, 1.5) / FULL_VIPS_A_SECOND)
        high.append(asyncio.ensure_future(vip(client, len(high), seen)))
    await asyncio.gather(*high, *low, watch)
    await client.close()
    return seen


async def outlive(gateway: GatewayProcess, kill: Callable[[], None]) -> tuple[Seen, int, int]:
    """Kill one of two engines under 200 streams; return what was seen, and of the rest the error events and ends."""
    seen = Seen()
    client = Upstream(gateway.url, max_open=1000, connect_timeout_s=30, head_timeout_s=None)
    going = [asyncio.ensure_future(stream(client, number, seen, f"p{number % 3}")) for number in range(180)]
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
    asked = json.loads(body_of(number, prompt=SHORT[0], answer=SHORT[1], stream=True)) | {"logprobs": True}
    response = await client.request(b"POST", TARGET, headers_of("p1"), json.dumps(asked).encode())
    return await response.read_all(1 << 24)


def computed_by(url: str) -> int:
    """Tokens that the engine has taken in."""
    with urllib.request.urlopen(url + "/sim/stats", timeout=10) as page:
        found: int = json.load(page)["computed_tokens"]
    return found


def run() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table."""
    yield from rows_of_full()
    yield from rows_of_a_storm()
    yield from rows_of_a_kill()


def rows_of_full(seconds: float = FULL_S) -> Iterator[tuple[str, str, str]]:
    """What p0 waits where only a stop brings it a seat, and what it costs those who are stopped."""
    seen, account = played(lambda gateway: full(gateway, seconds), FULL_SEATS, {"policy": "", "bands": ""})
    waits, timers = sorted(seen.waits_ms), sorted(seen.timers_ms)
    yield (
        f"full of long p2 streams: p0 wait p50 / p99 of {len(waits)}, no reserve, {account.stops:.0f} stops",
        f"{pick(waits, 0.5):.0f} / {pick(waits, 0.99):.0f} ms; {sum(wait > GOAL_MS for wait in waits)} later than 50",
        "≤ 50 ms",
    )
    yield "  a timer was late, p50 / p99", f"{pick(timers, 0.5):.0f} / {pick(timers, 0.99):.0f} ms", "few ms"
    yield from rows_of_answers(seen)
    yield from account.rows("≤ 0.1 %")


def rows_of_a_storm() -> Iterator[tuple[str, str, str]]:
    """Many stops of short answers."""
    seen, account = played(storm, SEATS, STORM)
    waits = sorted(seen.waits_ms)
    yield (
        f"storm, {STREAMS} short streams: stops, answers that went on with a part",
        f"{account.stops:.0f}, {account.resumed:.0f}",
        "",
    )
    yield from rows_of_answers(seen)
    times = f"{pick(waits, 0.5):.0f} / {pick(waits, 0.99):.0f} ms"
    yield f"  p0 wait p50 / p99 of {len(waits)} meanwhile", times, "(both cores are full)"
    yield from account.rows("(short streams)")


def rows_of_answers(seen: Seen) -> Iterator[tuple[str, str, str]]:
    yield "  answers of p2 identical to uninterrupted ones", f"{seen.same:,} of {seen.streams:,}", "all"
    for line in seen.other[:5]:
        yield "  not identical", line, ""


@dataclass(slots=True)
class Account:
    """What was computed twice, as the gateway counts it and as the engine does.

    Attributes:
        stops, resumed: answers stopped, and of those the ones that went on with a part.
        wasted: the gateway's ``tidegate_wasted_tokens_total{cause="preempted"}``.
        again: tokens that the engine took in beyond those that the answers need. Two kinds of them are not in the
            metric, since no engine tells a gateway of them: those of a prompt that was stopped before its answer
            began, and what an engine wrote between the stop and its noticing.
        computed: all that the engine took in.
    """

    stops: float
    resumed: float
    wasted: float
    again: float
    computed: float

    def rows(self, goal: str) -> Iterator[tuple[str, str, str]]:
        """Yield the waste."""
        unbegun = f"{self.stops - self.resumed:.0f} stops before the answer began"
        yield (
            f"  computed twice, by the gateway's metric; by the engine's counter ({unbegun})",
            f"{self.wasted:.0f}; {self.again:.0f} tokens, {self.again / max(self.stops, 1):.1f} a stop",
            "metric below counter",
        )
        yield f"  by that counter, part of all {self.computed:,.0f}", f"{self.again / self.computed:.3%}", goal


def played(
    play: Callable[[GatewayProcess], Coroutine[None, None, Seen]], seats: int, settings: dict[str, str]
) -> tuple[Seen, Account]:
    """Play with an engine and a gateway of their own."""
    with (
        engine_process(model="m", max_sequences=seats + 4, noise=0) as url,
        gateway_process(config=CONFIG.format(url=url, seats=seats, **settings)) as gateway,
    ):
        seen = asyncio.run(play(gateway))
        look(seen)
        computed = computed_by(url)
        return seen, Account(
            gateway.total("tidegate_preemptions_total"),
            gateway.total("tidegate_resumes_total", outcome="completed"),
            gateway.total("tidegate_wasted_tokens_total", cause="preempted"),
            computed - seen.needed,
            computed,
        )


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
            look(seen)
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


def pick(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")
