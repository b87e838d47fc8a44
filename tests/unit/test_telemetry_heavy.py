from __future__ import annotations

import random
from collections import Counter

from tidegate.core import Reason
from tidegate.telemetry.heavy import Heavy, RecentHeavy
from tidegate.telemetry.recent import KEPT, RecentRefusals


def test_few_names_are_counted_exactly() -> None:
    heavy = RecentHeavy()
    for number in range(900):
        heavy.add(1.0, f"t{number}", number)
    assert heavy.top(1.0, 3) == [("t899", 899), ("t898", 898), ("t897", 897)]
    assert heavy.missed == 0


def test_the_heaviest_of_many_names_are_found_in_bounded_memory() -> None:
    chance, heavy, true = random.Random(3), Heavy(512), Counter[str]()
    for _ in range(100_000):
        name = f"heavy{chance.randrange(5)}" if chance.random() < 0.2 else f"light{chance.randrange(10_000)}"
        true[name] += 1
        heavy.add(name, 1)
        assert len(heavy.amounts) <= 1024
    assert {name for name, _ in true.most_common(5)} == set(sorted(heavy.amounts, key=heavy.amounts.__getitem__)[-5:])
    for name, amount in heavy.amounts.items():
        assert amount <= true[name] <= amount + heavy.missed
    assert heavy.missed <= 100_000 / 512


def test_only_the_last_minute_counts_and_equal_ones_stand_by_name() -> None:
    heavy = RecentHeavy()
    heavy.add(0.0, "old", 9)
    heavy.add(58.0, "b", 1)
    heavy.add(58.0, "a", 1)
    assert heavy.top(59.0, 9) == [("old", 9), ("a", 1), ("b", 1)]
    assert heavy.top(64.9, 9) == [("old", 9), ("a", 1), ("b", 1)]
    assert heavy.top(65.0, 9) == [("a", 1), ("b", 1)]
    heavy.add(65.0, "a", 2)
    assert heavy.top(65.0, 1) == [("a", 3)]
    assert heavy.top(400.0, 9) == []


def test_the_heaviest_of_a_minute_with_many_names_are_found_and_the_error_is_told() -> None:
    chance, heavy, true = random.Random(5), RecentHeavy(), Counter[str]()
    for step in range(60_000):
        name = f"heavy{chance.randrange(3)}" if chance.random() < 0.2 else f"light{chance.randrange(10_000)}"
        true[name] += 1
        heavy.add(step / 1000, name, 1)
    found = heavy.top(59.9, 3)
    assert {name for name, _ in found} == {"heavy0", "heavy1", "heavy2"}
    assert all(amount <= true[name] <= amount + heavy.missed for name, amount in found)
    assert heavy.missed < 60_000 / 100


def test_a_minute_is_added_up_a_slot_at_a_time_and_the_heaviest_are_the_same() -> None:
    whole, parted = RecentHeavy(), RecentHeavy()
    for step in range(60_000):
        for heavy in (whole, parted):
            heavy.add(step / 1000, f"t{step % 2000 if step % 3 else step % 7}", 1)
    assert sum(1 for _ in parted.add_up(59.9)) == 11
    assert next(parted.add_up(59.9), "nothing") == "nothing", "it is done until the next slot begins"
    assert parted.top(59.9, 5) == whole.top(59.9, 5)
    assert parted.missed == whole.missed


def test_a_slot_that_begins_while_the_last_ones_are_added_up_is_not_forgotten() -> None:
    heavy = RecentHeavy()
    heavy.add(0.0, "a", 1)
    heavy.add(6.0, "b", 3)
    steps = heavy.add_up(7.0)
    next(steps)
    heavy.add(11.0, "c", 2)
    for _ in steps:
        pass
    heavy.add(11.0, "c", 2)
    assert heavy.top(7.0, 3) == [("c", 4), ("b", 3), ("a", 1)]


def test_sums_of_tables_are_too_small_by_no_more_than_they_say() -> None:
    chance, true, sum_ = random.Random(9), Counter[str](), Heavy(64)
    for _ in range(12):
        part = Heavy(64)
        for _ in range(3000):
            name = f"t{int(chance.paretovariate(0.7)) % 1000}"
            true[name] += 1
            part.add(name, 1)
        sum_.merge(part)
        assert len(sum_.amounts) <= 128
    assert sum_.missed <= 12 * 3000 / 64
    for name, amount in true.items():
        assert 0 <= amount - sum_.amounts.get(name, 0) <= sum_.missed


def test_the_last_refusals_are_kept_as_the_clients_got_them() -> None:
    recent = RecentRefusals()
    for number in range(KEPT + 5):
        headers = [(b"content-type", b"x"), (b"retry-after", b"7")] if number % 2 else []
        recent.note(
            float(number),
            f"r{number}",
            tenant="t",
            band="p2",
            model="m",
            reason=Reason.SHED,
            status=429,
            headers=headers,
        )
    rows = list(recent.newest())
    assert len(rows) == KEPT
    assert [(row.request_id, row.retry_after_s) for row in rows[:2]] == [("r54", None), ("r53", 7)]
