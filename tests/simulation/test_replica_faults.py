"""What befalls gateways that share a pool, at 2.5 times the load, by the very code of gateway and ledger.

The bounds are those that docs/scale.md promises; what ran is counted where it ran, whatever the gateways believe.
"""

from __future__ import annotations

from functools import cache

import pytest

from tidegate.simulation import Request
from tidegate.simulation.replica_faults import FaultyReplicas
from tidegate.simulation.replica_trials import FAULTS, Figures, Trial, quantile, run
from tidegate.simulation.servers import FixedServer
from tidegate.simulation.world import World
from tidegate.stores.ledger_client import Client

SEATS = 16


def spare(seats: int) -> int:
    """Seats above those that there are, in an outage of the store."""
    return max(3, seats // 12)


TENTH_S = 0.1
BEHIND_S = 0.18
"""As long as one of a lower band may stand first in line of a full pool whose store has died: a poll, and the doubt."""

SECONDS = {"gateway frozen": 10.0}
LONG = {"seats": 64, "hold_s": 5.0, "count": 4}


@cache
def figures(name: str, seed: int = 1, *, long: bool = False) -> tuple[Trial, Figures]:
    trial = Trial(name, seconds=SECONDS.get(name, 20.0), seed=seed, **(LONG if long else {}))  # type: ignore[arg-type]
    return trial, run(trial)


CASES = [
    pytest.param(name, seed, long, id=f"{name}, {'64 long' if long else '16 short'} seats, {seed}", marks=marks)
    for name in FAULTS
    if name
    for seed, long, marks in ((1, False, ()), (2, False, pytest.mark.slow), (1, True, pytest.mark.slow))
]
trials = pytest.mark.parametrize(("name", "seed", "long"), CASES)
slow = pytest.mark.timeout(60)  # of which a machine that does much else needs some for the first of each case


@slow
@trials
def test_never_more_run_than_the_seats_and_the_documented_excess(name: str, seed: int, long: bool) -> None:
    trial, found = figures(name, seed, long=long)
    excess = spare(trial.seats)
    if name == "gateway of p0 cut off":
        excess = found.shares[0]
        assert found.most_before_ttl <= trial.seats + spare(
            trial.seats
        )  # the others have its seats only when its lease is over
    elif name == "gateway killed":
        excess = found.shares[1] if long else 0  # the engine ends what the dead one began
    elif name == "gateway frozen":
        excess = found.shares[1] if long else 0  # what it really had running
    assert found.most <= trial.seats + excess
    assert found.most_after <= trial.seats


@slow
@trials
def test_no_request_is_lost_or_sent_twice(name: str, seed: int, long: bool) -> None:
    _, found = figures(name, seed, long=long)
    assert (found.gone, found.twice) == (0, 0)
    assert (found.lost == 0) is (name != "gateway killed")


@slow
@trials
def test_three_quarters_of_the_throughput_remain(name: str, seed: int, long: bool) -> None:
    _, found = figures(name, seed, long=long)
    assert found.used >= 0.75


@slow
@pytest.mark.parametrize("name", ["gateway killed", "gateway frozen"])
def test_the_seats_of_a_gateway_are_back_when_its_lease_is_over(name: str) -> None:
    _, found = figures(name)
    assert found.used_late >= 0.97


@slow
@trials
def test_ten_seconds_later_the_order_is_as_before(name: str, seed: int, long: bool) -> None:
    _, plain = figures("", seed, long=long)
    _, found = figures(name, seed, long=long)
    assert found.used_after >= 0.99
    assert found.least >= 4
    assert found.passed <= 0.13
    assert quantile(found.waits_after, 0.5) <= 1.5 * quantile(plain.waits_after, 0.5) + 0.05
    assert quantile(found.waits_after, 0.99) <= 2.0 * quantile(plain.waits_after, 0.99)


@slow
@pytest.mark.parametrize("long", [False, True], ids=["16 short seats", "64 long seats"])
@pytest.mark.parametrize("name", ["store stopped", "store killed, back empty", "gateway of p0 cut off"])
def test_nobody_first_in_line_waits_for_a_store_that_is_dead(name: str, long: bool) -> None:
    """Who comes first at a gateway whose share has room: that is all that the store can cost it."""
    _, found = figures(name, long=long)
    assert found.longest_s[0] <= TENTH_S
    assert max(found.longest_s) <= BEHIND_S


def newcomer(after_s: float) -> tuple[float, int, float]:
    """All seats are another gateway's, the store hangs, and p0 comes to one without any seat.

    Returns:
        How long it waited, how many ran, and what the stage says of who was first in line.
    """
    hangs_s = 30.0
    batch = [
        Request(at=each / 100, band=2, tenant="b", pool="m", prompt_tokens=1, output_tokens=1) for each in range(40)
    ]
    vip = Request(at=hangs_s + after_s, band=0, tenant="v", pool="m", prompt_tokens=1, output_tokens=1)
    replicas = FaultyReplicas(
        Trial("", seats=SEATS).policy, 3, one_way_s=0.0005, place=lambda ticket: 2 if ticket.band else 0
    )
    replicas.plan(hangs_s, replicas.hang_store)
    log = World(replicas, {"b": FixedServer(1000.0)}, [*batch, vip]).run(hangs_s + 3.0)
    (entry,) = [entry for entry in log.dispatched if entry.request.band == 0]
    return entry.wait_s, len(log.dispatched), replicas.longest_s[0]


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.039, 0.045, 0.05, 0.2])
def test_a_gateway_without_any_seat_starts_within_a_tenth_of_a_second(after_s: float) -> None:
    """It had nothing that came back, and waited until the store counted as away."""
    wait_s, ran, _ = newcomer(after_s)
    assert wait_s <= TENTH_S
    assert ran <= SEATS + 1


def test_that_somebody_waits_first_in_line_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measure that cannot say no says nothing."""
    monkeypatch.setattr(Client, "_lifts", lambda _: 0)
    wait_s, _, longest_s = newcomer(0.01)
    assert wait_s >= 0.25
    assert longest_s == pytest.approx(wait_s, abs=0.001)


@slow
def test_that_too_many_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole pool for everybody alone."""
    monkeypatch.setattr(Client, "_unclaimed", lambda _: SEATS)
    monkeypatch.setattr(Client, "share", property(lambda _: SEATS, lambda *_: None), raising=False)
    assert run(Trial("store stopped", seconds=3.0)).most > SEATS + spare(SEATS)
