"""The presets before real engines: ``flash-sale`` and ``kv-guard``, two minutes each, on llama.cpp and on vLLM.

What an engine can do is measured first, for each band's requests with all of its slots busy, so that the load is a
multiple of it on any machine. flash-sale: p0 comes at a fifth of that, and after five seconds p2 asks for 2.5 times
what the time holds, all at once. kv-guard: p0, p1 and p2 come at 0.3, 0.4 and 1.8 times. Requests leave when they are
due (an open loop); after that time only p0 is waited for. The presets are as they ship; vLLM runs with our scheduler
class and gets two seats more than slots, kept for p0 by ``reserve: 2``.

    python -m benchmarks.real_engines [vllm|llamacpp] [flash-sale|kv-guard] [SECONDS]
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tidegate.cli.load import Target, ask, chat_request, in_time
from tidegate.testing.engines import EngineServer
from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.real_engines import MODEL, SCHEDULER, NotSetUpError, Size, llama_server, vllm_server

Row = tuple[str, str, str]
ROOT = Path(__file__).resolve().parents[1]
SIZES = {"llamacpp": Size(8, 4096), "vllm": Size(8, 1280)}
FLAGS = {
    "llamacpp": ("--threads-http", "64"),
    "vllm": ("--scheduler-cls", SCHEDULER, "--no-enable-log-requests"),
}
EXTRA_SEATS = {"llamacpp": 0, "vllm": 2}
PRESETS = ("flash-sale", "kv-guard")
LENGTHS = ((12, 16), (24, 32), (40, 64))
"""Words of the prompt (two tokens each for our model) and tokens of the answer, per band."""

WARM_S, MEASURE_S, MEASURED, P0_WITHIN_S = 2.0, 6.0, 30, 60.0
"""Seconds before an engine is measured, least seconds and answers that it is measured by, patience for p0 after."""
KEYS = tuple(f"tg-real-{band}-0123456789abcdef" for band in range(3))

SETTINGS = """\
preset: {preset}
gateway: {{listen: "127.0.0.1:0", drain_timeout: 1s}}
control: {{listen: "127.0.0.1:0"}}
models:
  - name: {model}
    backends: [{{name: b, url: "{url}", engine: {kind}, seats: {seats}}}]
tenants:
{tenants}
policy: {{bands: {{p0: {{reserve: {reserve}}}}}}}
"""


@dataclass(slots=True)
class Record:
    """One request; see ``tidegate.cli.load.Answer``."""

    band: int
    sent_s: float | None = None
    queue_s: float | None = None
    first_s: float | None = None
    done_s: float | None = None
    refused: str | None = None
    pieces: int = 0


@dataclass(slots=True)
class Played:
    """One run.

    Attributes:
        capacity: requests of each band per second with all slots busy, measured before.
        records: of all requests.
        stopped: requests that the engine preempted; ``None``: it does not say.
    """

    capacity: tuple[float, ...]
    records: list[Record] = field(default_factory=list)
    stopped: int | None = None

    def of(self, band: int) -> list[Record]:
        """Records of a band."""
        return [record for record in self.records if record.band == band]

    def answered(self, band: int) -> int:
        """Whole answers of the engine."""
        return sum(record.done_s is not None and record.refused is None for record in self.of(band))

    def first_s(self, band: int, part: float) -> float:
        """A quantile of the time to the first token of those that got one."""
        times = sorted(record.first_s for record in self.of(band) if record.first_s is not None)
        return times[min(len(times) - 1, int(part * len(times)))] if times else float("nan")

    def refused(self, band: int) -> Counter[str]:
        """Refusals and failures of a band."""
        return Counter(record.refused for record in self.of(band) if record.refused is not None)


def arrivals(preset: str, capacity: tuple[float, ...], seconds: float, *, seed: int = 1) -> list[tuple[float, int]]:
    """Due time and band of each request, in order."""
    draw = random.Random(seed)

    def poisson(load: float, band: int) -> Iterator[tuple[float, int]]:
        rate = load * capacity[band]
        at = draw.expovariate(rate)
        while at < seconds:
            yield at, band
            at += draw.expovariate(rate)

    if preset == "flash-sale":
        flood = [(5.0, 2)] * int(2.5 * capacity[2] * seconds)
        return sorted([*poisson(0.2, 0), *flood])
    return sorted([*poisson(0.3, 0), *poisson(0.4, 1), *poisson(1.8, 2)])


def request(url: str, band: int, number: int) -> bytes:
    """The bytes of one request; no two prompts begin alike, so that no prefix is shared."""
    words, tokens = LENGTHS[band]
    chance = random.Random(number)
    prompt = " ".join(f"{chance.choice(WORDS)}{chance.randrange(10)}" for _ in range(words))
    return chat_request(
        urlsplit(url).netloc, prompt=f"{number} {prompt}", output_tokens=tokens, key=KEYS[band], model=MODEL
    )


WORDS = ("tide", "import", "class", "while", "string", "object", "return", "lambda", "yield", "assert", "global")


def target_of(url: str) -> Target:
    """Where requests to a url go."""
    parts = urlsplit(url)
    return Target(parts.hostname or "", parts.port or 80)


async def capacity_of(engine: EngineServer, slots: int, band: int) -> float:
    """Measure requests of one band per second with all slots busy all the time."""
    loop = asyncio.get_running_loop()
    start, ended, enough = loop.time() + WARM_S, 0, asyncio.Event()
    numbers = itertools.count((band + 1) * 1_000_000)

    async def in_turn() -> None:
        nonlocal ended
        while True:
            record, due = Record(band), loop.time()
            await ask(target_of(engine.url), request(engine.url, band, next(numbers)), record, due=due)
            if record.refused:
                raise RuntimeError(f"{engine.kind} refused a request while it was measured: {record.refused}")
            ended += loop.time() > start
            if ended >= MEASURED and loop.time() > start + MEASURE_S:
                enough.set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(in_turn()) for _ in range(slots)]
        await enough.wait()
        took, count = loop.time() - start, ended
        for task in tasks:
            task.cancel()
    return count / took


def play(kind: str, preset: str, seconds: float) -> Played:
    """Measure an engine's capacity and play one preset's load before it."""
    size = SIZES[kind]
    with tempfile.TemporaryDirectory() as folder, _server(kind, Path(folder, "log")) as engine:
        played = Played(tuple(asyncio.run(capacity_of(engine, size.slots, band)) for band in range(3)))
        before = _stopped(engine)
        with _gateway(engine, preset, size.slots) as url:
            asyncio.run(_play(url, played, arrivals(preset, played.capacity, seconds), seconds))
        after = _stopped(engine)
        played.stopped = None if after is None or before is None else int(after - before)
    return played


def _server(kind: str, log: Path) -> contextlib.AbstractContextManager[EngineServer]:
    start = {"llamacpp": llama_server, "vllm": vllm_server}[kind]
    return start(ROOT, log, SIZES[kind], more=FLAGS[kind], nice=0)


@contextlib.contextmanager
def _gateway(engine: EngineServer, preset: str, slots: int) -> Iterator[str]:
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
    tenants = [f'  - {{name: t{n}, keys: ["sha256:{digest}"], band: p{n}}}' for n, digest in enumerate(digests)]
    more = EXTRA_SEATS[engine.kind]
    config = SETTINGS.format(
        preset=preset,
        model=MODEL,
        url=engine.url,
        kind=engine.kind,
        seats=slots + more,
        reserve=more or "auto",
        tenants="\n".join(tenants),
    )
    with gateway_process("--log-level", "warning", config=config) as gateway:
        yield gateway.url


async def _play(url: str, played: Played, due: list[tuple[float, int]], seconds: float) -> None:
    loop, target = asyncio.get_running_loop(), target_of(url)
    start = loop.time()
    highest: set[asyncio.Task[None]] = set()

    async def send(item: tuple[int, float, int]) -> None:
        number, at, band = item
        record = Record(band)
        played.records.append(record)
        asking = ask(target, request(url, band, number), record, due=start + at)
        if band:
            await asking
        else:  # outlives the load
            highest.add(asyncio.create_task(asking))

    numbered = [(at, (number, at, band)) for number, (at, band) in enumerate(due)]
    await in_time(numbered, send, start=start, until=seconds)
    if highest:
        await asyncio.wait(highest, timeout=P0_WITHIN_S)
    for task in highest:
        task.cancel()


def _stopped(engine: EngineServer) -> float | None:
    return engine.total("vllm:num_preemptions_total") if engine.kind == "vllm" else None


def rows_of(kind: str, preset: str, seconds: float) -> list[Row]:
    """Play one and give its rows."""
    try:
        played = play(kind, preset, seconds)
    except NotSetUpError as error:
        return [(f"{preset} on {kind}", str(error), "")]
    name = f"{preset} on {kind}, {seconds:.0f} s"
    p0, stopped = played.of(0), "" if played.stopped is None else f", {played.stopped} preempted by the engine"
    first = f"first token p50 {played.first_s(0, 0.5):.2f} s, p99 {played.first_s(0, 0.99):.2f} s"
    lost = ", ".join(f"{count} {why}" for why, count in sorted(played.refused(0).items()))
    worst = max((record.first_s or float("inf") for record in p0), default=0.0)
    rows = [
        (
            f"{name}: p0 answered",
            f"{played.answered(0)} of {len(p0)}; {first}, longest {worst:.2f} s; refused: {lost or 'none'}",
            "all",
        ),
        (
            "  what it can do, measured before",
            f"{', '.join(f'{rate:.1f}' for rate in played.capacity)} p0, p1, p2 per second{stopped}",
            "",
        ),
    ]
    for band in (1, 2):
        if played.of(band):
            median = played.first_s(band, 0.5)
            told = ", ".join(f"{count} {why}" for why, count in sorted(played.refused(band).items())) or "none"
            said = f"{played.answered(band)} of {len(played.of(band))}; first token p50 {median:.2f} s; refused: {told}"
            rows.append((f"  p{band} answered by then", said, ""))
    return rows


def run(seconds: float = 120.0) -> list[Row]:
    """Play both presets before both engines."""
    return [row for kind in SIZES for preset in PRESETS for row in rows_of(kind, preset, seconds)]


def main(words: list[str]) -> None:
    """Play what the command line names; all without words."""
    kinds = [word for word in words if word in SIZES] or list(SIZES)
    presets = [word for word in words if word in PRESETS] or list(PRESETS)
    seconds = next((float(word) for word in words if word.replace(".", "").isdigit()), 120.0)
    for kind in kinds:
        for preset in presets:
            for row in rows_of(kind, preset, seconds):
                print(*row, sep=" | ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
