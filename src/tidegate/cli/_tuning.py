"""The search of ``tidegate tune``: what may be changed, how a candidate is judged, and who chooses the next one.

A candidate is the scenario's own file with other figures in ``policy`` and ``seats``, read by the very loader of
scenarios: so what is printed in the end is what was run. Candidates come from differential evolution (Storn and Price
1997) as scipy has it, which needs no derivative, takes whole numbers by rounding, and is the same for the same seed.
Figures are rounded to what a person would write; candidates that round to the same file are run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from math import ceil, log10
from typing import Any

import yaml

from tidegate.cli.scenario import GatewayEstimator
from tidegate.core import AUTO, TidegateError
from tidegate.simulation.report import Report
from tidegate.simulation.run import TIDEGATE, run_one
from tidegate.simulation.scenario import Scenario
from tidegate.simulation.sources import Load

INSTALL = "tidegate tune needs scipy: pip install 'tidegate[tune]'"
POPULATION = 10
"""Candidates of a generation."""

_RATIO = (0.01, 1.0)  # of a band's weight to that of the band above
_ALPHA = (0.0005, 0.5)  # score per millisecond
_MOST_CAP = Fraction(3, 10)
_STEP = Fraction(1, 100)  # of floors and the cap
_LEAST_SEATS, _MOST_SEATS = 4, 512
_PENALTY = 10.0  # for each time that a guarantee is missed by its whole


class TuneError(TidegateError):
    """Nothing can be searched here."""


def need_optimiser() -> None:
    """See to it that the optimiser is there before anything is run.

    Raises:
        TuneError: it is not installed.
    """
    try:
        import_module("scipy.optimize")
    except ImportError:
        raise TuneError(INSTALL) from None


@dataclass(slots=True, frozen=True)
class Guarantees:
    """What every candidate has to keep, besides the floors of the policy that the search starts from.

    Attributes:
        p0_wait_s: 99th percentile of the highest band's wait in the gateway.
    """

    p0_wait_s: float


@dataclass(slots=True, frozen=True)
class Outcome:
    """What a candidate came to.

    Attributes:
        value: of the answers that met their targets, a second (see ``Slo.value``).
        p0_wait_s: 99th percentile of the highest band's wait; infinite when it had none.
    """

    value: float
    p0_wait_s: float

    def keeps(self, guarantees: Guarantees) -> bool:
        """Whether the guarantees hold."""
        return self.p0_wait_s <= guarantees.p0_wait_s

    def loss(self, guarantees: Guarantees, start: float) -> float:
        """Return what the search makes small: less value is more, and a missed guarantee is worse than any value."""
        missed = max(0.0, self.p0_wait_s / guarantees.p0_wait_s - 1.0)
        part = -self.value / start if start else -self.value
        return part if not missed else 1.0 + _PENALTY * min(missed, 100.0)


def outcome_of(report: Report) -> Outcome:
    """Read the figures of a run."""
    wait = report.bands[0].wait.p99
    return Outcome(report.total.value / max(report.seconds, 1e-9), float("inf") if wait is None else wait.seconds)


@dataclass(slots=True)
class Space:
    """The figures that may change, each with bounds, and the file that they make.

    Attributes:
        start: the scenario's policy and engines.
        text: its file.
    """

    start: Scenario
    text: str
    _names: list[tuple[str, float, float]] = field(init=False)

    def __post_init__(self) -> None:
        bands = self.start.policy.bands
        names = [(f"weight {band.name}", log10(_RATIO[0]), log10(_RATIO[1])) for band in bands[1:]]
        names += [(f"alpha {band.name}", log10(_ALPHA[0]), log10(_ALPHA[1])) for band in bands]
        names += [(f"floor {band.name}", 0.0, 1.0) for band in bands[1:]]
        names += [("cap", 0.0, 1.0), ("reserve", -0.1, 0.25), ("seats", log10(_LEAST_SEATS), log10(self._most_seats()))]
        self._names = names

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Least and greatest of each coordinate."""
        return [(low, high) for _, low, high in self._names]

    def origin(self) -> list[float]:
        """Return the coordinates of the policy that the search starts from, as near as they come."""
        policy, point = self.start.policy, []
        bands, seats, floors = policy.bands, self._seats(), self._floors()
        reserve = -0.1 if bands[0].reserve == AUTO else int(bands[0].reserve) / seats
        values = {
            "reserve": reserve,
            "seats": log10(seats),
            "cap": float((policy.overtake_cap - floors) / max(_STEP, _MOST_CAP - floors)),
        }
        for above, band in pairwise(bands):
            values[f"weight {band.name}"] = log10(max(band.weight / max(above.weight, 1e-9), 1e-9))
            values[f"floor {band.name}"] = 0.0
        for band in bands:
            values[f"alpha {band.name}"] = log10(max(band.aging_per_ms, 1e-9))
        for name, low, high in self._names:
            point.append(min(max(values[name], low), high))
        return point

    def file(self, point: Sequence[float]) -> str:
        """Return the scenario's file with the figures of a point."""
        tree = yaml.safe_load(self.text)
        policy, seats = self.figures(point)
        tree["policy"] = merged(tree.get("policy") or {}, policy)
        for engine in tree["engines"]:
            engine["seats"] = seats
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)

    def figures(self, point: Sequence[float]) -> tuple[dict[str, Any], int]:
        """Return the settings of ``policy`` that a point stands for, and the seats of each backend."""
        at = {name: value for (name, _, _), value in zip(self._names, point, strict=True)}
        bands = self.start.policy.bands
        seats = max(1, round(10 ** at["seats"]))
        weight, given = bands[0].weight or 100.0, {}
        room = _MOST_CAP - self._floors()
        floors = Fraction(0)
        for index, band in enumerate(bands):
            rows: dict[str, Any] = {"aging_per_ms": _short(10 ** at[f"alpha {band.name}"])}
            if index:
                weight = _short(weight * 10 ** at[f"weight {band.name}"])
                extra = max(Fraction(0), room) * Fraction(at[f"floor {band.name}"]) / (2 * (len(bands) - 1))
                each = band.floor + extra // _STEP * _STEP
                each = max(band.floor, min(each, Fraction(1, len(bands))))
                floors += each
                rows["floor"] = float(each)
            else:
                rows["reserve"] = (
                    AUTO if at["reserve"] < 0 or seats < 2 else min(seats - 1, round(at["reserve"] * seats))
                )
            rows["weight"] = weight
            given[band.name] = rows
        spare = max(Fraction(0), _MOST_CAP - floors) * Fraction(at["cap"])
        cap = min(Fraction(1), ceil(floors / _STEP) * _STEP + round(spare / _STEP) * _STEP)
        return {"overtake_cap": float(cap), "bands": given}, seats

    def settings(self, point: Sequence[float] | None) -> str:
        """Return the policy of a point, or that of the start, as a settings file; addresses are to be filled in."""
        return settings_text(self.text if point is None else self.file(point), self.start)

    def _floors(self) -> Fraction:
        return sum((band.floor for band in self.start.policy.bands), Fraction(0))

    def _seats(self) -> int:
        seats = [spec.seats for pool in self.start.policy.pools for spec in pool.backends]
        known = [each for each in seats if each != AUTO]
        return max(1, round(sum(known) / len(known))) if known else 64

    def _most_seats(self) -> int:
        return max(_LEAST_SEATS + 1, min(_MOST_SEATS, *(spec.max_sequences or 256 for spec in self.start.engines)))


def settings_text(file: str, start: Scenario) -> str:
    """Return what of a scenario's file is settings, with a model for each pool."""
    tree = yaml.safe_load(file)
    seats = {engine.get("model", "m"): engine.get("seats", AUTO) for engine in tree["engines"]}
    models, port = [], 8000
    for pool in start.policy.pools:
        backends = []
        for spec in pool.backends:
            backends.append(
                {"name": spec.name, "url": f"http://127.0.0.1:{port}", "engine": "vllm", "seats": seats[pool.name]}
            )
            port += 1
        models.append({"name": pool.name, "backends": backends})
    parts = {key: tree[key] for key in ("preset", "policy") if key in tree}
    return yaml.safe_dump({"models": models, **parts}, sort_keys=False, allow_unicode=True)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with the entries of both, those of ``over`` where both have one."""
    result = dict(under)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


@dataclass(slots=True, frozen=True)
class Found:
    """The best candidate: its point (``None``: the policy that the search started from) and what it came to."""

    point: list[float] | None
    outcome: Outcome
    start: Outcome
    runs: int


Read = Callable[[str], Scenario]
Told = Callable[[int, Outcome, Outcome | None], None]
"""Told after each run: how many there were, what this one came to, and the best that keeps the guarantees."""


class Search:
    """Runs candidates, each once, and keeps the best."""

    def __init__(
        self, space: Space, guarantees: Guarantees, read: Read, *, runs: int, told: Told | None = None
    ) -> None:
        self._space, self._guarantees, self._read, self._told = space, guarantees, read, told
        self._load = Load(space.start)
        self._known: dict[str, Outcome] = {}
        self._most = runs
        self.start = self._run(space.start)
        self._best: tuple[list[float] | None, Outcome] | None = None
        if self.start.keeps(guarantees):
            self._best = None, self.start
        self._tell(self.start)

    def find(self, seed: int) -> Found | None:
        """Search; ``None`` when no candidate keeps the guarantees."""
        from scipy.optimize import differential_evolution

        generations = max(0, round((self._most - 1) / POPULATION) - 1)
        differential_evolution(
            self._loss,
            self._space.bounds,
            init=self._first(seed),
            maxiter=generations,
            rng=seed,
            tol=0.0,
            polish=False,
        )
        if self._best is None:
            return None
        point, outcome = self._best
        return Found(point, outcome, self.start, len(self._known) + 1)

    def _first(self, seed: int) -> list[list[float]]:
        """Return the first generation: the start, and others around it, ever farther."""
        from numpy.random import default_rng

        draw, origin = default_rng(seed), self._space.origin()
        rows = [origin]
        for number in range(1, POPULATION):
            reach = number / (POPULATION - 1)
            rows.append(
                [
                    min(max(value + reach * float(draw.uniform(low - high, high - low)), low), high)
                    for value, (low, high) in zip(origin, self._space.bounds, strict=True)
                ]
            )
        return rows

    def _loss(self, point: Iterator[float]) -> float:
        values = [float(value) for value in point]
        file = self._space.file(values)
        outcome = self._known.get(file)
        if outcome is None:
            outcome = self._known[file] = self._run(self._read(file))
            if outcome.keeps(self._guarantees) and (self._best is None or outcome.value > self._best[1].value):
                self._best = values, outcome
            self._tell(outcome)
        return outcome.loss(self._guarantees, self.start.value)

    def _run(self, scenario: Scenario) -> Outcome:
        estimator = None if scenario.known_lengths else GatewayEstimator()
        return outcome_of(run_one(scenario, self._load, TIDEGATE, estimator=estimator))

    def _tell(self, outcome: Outcome) -> None:
        if self._told is not None:
            self._told(len(self._known) + 1, outcome, self._best[1] if self._best else None)


def _short(value: float) -> float:
    """Round to two digits, as a person would write it."""
    return float(f"{value:.2g}")
