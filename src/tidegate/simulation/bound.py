"""The clairvoyant bound of a scenario: the most value that its arrivals could pay, whoever schedules them.

Each request becomes an offer: its window ends at the earliest moment at which one of its targets is missed for sure, or
with the run; its work is the least engine time of ``Profile.least_s`` on the cheapest profile, with the longest prefix
that an endless cache could know. A source that always has one more has neither arrivals nor deadlines of its own: it is
one offer that fills any time left over at the best value per engine second among 5,000 of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from tidegate.simulation.arrivals import Request
from tidegate.simulation.clairvoyant import Offer, most_value
from tidegate.simulation.profiles import Profile, profile_named
from tidegate.simulation.scenario import Kind, Scenario, Slo, Source
from tidegate.simulation.sources import Load

_SAMPLE = 5000
MOST = 200_000
"""Requests of a scenario beyond which a report has no bound: it takes about ten seconds for each 100,000."""


def value_bound(scenario: Scenario, load: Load, *, most: int | None = None) -> float | None:
    """Return the bound for the scenario's targets and values (``Scenario.slo``); ``None`` beyond ``most`` requests."""
    engines = len(scenario.engines)
    profiles = list({spec.profile: profile_named(spec.profile) for spec in scenario.engines}.values())
    slos = [scenario.slo(band) for band in range(len(scenario.bands))]
    offers = list(islice(_offers(load.whole(), slos, profiles, scenario.until_s), None if most is None else most + 1))
    if most is not None and len(offers) > most:
        return None
    for source in scenario.sources:
        if source.arrivals.kind is Kind.ENDLESS:
            offers += _filler(_offers(_sample(scenario, source), slos, profiles, scenario.until_s), source, scenario)
    return most_value(offers, engines=engines)


def _offers(requests: Iterable[Request], slos: list[Slo], profiles: list[Profile], until: float) -> Iterator[Offer]:
    known: set[object] = set()
    for request in requests:
        slo = slos[request.band]
        cached = _cached(request, known)
        work_s = min(
            profile.least_s(request.prompt_tokens, request.output_tokens, cached=cached) for profile in profiles
        )
        worth = slo.value * (request.prompt_tokens + 2 * request.output_tokens)
        yield Offer(request.at, min(until, request.at + longest_s(slo, request.output_tokens)), work_s, worth)


def longest_s(slo: Slo, output_tokens: int) -> float:
    """Return how long after its arrival an answer may be complete with every target met."""
    limits = [float("inf")]
    if slo.end_s is not None:
        limits.append(slo.end_s + slo.per_token_s * output_tokens)
    if slo.ttft_s is not None and output_tokens < 2:
        limits.append(slo.ttft_s)
    if slo.ttft_s is not None and slo.tpot_s is not None:
        limits.append(slo.ttft_s + slo.tpot_s * (output_tokens - 1))
    return min(limits)


def _cached(request: Request, known: set[object]) -> int:
    """Tokens of the prompt that a cache which forgets nothing would hold; at least one has to be computed."""
    hits = 0
    for key in request.chain:
        if key not in known:
            break
        hits += 1
    known.update(request.chain)
    return max(0, min(hits * request.unit_tokens, request.prompt_tokens - 1))


def _sample(scenario: Scenario, source: Source) -> list[Request]:
    """Draw rows of an endless source."""
    rows: list[Request] = []
    (pump,) = Load(replace(scenario, sources=(replace(source, window=_SAMPLE),))).endless()
    pump.fill(source.start_s, lambda _, row: rows.append(row))
    return rows


def _filler(rows: Iterable[Offer], source: Source, scenario: Scenario) -> Iterator[Offer]:
    density = max((offer.value / offer.work_s for offer in rows), default=0.0)
    room_s = len(scenario.engines) * (scenario.until_s - source.start_s)
    if density > 0 and room_s > 0:
        yield Offer(source.start_s, scenario.until_s, room_s, density * room_s)
