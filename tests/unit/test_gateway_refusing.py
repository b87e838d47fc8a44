"""Small parts of the byte path: storms, bodies, names that were waited for, and what is kept of a request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.classify import Classifier, Facts, ParsedBody, Refused, Route, parse_body
from tidegate.config import parse_settings
from tidegate.core import Evict, Outcome, Reason, Reject, Ticket
from tidegate.gateway.asked import Asked
from tidegate.gateway.body import must_end, read_body, too_long
from tidegate.gateway.call import Call
from tidegate.gateway.refusing import Refuser, StormWatch
from tidegate.gateway.requests import Ends
from tidegate.gateway.returning import MOST, Returning
from tidegate.refusals import Storm
from tidegate.telemetry import Recorder
from tidegate.testing import ManualClock

pytestmark = pytest.mark.anyio

SETTINGS = parse_settings(
    """
models: [{name: m, backends: [{name: b, url: "http://127.0.0.1:9"}]}]
policy: {bands: {p1: {shed_answer: fallback}, p2: {shed_answer: error}}}
"""
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_storm_is_more_refusals_than_dispatches_in_the_last_second() -> None:
    watch = StormWatch()
    assert watch.at(100.0) is Storm.CALM
    for step in range(10):
        watch.dispatched(100 + step / 100)
        watch.refused(100 + step / 100)
    assert watch.at(100.1) is Storm.CALM
    watch.refused(100.2)
    assert watch.at(100.3) is Storm.STORM
    assert watch.at(101.3) is Storm.CALM
    watch.refused(101.4)
    assert watch.at(5000.0) is Storm.CALM


@pytest.mark.parametrize(
    ("headers", "refused", "ends"),
    [
        ({}, False, False),
        ({b"content-length": b"100"}, False, False),
        ({b"content-length": b"101"}, True, False),
        ({b"content-length": b"401"}, True, True),
        ({b"content-length": b"9" * 30}, True, True),
        ({b"transfer-encoding": b"chunked"}, False, True),
        ({b"expect": b"100-continue", b"content-length": b"101"}, True, True),
    ],
)
def test_announced_bodies(headers: dict[bytes, bytes], refused: bool, ends: bool) -> None:
    assert (too_long(headers, 100) is not None, must_end(headers, 100)) == (refused, ends)


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([b"abc"], b"abc"),
        ([b"a", b"b", b""], b"ab"),
        ([b"x" * 10], b"x" * 10),
        ([b"x" * 11], Reason.TOO_LARGE),
        ([b"x" * 9, b"x" * 9, b"never asked for"], Reason.TOO_LARGE),
        ([b"a", None], None),
        ([None], None),
    ],
)
async def test_bodies_are_read_within_their_bound(pieces: list[bytes | None], found: object) -> None:
    left = iter(pieces)
    count = 0

    async def receive() -> Mapping[str, Any]:
        nonlocal count
        count += 1
        piece = next(left)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": count < len(pieces)}

    body = await read_body(receive, 10)
    assert (body.reason if isinstance(body, Refused) else body) == found


async def test_those_who_wait_are_woken_and_forgotten() -> None:
    ends = Ends()
    with ends.waited_for("a/x") as first, ends.waited_for("a/x") as second, ends.waited_for("a/y") as other:
        ends.told("a/x")
        ends.told("a/x")
        await asyncio.gather(first, second)
        assert not other.done()
    ends.told("a/x")
    assert not ends.waiting


def asked(raw: bytes = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[]}') -> Asked:
    body = parse_body(raw, Route.CHAT)
    assert isinstance(body, ParsedBody)
    facts = Facts(Route.CHAT, Route.CHAT, {b"host": b"localhost"}, raw, body, "id")
    classified = Classifier(SETTINGS).classify(facts)
    assert not isinstance(classified, Refused)
    return Asked(Route.CHAT, [], raw, body, classified)


def test_a_large_prompt_is_not_kept_for_the_length_of_its_stream() -> None:
    raw = b'{"model":"m","messages":["%b"],"user":"u","metadata":{"a":"b"}}' % (b"x" * 100_000)
    before = sys.getrefcount(raw)
    request = asked(raw)
    assert sys.getrefcount(raw) > before
    request.let_go()
    assert sys.getrefcount(raw) == before
    assert request.classified.pool == "m"


class Sent(list[dict[str, Any]]):
    """What the client got."""

    async def __call__(self, message: dict[str, Any]) -> None:
        self.append(message)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self[0]["headers"])


async def refusal(reason: Reason, request: Asked, *, queued: bool = False) -> tuple[Sent, Call]:
    clock = ManualClock(50.0)
    refuser = Refuser(SETTINGS, Recorder(SETTINGS.core_policy()), clock)
    ticket = Ticket("t", "m", 1, "tenant")
    call, sent = Call("id", 49.0, request.classified), Sent()
    action = Evict(ticket, reason, 7.0) if queued else Reject(ticket, reason, 7.0)
    await refuser.refused(call, sent, action, request)
    return sent, call


async def test_only_plain_chat_that_is_shed_gets_the_fallback() -> None:
    sent, call = await refusal(Reason.SHED, asked())
    assert (sent[0]["status"], call.outcome, call.reason) == (200, Outcome.REJECTED, Reason.SHED)
    assert b"load_shedding_fallback" in sent[1]["body"]
    with_tools = asked(b'{"model":"m","messages":[],"tools":[{"type":"function"}]}')
    assert (await refusal(Reason.SHED, with_tools))[0][0]["status"] == 429
    assert (await refusal(Reason.QUEUE_FULL, asked()))[0][0]["status"] == 429


async def test_the_person_on_duty_sees_what_the_client_was_told() -> None:
    clock, recorder = ManualClock(50.0), Recorder(SETTINGS.core_policy())
    refuser = Refuser(SETTINGS, recorder, clock)
    sent = Sent()
    for request, reason in ((asked(), Reason.SHED), (asked(), Reason.QUEUE_FULL)):
        action = Reject(Ticket("t", "m", 1, "tenant"), reason, 7.0)
        await refuser.refused(Call("id", 49.0, request.classified), sent, action, request)
    await refuser.failed(Call("id", 49.0, asked().classified), sent, Reason.UPSTREAM_TIMEOUT, "", asked())
    rows = list(recorder.recent.newest())
    told = [(row.reason, row.status, row.retry_after_s) for row in rows]
    heads = [message for message in sent if "status" in message][::-1]
    assert [status for _, status, _ in told] == [504, 429, 200]
    for (_, _, after), head in zip(told, heads, strict=True):
        assert str(after).encode() == dict(head["headers"]).get(b"retry-after", b"None")
    assert {(row.request_id, row.tenant, row.model, row.at) for row in rows} == {
        ("id", asked().classified.tenant.name, "m", 50.0)
    }


async def test_a_shed_stream_gets_a_whole_stream() -> None:
    sent, _ = await refusal(Reason.SHED, asked(b'{"model":"m","messages":[],"stream":true}'))
    assert sent.headers[b"content-type"].startswith(b"text/event-stream")
    assert sent[1]["body"].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("begun", [False, True])
async def test_behind_the_beginning_of_an_answer_comes_one_error_event_and_no_other_text(*, begun: bool) -> None:
    """Signs of life are no beginning: behind them the whole stream of the fallback is as good."""
    request = asked(b'{"model":"m","messages":[],"stream":true}')
    refuser = Refuser(SETTINGS, Recorder(SETTINGS.core_policy()), ManualClock(50.0))
    call, sent = Call("id", 49.0, request.classified, status=200, first_at=49.5 if begun else None), Sent()
    await refuser.refused(call, sent, Evict(Ticket("t", "m", 1, "tenant"), Reason.SHED, 7.0), request)
    (message,) = sent
    found = [message["body"].count(words) for words in (b'"error"', b"load_shedding_fallback", b"[DONE]")]
    assert (found[0], bool(found[1]), found[2]) == ((1, False, 0) if begun else (0, True, 1))
    assert call.outcome is Outcome.EVICTED


@pytest.mark.parametrize("begun", [False, True])
def test_another_model_answers_only_who_has_no_part_of_an_answer(*, begun: bool) -> None:
    settings = parse_settings(
        """
models:
  - {name: m, backends: [{name: b, url: "http://127.0.0.1:9"}]}
  - {name: small, backends: [{name: s, url: "http://127.0.0.1:9"}]}
policy: {bands: {p1: {shed_answer: {model: small}}}}
"""
    )
    request = asked(b'{"model":"m","messages":[],"stream":true}')
    refuser = Refuser(settings, Recorder(settings.core_policy()), ManualClock(50.0))
    call = Call("id", 49.0, request.classified, status=200 if begun else 0, first_at=49.5 if begun else None)
    other = refuser.instead(call, Evict(Ticket("t", "m", 1, "tenant"), Reason.SHED, 7.0), request.classified)
    assert (other is None) == begun
    assert other is None or other.pool == "small"


@pytest.mark.parametrize("stream", [b"false", b"true"])
@pytest.mark.parametrize("reason", [Reason.EXPIRED, Reason.SHED])
async def test_an_evicted_request_says_how_long_it_waited(reason: Reason, stream: bytes) -> None:
    """So does the fallback of what waited when a mode was switched on."""
    request = asked(b'{"model":"m","messages":[],"stream":%b}' % stream)
    sent, call = await refusal(reason, request, queued=True)
    assert (call.outcome, sent.headers[b"x-tidegate-queue-ms"], sent.headers[b"x-request-id"]) == (
        Outcome.EVICTED,
        b"1000",
        b"id",
    )


def test_a_refused_request_that_comes_back_keeps_its_first_arrival() -> None:
    returning = Returning()
    assert returning.first_arrival("a", "key", 100) is None
    returning.refused("a", "key", Reason.QUEUE_FULL, arrived=100, now=100)
    assert returning.first_arrival("a", "key", 159) == 100
    assert returning.first_arrival("b", "key", 159) is None
    assert returning.first_arrival("a", "", 159) is None
    returning.refused("a", "key", Reason.DISPLACED, arrived=100, now=159)
    assert returning.first_arrival("a", "key", 219) == 100
    assert returning.first_arrival("a", "key", 220) is None
    returning.refused("a", "late", Reason.EXPIRED, arrived=1, now=2)
    assert returning.first_arrival("a", "late", 3) is None


def test_only_so_many_are_remembered() -> None:
    returning = Returning()
    for number in range(MOST + 5):
        returning.refused("a", str(number), Reason.SHED, arrived=number, now=number / 1000)
    assert len(returning) == MOST
    assert returning.first_arrival("a", "4", 11) is None
    assert returning.first_arrival("a", "5", 11) == 5
