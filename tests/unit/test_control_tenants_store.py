"""Tenants and keys in a store: after a start, beside other gateways, and when it does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidegate.config import ConfigError, key_digest, parse_settings
from tidegate.control import Keeper
from tidegate.stores import StoredKey, StoredTenant, Unavailable
from tidegate.testing import run_virtual
from unit.control_stage import FILE, TENANTS, Stage, create, who


def test_those_of_the_store_are_there_after_a_start_but_for_keys_that_have_ended() -> None:
    async def story() -> None:
        stage = Stage(FILE + TENANTS)
        keys = (StoredKey(key_digest("a"), 0.0), StoredKey(key_digest("b"), 0.0, 5.0))
        tenant = StoredTenant("shop", {"band": "p2"}, keys)
        await stage.books.keeper.ask(lambda store: store.save_tenant(tenant, None, keep=9))
        await stage.books.tenants.load()
        assert (who(stage, "a"), who(stage, "b"), who(stage, "checkout-key")) == ("shop", None, "checkout")
        assert stage.audit.newest(9) == []

    run_virtual(story())


def test_those_that_do_not_fit_the_file_any_more_are_named() -> None:
    async def story() -> None:
        stage = Stage(FILE + TENANTS)
        await stage.books.keeper.ask(lambda store: store.save_tenant(StoredTenant("checkout", {}), None, keep=9))
        with pytest.raises(ConfigError, match=r"tenants\.checkout"):
            await stage.books.tenants.load()

    run_virtual(story())


def test_somebody_else_on_the_same_store_is_not_overwritten() -> None:
    async def story() -> None:
        stage = Stage()
        await create(stage)
        (stored,) = await stage.books.keeper.ask(lambda store: store.tenants())
        await stage.books.keeper.ask(lambda store: store.save_tenant(stored, None, keep=9))
        answer = await stage.ask("PATCH", "/admin/tenants/shop", {"weight": 3})
        assert (answer.status, stage.live.settings.tenants[0].weight) == (409, 1)
        stage.live._load = lambda: parse_settings(FILE)
        await stage.ask("POST", "/admin/reload", {})
        assert (await stage.ask("PATCH", "/admin/tenants/shop", {"weight": 3})).status == 200

    run_virtual(story())


def test_what_another_gateway_on_the_same_store_changes_is_followed() -> None:
    async def story() -> None:
        first, second = Stage(FILE + TENANTS), Stage(FILE + TENANTS)
        keeper = first.books.keeper
        keeper.durable = True  # as one that others can see
        second.books.tenants._keeper = keeper
        made = await create(first)
        key, (row,) = made["key"], made["tenant"]["keys"]
        assert who(second, key) is None
        await second.books.tenants.follow()
        assert (who(second, key), who(second, "checkout-key")) == ("shop", "checkout")
        assert (await second.ask("PATCH", "/admin/tenants/shop", {"weight": 3})).status == 200
        await first.books.tenants.follow()
        assert (await first.ask("DELETE", f"/admin/tenants/shop/keys/{row['id']}", {})).status == 200
        await second.books._round(1)
        assert who(second, key) is None

        asked, ask = 0, keeper.ask

        async def counted(question: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise Unavailable("control.store: it is away")
            return await ask(question)

        keeper.ask = counted  # type: ignore[method-assign]
        with capture_logs() as logs:
            await second.books.tenants.follow()
            assert asked == 1, "who has missed nothing reads no tenants"
            await second.books.tenants.follow()
        assert ([tenant.name for tenant in second.live.managed.values()], logs) == (["shop"], [])

    run_virtual(story())


def test_what_the_store_does_not_take_is_not_done() -> None:
    async def story() -> None:
        stage = Stage()
        key = (await create(stage))["key"]

        async def broken(_: object) -> Any:
            raise Unavailable("control.store: the disk is gone")

        stage.books.keeper.ask = broken  # type: ignore[method-assign, assignment]
        with capture_logs():
            for method, path, body in (
                ("POST", "/admin/tenants", {"name": "new"}),
                ("PATCH", "/admin/tenants/shop", {"weight": 2}),
                ("DELETE", "/admin/tenants/shop", {}),
                ("POST", "/admin/tenants/shop/keys", {}),
            ):
                answer = await stage.ask(method, path, body)
                assert (answer.status, answer.json["error"]["code"]) == (503, "store_unavailable")
        assert who(stage, key) == "shop"
        assert [tenant.name for tenant in stage.live.settings.tenants] == ["shop"]

    run_virtual(story())


def test_the_file_of_the_store_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "c.db"

    async def story() -> None:
        keeper = Keeper(f"sqlite:///{path}")
        await keeper.open()
        await keeper.close()

    asyncio.run(story())
    assert path.stat().st_mode & 0o077 == 0
