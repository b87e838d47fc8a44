"""A browser's way in: a token in a form, then a cookie that only this port's own pages can use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidegate.config import parse_settings
from tidegate.control.operators import MOST_FAILURES
from tidegate.control.sessions import LASTS_S, MOST
from tidegate.testing import run_virtual
from unit.control_stage import FILE, JSON, LOCAL, OPERATORS, Answer, Stage

WITH = FILE + f"control: {{{OPERATORS}}}"
BEYOND = FILE + f"control: {{listen: '0.0.0.0:8401', {OPERATORS}}}"
HOST = [(b"host", b"gate.example:8401")]
OWN = (b"origin", b"http://127.0.0.1:8401")


async def login(stage: Stage, token: object = "duty-token", **more: Any) -> Answer:
    return await stage.ask("POST", "/admin/login", {"token": token}, **more)


async def cookie(stage: Stage, token: str = "duty-token", **more: Any) -> tuple[bytes, bytes]:
    answer = await login(stage, token, **more)
    assert answer.status == 200, answer.body
    return b"cookie", answer.headers[b"set-cookie"].partition(b";")[0]


async def switch(stage: Stage, *headers: tuple[bytes, bytes], host: Any = LOCAL) -> int:
    answer = await stage.ask("POST", "/admin/mode", {"mode": "observe"}, headers=[*host, JSON, *headers])
    return answer.status


def test_a_token_in_a_form_gives_a_cookie() -> None:
    async def story() -> None:
        stage = Stage(WITH)
        answer = await login(stage)
        assert answer.json == {"name": "duty", "role": "operator"}
        name, *rest = answer.headers[b"set-cookie"].decode().split("; ")
        assert name.startswith("tidegate-8401=")
        assert rest == ["Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=43200"]
        assert b"duty-token" not in answer.headers[b"set-cookie"] + answer.body
        given = await cookie(stage)
        assert await switch(stage, given, OWN) == 200
        assert [record.who for record in stage.audit.newest(9)] == ["duty"]
        me = await stage.get("/admin/me", headers=[*LOCAL, given])
        assert me.json == {"name": "duty", "role": "operator", "session": True, "login": True}

    run_virtual(story())


def test_who_am_i() -> None:
    async def story() -> None:
        assert (await Stage().get("/admin/me")).json == {
            "name": "local", "role": "operator", "session": False, "login": False,
        }  # fmt: skip
        stage = Stage(WITH)
        assert (await stage.get("/admin/me")).json["role"] == "viewer"
        wall = await stage.ask("GET", "/admin/me", token="wall-token")
        assert wall.json == {"name": "wall", "role": "viewer", "session": False, "login": True}
        assert (await Stage(BEYOND).get("/admin/me")).status == 401

    run_virtual(story())


def test_a_viewer_who_is_logged_in_may_not_change_anything() -> None:
    async def story() -> None:
        stage = Stage(WITH)
        given = await cookie(stage, "wall-token")
        assert await switch(stage, given, OWN) == 403
        assert (await stage.get("/admin/state", headers=[*LOCAL, given])).status == 200

    run_virtual(story())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([OWN], 200),
        ([OWN, (b"sec-fetch-site", b"same-origin")], 200),
        ([(b"sec-fetch-site", b"same-origin")], 200),
        ([], 401),
        ([(b"sec-fetch-site", b"none")], 401),
        ([(b"sec-fetch-site", b"same-site")], 403),
        ([(b"sec-fetch-site", b"cross-site")], 403),
        ([(b"origin", b"http://127.0.0.1:9999")], 403),
        ([(b"origin", b"null")], 403),
        ([OWN, (b"sec-fetch-site", b"same-site")], 403),
    ],
)
def test_a_cookie_counts_only_from_this_ports_own_pages(headers: list[tuple[bytes, bytes]], status: int) -> None:
    async def story() -> None:
        stage = Stage(WITH)
        given = await cookie(stage)
        assert await switch(stage, given, *headers) == status
        assert (stage.live.mode == "observe") is (status == 200)

    run_virtual(story())


def test_a_foreign_page_cannot_even_look_with_it() -> None:
    async def story() -> None:
        stage = Stage(BEYOND)
        given = await cookie(stage, headers=[*HOST, JSON])
        for site, status in (
            (None, 200),
            (b"none", 200),
            (b"same-origin", 200),
            (b"same-site", 403),
            (b"cross-site", 403),
        ):
            headers = [*HOST, given, *([] if site is None else [(b"sec-fetch-site", site)])]
            assert (await stage.get("/admin/state", headers=headers)).status == status
        link = [(b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate")]
        assert (await stage.get("/livez", headers=[*HOST, *link])).status == 200, "a link may lead here"
        assert (await stage.get("/admin/state", headers=[*HOST, *link])).status == 403

    run_virtual(story())


@pytest.mark.parametrize(
    "value",
    [
        b"tidegate-8401=",
        b"tidegate-8401=wrong",
        b"tidegate-9999=%s",
        b"tidegate=%s",
        b'tidegate-8401="',
        b"\xff\xfe",
        b";;=;",
    ],
)
def test_another_cookie_is_none(value: bytes) -> None:
    async def story() -> None:
        stage = Stage(BEYOND)
        secret = (await cookie(stage, headers=[*HOST, JSON]))[1].partition(b"=")[2]
        given = value % secret if b"%s" in value else value
        assert (await stage.get("/admin/state", headers=[*HOST, (b"cookie", given)])).status == 401

    run_virtual(story())


def test_a_login_ends_by_logging_out_by_time_and_with_its_token() -> None:
    async def story() -> None:
        stage = Stage(WITH, load=lambda: parse_settings(FILE + f"control: {{{OPERATORS.replace('duty', 'night')}}}"))
        one, two, three = [await cookie(stage) for _ in range(3)]
        answer = await stage.ask("POST", "/admin/logout", {}, headers=[*LOCAL, JSON, OWN, one])
        assert answer.json == {"ended": True}
        assert b"Max-Age=0" in answer.headers[b"set-cookie"]
        assert [await switch(stage, each, OWN) for each in (one, two)] == [401, 200]
        await asyncio.sleep(LASTS_S + 1)
        assert await switch(stage, two, OWN) == 401
        three = await cookie(stage)
        assert await switch(stage, three, OWN) == 200
        await stage.live.reload(who="a")
        assert await switch(stage, three, OWN) == 401

    run_virtual(story())


def test_logging_in_is_limited_by_address() -> None:
    async def story() -> None:
        stage = Stage(WITH)
        with capture_logs():
            seen = [(await login(stage, "wrong", address="10.0.0.9")).status for _ in range(MOST_FAILURES + 1)]
            assert seen == [401] * MOST_FAILURES + [429]
            late = await login(stage, address="10.0.0.9")
            assert (late.status, int(late.headers[b"retry-after"]) > 50) == (429, True)
            assert (await login(stage, address="10.0.0.10")).status == 200
            await asyncio.sleep(61)
            assert (await login(stage, address="10.0.0.9")).status == 200

    run_virtual(story())


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"token": ""}, [JSON], 400),
        ({"token": 7}, [JSON], 400),
        ({"token": "duty-token", "x": 1}, [JSON], 400),
        (b"token=duty-token", [(b"content-type", b"application/x-www-form-urlencoded")], 415),
        ({"token": "duty-token"}, [JSON, (b"origin", b"http://evil.example")], 403),
        ({"token": "duty-token"}, [JSON, (b"sec-fetch-site", b"cross-site")], 403),
        ({"token": "x" * 100_000}, [JSON], 401),
    ],
)
def test_a_form_of_another_kind_is_refused(body: Any, headers: list[tuple[bytes, bytes]], status: int) -> None:
    async def story() -> None:
        with capture_logs():
            answer = await Stage(WITH).ask("POST", "/admin/login", body, headers=[*LOCAL, *headers])
        assert answer.status == status
        assert b"set-cookie" not in answer.headers

    run_virtual(story())


def test_without_operators_there_is_nothing_to_log_in_to() -> None:
    async def story() -> None:
        assert (await login(Stage())).status == 409

    run_virtual(story())


def test_the_number_of_logins_is_bounded() -> None:
    async def story() -> None:
        stage = Stage(WITH)
        first = await cookie(stage)
        for _ in range(MOST):
            last = await cookie(stage)
        assert [await switch(stage, each, OWN) for each in (first, last)] == [401, 200]

    run_virtual(story())
