"""The goals' formulas on records written by hand, where the right figure is plain, and on runs of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec, Reason
from tidegate.simulation import FixedServer, Fleeting, Record, World, fixed, merged, poisson, requests, stream_random
from tidegate.simulation.goals import calm, harvest, memory, starvation, value
from tidegate.simulation.scenario import Slo


def answered(number: int, band: int, at: float, *, wait: float = 0.0, ttft: float = 0.1, total: float = 1.0) -> Record:
    return Record(
        number, "t", band, "m", at, 100, 11, 0, at + wait, at + ttft, at + total, Outcome.COMPLETED, turn=number
    )  # fmt: skip


def refused(number: int, band: int, at: float, *, after: float = 0.0) -> Record:
    return Record(
        number, "t", band, "m", at, 100, 11, finished_s=at + after, outcome=Outcome.EVICTED, reason=Reason.EXPIRED
    )


# -- calm ------------------------------------------------------------------------------------------------------------


def test_calm_compares_the_hundredth_of_p0() -> None:
    alone = [answered(n, 0, n, ttft=0.2) for n in range(200)]
    among = [answered(n, 0, n, wait=0.01, ttft=0.25 if n > 1 else 9.0) for n in range(200)]
    found = calm([*among, answered(900, 1, 0.0, ttft=50.0)], alone)
    assert found.alone_s == pytest.approx(0.2)
    assert found.among_s == pytest.approx(0.25)
    assert found.ratio == pytest.approx(1.25)
    assert found.wait_s == pytest.approx(0.01)


def test_refusing_p0_does_not_calm() -> None:
    alone = [answered(n, 0, n) for n in range(100)]
    assert calm([*alone[:98], refused(98, 0, 98.0), refused(99, 0, 99.0)], alone).ratio == float("inf")


def test_calm_needs_p0() -> None:
    with pytest.raises(ValueError, match="at least one request of the highest band"):
        calm([answered(0, 1, 0.0)], [answered(0, 0, 0.0)])


# -- harvest ---------------------------------------------------------------------------------------------------------


def test_harvest_counts_useful_offline_tokens_and_kept_p0() -> None:
    def offline(computed: int, wasted: int) -> Record:
        return replace(answered(0, 2, 0.0), computed_tokens=computed, wasted_tokens=wasted)

    p0 = [answered(n, 0, n, ttft=0.1, total=0.6) for n in range(3)] + [answered(3, 0, 3.0, ttft=0.4)]
    found = harvest([*p0, offline(1000, 100), offline(60, 0)], [offline(1200, 0), replace(p0[0], computed_tokens=9)])
    assert found.part == pytest.approx(960 / 1200)
    assert found.kept == pytest.approx(0.75)  # the fourth's first token is late
    running, late = (replace(answered(n, 0, n, ttft=0.1 * n), outcome=None, finished_s=None) for n in (2, 4))
    assert harvest([*p0, running, late], []).kept == pytest.approx(0.6)


def test_slow_tokens_are_not_kept() -> None:
    assert harvest([answered(0, 0, 0.0, ttft=0.1, total=1.0)], []).kept == 0.0  # 90 ms a token


# -- value -----------------------------------------------------------------------------------------------------------


def test_value_is_that_of_answers_in_time() -> None:
    slos = (Slo(ttft_s=1.0, end_s=2.0, value=8), Slo(ttft_s=1.0, end_s=2.0, value=2))
    rows = [answered(0, 0, 0.0), answered(1, 1, 0.0), answered(2, 0, 0.0, ttft=1.5), refused(3, 0, 0.0)]
    rows += [answered(4, 1, 0.0, total=2.5)]
    assert value(rows, slos, 2000.0) == pytest.approx((8 + 2) * 122 / 2000)


# -- starvation ------------------------------------------------------------------------------------------------------


def policy(seats: int, **changes: object) -> Policy:
    bands = tuple(replace(band, ttl_s=1e6, capacity=10**6, shed_hopeless=False) for band in Policy().bands)
    return replace(Policy(bands=bands, pools=(PoolSpec("m", (BackendSpec("b", seats),)),)), **changes)  # type: ignore[arg-type]


def dispatches(pattern: str, *, waiting_since: float = -1.0) -> list[Record]:
    """One dispatch a second, of the band that stands in ``pattern``; all have waited since the same moment."""
    return [
        replace(answered(turn, int(band), waiting_since), dispatched_s=float(turn)) for turn, band in enumerate(pattern)
    ]


@pytest.mark.parametrize(("others", "ratio"), [(19, 1.0), (20, 1.05), (39, 2.0)])
def test_gap_is_counted_in_dispatches_up_to_the_own_one(others: int, ratio: float) -> None:
    """The default floor promises p2 one of every 20."""
    rows = dispatches("0" * others + "2")
    assert starvation(rows, policy(4), seats=4).ratio == pytest.approx(ratio)


def test_who_does_not_wait_does_not_starve() -> None:
    rows = [*dispatches("0" * 50), replace(answered(50, 2, 49.5), dispatched_s=50.0)]
    assert starvation(rows, policy(4), seats=4).ratio == 0.25  # p0, served at once where its bound is 4
    gone = [*dispatches("0" * 50), refused(99, 2, -1.0, after=11.0)]  # it waited for the dispatches at 0 to 9
    assert starvation(gone, policy(4), seats=4).ratio == pytest.approx(0.5)
    still = [*dispatches("0" * 50), Record(99, "t", 2, "m", -1.0, 100, 10)]
    assert starvation(still, policy(4), seats=4).ratio == pytest.approx(2.5)


def test_a_band_without_a_promise_has_no_ratio() -> None:
    bare = policy(4)
    bare = replace(bare, bands=tuple(replace(band, floor=Fraction(0)) for band in bare.bands))
    assert starvation(dispatches("0" * 500 + "2"), bare, seats=4).ratio <= 1.0


def test_windows_count_only_where_the_band_waits_throughout() -> None:
    found = starvation(dispatches(("0" * 19 + "2") * 10), policy(4), seats=4)
    assert found.least == (95, None, 5)
    assert starvation(dispatches("0" * 120 + "2" * 120), policy(4), seats=4).least[2] == 0
    assert starvation(dispatches("02" * 40), policy(4), seats=4).least == (None, None, None)


def test_the_scheduler_keeps_its_promise_and_a_bare_formula_does_not() -> None:
    def play(rule: Policy) -> list[Record]:
        rows: list[Record] = []
        load = merged(
            requests(poisson(40.0, stream_random(1, "p0")), band=0, until=60.0),
            requests(poisson(20.0, stream_random(1, "p1")), band=1, until=60.0),
            requests(fixed(1e6), band=2, count=300),
        )
        World(rule, {"b": FixedServer(0.2)}, load, sink=rows.append, log=Fleeting()).run(until=60.0)
        return rows

    kept = starvation(play(policy(4)), policy(4), seats=4)
    assert kept.ratio <= 1.0
    assert kept.least[2] is not None
    assert kept.least[2] >= 5
    bare = policy(4)
    bare = replace(bare, bands=tuple(replace(band, floor=Fraction(0), aging_per_ms=0.0) for band in bare.bands))
    assert starvation(play(bare), policy(4), seats=4).ratio > 5.0


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_counts_waste_and_refused_p0() -> None:
    rows = [
        replace(answered(0, 2, 0.0), computed_tokens=990),
        replace(answered(1, 1, 0.0), computed_tokens=10, wasted_tokens=1),
        refused(2, 0, 0.0),
        replace(refused(3, 0, 0.0), outcome=Outcome.CANCELLED),
        replace(refused(4, 0, 0.0), outcome=None),
        refused(5, 1, 0.0),
    ]
    found = memory(rows, 0.93)
    assert (found.use, found.wasted, found.refused) == (0.93, 0.001, 1)
    assert memory([], 0.0).wasted == 0.0
