"""Scenario kv-pressure for real: two minutes of 2.5 times the load, straight at an engine and through the gateway.

The engine is ``tidegate engine`` with a small KV pool, a fresh one for each run; the gateway is ``tidegate serve``
with the preset ``kv-guard`` as it ships. Requests leave when the timetable of ``kv_plan`` says (an open loop). After
the load only p0 is waited for. ``python -m benchmarks.kv_pressure [SECONDS]`` runs this alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks import kv_plan
from tidegate.cli.demo._plan import Question, prompt_text
from tidegate.cli.demo._record import Record
from tidegate.cli.load import Exchange, chat_request
from tidegate.refusals.fallback import MESSAGES
from tidegate.simulation import Request
from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.processes import engine_process

Row = tuple[str, str, str]
KEYS = tuple(f"tg-bench-{band}-0123456789abcdef" for band in range(len(kv_plan.LOAD)))
P0_WITHIN_S = 60.0
"""How long after the load p0 is waited for: its longest answers take some 20 s."""


@dataclass(slots=True)
class Measured:
    """One run.

    Attributes:
        records: of all requests.
        fallbacks: how many of each band got the fallback answer, whole and as it should be.
        tokens_per_s: prompt and answer tokens done for the first time, per second of load.
        preemptions: in the engine, while the load lasted.
        lag: part of its step time by which the engine was late.
    """

    records: list[Record] = field(default_factory=list)
    fallbacks: Counter[int] = field(default_factory=Counter)
    tokens_per_s: float = 0.0
    preemptions: int = 0
    lag: float = 0.0

    def of(self, band: int) -> list[Record]:
        """Records of a band."""
        return [record for record in self.records if record.question.band == band]

    def answered(self, band: int) -> int:
        """Answers of the engine that came whole."""
        return sum(record.done_s is not None and record.refused is None for record in self.of(band))

    def reasons(self, band: int) -> Counter[str]:
        """Refusals and failures of a band."""
        return Counter(record.refused for record in self.of(band) if record.refused is not None)

    def first_token_s(self, part: float) -> float:
        """A quantile of p0's time to the first token; what has none counts with infinity."""
        times = sorted(float("inf") if r.first_s is None else r.first_s for r in self.of(0))
        return times[min(len(times) - 1, int(part * len(times)))]

    @property
    def late_s(self) -> float:
        """99th percentile of how late requests left."""
        times = sorted(record.sent_s for record in self.records if record.sent_s is not None)
        return times[len(times) * 99 // 100]


def run(seconds: float = 120.0) -> list[Row]:
    """Run both and give the rows of the comparison."""
    load = kv_plan.requests(seconds)
    bare, gated = measure(load, seconds, gated=False), measure(load, seconds, gated=True)
    shed = [gated.reasons(band)["shed"] for band in range(3)]
    other = {f"p{band} {why}": n for band in range(3) for why, n in gated.reasons(band).items() if why != "shed"}
    first = f"first token p50 {gated.first_token_s(0.5):.2f} s, p99 {gated.first_token_s(0.99):.1f} s"
    part = gated.tokens_per_s / bare.tokens_per_s
    preempted = f"{gated.preemptions}, ungated {bare.preemptions}"
    return [
        ("kv-pressure: p0 answered", f"{gated.answered(0)} of {len(gated.of(0))}; {first}", "all"),
        ("  straight at the engine", f"{bare.answered(0)} of {len(bare.of(0))} before the load ended", ""),
        ("  engine preemptions", preempted, "at most 1 % of ungated"),
        ("  useful tokens/s", f"{gated.tokens_per_s:,.0f}, ungated {bare.tokens_per_s:,.0f}: {part:.1%}", "≥ 100 %"),
        ("  shed, with the fallback answer", _shed(gated, shed), "p2, and p1 where need be; never p0"),
        ("  other refusals and failures", str(other or "none"), "none"),
        ("  engine late, requests late", f"{bare.lag:.1%} and {gated.lag:.1%}, {gated.late_s:.2f} s", "under 5 %"),
    ]


def _shed(gated: Measured, shed: list[int]) -> str:
    told = sum(gated.fallbacks.values())
    return ", ".join(f"p{b} {n} of {len(gated.of(b))}" for b, n in enumerate(shed)) + f"; {told} of {sum(shed)} told so"


def measure(load: list[Request], seconds: float, *, gated: bool, kv_tokens: int = kv_plan.ENGINE.kv_tokens) -> Measured:
    """Run the load once."""
    options = {"profile": kv_plan.ENGINE.profile, "kv_tokens": kv_tokens, "max_sequences": kv_plan.MAX_SEQUENCES}
    with engine_process(**options, model="demo", noise=kv_plan.NOISE, seed=1) as engine, _before(engine, gated) as url:
        return asyncio.run(_Load(load, seconds, engine, url).run())


@contextlib.contextmanager
def _before(engine: str, gated: bool) -> Iterator[str]:
    """Give the url that clients ask: the engine's, or that of a gateway before it."""
    if not gated:
        yield engine
        return
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
    tenants = [f'  - {{name: t{n}, keys: ["sha256:{digest}"], band: p{n}}}' for n, digest in enumerate(digests)]
    config = kv_plan.SETTINGS.format(url=engine, seats=kv_plan.SEATS, tenants="\n".join(tenants))
    with gateway_process("--log-level", "warning", config=config.replace("name: m", "name: demo")) as gateway:
        yield gateway.url


class _Load:
    def __init__(self, load: list[Request], seconds: float, engine: str, url: str) -> None:
        self._seconds, self._engine, self._url = seconds, engine, url
        self._port = urlsplit(url).port or 80
        questions = [Question(number, r.band, r.at, r.prompt_tokens, r.output_tokens) for number, r in enumerate(load)]
        self._prepared = [(question, self._encode(question)) for question in questions]
        self._measured = Measured()
        self._open: dict[asyncio.Task[None], int] = {}

    async def run(self) -> Measured:
        loop, found = asyncio.get_running_loop(), self._measured
        start = loop.time()
        for question, request in self._prepared:
            await asyncio.sleep(start + question.at_s - loop.time())
            task = asyncio.create_task(self._ask(question, request, start + question.at_s))
            self._open[task] = question.band
            task.add_done_callback(self._open.pop)
        await asyncio.sleep(start + self._seconds - loop.time())
        totals = await asyncio.to_thread(_totals, self._engine)
        found.tokens_per_s = (totals["prompt_tokens"] + totals["generation_tokens"]) / (loop.time() - start)
        found.preemptions, found.lag = int(totals["num_preemptions"]), totals["lag_share"]
        highest = [task for task, band in self._open.items() if band == 0]
        if highest and self._url != self._engine:
            await asyncio.wait(highest, timeout=P0_WITHIN_S)
        rest = list(self._open)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        return found

    async def _ask(self, question: Question, request: bytes, due: float) -> None:
        loop, record = asyncio.get_running_loop(), Record(question)
        self._measured.records.append(record)
        try:
            _, exchange = await loop.create_connection(
                lambda: _Visit(request, record, lambda: loop.time() - due), "127.0.0.1", self._port
            )
        except OSError:
            record.refused = "no_connection"
            return
        try:
            await exchange.done.wait()
        finally:
            exchange.leave()
        self._measured.fallbacks[question.band] += exchange.is_fallback

    def _encode(self, question: Question) -> bytes:
        prompt = prompt_text(question, seed=1)
        key, output = KEYS[question.band], question.output_tokens
        return chat_request(urlsplit(self._url).netloc, key=key, prompt=prompt, output_tokens=output)


class _Visit(Exchange):
    """An exchange that looks at refusals too."""

    def __init__(self, request: bytes, record: Record, now: Callable[[], float]) -> None:
        super().__init__(request, record, now)
        self._body = b""

    def on_body(self, body: bytes) -> None:
        if self._record.refused == "shed":
            self._body += body
        else:
            super().on_body(body)

    @property
    def is_fallback(self) -> bool:
        """Whether the answer was a 200 that streamed the message of the fallback answer, ended and was closed."""
        events = [event.removeprefix("data: ") for event in self._body.decode().split("\n\n") if event]
        if self._parser.get_status_code() != 200 or len(events) != 3 or events[2] != "[DONE]":
            return False
        (said,), (end,) = (json.loads(event)["choices"] for event in events[:2])
        return bool(said["delta"]["content"] == MESSAGES["en"] and end["finish_reason"] == "load_shedding_fallback")


def _totals(engine: str) -> dict[str, float]:
    """Counters of the engine's metrics page by their short names, and its lag."""
    with urllib.request.urlopen(engine + "/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.startswith("vllm:") and name.partition("{")[0].endswith("_total"):
            found[name.partition("{")[0].removeprefix("vllm:").removesuffix("_total")] = float(value)
    with urllib.request.urlopen(engine + "/sim/stats", timeout=10) as page:
        found["lag_share"] = json.load(page)["lag_share"]
    return found


if __name__ == "__main__":
    for row in run(*map(float, sys.argv[1:])):
        print(*row, sep=" | ")
