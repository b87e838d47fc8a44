"""Mean waits against queueing theory: Erlang C, Cobham, Kleinrock's accumulating priority, conservation, SJF."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from theory.closed_forms import (
    accumulating,
    cobham,
    conserved,
    exponential_load_below,
    guard_seats_busy,
    mmc_wait,
    push_out_loss,
    sjf_wait,
)
from theory.stage import Arrival, band, play, poisson, policy, strict
from tidegate.core import Discipline, Order

SERVICE_S = 1.0
COUNT = 100_000
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seats", "load"), [(1, 0.7), (4, 0.8), (16, 0.9)])
def test_one_band_waits_as_erlang_c_says(seats: int, load: float) -> None:
    rate = load * seats / SERVICE_S
    log = play(strict(1, seats), poisson(random.Random(1), [rate], SERVICE_S, COUNT))
    assert log.mean_wait(0) == pytest.approx(mmc_wait(seats, rate, SERVICE_S), rel=0.12)


@pytest.mark.parametrize("seats", [1, 4])
def test_strict_bands_wait_as_cobham_says(seats: int) -> None:
    rates = [0.25 * seats, 0.25 * seats, 0.3 * seats]
    log = play(strict(3, seats), poisson(random.Random(2), rates, SERVICE_S, COUNT))
    for index, expected in enumerate(cobham(seats, rates, SERVICE_S)):
        assert log.mean_wait(index) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("seats", [1, 4])
def test_aging_without_head_start_waits_as_kleinrock_says(seats: int) -> None:
    slopes = [8.0, 2.0, 1.0]
    rates = [0.25 * seats, 0.3 * seats, 0.3 * seats]
    bands = [band(f"p{i}", aging_per_ms=slope) for i, slope in enumerate(slopes)]
    log = play(policy(bands, seats), poisson(random.Random(3), rates, SERVICE_S, COUNT))
    # At 85 % load the chance in the sample's own rates would move the waits by more than the tolerance.
    span_s, mean_s = log.rows[-1].arrival.at, sum(row.arrival.service_s for row in log.rows) / len(log.rows)
    drawn = [sum(row.arrival.band == index for row in log.rows) / span_s for index in range(3)]
    for index, expected in enumerate(accumulating(seats, drawn, slopes, mean_s)):
        assert log.mean_wait(index, warm=0.0) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("discipline", list(Discipline))
def test_no_discipline_changes_the_conserved_sum_of_waits(discipline: Discipline) -> None:
    seats, rates = 2, [0.5, 0.6, 0.6]
    bands = [band("p0", weight=100, aging_per_ms=0.05, share=8, floor=Fraction(1, 50))]
    bands += [band(f"p{i}", weight=1, aging_per_ms=0.005, share=i, floor=Fraction(1, 20)) for i in (2, 1)]
    rule = policy(bands, seats, discipline=discipline, overtake_cap=Fraction(15, 100))
    log = play(rule, poisson(random.Random(4), rates, SERVICE_S, COUNT))
    total = sum(rate * SERVICE_S / seats * log.mean_wait(index) for index, rate in enumerate(rates))
    assert total == pytest.approx(conserved(seats, rates, SERVICE_S), rel=0.1)


def test_shortest_first_waits_as_phipps_says() -> None:
    rate, rng = 0.8, random.Random(5)
    below = exponential_load_below(rate, SERVICE_S)

    def arrivals() -> list[Arrival]:
        now, rows = 0.0, []
        for _ in range(COUNT):
            now += rng.expovariate(rate)
            size = rng.expovariate(1 / SERVICE_S)
            rows.append(Arrival(now, 0, size, tokens=max(1, round(size * 100_000))))
        return rows

    log = play(policy([band("p0", order=Order.SJF)], 1, sjf_aging=0), arrivals())
    for low, high in ((0.0, 0.3), (0.7, 1.1), (1.8, 2.4)):
        picked = [row for row in log.rows if low <= row.arrival.service_s < high]
        expected = sum(sjf_wait(rate, row.arrival.service_s, below, 2 * SERVICE_S**2) for row in picked) / len(picked)
        assert sum(row.wait_s for row in picked) / len(picked) == pytest.approx(expected, rel=0.15)


def test_with_one_slope_a_weight_is_a_head_start() -> None:
    """W + a(t - arrival) with one a orders by arrival - W/a, whatever t is: the start order of a backlog is static."""
    alpha_per_s, weights = 10.0, [50.0, 20.0, 0.0]
    bands = [band(f"p{i}", weight=w, aging_per_ms=alpha_per_s / 1000) for i, w in enumerate(weights)]
    rng = random.Random(6)
    rows = sorted((Arrival(rng.uniform(0, 8), rng.randrange(3), 1.0) for _ in range(300)), key=lambda row: row.at)
    blocker = Arrival(0.0, 0, 10.0)
    log = play(policy(bands, 1), [blocker, *rows])
    started = [row.arrival for row in log.served[1:]]
    assert started == sorted(rows, key=lambda row: row.at - weights[row.band] / alpha_per_s)


@pytest.mark.parametrize(("seats", "reserve", "rate"), [(16, 3, 4.0), (16, 6, 8.0), (64, 4, 20.0)])
def test_reserve_leaves_p0_as_often_without_a_seat_as_the_chain_says(seats: int, reserve: int, rate: float) -> None:
    rng = random.Random(7)
    bands = [band("p0", reserve=reserve), band("p1")]
    count = 20_000

    def arrivals() -> list[Arrival]:
        rows, now = [], 0.0
        for _ in range(count):
            now += rng.expovariate(rate)
            rows.append(Arrival(now, 0, rng.expovariate(1 / SERVICE_S)))
        endless = int(seats * now / SERVICE_S) + seats
        return [Arrival(0.0, 1, rng.expovariate(1 / SERVICE_S)) for _ in range(endless)] + rows

    rule = policy(bands, seats, discipline=Discipline.STRICT)
    log = play(rule, arrivals())
    p0 = [row for row in log.rows if row.arrival.band == 0][count // 10 :]
    waited = sum(row.wait_s > 0 for row in p0) / len(p0)
    assert waited == pytest.approx(guard_seats_busy(seats, reserve, rate, SERVICE_S), rel=0.25, abs=0.003)


def test_a_full_queue_loses_by_band_as_the_push_out_chain_says() -> None:
    seats, room, rates = 2, 4, (1.2, 2.0)
    rule = strict(2, seats, queue_capacity=room)
    log = play(rule, poisson(random.Random(8), rates, SERVICE_S, COUNT))
    for index, expected in enumerate(push_out_loss(seats, room, rates, SERVICE_S)):
        rows = [row for row in log.rows if row.arrival.band == index]
        assert sum(bool(row.lost) for row in rows) / len(rows) == pytest.approx(expected, rel=0.08, abs=0.004)
