"""What a change of the policy would do is said before it is done, and nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.testing import run_virtual
from unit.control_stage import FILE, OPERATORS, Stage

TWO_POOLS = """
models:
  - {name: m, backends: [{name: b, url: "http://b:1", seats: 10}]}
  - {name: n, backends: [{name: c, url: "http://c:1", seats: 2}]}
"""


async def preview(stage: Stage, body: object, **more: Any) -> Any:
    answer = await stage.ask("POST", "/admin/policy/preview", body, **more)
    assert answer.status == 200, answer.body
    assert (stage.edges, stage.audit.newest(9)) == ([], [])
    return answer.json


def test_it_shows_what_changes_and_how_the_longest_waits_move() -> None:
    async def story() -> None:
        found = await preview(Stage(), {"policy": {"bands": {"p2": {"floor": 0.1}}, "overtake_cap": 0.3}})
        assert (found["valid"], found["errors"], found["what_if"]) == (True, [], None)
        assert found["changes"] == [
            {"field": "policy.overtake_cap", "from": 0.15, "to": 0.3},
            {"field": "policy.bands.p2.floor", "from": 0.05, "to": 0.1},
        ]
        assert found["assumed"] == {"service_s": 10, "seats": {"m": 1}}
        assert set(found["bounds"]) == {"p0", "p1", "p2"}
        assert found["bounds"]["p2"]["then_s"] < found["bounds"]["p2"]["now_s"]
        assert found["bounds"]["p1"]["then_s"] == found["bounds"]["p1"]["now_s"]

    run_virtual(story())


def test_a_band_that_may_starve_then_has_no_bound() -> None:
    async def story() -> None:
        found = await preview(Stage(), {"policy": {"bands": {"p2": {"floor": 0}}, "discipline": "strict"}})
        assert found["bounds"]["p2"]["then_s"] is None
        assert found["bounds"]["p2"]["now_s"] > 0

    run_virtual(story())


def test_the_bound_is_that_of_the_pool_where_it_is_longest_and_of_the_time_asked_for() -> None:
    async def story() -> None:
        alone = await preview(Stage(TWO_POOLS.replace("seats: 10", "seats: 2")), {"policy": {}})
        both = await preview(Stage(TWO_POOLS), {"policy": {}})
        assert both["bounds"] == alone["bounds"]
        assert both["assumed"]["seats"] == {"m": 10, "n": 2}
        longer = await preview(Stage(TWO_POOLS), {"policy": {}, "service_time": "20s"})
        assert longer["bounds"]["p1"]["now_s"] == 2 * both["bounds"]["p1"]["now_s"]

    run_virtual(story())


@pytest.mark.parametrize(
    ("patch", "field", "got", "message"),
    [
        ({"bands": {"p2": {"ceiling": 5}}}, "policy.bands.p2.ceiling", "'5'",
         "policy.bands.p2.ceiling: expected a part from 0 to 1, like 0.05, got '5'"),
        ({"bands": {"p1": {"wieght": 1}}}, "policy.bands.p1.wieght", "",
         "policy.bands.p1.wieght: unknown setting; did you mean 'weight'?"),
        ({"overtake_cap": 0.01}, "policy.overtake_cap", "", "policy.overtake_cap: expected at least"),
        ({"bands": {"p3": {"floor": 0}}}, "policy.bands", "", "policy.bands: expected no change: this needs a restart"),
        ("aging", "policy", "", "policy: expected a mapping of settings of policy"),
        (None, "policy", "", "policy: expected a mapping of settings of policy"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_field(patch: Any, field: str, got: str, message: str) -> None:
    async def story() -> None:
        found = await preview(Stage(), {"policy": patch})
        assert (found["valid"], found["changes"], found["bounds"]) == (False, [], {})
        (error,) = found["errors"]
        assert (error["field"], error["got"]) == (field, got)
        assert error["expected"].startswith(("expected", "unknown"))
        assert error["message"].startswith(message)

    run_virtual(story())


def test_every_problem_is_listed() -> None:
    async def story() -> None:
        found = await preview(Stage(), {"policy": {"bands": {"p2": {"ceiling": 5, "ttl": "soon"}}}})
        assert {error["field"] for error in found["errors"]} == {"policy.bands.p2.ceiling", "policy.bands.p2.ttl"}

    run_virtual(story())


@pytest.mark.parametrize("body", [[], {"policy": {}, "x": 1}, {"policy": {}, "service_time": "soon"}])
def test_a_question_of_another_form_is_an_error(body: object) -> None:
    async def story() -> None:
        assert (await Stage().ask("POST", "/admin/policy/preview", body)).status == 400

    run_virtual(story())


def test_a_viewer_may_try_things_out() -> None:
    async def story() -> None:
        await preview(Stage(FILE + f"control: {{{OPERATORS}}}"), {"policy": {}}, token="wall-token")

    run_virtual(story())
