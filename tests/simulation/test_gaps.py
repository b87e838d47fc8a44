"""How long bands go without a dispatch: the count on dispatches written by hand, and on runs of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tidegate.core import BackendSpec, Discipline, Policy, PoolSpec, Stoppable, Unit
from tidegate.simulation import (
    EngineModel,
    EngineServer,
    FixedServer,
    Fleeting,
    Request,
    Scrape,
    World,
    fixed,
    merged,
    poisson,
    requests,
    stream_random,
)
from tidegate.simulation.gaps import Gaps, Starvation

ALL = (1, 1, 1)


def policy(seats: int, **changes: object) -> Policy:
    bands = tuple(replace(band, ttl_s=1e6, capacity=10**6, shed_hopeless=False) for band in Policy().bands)
    return replace(Policy(bands=bands, pools=(PoolSpec("m", (BackendSpec("b", seats),)),)), **changes)  # type: ignore[arg-type]


def count(pattern: str, *, barred: tuple[int, ...] = (), gaps: Gaps | None = None) -> Gaps:
    """Count one dispatch for each digit, of that band, while all bands wait and those that are barred may not run."""
    gaps = gaps or Gaps(policy(4), seats=4)
    for band in pattern:
        gaps.dispatched(int(band), ALL, barred)
    return gaps


@pytest.mark.parametrize(("others", "ratio"), [(19, 1.0), (20, 1.05), (39, 2.0)])
def test_a_gap_is_counted_in_dispatches_up_to_the_own_one(others: int, ratio: float) -> None:
    """The default floor promises p2 one of every 20; p1's own gaps are kept short here."""
    pattern = ("0" * 9 + "1") * 10
    assert count(pattern[:others] + "2").found().ratio == pytest.approx(ratio)


def test_who_does_not_wait_does_not_starve() -> None:
    gaps = Gaps(policy(4), seats=4)
    for _ in range(50):
        gaps.dispatched(0, (1, 0, 0), ())
    gaps.dispatched(2, (0, 0, 1), ())
    assert gaps.found() == Starvation(0.25, (None, None, None))  # p0, served at once where its bound is 4


def test_a_gap_stands_still_behind_a_gate_and_comes_back_no_closer_than_the_rule_lets_it() -> None:
    gated = Gaps(policy(4, bands=policy(4).bands[::2]), seats=4)
    for barred in ((), *[(1,)] * 30, *[()] * 19):
        gated.dispatched(0, (1, 1), barred)
    assert gated.found().ratio == pytest.approx(1.0)  # 1 before the gate and 19 after it
    gated.dispatched(0, (1, 1), ())
    assert gated.found().ratio == pytest.approx(1.05)
    for barred in (*[()] * 19, (1,), (), ()):
        gated.dispatched(0, (1, 1), barred)
    assert gated.found().ratio == pytest.approx(2.0)  # 40 before the gate, at most 18 + 2 after it


def test_a_band_without_a_promise_has_no_ratio() -> None:
    bare = policy(4)
    bare = replace(bare, bands=tuple(replace(band, floor=Fraction(0)) for band in bare.bands))
    assert count("0" * 500 + "2", gaps=Gaps(bare, seats=4)).found().ratio <= 1.0


def test_windows_count_only_where_the_band_waits_and_may_run_throughout() -> None:
    assert count(("0" * 19 + "2") * 10).found().least == (95, 0, 5)
    assert count("0" * 120 + "2" * 120).found().least[2] == 0
    assert count("02" * 40).found().least == (None, None, None)
    assert count("0" * 60, barred=(2,), gaps=count("0" * 60)).found().least[2] is None


def test_a_dispatch_that_was_taken_back_is_none() -> None:
    gaps = Gaps(policy(4, bands=policy(4).bands[::2]), seats=4)

    def then(pattern: str) -> int:
        return [gaps.dispatched(int(band), (1, 1), ()) for band in pattern][-1]

    place = then("0" * 10 + "1")
    then("0" * 4)
    gaps.undone(1, place)
    then("0" * 5 + "1")
    assert gaps.found().ratio == pytest.approx(20 / 20)  # 10, then 4, then 6: the one taken back counts for nobody
    place = then("0" * 12 + "1")
    then("01")
    gaps.undone(1, place)  # another has had its turn since
    then("0" * 19 + "1")
    assert gaps.found().ratio == pytest.approx(20 / 20)


def load(seconds: float) -> list[Request]:
    return list(
        merged(
            requests(poisson(40.0, stream_random(1, "p0")), band=0, until=seconds),
            requests(poisson(20.0, stream_random(1, "p1")), band=1, until=seconds),
            requests(fixed(1e6), band=2, count=300),
        )
    )


def play(rule: Policy, *, promised: Policy) -> Starvation:
    gaps = Gaps(promised, seats=4)
    World(rule, {"b": FixedServer(0.2)}, load(60.0), log=Fleeting(), gaps={"m": gaps}).run(until=60.0)
    return gaps.found()


def test_the_scheduler_keeps_its_promise_and_a_bare_formula_does_not() -> None:
    kept = play(policy(4), promised=policy(4))
    assert kept.ratio <= 1.0
    assert kept.least[2] is not None
    assert kept.least[2] >= 5
    bare = policy(4)
    bare = replace(bare, bands=tuple(replace(band, floor=Fraction(0), aging_per_ms=0.0) for band in bare.bands))
    assert play(bare, promised=policy(4)).ratio > 5.0


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("discipline", [Discipline.AGING, Discipline.WEIGHTED])
def test_the_promise_holds_behind_gates_that_open_and_shut_and_among_work_that_is_stopped(
    discipline: Discipline, unit: Unit
) -> None:
    """An engine with little memory, whose metrics page shuts the lower bands out again and again."""
    rule = policy(24, discipline=discipline, unit=unit)
    gaps = Gaps(rule, seats=24)
    engine = EngineServer(EngineModel("h100-8b", kv_tokens=24_000, max_sequences=24))
    rows = merged(
        requests(poisson(6.0, stream_random(1, "p0")), band=0, until=60.0, lengths=lambda: (700, 200)),
        requests(poisson(6.0, stream_random(2, "p1")), band=1, until=60.0, lengths=lambda: (900, 300)),
        requests(fixed(1e6), band=2, count=400, lengths=lambda: (2000, 500)),
    )
    world = World(
        rule,
        {"b": engine},
        rows,
        scrape=Scrape(),
        log=Fleeting(),
        gaps={"m": gaps},
        stoppable=Stoppable.ALWAYS,
    )
    world.run(until=60.0)
    assert gaps.found().ratio <= 1.0
