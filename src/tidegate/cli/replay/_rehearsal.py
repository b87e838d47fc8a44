"""Send the load of a scenario to a live gateway in its own timing, and make records of what comes back.

Open loop: a request leaves when it is due, and all its times count from then. Only the sources that a simulation feeds
in little by little (jobs and endless ones) are sent as a script does that has so many workers: ``window`` at a time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tidegate.cli.load import Target, ask, chat_request, in_time, prompt_text
from tidegate.core import Outcome
from tidegate.simulation import Record, Request
from tidegate.simulation.scenario import Kind, Scenario
from tidegate.simulation.sources import Load, Pump

FAILURES = (
    *("http_", "no_connection", "connection_lost", "broken_answer", "cut", "error_event"),
    *("upstream_error", "upstream_timeout", "no_backend", "unauthorized", "unknown_model", "bad_request", "too_large"),
)
"""How the reasons begin that are faults of a part or of the set-up, not refusals by policy."""


@dataclass(slots=True, frozen=True)
class Speech:
    """How requests are written.

    Attributes:
        host: of the ``host`` header.
        models: model name by that of the scenario; ``*`` for all others.
        keys: key by tenant or by band name; ``*`` for all others.
        bands: band names.
        ignore_eos: ask for answers of the trace's length.
        seed: of the prompts' texts.
    """

    host: str
    models: Mapping[str, str]
    keys: Mapping[str, str]
    bands: tuple[str, ...]
    ignore_eos: bool = True
    seed: int = 0

    def encode(self, number: int, request: Request) -> bytes:
        """Return the whole HTTP request."""
        band = self.bands[request.band]
        key = self.keys.get(request.tenant) or self.keys.get(band) or self.keys.get("*", "")
        text = prompt_text(
            request.prompt_tokens,
            seed=f"{self.seed}/{number}",
            chain=request.chain,
            unit_tokens=request.unit_tokens,
        )
        return chat_request(
            self.host,
            prompt=text,
            output_tokens=request.output_tokens,
            key=key,
            model=self.models.get(request.pool) or self.models.get("*") or request.pool,
            headers={"x-tidegate-band": band, "x-tidegate-fairness-id": _header(request.tenant)},
            ignore_eos=self.ignore_eos,
        )


@dataclass(slots=True)
class Sent:
    """One request on its way; the times are those of ``load.Answer``. ``due_s`` counts from the start of the run."""

    number: int
    request: Request
    due_s: float
    sent_s: float | None = None
    queue_s: float | None = None
    first_s: float | None = None
    done_s: float | None = None
    refused: str | None = None
    pieces: int = 0
    ended_s: float | None = None

    def record(self) -> Record:
        """The record of it, at the end of the run."""
        request, due = self.request, self.due_s
        record = Record(
            self.number,
            request.tenant,
            request.band,
            request.pool,
            due,
            request.prompt_tokens,
            request.output_tokens,
            source=request.source,
            first_token_s=_after(due, self.first_s),
        )
        if self.queue_s is not None and self.sent_s is not None and self.refused is None:
            record.dispatched_s = due + self.sent_s + self.queue_s
        if self.refused is not None:
            failed = self.refused.startswith(FAILURES)
            record.outcome, record.reason = Outcome.FAILED if failed else Outcome.REJECTED, self.refused
            record.finished_s = due + (self.ended_s or 0.0)
        elif self.done_s is not None:
            record.outcome, record.finished_s = Outcome.COMPLETED, due + self.done_s
        return record


@dataclass(slots=True)
class Rehearsal:
    """One run against a live gateway; ``sent`` grows while it goes on.

    Attributes:
        scenario: with the times of the run (see ``at_speed``).
        target: where requests go.
        speech: how they are written.
        sent: all requests so far, in order of the moments at which they left.
    """

    scenario: Scenario
    target: Target
    speech: Speech
    sent: list[Sent] = field(default_factory=list)

    async def run(self, *, speed: float) -> None:
        """Send everything; return when the scenario's time is over."""
        loop = asyncio.get_running_loop()
        load = Load(self.scenario)
        pumps = load.pumps()
        start, until = loop.time(), self.scenario.until_s / speed
        workers = [asyncio.create_task(self._work(pump, start, speed)) for pump in pumps]

        async def send(request: Request) -> None:
            await self._ask(request, request.at / speed, start)

        try:
            due: Iterator[tuple[float, Request]] = ((request.at / speed, request) for request in load.open())
            await in_time(due, send, start=start, until=until)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _ask(self, request: Request, due_s: float, start: float) -> None:
        sent = Sent(len(self.sent), request, due_s)
        self.sent.append(sent)
        payload = self.speech.encode(sent.number, request)
        await ask(self.target, payload, sent, due=start + due_s)
        sent.ended_s = asyncio.get_running_loop().time() - start - due_s

    async def _work(self, pump: Pump, start: float, speed: float) -> None:
        """Keep a window of one source's requests open."""
        loop = asyncio.get_running_loop()
        endless = pump.source.arrivals.kind is Kind.ENDLESS
        open_: set[asyncio.Task[None]] = set()

        def offer(at: float, request: Request) -> None:
            task = loop.create_task(self._later(request, at / speed, None if endless else request.at / speed, start))
            open_.add(task)

        try:
            pump.fill(pump.source.start_s, offer)
            while open_:
                done, open_ = await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED)
                for _ in done:
                    pump.leave()
                pump.fill((loop.time() - start) * speed, offer)
        finally:
            for task in open_:
                task.cancel()
            await asyncio.gather(*open_, return_exceptions=True)

    async def _later(self, request: Request, at_s: float, due_s: float | None, start: float) -> None:
        await asyncio.sleep(start + at_s - asyncio.get_running_loop().time())
        await self._ask(request, at_s if due_s is None else due_s, start)

    def late_p99_s(self) -> float:
        """99th percentile by which this client sent late: high when this machine is too busy to be believed."""
        late = sorted(sent.sent_s for sent in self.sent if sent.sent_s is not None and not sent.request.patient)
        return late[math.ceil(0.99 * len(late)) - 1] if late else 0.0


def at_speed(scenario: Scenario, speed: float) -> Scenario:
    """The scenario with the length that its run has; for reports, not for running."""
    return replace(scenario, duration_s=scenario.duration_s / speed, drain_s=scenario.drain_s / speed, baselines=())


def _after(due: float, seconds: float | None) -> float | None:
    return None if seconds is None else due + seconds


def _header(text: str) -> str:
    """A tenant's name as a header value."""
    return "".join(char if "!" <= char <= "~" else "_" for char in text)
