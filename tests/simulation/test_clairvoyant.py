"""The clairvoyant bound against a linear program, against whatever schedule one likes, and on cases done by hand."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from tidegate.simulation.clairvoyant import Offer, most_value


def by_linear_program(offers: list[Offer], engines: float) -> float:
    """The same optimum by HiGHS: work of each request in each span between two arrivals or deadlines."""
    times = sorted({offer.arrived for offer in offers} | {offer.due for offer in offers})
    spans = list(pairwise(times))
    cells = [
        (row, column)
        for row, offer in enumerate(offers)
        for column, (start, end) in enumerate(spans)
        if offer.arrived <= start and end <= offer.due
    ]
    limits = np.zeros((len(offers) + len(spans), len(cells)))
    gains = np.zeros(len(cells))
    for index, (row, column) in enumerate(cells):
        limits[row, index] = limits[len(offers) + column, index] = 1.0
        gains[index] = -offers[row].value / offers[row].work_s
    room = [offer.work_s for offer in offers] + [engines * (end - start) for start, end in spans]
    found: Any = linprog(gains, A_ub=limits, b_ub=room, method="highs")
    return -float(found.fun)


whole = st.integers(0, 12).map(float)
fine = st.floats(0, 12, allow_nan=False)
moment = st.one_of(whole, fine)
offers_strategy = st.lists(
    st.builds(
        lambda at, span, work, value: Offer(at, at + span, work, value),
        moment,
        st.one_of(st.integers(1, 5).map(float), st.floats(0.05, 6)),
        st.floats(0.05, 3),
        st.one_of(st.sampled_from([1.0, 2.0, 8.0]), st.floats(0.1, 10)),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(offers_strategy, st.sampled_from([0.5, 1.0, 3.0]))
def test_equals_the_linear_program(offers: list[Offer], engines: float) -> None:
    assert most_value(offers, engines=engines) == pytest.approx(by_linear_program(offers, engines), rel=1e-6, abs=1e-6)


def test_what_fits_is_paid_in_full() -> None:
    offers = [Offer(0, 2, 1, 5), Offer(0, 2, 1, 7), Offer(10, 11, 0.5, 1)]
    assert most_value(offers) == pytest.approx(13)


def test_the_denser_goes_first_and_the_rest_is_paid_in_part() -> None:
    assert most_value([Offer(0, 2, 2, 2), Offer(0, 2, 1, 8)]) == pytest.approx(8 + 1)


def test_a_dense_request_moves_aside_for_one_that_cannot_wait() -> None:
    patient, urgent = Offer(0, 3, 1, 9), Offer(1, 2, 1, 1)
    assert most_value([patient, urgent]) == pytest.approx(10)


def test_saturated_times_do_not_reach_beyond_their_windows() -> None:
    """Between two floods there is room, which only the request whose window reaches it can use."""
    floods = [Offer(0, 1, 5, 50), Offer(2, 3, 5, 50)]
    assert most_value([*floods, Offer(0, 3, 1, 1)]) == pytest.approx(20 + 1)
    assert most_value([*floods, Offer(0, 1, 1, 1)]) == pytest.approx(20)


def test_two_engines_do_twice_the_work() -> None:
    offers = [Offer(0, 1, 1, 1)] * 3
    assert most_value(offers, engines=2) == pytest.approx(2)


def test_worthless_and_impossible_requests_count_nothing() -> None:
    assert most_value([]) == 0
    assert most_value([Offer(0, 1, 1, 0), Offer(1, 1, 1, 5)]) == 0


@pytest.mark.parametrize(("offer", "engines"), [(Offer(0, 1, 0, 1), 1.0), (Offer(0, 1, 1, 1), 0.0)])
def test_refuses_work_for_nothing_and_no_engine(offer: Offer, engines: float) -> None:
    with pytest.raises(ValueError, match="expected more than 0, got 0"):
        most_value([offer], engines=engines)


def test_no_schedule_gets_more() -> None:
    """Highest value density first, one at a time and all or nothing, stays below the bound on any load."""
    draw = random.Random(3)
    for _ in range(20):
        offers = [
            Offer(at := draw.uniform(0, 50), at + draw.uniform(0.2, 8), draw.uniform(0.05, 1), draw.uniform(1, 9))
            for _ in range(150)
        ]
        now, got, left = 0.0, 0.0, sorted(offers, key=lambda offer: offer.arrived)
        while left:
            ready = [offer for offer in left if offer.arrived <= now and now + offer.work_s <= offer.due]
            if not ready:
                left = [offer for offer in left if offer.arrived > now]
                now = left[0].arrived if left else now
                continue
            best = max(ready, key=lambda offer: offer.value / offer.work_s)
            now, got = now + best.work_s, got + best.value
            left.remove(best)
        assert got <= most_value(offers) <= sum(offer.value for offer in offers)


@pytest.mark.slow
def test_a_trace_takes_seconds() -> None:
    """100,000 requests at 2.6 times what the engines can do."""
    draw = random.Random(1)
    offers = []
    for number in range(100_000):
        at = number / 50
        prompt, output, band = int(draw.lognormvariate(6.5, 1)), int(draw.lognormvariate(5, 1)), draw.randrange(3)
        work_s = (prompt * 0.03 + output * 0.08) / 1000
        offers.append(Offer(at, at + (2, 20, 300)[band], work_s, (8, 2, 1)[band] * (prompt + 2 * output)))
    bound = most_value(offers)
    assert 0.3 < bound / sum(offer.value for offer in offers) < 0.95
