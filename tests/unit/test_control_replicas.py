"""Gateways that share the pools, as the dashboard and ``tidegate top`` show them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tidegate.control import Feed
from tidegate.control.snapshot_replicas import LOST_S, MOST_ROWS, replicas_of
from tidegate.testing import run_virtual
from unit.control_stage import Stage
from unit.test_cli_top import drawn, numbers


def row(
    name: str, seen_s: float = 0.1, held: int = 3, waiting: tuple[int, ...] = (0, 1, 2), **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "run": "",
        "same_name": False,
        "differs": False,
        "seen_s_ago": seen_s,
        "held": held,
        "unconfirmed": 0,
        "waiting": [*waiting],
        "controller": False,
        **more,
    }


def cluster(*pools: list[dict[str, Any]], degraded: bool = False, **more: Any) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {
        f"m{index}": {"standing": "shared", "differs": None, "replicas": rows} for index, rows in enumerate(pools)
    }
    own = {"replica": "b", "run": "", "group": "default", "degraded": degraded, "same_name": 0}
    return {**own, "pools": found, **more}


def test_alone_there_is_nothing_to_show() -> None:
    assert replicas_of(None) is None
    assert numbers()["replicas"] is None


def test_a_gateway_has_one_row_for_all_its_pools_and_this_one_is_first() -> None:
    found = replicas_of(cluster([row("a"), row("b", 9.0)], [row("b", 0.2, 4, (5, 0, 1)), row("c", LOST_S + 1)]))
    assert found is not None
    assert [(each["name"], each["seats"], each["waiting"], each["lost"]) for each in found["rows"]] == [
        ("b", 7, [5, 1, 3], False),
        ("a", 3, [0, 1, 2], False),
        ("c", 3, [0, 1, 2], True),
    ]
    assert (found["own"], found["number"], found["degraded"]) == ("b", 3, False)


def test_hundreds_do_not_make_the_snapshot_long() -> None:
    found = replicas_of(cluster([row(f"g{index}") for index in range(500)]))
    assert found is not None
    assert (found["number"], len(found["rows"])) == (500, MOST_ROWS)


def test_they_are_asked_for_while_somebody_watches_and_no_more_than_once_at_a_time() -> None:
    asked: list[float] = []

    async def story() -> None:
        stage = Stage()
        loop = asyncio.get_running_loop()

        async def slow() -> dict[str, Any]:
            asked.append(loop.time())
            await asyncio.sleep(3)
            return cluster([row("a"), row("b")])

        feed = Feed(stage.driver, stage.recorder, stage.live, utc_now=stage.clock.utc_now, cluster=slow)
        feed.start(loop)
        await asyncio.sleep(10)
        assert asked == []
        feed.watchers = 1
        await asyncio.sleep(2.9)
        assert b'"replicas":null' in feed.frame
        await asyncio.sleep(2)
        assert b'"replicas":{"own":"b"' in feed.frame
        await asyncio.sleep(5)
        feed.close()

    run_virtual(story())
    assert 3 <= len(asked) <= 4
    assert all(later - sooner >= 3 for sooner, later in pairwise(asked))


@pytest.mark.parametrize("width", [80, 200])
def test_top_shows_them_when_there_are_several_or_the_store_is_silent(width: int) -> None:
    def text(*names: str, degraded: bool = False) -> str:
        return drawn(
            numbers(replicas=replicas_of(cluster([row(name) for name in names], degraded=degraded))), width=width
        )

    assert "gateways that share" not in text("b")
    assert "b (this one)" in text("a", "b")
    assert "does not answer" in text("b", degraded=True)
    lost = numbers(replicas=replicas_of(cluster([row("b"), row("\x1b[2Jwild", 60.0)])))
    assert "lost 60 s ago" in drawn(lost)
    assert "\x1b" not in drawn(lost)


def test_two_of_one_name_have_a_row_each() -> None:
    rows = [row("a", run="1"), row("b", run="2", same_name=True), row("b", run="1", same_name=True)]
    found = replicas_of(cluster(rows, run="2", same_name=1))
    assert found is not None
    assert [(each["name"], each["own"], each["same_name"]) for each in found["rows"]] == [
        ("b", True, True),
        ("a", False, False),
        ("b", False, True),
    ]
    assert found["same_name"] == 1
    text = drawn(numbers(replicas=found), width=200)
    assert text.count("another has this name") == 2
    assert text.count("(this one)") == 1


def test_files_that_differ_are_shown_with_what_they_differ_in() -> None:
    state = cluster([row("a", differs=True), row("b")])
    state["pools"]["m0"]["differs"] = {
        "not_dealt": [f"b{index}" for index in range(9)],
        "unknown": ["c"],
        "seats": [{"name": "d", "here": 4, "dealt": 8}],
    }
    found = replicas_of(state)
    assert found is not None
    assert [(each["name"], each["differs"]) for each in found["rows"]] == [("b", False), ("a", True)]
    [differing] = found["differs"]
    assert differing == {"pool": "m0", "not_dealt": ["b0", "b1", "b2"], "unknown": ["c"], "seats": ["d"]}
    text = drawn(numbers(replicas=found), width=200)
    assert "other backends" in text
    assert "m0: b0 b1 b2 not dealt, c not in its file, d other seats" in text


def test_a_gateway_that_is_alone_with_its_file_is_shown() -> None:
    state = cluster([row("b")])
    state["pools"]["m0"]["differs"] = {"not_dealt": ["x"], "unknown": [], "seats": []}
    assert "x not dealt" in drawn(numbers(replicas=replicas_of(state)), width=200)
