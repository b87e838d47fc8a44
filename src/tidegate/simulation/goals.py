"""What a policy is judged by, as pure functions of the records of its runs. Each docstring is the formula.

A percentile is the least value that at least that part of all requests do not exceed. A request without a first token
counts as infinitely late, so that refusing work makes no figure better.

Starvation is counted while a run goes on, by ``gaps``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.core import Outcome
from tidegate.simulation.records import Record
from tidegate.simulation.scenario import Slo
from tidegate.simulation.tally import meets, worth

NEVER = float("inf")
_FINE = (None, Outcome.COMPLETED, Outcome.CANCELLED)

HARVEST_SLO = Slo(ttft_s=0.3, tpot_s=0.05)
"""What p0 keeps while the rest is harvested."""


@dataclass(slots=True, frozen=True)
class Calm:
    """How little p0 feels of the rest.

    Attributes:
        alone_s: 99th percentile of the time to p0's first token when only p0 is there.
        among_s: the same with everything else there.
        wait_s: 99th percentile of p0's wait in the gateway, with everything else there.
    """

    alone_s: float
    among_s: float
    wait_s: float

    @property
    def ratio(self) -> float:
        """``among_s / alone_s``."""
        return self.among_s / self.alone_s


def calm(among: Iterable[Record], alone: Iterable[Record]) -> Calm:
    """Compare p0 among everything else with p0 alone, on the same p0 arrivals.

    calm = p99 of (first token - arrival) of p0, all present / the same, p0 alone.

    Raises:
        ValueError: one of the runs has no p0.
    """
    highest = [record for record in among if record.band == 0]
    return Calm(
        _p99([_late(record.ttft_s) for record in alone if record.band == 0]),
        _p99([_late(record.ttft_s) for record in highest]),
        _p99([_late(record.wait_s) for record in highest]),
    )


@dataclass(slots=True, frozen=True)
class Harvest:
    """What was left for work without a hurry.

    Attributes:
        part: of the offline tokens that there would be without any targets.
        kept: part of p0 that met its targets meanwhile, of those for which that was decided.
    """

    part: float
    kept: float


def harvest(records: Iterable[Record], free: Iterable[Record], slo: Slo = HARVEST_SLO) -> Harvest:
    """Compare the offline work done beside a p0 that keeps its targets with that of a run that has none.

    harvest = useful tokens below p0, policy / useful tokens below p0, no targets at all; a token is useful when it was
    computed for the first time and for an answer that was not given up. kept = p0 answers within ``slo`` / p0
    requests that had ended, or were late already, when the run was cut.
    """
    rows = list(records)
    highest = [record for record in rows if record.band == 0]
    best = _useful_tokens(free)
    decided = [
        record for record in highest if record.outcome is not None or (record.ttft_s or 0.0) > (slo.ttft_s or NEVER)
    ]
    kept = sum(meets(record, slo) for record in decided) / len(decided) if decided else 1.0
    return Harvest(_useful_tokens(rows) / best if best else NEVER, kept)


def value(records: Iterable[Record], slos: Sequence[Slo], bound: float) -> float:
    """Return the value of all answers within their targets over the clairvoyant bound on the same arrivals.

    value = sum of ``value_of_band * (prompt + 2 * output)`` over the answers that met every target / bound.
    """
    got = sum(worth(record, slos[record.band]) for record in records if meets(record, slos[record.band]))
    return got / bound if bound else 1.0


@dataclass(slots=True, frozen=True)
class Memory:
    """How well the KV cache was used.

    Attributes:
        use: mean part of the pool that running work held, of all engines.
        wasted: part of the computed tokens that were thrown away.
        refused: p0 requests that got no answer, other than by leaving.
    """

    use: float
    wasted: float
    refused: int


def memory(records: Iterable[Record], kv_mean: float) -> Memory:
    """Judge the use of memory.

    use = mean over time and engines of held KV blocks / all. wasted = tokens computed again after a preemption, or for
    an answer that nobody got / all tokens computed. refused = p0 requests that were rejected, evicted or failed.
    """
    computed = wasted = refused = 0
    for record in records:
        computed += record.computed_tokens
        wasted += record.wasted_tokens
        refused += record.band == 0 and record.outcome not in _FINE
    return Memory(kv_mean, wasted / computed if computed else 0.0, refused)


def _late(seconds: float | None) -> float:
    return NEVER if seconds is None else seconds


def _p99(times: list[float]) -> float:
    if not times:
        raise ValueError("expected at least one request of the highest band, got none")
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]


def _useful_tokens(records: Iterable[Record]) -> int:
    return sum(record.computed_tokens - record.wasted_tokens for record in records if record.band)
