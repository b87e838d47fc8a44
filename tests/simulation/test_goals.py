"""The goals' formulas on records written by hand, where the right figure is plain. (Starvation: ``test_gaps``.)"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.core import Outcome, Reason
from tidegate.simulation import Record
from tidegate.simulation.goals import calm, harvest, memory, value
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
