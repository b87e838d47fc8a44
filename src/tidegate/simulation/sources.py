"""From the sources of a scenario to requests: open-loop streams, and pumps that keep a window of rows in the gateway.

The same scenario and seed give the same requests, each source by its own chance: one source more changes nothing in
the others. A pump stands for what feeds a gateway little by little. In front of the scheduler it keeps ``window`` of
its rows waiting, as the gateway's own job pump does; in front of something without queues for jobs, a batch comes at
once and an endless source keeps ``window`` open requests, as a script with that many workers does.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.simulation.arrivals import Request, fixed, gamma, merged, poisson, stream_random
from tidegate.simulation.kv import BLOCK
from tidegate.simulation.profiles import profile_named
from tidegate.simulation.scenario import EXACT, NEVER, Edge, Kind, Length, Rule, Scenario, Source
from tidegate.simulation.traces import PREFIX_UNIT, TraceError, TraceRow, read_trace

DEFAULT_WINDOW = 128
"""Rows of one job that the gateway keeps waiting."""

_P99_SIGMAS = 2.3263478740408408
_FILES = 64  # block numbers of different files are kept apart by a factor


class Load:
    """The load of a scenario, to be started as often as there are runs.

    Raises:
        TraceError: a trace cannot be used: a request finds no band, or fits into no engine.
        OSError: a trace cannot be read.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._files: dict[Path, Sequence[TraceRow]] = {}
        for source in scenario.sources:
            self._read(source)

    def open(self) -> Iterator[Request]:
        """Requests of the sources without a pump, in order of arrival."""
        return merged(*(self._stream(source) for source in self._scenario.sources if not _pumped(source)))

    def whole(self) -> Iterator[Request]:
        """Requests of all sources that come by themselves, batches at once, in order of arrival."""
        sources = [source for source in self._scenario.sources if source.arrivals.kind is not Kind.ENDLESS]
        return merged(*(self._stream(source) for source in sources))

    def pumps(self) -> list[Pump]:
        """Fresh pumps of the sources that have one."""
        return [self._pump(source) for source in self._scenario.sources if _pumped(source)]

    def endless(self) -> list[Pump]:
        """Fresh pumps of the endless sources, for what has no queue of jobs."""
        return [self._pump(s) for s in self._scenario.sources if s.arrivals.kind is Kind.ENDLESS]

    def _pump(self, source: Source) -> Pump:
        return Pump(source, self._stream(source), until=min(source.stop_s, self._scenario.duration_s))

    def _read(self, source: Source) -> None:
        if source.trace is not None and source.trace not in self._files:
            self._files[source.trace] = tuple(read_trace(source.trace))
        if source.trace is not None and not self._rows(source):
            raise TraceError(f"{source.trace}: source {source.name!r}: expected rows, none is left")

    def _rows(self, source: Source) -> Sequence[TraceRow]:
        assert source.trace is not None
        rows = self._files[source.trace]
        if source.longest is not None:
            most = source.longest
            rows = [row for row in rows if row.prompt_tokens + row.output_tokens <= most]
        return rows

    def _stream(self, source: Source) -> Iterator[Request]:
        scenario = self._scenario
        stop = min(source.stop_s, scenario.duration_s)
        place = _Placer(scenario, source, list(self._files).index(source.trace) if source.trace else 0)
        for at, row in itertools.islice(self._timed(source), source.limit):
            if at >= stop:
                return
            yield place(at, row)

    def _timed(self, source: Source) -> Iterator[tuple[float, TraceRow]]:
        if source.arrivals.kind is Kind.TRACE:
            return _as_traced(self._rows(source), source)
        draw = stream_random(self._scenario.seed, f"{source.name} lengths")
        if source.trace is not None:
            rows: Iterator[TraceRow] = _drawn(self._rows(source), draw)
        else:
            rows = (TraceRow(0.0, _draw(source.prompt, draw), _draw(source.output, draw)) for _ in itertools.count())
        return zip(_times(source, self._scenario.seed), rows, strict=False)


class Pump:
    """Keeps a window of one source's rows in a gateway."""

    def __init__(self, source: Source, rows: Iterable[Request], *, until: float) -> None:
        self.source = source
        self.window = source.window or DEFAULT_WINDOW
        self._endless = source.arrivals.kind is Kind.ENDLESS
        self._rows = iter(rows)
        self._next = next(self._rows, None)
        self._until = until
        self._inside = 0

    def fill(self, now: float, offer: Callable[[float, Request], None]) -> None:
        """Offer rows while the window has room; those of a later batch are offered at its time."""
        if self._endless and now >= self._until:
            return
        while self._next is not None and self._inside < self.window:
            row = self._next
            self._inside += 1
            at = max(now, row.at)
            offer(at, replace(row, at=at) if self._endless else row)
            self._next = next(self._rows, None)

    def leave(self) -> None:
        """One row has left the window: it was dispatched, or refused while it waited."""
        self._inside -= 1


class _Placer:
    """Makes requests of a source's rows: band, tenant, cuts, and the keys of the prefix cache."""

    def __init__(self, scenario: Scenario, source: Source, file: int) -> None:
        self._source, self._file = source, file
        self._bands = {name: index for index, name in enumerate(scenario.bands)}
        self._edges = scenario.edges or (Edge(),) * len(scenario.bands)
        self._most = _largest_prompt_and_answer(scenario)

    def __call__(self, at: float, row: TraceRow) -> Request:
        source = self._source
        tenant = source.tenant or row.tenant or source.name
        band = self._band(row, tenant)
        limit = self._edges[band].max_input_tokens
        if limit is not None and row.prompt_tokens > limit and band + 1 < len(self._edges):
            band += 1
        output, cut = row.output_tokens, self._edges[band].max_output_tokens
        if cut is not None and output > cut:
            output = cut
        if row.prompt_tokens + output > self._most:
            total = row.prompt_tokens + output
            raise TraceError(f"source {source.name!r}: expected at most {self._most} tokens (no engine holds more), "
                             f"got a request of {total}; `longest` leaves such rows out")  # fmt: skip
        chain: Sequence[Hashable] = tuple(number * _FILES + self._file for number in row.prefix)
        return Request(
            at,
            band,
            tenant,
            row.prompt_tokens,
            output,
            source.pool,
            chain,
            PREFIX_UNIT if chain else BLOCK,
            source.patience_s,
            source.name,
            row.prefix[0] * _FILES + self._file + 1 if row.prefix else 0,
            source.patient,
            _told(source, output, cut),
        )

    def _band(self, row: TraceRow, tenant: str) -> int:
        for rule in self._source.rules:
            if _matches(rule, row, tenant):
                return rule.band
        if row.band:
            if row.band not in self._bands:
                raise TraceError(
                    f"{self._source.trace}: band: expected one of {', '.join(self._bands)}, got {row.band!r}"
                )
            return self._bands[row.band]
        if self._source.band is None:
            raise TraceError(f"source {self._source.name!r}: expected a band for every request, got none for {row}")
        return self._source.band


def _pumped(source: Source) -> bool:
    return source.window is not None or source.arrivals.kind is Kind.ENDLESS


def _matches(rule: Rule, row: TraceRow, tenant: str) -> bool:
    if rule.tenants and not any(
        tenant.startswith(name[:-1]) if name.endswith("*") else tenant == name for name in rule.tenants
    ):
        return False
    return (
        rule.prompt[0] <= row.prompt_tokens <= rule.prompt[1] and rule.output[0] <= row.output_tokens <= rule.output[1]
    )


def _told(source: Source, output: int, cut: int | None) -> int | None:
    told = output if source.max_tokens == EXACT else source.max_tokens
    if cut is None:
        return told
    return cut if told is None else min(told, cut)


def _largest_prompt_and_answer(scenario: Scenario) -> int:
    sizes = [spec.kv_tokens or profile_named(spec.profile).kv_tokens for spec in scenario.engines]
    return min(sizes) // BLOCK * BLOCK


def _as_traced(rows: Sequence[TraceRow], source: Source) -> Iterator[tuple[float, TraceRow]]:
    speed, shift = source.arrivals.speed, source.shift_s
    span = rows[-1].at * (1 + 1 / len(rows))  # to the first row of the next round
    first = next((number for number, row in enumerate(rows) if row.at >= shift), len(rows))
    for round_ in itertools.count() if source.repeat and span > 0 else (0,):
        for row in rows[first:]:
            yield source.start_s + (row.at - shift + round_ * span) / speed, row
        if source.repeat and span > 0:
            for row in rows[:first]:
                yield source.start_s + (row.at - shift + (round_ + 1) * span) / speed, row


def _times(source: Source, seed: int) -> Iterator[float]:
    arrivals, start = source.arrivals, source.start_s
    draw = stream_random(seed, f"{source.name} times")
    match arrivals.kind:
        case Kind.FIXED:
            return fixed(arrivals.rate, start=start)
        case Kind.POISSON:
            return poisson(arrivals.rate, draw, start=start)
        case Kind.GAMMA:
            return gamma(arrivals.rate, arrivals.cv, draw, start=start)
        case Kind.BATCH:
            return _batches(arrivals.rows, arrivals.every_s, start)
        case _:
            return itertools.repeat(start)


def _batches(rows: int, every_s: float, start: float) -> Iterator[float]:
    for number in itertools.count() if every_s < NEVER else (0,):
        for _ in range(rows):
            yield start + (number * every_s if number else 0.0)


def _drawn(rows: Sequence[TraceRow], draw: random.Random) -> Iterator[TraceRow]:
    while True:
        yield rows[draw.randrange(len(rows))]


def _draw(law: Length, draw: random.Random) -> int:
    if law.median is None:
        return law.low if law.low == law.high else draw.randint(law.low, law.high)
    sigma = math.log((law.p99 or law.median) / law.median) / _P99_SIGMAS
    return max(law.low, min(law.high, round(law.median * math.exp(draw.gauss(0.0, sigma)))))
