"""Tokens and roles on the control port."""

from __future__ import annotations

import asyncio
import hmac

import pytest
from starlette.datastructures import Headers
from structlog.testing import capture_logs

from tidegate.config import Role, parse_settings
from tidegate.control.operators import (
    LOCAL as LOCAL_OPERATOR,
)
from tidegate.control.operators import (
    LOOKER,
    MOST_ADDRESSES,
    MOST_FAILURES,
    WINDOW_S,
    Denied,
    Doorkeeper,
    Operator,
)
from tidegate.testing import run_virtual
from unit.control_stage import FILE, JSON, LOCAL, OPERATORS, Stage

WITH = FILE + f"control: {{{OPERATORS}}}"
BEYOND = FILE + f"control: {{listen: '0.0.0.0:8401', {OPERATORS}}}"

LOOKS = ["/admin/state", "/admin/mode", "/admin/policy", "/admin/backends", "/admin/requests", "/admin/audit"]
CHANGES = [
    ("POST", "/admin/mode"),
    ("PUT", "/admin/policy"),
    ("PATCH", "/admin/policy"),
    ("PUT", "/admin/backends"),
    ("POST", "/admin/reload"),
    ("POST", "/admin/drain"),
    ("DELETE", "/admin/requests/x"),
]


@pytest.mark.parametrize("path", LOOKS)
def test_who_may_look(path: str) -> None:
    async def story() -> None:
        seen = [
            (await Stage(text).ask("GET", path, token=token)).status
            for text in (FILE, WITH, BEYOND)
            for token in (None, "wrong", "wall-token", "duty-token")
        ]
        assert seen == [200, 200, 200, 200, 200, 401, 200, 200, 401, 401, 200, 200]

    run_virtual(story())


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_who_may_change(method: str, path: str) -> None:
    async def story() -> None:
        for text in (WITH, BEYOND):
            stage = Stage(text)
            seen = [
                (await stage.ask(method, path, {"x": 1}, token=token)).status for token in (None, "wrong", "wall-token")
            ]
            assert seen == [401, 401, 403]
            assert (stage.edges, stage.stopped, stage.drains, stage.audit.newest(9)) == ([], [], 0, [])
            assert (await stage.ask(method, path, {"x": 1}, token="duty-token")).status in (200, 400)
        assert (await Stage().ask(method, path, {"x": 1})).status in (200, 400)

    run_virtual(story())


def test_the_audit_list_names_the_operator() -> None:
    async def story() -> None:
        stage = Stage(WITH)
        await stage.ask("POST", "/admin/mode", {"mode": "observe"}, token="duty-token")
        assert [record.who for record in stage.audit.newest(9)] == ["duty"]

    run_virtual(story())


@pytest.mark.parametrize(
    "given",
    [
        [b"Basic ZHV0eTpkdXR5LXRva2Vu"],
        [b"Bearer"],
        [b"Bearer duty-token", b"Bearer duty-token"],
        [b"duty-token"],
        [b"Bearer " + b"x" * 100_000],
        [b"Bearer \xff\xfe"],
    ],
)
def test_a_credential_of_another_form_is_no_token(given: list[bytes]) -> None:
    async def story() -> None:
        headers = [*LOCAL, JSON, *((b"authorization", value) for value in given)]
        answer = await Stage(WITH).ask("POST", "/admin/drain", {}, headers=headers)
        assert (answer.status, answer.headers[b"www-authenticate"]) == (401, b"Bearer")

    run_virtual(story())


def test_every_operator_is_compared_with_whoever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return compare(left, right)

    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", counted)

    async def story() -> None:
        for token in ("duty-token", "wall-token", "nobody"):
            compared.clear()
            await Stage(WITH).ask("GET", "/admin/mode", token=token)
            assert len(compared) == 2

    run_virtual(story())


def test_wrong_tokens_from_one_address_are_slowed_down_there_and_nowhere_else() -> None:
    async def story() -> None:
        stage = Stage(WITH)

        async def status(token: str, address: str = "10.0.0.7") -> int:
            return (await stage.ask("GET", "/admin/mode", token=token, address=address)).status

        with capture_logs() as logs:
            seen = [await status("wrong") for _ in range(MOST_FAILURES)]
        assert seen == [401] * MOST_FAILURES
        assert {line["event"] for line in logs} == {"control.wrong_token"}
        assert "wrong" not in {line.get("token") for line in logs}
        answer = await stage.ask("GET", "/admin/mode", token="duty-token", address="10.0.0.7")
        assert (answer.status, answer.headers[b"retry-after"]) == (429, b"61")
        assert await status("duty-token", "10.0.0.8") == 200
        await asyncio.sleep(WINDOW_S + 1)
        assert await status("duty-token") == 200
        assert await status("wrong") == 401

    run_virtual(story())


@pytest.mark.slow
def test_a_look_whether_somebody_may_go_on_is_no_attempt_and_others_attempts_do_not_end_it() -> None:
    async def story() -> None:
        stage = Stage(BEYOND)
        now, operators = [0.0], stage.settings.control.operators
        door = Doorkeeper(lambda: operators, lambda: now[0], local=False)
        given = Headers({"authorization": "Bearer wall-token"})
        who = door.admit(given, "10.0.0.9", Role.VIEWER)
        assert who == Operator("wall", Role.VIEWER)
        for _ in range(MOST_FAILURES):
            door.admit(Headers({"authorization": "Bearer guess"}), "10.0.0.9", Role.VIEWER)
        assert isinstance(door.admit(given, "10.0.0.9", Role.VIEWER), Denied), "no newcomer from there"
        assert door.may_stay(given, who)
        now[0] += WINDOW_S
        operators = operators[:1]  # the wall's token is nobody's any more
        for _ in range(2 * MOST_FAILURES):
            assert not door.may_stay(given, who)
        assert isinstance(
            door.admit(Headers({"authorization": "Bearer duty-token"}), "10.0.0.9", Role.VIEWER), Operator
        )
        assert not door.may_stay(Headers({}), who)

    run_virtual(story())


def test_who_needs_no_token_may_stay_as_long_as_he_needs_none() -> None:
    async def story() -> None:
        nobody, operators = Headers({}), Stage(WITH).settings.control.operators
        for rows, local, who, stays in (
            ((), True, LOCAL_OPERATOR, True),
            ((), True, LOOKER, False),
            (operators, True, LOOKER, True),
            (operators, True, LOCAL_OPERATOR, False),
            (operators, False, LOOKER, False),
        ):
            door = Doorkeeper(lambda rows=rows: rows, lambda: 0.0, local=local)  # type: ignore[misc]
            assert door.may_stay(nobody, who) is stays

    run_virtual(story())


def test_the_list_of_failing_addresses_is_bounded() -> None:
    operators = parse_settings(WITH).control.operators
    door = Doorkeeper(lambda: operators, lambda: 0.0, local=True)
    with capture_logs():
        for number in range(MOST_ADDRESSES + 50):
            door.login("wrong", f"address-{number}")
    assert len(door._failures) == MOST_ADDRESSES


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_failures_are_counted_for_what_one_customer_gets(one: str, other: str, same: bool) -> None:
    settings = parse_settings(WITH)
    door = Doorkeeper(lambda: settings.control.operators, lambda: 0.0, local=True)
    with capture_logs():
        for _ in range(MOST_FAILURES):
            assert isinstance(found := door.login("wrong", one), Denied)
            assert found.status == 401
        found = door.login("wrong", other)
    assert isinstance(found, Denied)
    assert found.status == (429 if same else 401)
