from __future__ import annotations

import random
from collections.abc import Callable

from tidegate.backends.health import BackendHealth, HealthRules, Standing

RULES = HealthRules()
UP, DOWN, TRIAL = Standing.UP, Standing.DOWN, Standing.TRIAL


def health(chance: Callable[[], float] = lambda: 1.0) -> BackendHealth:
    return BackendHealth(RULES, chance)


def down_since(at: float) -> BackendHealth:
    found = health()
    assert found.unreachable(at, "refused")
    return found


def on_trial(at: float) -> BackendHealth:
    found = down_since(at)
    assert found.probed(at + 1.0, began=at + 1.0, problem=None)
    return found


def test_only_failures_in_a_row_take_a_backend_out() -> None:
    one = health()
    for now in range(20):
        assert not one.failed(now, "500", spare=True)
        assert not one.failed(now, "500", spare=True)
        one.answered(now)
    for _ in range(2):
        assert not one.failed(21, "500", spare=True)
    assert one.failed(21, "the third", spare=True)
    assert (one.standing, one.why, one.takes_requests) == (DOWN, "the third", False)


def test_the_last_backend_stays_as_long_as_it_answers_at_all() -> None:
    one = health()
    for now in range(10):
        assert not one.failed(now, "500", spare=False)
    assert one.standing is UP
    assert one.next_look_at == 0.0  # but it is asked
    assert one.unreachable(10, "refused")


def test_a_failed_probe_takes_out_at_once_unless_a_request_says_otherwise() -> None:
    one = health()
    one.answered(3.0)
    assert not one.probed(7.0, began=2.0, problem="slow")
    assert one.standing is UP
    assert one.next_look_at == 7.0 + RULES.look_every_s
    assert one.probed(20.0, began=12.0, problem="refused")
    assert one.standing is DOWN


def test_who_is_down_comes_back_by_one_trial() -> None:
    one = down_since(0.0)
    assert one.next_look_at == 1.0
    assert not one.probed(0.5, began=0.4, problem=None)  # well again, but its back-off is not over
    assert one.standing is DOWN
    assert one.next_look_at >= 1.0
    assert one.probed(1.0, began=1.0, problem=None)
    assert one.standing is TRIAL
    assert one.takes_requests
    assert one.answered(1.5)
    assert one.standing is UP
    assert not one.answered(1.6)


def test_a_failed_trial_doubles_the_back_off_up_to_a_limit() -> None:
    one, now, waits = health(), 0.0, []
    one.unreachable(now, "refused")
    for _ in range(8):
        waits.append(one.next_look_at - now)
        now = one.next_look_at
        assert one.probed(now, began=now, problem=None)
        assert one.failed(now, "500", spare=False)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_long_good_time_is_forgiven() -> None:
    one = on_trial(0.0)
    one.answered(2.0)
    one.unreachable(3.0, "again")
    assert one.next_look_at == 3.0 + 2.0
    one.probed(5.0, began=5.0, problem=None)
    one.answered(5.0)
    one.unreachable(5.0 + RULES.forgive_s, "once more")
    assert one.next_look_at == 5.0 + RULES.forgive_s + 1.0


def test_a_trial_nobody_speaks_against_is_passed() -> None:
    one = on_trial(0.0)
    assert one.wakes_at == 1.0 + RULES.trial_s
    assert not one.tick(5.9)
    assert one.tick(6.0)
    assert one.standing is UP
    assert not one.tick(7.0)


def test_stragglers_of_a_breakdown_do_not_lengthen_it() -> None:
    one = down_since(0.0)
    assert not one.unreachable(0.1, "refused")
    assert not one.failed(0.9, "reset", spare=True)
    assert one.probed(1.0, began=1.0, problem=None)


def test_who_stays_down_is_asked_at_a_steady_pace() -> None:
    one, now = down_since(0.0), 1.0
    for _ in range(20):
        assert not one.probed(now, began=now, problem="refused")
        assert 0.5 <= one.next_look_at - now <= RULES.ask_every_s
        now = one.next_look_at
    assert one.probed(now, began=now, problem=None)


def test_a_doubt_has_it_asked_at_once_but_shortens_no_back_off() -> None:
    one = health()
    one.probed(0.0, began=0.0, problem=None)
    one.doubt(1.0)
    assert one.next_look_at == 1.0
    out = down_since(0.0)
    out.doubt(0.1)
    assert out.next_look_at == 1.0


def test_back_offs_are_drawn() -> None:
    rng = random.Random(5)
    drawn = []
    for _ in range(50):
        one = health(rng.random)
        one.unreachable(0.0, "refused")
        drawn.append(one.next_look_at)
    assert min(drawn) >= 0.5
    assert max(drawn) <= 1.0
    assert len(set(drawn)) == 50


def test_no_event_leaves_the_machine_stuck() -> None:
    """Random events: a backend that is well again always comes up within back-off, one look and a trial."""
    rng = random.Random(9)
    for _ in range(300):
        one, now = health(rng.random), 0.0
        for _ in range(40):
            now += rng.random() * 3
            event = rng.randrange(6)
            if event == 0:
                one.answered(now)
            elif event == 1:
                one.failed(now, "x", spare=rng.random() < 0.5)
            elif event == 2:
                one.unreachable(now, "x")
            elif event == 3:
                one.doubt(now)
            elif event == 4:
                one.tick(now)
            else:
                one.probed(now, began=now - rng.random(), problem=rng.choice((None, "x")))
        ends = now + RULES.most_back_off_s + RULES.ask_every_s + RULES.trial_s
        while one.standing is not UP:
            now = max(now, one.wakes_at)
            assert now <= ends
            if not one.tick(now):
                one.probed(now, began=now, problem=None)
