"""What the beginning of an answer says, and how much of a stream is held back for it."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.backends import Broken, Response
from tidegate.classify import ParsedBody, Route, parse_body
from tidegate.gateway.affinity import BEGINNING, affinity_of
from tidegate.gateway.beginning import HOLD_S, MOST_HELD, Beginning, Verdict, read_beginning
from tidegate.testing import ManualClock
from unit.response_stage import response_of_test

pytestmark = pytest.mark.anyio

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
BUSY = b'data: {"error":{"message":"The engine is currently busy.","type":"Service Unavailable","code":503}}\n\n'
LIMIT = b'data: {"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}\n\n'
BROKE = b'data: {"error":{"message":"no money","type":"insufficient_quota","code":429}}\n\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def response(status: int = 200, kind: bytes = b"text/event-stream", **more: bytes) -> Response:
    found = response_of_test()
    headers = [(name.replace("_", "-").encode(), value) for name, value in more.items()]
    found.begin(status, [(b"content-type", kind), *headers])
    return found


async def begun(*pieces: bytes, ends: bool = False) -> tuple[Beginning, Response]:
    """Read the beginning of a stream whose pieces come one at a time."""
    answer = response()
    reading = asyncio.ensure_future(read_beginning(answer, ManualClock()))
    for piece in pieces:
        await asyncio.sleep(0)
        answer.feed(piece)
        await asyncio.sleep(0)
    if ends:
        answer.end()
    return await reading, answer


async def test_a_stream_is_held_back_to_its_first_content_and_no_further() -> None:
    beginning, answer = await begun(b": ping\n\n", ROLE, WORD)
    assert beginning.start == b": ping\n\n" + ROLE + WORD
    assert beginning.verdict is Verdict.GOOD
    answer.feed(WORD)
    assert answer.try_read() == WORD


async def test_content_in_the_first_piece_waits_for_nothing() -> None:
    beginning, _ = await begun(WORD)
    assert beginning.start == WORD


@pytest.mark.parametrize("cut", [1, 20, 40])
async def test_content_cut_in_two_is_seen(cut: int) -> None:
    beginning, _ = await begun(ROLE + WORD[:cut], WORD[cut:])
    assert beginning.start == ROLE + WORD


@pytest.mark.parametrize(
    ("pieces", "verdict"),
    [
        ((BUSY,), Verdict.ELSEWHERE),
        ((ROLE, BUSY), Verdict.ELSEWHERE),
        ((b": ping\n\n", b'event: error\ndata: {"detail":1}\n\n'), Verdict.ELSEWHERE),
        ((LIMIT,), Verdict.PAUSE),
        ((BROKE,), Verdict.FAILED),
        ((WORD + BUSY,), Verdict.GOOD),  # content has come: it cannot be taken back
        ((ROLE, STOP), Verdict.GOOD),  # an empty answer
    ],
)
async def test_errors_within_a_stream(pieces: tuple[bytes, ...], verdict: Verdict) -> None:
    beginning, _ = await begun(*pieces, ends=True)
    assert beginning.verdict is verdict
    assert beginning.start == b"".join(pieces)


@pytest.mark.parametrize("pieces", [(), (b": ping\n\n",), (ROLE,)])
async def test_a_stream_that_ends_before_its_content_is_broken(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(Broken):
        await begun(*pieces, ends=True)


async def test_what_is_held_is_bounded() -> None:
    beginning, _ = await begun(*[b":" + b"x" * 9_000 + b"\n\n"] * 8)
    assert MOST_HELD < len(beginning.start) < MOST_HELD + 20_000
    assert beginning.verdict is Verdict.GOOD


async def test_signs_of_life_pass_after_a_while() -> None:
    answer, clock = response(), ManualClock(100.0)
    reading = asyncio.ensure_future(read_beginning(answer, clock))
    for _ in range(3):
        answer.feed(b": ping\n\n")
        await asyncio.sleep(0.001)
        clock.advance(HOLD_S / 2)
    await asyncio.sleep(0.001)
    assert not reading.done()
    answer.feed(b": ping\n\n")
    assert (await reading).start == b": ping\n\n" * 4


@pytest.mark.parametrize(
    ("status", "body", "more", "verdict"),
    [
        (200, b"{}", {}, Verdict.GOOD),
        (400, b"{}", {}, Verdict.GOOD),
        (404, b"{}", {}, Verdict.GOOD),
        (429, b"{}", {}, Verdict.PAUSE),
        (429, b"{}", {"x_should_retry": b"false"}, Verdict.GOOD),
        (429, b'{"error":{"type":"insufficient_quota","code":"insufficient_quota"}}', {}, Verdict.GOOD),
        (429, b'{"error":{"code":"billing_hard_limit_reached"}}', {}, Verdict.GOOD),
        (500, b"{}", {}, Verdict.FAILED),
        (502, b"{}", {}, Verdict.ELSEWHERE),
        (503, b"{}", {}, Verdict.ELSEWHERE),
        (504, b"{}", {}, Verdict.FAILED),
    ],
)
async def test_whole_answers(status: int, body: bytes, more: dict[str, bytes], verdict: Verdict) -> None:
    answer = response(status, b"application/json", **more)
    answer.feed(body)
    answer.end()
    beginning = await read_beginning(answer, ManualClock())
    assert (beginning.start, beginning.watch, beginning.verdict) == (body, None, verdict)


def asked(raw: bytes, route: Route = Route.CHAT) -> int:
    body = parse_body(raw, route)
    assert isinstance(body, ParsedBody)
    return affinity_of(raw, body)


def talk(system: str, user: str, **more: int) -> bytes:
    extra = "".join(f'"{name}":{value},' for name, value in more.items())
    return (
        f'{{{extra}"model":"m","messages":[{{"role":"system","content":"{system}"}},'
        f'{{"role":"user","content":"{user}"}}]}}'
    ).encode()


def test_requests_that_begin_alike_have_the_same_affinity() -> None:
    long, other = "you are a shop " * 200, "you are a bank " * 200
    assert asked(talk(long, "a")) == asked(talk(long, "b", seed=7)) != 0
    assert asked(talk(long, "a")) != asked(talk(other, "a"))
    assert asked(talk("short", "a")) == 0


def test_a_prompt_counts_where_there_are_no_messages() -> None:
    start = "x" * BEGINNING
    one, two = (asked(f'{{"prompt":"{start}{end}"}}'.encode(), Route.COMPLETIONS) for end in ("a", "b"))
    assert one == two != 0
    assert asked(b'{"prompt":"x"}', Route.COMPLETIONS) == 0
    assert asked(b"{}", Route.COMPLETIONS) == 0
