"""Tenants and keys that come and go while the gateway runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tidegate.config import key_digest, parse_settings
from tidegate.testing import run_virtual
from unit.control_stage import FILE, TENANTS, Answer, Stage, create, who


def test_a_tenant_is_made_and_its_key_shown_once() -> None:
    async def story() -> None:
        stage = Stage(FILE + TENANTS)
        made = await create(stage, band="p1", max_band="p0", weight=2, limits={"max_running": 3})
        key = made["key"]
        assert key.startswith("tg-")
        assert len(key) > 40
        assert who(stage, key) == "shop"
        assert stage.edges[-1].tenants[-1].limits.max_running == 3
        shown = (await stage.get("/admin/tenants")).json["tenants"]
        assert [(row["name"], row["source"], row["band"], row["max_band"]) for row in shown] == [
            ("checkout", "file", "p0", "p0"),
            ("shop", "control", "p1", "p0"),
        ]
        assert shown[1] == made["tenant"] == (await stage.get("/admin/tenants/shop")).json
        (row,) = shown[1]["keys"]
        assert row["id"] == key_digest(key)[7:19]
        pages = [await stage.get(path) for path in ("/admin/tenants", "/admin/audit", "/admin/state")]
        everything = "".join(page.body.decode() for page in pages)
        assert key not in everything
        assert "sha256:" not in everything
        assert key_digest(key)[7:30] not in everything
        (record,) = (await stage.get("/admin/audit")).json["records"]
        assert (record["action"], record["changes"][0]["what"]) == ("tenant", "tenants.shop")

    run_virtual(story())


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"band": "p1"}, 400, "name"),
        ({"name": "a b"}, 400, "name"),
        ({"name": 7, "band": "p1", "weight": -1}, 400, "weight"),
        ({"name": "x", "band": "p9"}, 400, "band"),
        ({"name": "x", "band": "p2", "max_band": "p2", "wieght": 1}, 400, "wieght"),
        ({"name": "x", "band": "p0", "max_band": "p1"}, 400, "max_band"),
        ({"name": "x", "keys": ["sha256:" + "0" * 64]}, 400, "keys"),
        ({"name": "x", "limits": {"max_queued": 0}}, 400, "limits.max_queued"),
        ({"name": "anonymous"}, 400, "name"),
        ({"name": "checkout"}, 409, None),
        ([], 400, None),
    ],
)
def test_what_does_not_fit_changes_nothing(body: Any, status: int, field: str | None) -> None:
    async def story() -> None:
        stage = Stage(FILE + TENANTS)
        answer = await stage.ask("POST", "/admin/tenants", body)
        assert answer.status == status, answer.body
        error = answer.json["error"]
        if field is not None:
            assert error["errors"][0]["field"] == field
        assert len((await stage.get("/admin/tenants")).json["tenants"]) == 1
        assert (stage.edges, stage.audit.newest(9)) == ([], [])

    run_virtual(story())


def test_a_tenant_is_changed_in_part() -> None:
    async def story() -> None:
        stage = Stage()
        key = (await create(stage, limits={"max_running": 3, "max_queued": 9}))["key"]
        answer = await stage.ask("PATCH", "/admin/tenants/shop", {"weight": 3, "limits": {"max_running": None}})
        assert (answer.json["weight"], answer.json["limits"]["max_running"]) == (3, None)
        assert answer.json["limits"]["max_queued"] == 9
        assert who(stage, key) == "shop"
        assert stage.live.settings.tenants[0].weight == 3
        changes = (await stage.get("/admin/audit")).json["records"][0]["changes"]
        assert changes == [
            {"what": "tenants.shop.weight", "from": 1, "to": 3},
            {"what": "tenants.shop.limits.max_running", "from": 3, "to": None},
        ]
        answer = await stage.ask("PATCH", "/admin/tenants/shop", {"weight": 3})
        assert answer.status == 200
        assert len(stage.audit.newest(9)) == 2, "nothing differed"
        assert (await stage.ask("PATCH", "/admin/tenants/shop", {"band": "p9"})).status == 400
        assert (await stage.ask("PATCH", "/admin/tenants/nobody", {})).status == 404

    run_virtual(story())


def test_tenants_of_the_file_are_changed_in_the_file() -> None:
    async def story() -> None:
        stage = Stage(FILE + TENANTS)
        one = "/admin/tenants/checkout"
        key_id = (await stage.get(one)).json["keys"][0]["id"]
        for method, path in (
            ("PATCH", one),
            ("DELETE", one),
            ("POST", f"{one}/keys"),
            ("DELETE", f"{one}/keys/{key_id}"),
        ):
            answer = await stage.ask(method, path, {})
            assert (answer.status, answer.json["error"]["code"]) == (409, "conflict")
            assert "settings file" in answer.json["error"]["message"]
        assert who(stage, "checkout-key") == "checkout"

    run_virtual(story())


def test_a_tenant_is_taken_away_and_its_keys_are_nobodys() -> None:
    async def story() -> None:
        stage = Stage()
        key = (await create(stage))["key"]
        assert (await stage.ask("DELETE", "/admin/tenants/shop", {})).status == 200
        assert who(stage, key) is None
        assert (await stage.get("/admin/tenants")).json["tenants"] == []
        assert (await stage.ask("DELETE", "/admin/tenants/shop", {})).status == 404

    run_virtual(story())


def test_keys_are_added_rotated_and_revoked() -> None:
    async def story() -> None:
        stage = Stage()
        one = (await create(stage))["key"]
        keys = "/admin/tenants/shop/keys"
        two = (await stage.ask("POST", keys, {})).json["key"]
        assert (who(stage, one), who(stage, two)) == ("shop", "shop")
        first = key_digest(one)[7:19]
        answer = await stage.ask("POST", keys, {"replaces": first, "grace": "1h"})
        three = answer.json["key"]
        rows = answer.json["tenant"]["keys"]
        assert [row["expires_at_utc"] is None for row in rows] == [False, True, True]
        assert who(stage, one) == "shop"
        await asyncio.sleep(3601)
        await stage.books.tenants.expire()
        assert (who(stage, one), who(stage, three)) == (None, "shop")
        answer = await stage.ask("DELETE", f"{keys}/{key_digest(two)[7:19]}")
        assert [row["id"] for row in answer.json["keys"]] == [key_digest(three)[7:19]]
        assert who(stage, two) is None
        answer = await stage.ask("POST", keys, {"replaces": key_digest(three)[7:19]})
        assert (who(stage, three), who(stage, answer.json["key"])) == (None, "shop"), "without grace at once"
        for path, body in (
            (keys, {"replaces": first}),
            (keys, {"grace": "soon"}),
            (keys, {"x": 1}),
            (keys, {"replaces": 1}),
        ):
            assert (await stage.ask("POST", path, body)).status in (400, 404)
        assert (await stage.ask("DELETE", f"{keys}/{first}")).status == 404
        assert (await stage.ask("POST", "/admin/tenants/nobody/keys", {})).status == 404

    run_virtual(story())


def test_the_last_key_may_go_and_there_are_not_too_many() -> None:
    async def story() -> None:
        stage = Stage()
        key = (await create(stage))["key"]
        await stage.ask("DELETE", f"/admin/tenants/shop/keys/{key_digest(key)[7:19]}")
        assert (await stage.get("/admin/tenants/shop")).json["keys"] == []
        answers = [await stage.ask("POST", "/admin/tenants/shop/keys", {}) for _ in range(21)]
        assert [answer.status for answer in answers] == [201] * 20 + [409]

    run_virtual(story())


async def undo(stage: Stage) -> Answer:
    (row, *_) = (await stage.get("/admin/audit")).json["records"]
    answer = await stage.ask("POST", f"/admin/audit/{row['id']}/undo", {})
    assert row["undoable"] is (answer.status == 200), row
    return answer


def test_what_was_done_to_tenants_is_taken_back() -> None:
    async def story() -> None:
        stage = Stage()
        await create(stage, "a.limits", weight=2)
        await stage.ask("PATCH", "/admin/tenants/a.limits", {"weight": 5, "limits": {"max_queued": 4}})
        assert (await undo(stage)).status == 200
        row = (await stage.get("/admin/tenants/a.limits")).json
        assert (row["weight"], row["limits"]["max_queued"]) == (2, None)
        key = (await stage.ask("POST", "/admin/tenants/a.limits/keys", {})).json["key"]
        assert (await undo(stage)).status == 200
        assert who(stage, key) is None
        assert (await undo(stage)).status == 409, "a key that is gone stays gone"
        await stage.ask("DELETE", "/admin/tenants/a.limits")
        assert (await undo(stage)).status == 200
        assert (await stage.get("/admin/tenants/a.limits")).json["keys"] == []
        assert (await stage.get("/admin/tenants/a.limits")).json["weight"] == 2
        assert (await undo(stage)).status == 200
        assert (await stage.get("/admin/tenants/a.limits")).status == 404

    run_virtual(story())


def test_a_tenant_that_has_been_changed_since_is_not_taken_back() -> None:
    async def story() -> None:
        stage = Stage()
        await create(stage)
        await stage.ask("PATCH", "/admin/tenants/shop", {"weight": 5})
        record = (await stage.get("/admin/audit")).json["records"][0]["id"]
        await stage.ask("PATCH", "/admin/tenants/shop", {"weight": 6})
        assert (await stage.ask("POST", f"/admin/audit/{record}/undo", {})).status == 409
        assert (await stage.ask("POST", f"/admin/audit/{record}/undo", {"force": True})).status == 200
        assert (await stage.get("/admin/tenants/shop")).json["weight"] == 1

    run_virtual(story())


def test_a_file_that_is_read_again_keeps_them() -> None:
    async def story() -> None:
        texts = [FILE + TENANTS + "policy: {queue_capacity: 9}", FILE + TENANTS.replace("checkout", "shop"), FILE]
        stage = Stage(FILE + TENANTS, load=lambda: parse_settings(texts.pop(0)))
        key = (await create(stage))["key"]
        answer = await stage.ask("POST", "/admin/reload", {})
        assert [row["what"] for row in answer.json["changes"]] == ["policy.queue_capacity"]
        assert (who(stage, key), who(stage, "checkout-key")) == ("shop", "checkout")
        answer = await stage.ask("POST", "/admin/reload", {})
        assert (answer.status, answer.json["error"]["param"]) == (400, "tenants.shop")
        assert who(stage, key) == "shop"
        answer = await stage.ask("POST", "/admin/reload", {})
        assert [row["what"] for row in answer.json["changes"]] == [
            "policy.queue_capacity",
            "anonymous",
            "tenants.checkout",
        ]
        assert (who(stage, key), who(stage, "checkout-key")) == ("shop", None)

    run_virtual(story())


def test_callers_without_a_key_stay_what_they_are() -> None:
    async def story() -> None:
        stage = Stage()
        await create(stage)
        assert stage.live.settings.anonymous is not None

    run_virtual(story())


def test_they_are_listed_in_pages() -> None:
    async def story() -> None:
        stage = Stage(FILE + TENANTS)
        for name in ("b", "a", "zoo"):
            await create(stage, name)
        names: list[str] = []
        while True:
            after = f"&after={names[-1]}" if names else ""
            page = (await stage.get(f"/admin/tenants?limit=2{after}")).json
            names += [row["name"] for row in page["tenants"]]
            if page["complete"]:
                break
        assert names == ["a", "b", "checkout", "zoo"]

    run_virtual(story())


def test_many_at_once_are_made_one_after_the_other() -> None:
    async def story() -> None:
        stage = Stage()
        made = await asyncio.gather(*(create(stage, f"t{number}") for number in range(20)))
        assert {who(stage, each["key"]) for each in made} == {f"t{number}" for number in range(20)}
        answers = await asyncio.gather(*(stage.ask("POST", "/admin/tenants", {"name": "one"}) for _ in range(5)))
        assert sorted(answer.status for answer in answers) == [201, 409, 409, 409, 409]
        assert json.loads(answers[0].body)["tenant"]["name"] == "one"

    run_virtual(story())
