"""The bands inside an engine's batch, played on a plain model of it with random work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.batch import BLOCK, Batch
from tidegate.vllm_plugin.decide import (
    HIGHEST,
    Allowance,
    Member,
    Patience,
    Runner,
    Share,
    Waiter,
    band_of,
    headroom,
    hold_back,
    make_room,
    may_stop,
    place,
)
from tidegate.vllm_plugin.rules import BandRules, Rules

PARTS = st.sampled_from([0.0, 0.08, 0.15, 0.3])
BANDS = st.builds(BandRules, PARTS, st.booleans(), st.booleans())
ANY_RULES = st.builds(
    Rules,
    st.lists(BANDS, min_size=1, max_size=4).map(tuple),
    st.sampled_from([0.0, 0.5, 5.0, 50.0]),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.5, 5.0]),
    st.sampled_from([0.05, 0.15, 1.0]),
)
WORK = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 30), st.integers(0, 6)), min_size=1, max_size=60
)
"""Band, prompt, output, steps until it comes."""


def played(batch: Batch, work: list[tuple[int, int, int, int]], *, most: int = 20_000) -> list[int]:
    """Play work until all of it has ended; give the numbers of steps that each took."""
    begun, ended, step = {}, {}, 0
    for band, prompt, output, after in work:
        for _ in range(after):
            batch.step()
            step += 1
        begun[batch.add(min(band, len(batch.rules.bands) - 1), prompt, output)] = step
    while batch.waiting or batch.running:
        batch.step()
        step += 1
        ended.update({each: step for each in begun if each.ended and each not in ended})
        assert step < most, "somebody waits for ever"
    return [ended.get(each, step) - at for each, at in begun.items()]


@settings(deadline=None, max_examples=60)
@given(ANY_RULES, WORK, st.integers(1, 6), st.integers(18, 60))
def test_all_work_ends_and_no_rule_is_broken_on_the_way(rules: Rules, work: list, slots: int, total: int) -> None:  # type: ignore[type-arg]
    batch = Batch(rules, slots, total)
    played(batch, work)
    assert batch.free == total
    burst = max(rules.preemptions_per_s and max(1.0, rules.preemptions_per_s), batch.largest)
    for first, begin in enumerate(batch.stops):
        for last in range(first, len(batch.stops)):
            within = batch.stops[last] - begin
            assert last - first + 1 <= burst + rules.preemptions_per_s * within + 1e-6
    if not rules.preemptions_per_s or not rules.max_preemptions:
        assert batch.stops == []


RUNNERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 5), st.integers(0, 3)), max_size=12)
WAITERS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), max_size=6)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(ANY_RULES, WAITERS, RUNNERS, st.integers(0, 3), st.integers(0, 12), st.integers(20, 60))
def test_each_stop_is_needed_and_enough(
    rules: Rules,
    waiters: list[tuple[int, int, bool]],
    runners: list[tuple[int, int, int, int]],
    slots: int,
    blocks: int,
    total: int,
) -> None:
    lowest = len(rules.bands) - 1
    waiting = [
        Waiter(Member(HIGHEST if promoted else min(band, lowest), 0.0, promoted=promoted), need)
        for band, need, promoted in waiters
    ]
    waiting.sort(key=lambda waiter: waiter.member.band)
    running = [
        Runner(Member(min(band, lowest), 0.0, stops=stops), computed, held) for band, computed, held, stops in runners
    ]
    groups = make_room(waiting, running, rules, slots=slots, blocks=blocks, total=total)
    stopped = [runner for group in groups for runner in group]
    assert all(groups)
    assert len({id(runner) for runner in stopped}) == len(stopped)

    def served(gone: list[Runner]) -> list[Waiter]:
        """Who is admitted, in order until the first that does not fit, when these are gone."""
        room, free, found = slots + len(gone), blocks + sum(runner.blocks for runner in gone), []
        for waiter in waiting:
            room, free = room - 1, free - waiter.blocks
            if room < 0 or free < headroom(waiter.member, rules, total):
                break
            found.append(waiter)
        return found

    before = len(served([]))
    for count in range(1, len(groups) + 1):
        gone = [runner for group in groups[:count] for runner in group]
        admitted = served(gone)
        assert len(admitted) > before, "a group that helps nobody"
        last = admitted[-1].member
        for runner in groups[count - 1]:
            assert may_stop(runner.member, rules, by=HIGHEST)
            assert any(may_stop(runner.member, rules, by=waiter.member.band) for waiter in admitted[before:])
            without = served([each for each in gone if each is not runner])
            assert len(without) < len(admitted), f"{runner} need not be stopped for {last}"
        before = len(admitted)
    spared = [runner for runner in running if all(runner is not each for each in stopped)]
    for runner in stopped:
        for other in spared:
            lower = other.member.band > runner.member.band
            if lower and may_stop(other.member, rules, by=HIGHEST):
                assert other.blocks < runner.blocks, "a higher band was stopped though a lower would do"


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 8)), max_size=40), st.sampled_from([0.5, 1.0, 4.0]))
def test_stops_keep_to_the_rate_over_any_time(asked: list[tuple[float, int]], rate: float) -> None:
    allowance, now, granted = Allowance(rate), 0.0, []
    for wait, count in asked:
        now += wait
        if allowance.grant(now, count):
            granted.append((now, count))
    largest = max((count for _, count in granted), default=0)
    for first in range(len(granted)):
        spent = 0
        for at, count in granted[first:]:
            spent += count
            assert spent <= max(allowance.burst, largest) + rate * (at - granted[first][0]) + 1e-6


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 5), st.integers(2, 12), st.integers(0, 100))
def test_a_flood_of_the_highest_band_starves_nobody(slots: int, low: int, salt: int) -> None:
    """The highest band alone could fill the engine for ever; each of the others is admitted all the same."""
    rules = replace(Rules(), promote_after_s=1.0)
    batch = Batch(rules, slots, total=100)
    rest = [batch.add(1 + (salt + number) % 2, 8, 6) for number in range(low)]
    for step in range(4_000):
        while sum(each.told == 0 for each in batch.waiting) < 2 * slots:
            batch.add(0, 4, 4 + (step + salt) % 3)
        batch.step()
        if all(each.ended for each in rest):
            break
    assert all(each.ended for each in rest)
    passed = [each for each in batch.admissions if each.member.promoted]
    assert len(passed) <= 1 + rules.overtake_cap * len(batch.admissions)


def test_a_wait_in_a_full_batch_is_one_step_for_the_highest_band_and_for_ever_without_stops() -> None:
    def wait(rules: Rules) -> int:
        batch = Batch(rules, slots=6, total=1000)
        for _ in range(6):
            batch.add(2, BLOCK, 300)
        for _ in range(10):
            batch.step()
        high = batch.add(0, BLOCK, 5)
        steps = 0
        while high not in batch.running:
            batch.step()
            steps += 1
        return steps

    assert wait(Rules()) == 1
    assert wait(replace(Rules(), preemptions_per_s=0.0)) > 200


def test_the_lowest_band_with_the_least_computed_is_stopped() -> None:
    rules = Rules((BandRules(may_preempt=True), BandRules(preemptible=True), BandRules(preemptible=True)))
    running = [
        Runner(Member(band, 0.0), computed, 2, name)
        for band, computed, name in ((1, 5, "a"), (2, 90, "b"), (2, 40, "c"), (0, 1, "d"))
    ]

    def names(waiting: list[Waiter], *, slots: int = 0, blocks: int = 9) -> list[list[object]]:
        groups = make_room(waiting, running, rules, slots=slots, blocks=blocks, total=100)
        return [[runner.handle for runner in group] for group in groups]

    def high(blocks: int = 1) -> Waiter:
        return Waiter(Member(0, 0.0), blocks)

    assert names([high()]) == [["c"]]
    assert names([high(), high()]) == [["c"], ["b"]]
    assert names([high(), high(), high(), high()]) == [["c"], ["b"], ["a"]]
    assert names([high(4)], slots=1, blocks=0) == [["c", "b"]]
    assert names([high(7)], slots=1, blocks=0) == [], "not even all would be enough: nobody is stopped"
    assert names([Waiter(Member(1, 0.0), 1)]) == [], "it may not have others stopped"
    assert names([Waiter(Member(0, 0.0, promoted=True), 1), high()]) == [["c", "b"]], "one in front gets room too"


def test_long_prompts_of_lower_bands_pause_for_a_prompt_that_would_get_no_tokens() -> None:
    rules = Rules((BandRules(may_preempt=True), BandRules(), BandRules(preemptible=True)))

    def held(*shares: Share, budget: int = 100) -> list[object]:
        return [share.handle for share in hold_back(shares, rules, budget)]

    def share(band: int, tokens: int, name: str = "", *, prompt: bool = True, promoted: bool = False) -> Share:
        return Share(Member(band, 0.0, promoted=promoted), tokens, prompt, name)

    assert held(share(2, 500, "a"), share(1, 5, "b"), share(0, 40)) == ["a", "b"]
    assert held(share(2, 50, "a"), share(0, 40), share(2, 500)) == [], "it gets its tokens anyway"
    assert held(share(2, 50, "a"), share(0, 60)) == ["a"], "it would get a part"
    assert held(share(2, 60, prompt=False), share(2, 10, "a"), share(0, 60)) == ["a"], "who writes goes on"
    assert held(share(2, 60, prompt=False), share(2, 10, "a"), share(0, 30)) == []
    assert held(share(0, 500, "a"), share(0, 40)) == [], "not for one of the same band"
    assert held(share(2, 500), share(1, 40)) == [], "its band may not"
    assert held(share(0, 500, promoted=True), share(2, 500, "a"), share(0, 40)) == ["a"]
    assert held(share(2, 500), share(0, 40, promoted=True)) == []
    assert held(share(2, 500, "a"), share(0, 40), share(2, 500, "b")) == ["a"]


def test_who_may_be_stopped() -> None:
    rules = Rules()
    assert may_stop(Member(2, 0.0), rules, by=0)
    assert may_stop(Member(2, 0.0, stops=1), rules, by=1)
    assert not may_stop(Member(2, 0.0, stops=2), rules, by=0)
    assert not may_stop(Member(2, 0.0), rules, by=2)
    assert not may_stop(Member(1, 0.0), rules, by=0), "p1 is not preemptible"
    assert not may_stop(Member(2, 0.0, promoted=True), rules, by=0)


def test_nobody_is_stopped_for_one_behind_another_that_cannot_be_made_room_for() -> None:
    waiting = [Waiter(Member(0, 0.0), 50), Waiter(Member(0, 0.0), 1)]
    running = [Runner(Member(2, 0.0), 9, 3)]
    assert make_room(waiting, running, Rules(), slots=2, blocks=0, total=100) == []
    assert len(make_room(waiting[1:], running, Rules(), slots=2, blocks=0, total=100)) == 1


def test_headroom_is_a_part_of_all_blocks_and_kept_when_room_is_made() -> None:
    rules = Rules((BandRules(0.1, may_preempt=True), BandRules(0.2, preemptible=True)))
    assert [headroom(Member(band, 0.0), rules, 31) for band in (0, 1)] == [4, 7]
    running = [Runner(Member(1, 0.0), 9, 3)]
    assert make_room([Waiter(Member(0, 0.0), 2)], running, rules, slots=1, blocks=6, total=31) == []
    assert len(make_room([Waiter(Member(0, 0.0), 2)], running, rules, slots=1, blocks=5, total=31)) == 1


def test_the_order_is_by_band_and_then_by_work_done() -> None:
    low, high = Member(2, 0.0), Member(0, 0.0)
    assert place(high, 0) < place(low, 10**12) < place(low, 500) < place(low, 0)
    assert [band_of(number, Rules()) for number in (-5, 0, 1, 2, 9)] == [0, 0, 1, 2, 2]


def test_one_promotion_at_a_time_goes_to_the_longest_wait() -> None:
    patience = Patience(replace(Rules(), overtake_cap=0.5))
    old, older, young = Member(2, 5.0), Member(1, 3.0), Member(2, 14.0)
    waiting = [old, young, older, Member(0, 0.0)]
    assert patience.promote(waiting, 12.9) is None
    assert patience.promote(waiting, 16.0) is older
    assert (older.band, older.promoted) == (0, True)
    assert patience.promote([old], 17.0) is None, "no admission has earned it"
    patience.admitted()
    patience.admitted()
    assert patience.promote(waiting, 17.0) is None, "the last one is not admitted yet"
    assert patience.promote([young, old], 17.0) is old
